"""`python -m experiments.depth`: what a long text costs: to read it, and each pass and each answer after it.

One GGUF file in our 8-bit step and, where it is installed, in llama.cpp, in turns; answers with drafts and without.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from experiments import llama
from experiments.device import ABSENT
from experiments.judging import passes
from experiments.results import Results, Row, page_of, table
from experiments.runner import Experiment, Size, shown
from experiments.tasks import texts_of
from omnidraft.api import OmniDraft, load
from omnidraft.bench.interleaved import PLAIN, lane_for, sampler
from omnidraft.cli import flags
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.models.language_model import KVSequence

OURS, LLAMA = "ours", "llama.cpp"
ROWS = 1, 5, 8  # tokens of a pass
ROOM = 128  # tokens after the longest text
MS = tuple(f"ms_{rows}" for rows in ROWS)
COLUMNS = ("target", "tokens", "method", "read_per_s", *MS, "plain_per_s", "drafted_per_s")


def answer(lane: Lane, ids: Sequence[int], new_tokens: int) -> tuple[list[int], float]:
    """The tokens of a greedy answer, and tokens a second after the first round, which reads the text."""
    tokens: list[int] = []
    began, first = time.perf_counter(), 0
    for record in decode(lane, ids, new_tokens, Sampling(), sampler()):
        tokens += record.emitted
        if not first:
            began, first = time.perf_counter(), len(tokens)
    return tokens, max(1, len(tokens) - first) / (time.perf_counter() - began)


def at_depth(
    model: OmniDraft, forms: Mapping[str, KVSequence], depth: int, repeats: int, new_tokens: int
) -> dict[str, Row]:
    """The row of each form of the target at a depth; all are timed in turns."""
    text = model.encode("\n\n".join(texts_of("instructions", None, 100)))
    ids = list(itertools.islice(itertools.cycle(text), depth + max(ROWS)))
    found = passes(forms, ids, ROWS, repeats)
    ways = {"plain_per_s": PLAIN, "drafted_per_s": Drafting(reuse_answers="request")}
    answers = {name: answer(lane_for(model, way), ids[:depth], new_tokens) for name, way in ways.items()}
    found[OURS] |= {name: speed for name, (_, speed) in answers.items()}
    found[OURS]["identical"] = len({tuple(tokens) for tokens, _ in answers.values()}) == 1
    return found


class Depth(Experiment):
    """Texts of several lengths, read and answered."""

    name = "depth"
    about = "What a long text costs: reading it, passes of 1, 5 and 8 tokens after it, and answers to it."
    examples = ("--target zoo:target-b --quick", "--target MODEL.gguf --threads 2 --out results/depth")
    sizes: ClassVar = {
        "depths": Size((64, 512, 2048, 6500), (32, 64), "tokens before what is timed, repeatable"),
        "repeats": Size(9, 2, "times that each pass is timed"),
        "new_tokens": Size(64, 8, "tokens of an answer"),
    }

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", "--drafter")

    def setting(self, options: argparse.Namespace) -> Row:
        return {"threads": options.threads}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        model = load(options.target, options.drafter, dtype="int8", profile=None, warn=console.print)
        forms: dict[str, KVSequence] = {OURS: model.target.lm.new_sequence()}
        if llama.llama_module() is None:
            console.print(ABSENT)
        else:
            room = max(options.depths) + ROOM
            forms[LLAMA] = llama.LlamaModel(Path(options.target), room, options.threads).new_sequence()
        step = progress(console, shown(options.target), len(options.depths))
        for depth in options.depths:
            for name, row in at_depth(model, forms, depth, options.repeats, options.new_tokens).items():
                key = {"target": shown(options.target), "tokens": depth, "method": name}
                results.add("depths", "|".join(map(str, key.values())), key | row)
            step()

    def page(self, results: Results) -> str:
        made = table(results.of("depths").values(), COLUMNS, "read_per_s", 1, dict.fromkeys(MS, 2), MS)
        return page_of("Long texts", results, made)

    def wrong(self, results: Results) -> bool:
        """Whether an answer with drafts was not that without."""
        return not all(row.get("identical", True) for row in results.of("depths").values())


main = Depth().main

if __name__ == "__main__":
    sys.exit(main())
