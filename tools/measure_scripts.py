"""Time and count what a drafter's text of target tokens costs, script by script: docs/tokenizers.md.

    python tools/measure_scripts.py DRAFTER_TOKENIZER TARGET_TOKENIZER...

How many more tokens than the drafter itself would take, spelled token by token and as the lane commits them, and how
long both take for a committed token: the least of several runs, the first of which fills the processor's caches.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.spelling_table import build_table
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.models.loading import load_tokenizer

RUNS = 20
Commit = Callable[[list[int], Sequence[int]], None]


def measured(commit: Commit, rounds: Sequence[Sequence[int]]) -> tuple[list[int], float]:
    """The text that comes of committing these rounds, and microseconds a target token."""
    text: list[int] = []
    best = float("inf")
    for _ in range(RUNS):
        text, taken = [], 0.0
        for part in rounds:
            began = time.perf_counter()
            commit(text, part)
            taken += time.perf_counter() - began
        best = min(best, taken)
    return text, 1e6 * best / sum(map(len, rounds))


def main(drafter_name: str, *target_names: str) -> None:
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from support.texts import TEXTS, chunks

    drafter = load_tokenizer(drafter_name)
    own = read_vocab(drafter)
    speller = Speller(drafter, own)
    print("| target | text | tokens | excess, token by token | as committed | µs a token | µs as committed |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for name in target_names:
        target = load_tokenizer(name)
        vocab = read_vocab(target)
        translator = DrafterContext(build_table(own, vocab, speller, Speller(target, vocab)), vocab, own, speller)

        def spelled(text: list[int], part: Sequence[int], translator: DrafterContext = translator) -> None:
            text += translator.tokens(part)

        def committed(text: list[int], part: Sequence[int], translator: DrafterContext = translator) -> None:
            added, kept = translator.after(text, 0, part)
            text[kept:] = added

        for script, written in TEXTS.items():
            ids: list[int] = target.encode(written, add_special_tokens=False)
            (before, before_us), (after, after_us) = (
                measured(commit, list(chunks(ids))) for commit in (spelled, committed)
            )
            canonical = speller.spell(b"".join(vocab.tokens[i] or b"" for i in ids)) or ()
            excess = [f"{100 * (len(text) / len(canonical) - 1):+.1f} %" for text in (before, after)]
            place = Path(name).name
            print(f"| {place} | {script} | {len(ids)} | {excess[0]} | {excess[1]} | {before_us:.1f} | {after_us:.1f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
