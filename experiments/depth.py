"""`python -m experiments.depth`: what a long text costs: to read it, and each pass and each answer after it.

One GGUF file in our 8-bit step and, where it is installed, in llama.cpp, in turns; answers with drafts and without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console

from experiments.command import parser, run
from experiments.real import shown, texts_of
from experiments.results import Results, Row
from omnidraft.api import OmniDraft, load
from omnidraft.bench import llama
from omnidraft.bench.environment import command
from omnidraft.bench.interleaved import PLAIN, engine_for, sampler
from omnidraft.bench.output import down, markdown_table, progress, writing
from omnidraft.cli import flags
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.models.language_model import KVSequence

OURS, LLAMA = "ours", "llama.cpp"
ROWS = 1, 5, 8  # tokens of a pass
ROOM = 128  # tokens after the longest text
COLUMNS = ("target", "tokens", "method", "read_per_s", *(f"ms_{rows}" for rows in ROWS), "plain_per_s", "drafted_per_s")


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Tokens before what is timed, times that each is timed, and tokens of an answer."""

    depths: tuple[int, ...]
    repeats: int
    new_tokens: int


FULL = Sizes(depths=(64, 512, 2048, 6500), repeats=9, new_tokens=64)
QUICK = Sizes(depths=(32, 64), repeats=2, new_tokens=8)


def text_of(model: OmniDraft, count: int) -> list[int]:
    """So many tokens of prompts, each another, the beginning of one text."""
    text = "\n\n".join(texts_of("instructions", None, 100))
    ids = model.encode(text)
    while len(ids) < count:
        ids += ids[1:]
    return ids[:count]


def read_seconds(sequence: KVSequence, ids: Sequence[int]) -> float:
    """Seconds to read a text from its beginning."""
    sequence.crop(0)
    began = time.perf_counter()
    sequence.forward(ids, 1)
    return time.perf_counter() - began


def pass_seconds(sequence: KVSequence, ids: Sequence[int]) -> float:
    """Seconds of a pass over these ids, which are taken back."""
    length, began = sequence.length, time.perf_counter()
    sequence.forward(ids, len(ids))
    taken = time.perf_counter() - began
    sequence.crop(length)
    return taken


def answer(engine: Engine, ids: Sequence[int], new_tokens: int) -> tuple[list[int], float]:
    """The tokens of a greedy answer, and tokens a second after the first round, which reads the text."""
    tokens: list[int] = []
    began, first = time.perf_counter(), 0
    for record in engine.rounds(ids, new_tokens, Sampling(), sampler()):
        tokens += record.emitted
        if not first:
            began, first = time.perf_counter(), len(tokens)
    return tokens, max(1, len(tokens) - first) / (time.perf_counter() - began)


def at_depth(model: OmniDraft, forms: Mapping[str, KVSequence], depth: int, sizes: Sizes) -> dict[str, Row]:
    """The row of each form of the target at a depth; all are timed in turns."""
    ids = text_of(model, depth + max(ROWS))
    read, taken = {}, defaultdict[tuple[str, int], list[float]](list)
    for name, sequence in forms.items():
        read[name] = read_seconds(sequence, ids[:depth])
    for _ in range(sizes.repeats + 1):  # the first one warms up
        for name, sequence in forms.items():
            pass_seconds(sequence, ids[depth : depth + 1])  # meanwhile the other's threads end to wait for work
            for rows in ROWS:
                taken[name, rows].append(pass_seconds(sequence, ids[depth : depth + rows]))
    found: dict[str, Row] = {
        name: {"read_per_s": depth / read[name]}
        | {f"ms_{rows}": 1e3 * statistics.median(taken[name, rows][1:]) for rows in ROWS}
        for name in forms
    }
    ways = {"plain_per_s": PLAIN, "drafted_per_s": Drafting(remember="request")}
    answers = {name: answer(engine_for(model, way), ids[:depth], sizes.new_tokens) for name, way in ways.items()}
    found[OURS] |= {name: speed for name, (_, speed) in answers.items()}
    found[OURS]["identical"] = len({tuple(tokens) for tokens, _ in answers.values()}) == 1
    return found


def markdown(results: Results) -> str:
    """The commands, and a row for each target, depth and form."""
    commands = "".join(f"    {each}\n" for each in dict.fromkeys(setting["command"] for setting in results.settings))
    rows = results.of("depths").values()
    lines = [[_cell(name, row.get(name)) for name in COLUMNS] for row in rows]
    return f"# Long texts\n\n{commands}\n{markdown_table(COLUMNS, lines, 3)}"


def _cell(name: str, value: object) -> object:
    if not isinstance(value, float):
        return "–" if value is None else value
    return f"{value:.2f}" if name.startswith("ms_") else down(value, 1)


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure what the file lacks; 1 where an answer with drafts was not that without."""
    sizes = QUICK if options.quick else FULL
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), "depth")
    results.begin(command(options.words), asdict(sizes) | {"threads": torch.get_num_threads()})
    model = load(options.target, options.drafter, dtype="int8", profile=None, warn=console.print)
    forms: dict[str, KVSequence] = {OURS: model.target.lm.new_sequence()}
    if llama.llama_module() is None:
        console.print(f"llama.cpp is left out, as it is not installed: {llama.EXTRA}")
    else:
        context = max(sizes.depths) + ROOM
        forms[LLAMA] = llama.LlamaModel(Path(options.target), context, torch.get_num_threads()).new_sequence()
    step = progress(console, shown(options.target), len(sizes.depths))
    for depth in sizes.depths:
        for name, row in at_depth(model, forms, depth, sizes).items():
            key = {"target": shown(options.target), "tokens": depth, "method": name}
            results.add("depths", "|".join(map(str, key.values())), key | row)
        step()
    page = markdown(results)
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    return 0 if all(row.get("identical", True) for row in results.of("depths").values()) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure long texts on this CPU, and return the exit code."""
    options = parser(
        "depth",
        "What a long text costs: reading it, passes of 1, 5 and 8 tokens after it, and answers to it.",
        "--target zoo:target-b --quick",
        "--target MODEL.gguf --threads 2 --out results/depth",
    )
    flags.add(options, "--target", "--drafter")
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
