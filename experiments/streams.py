"""`python -m experiments.streams`: gains of memory and learning for one user, from the first answer on.

Prompts of a kind come one after the other.  Each is answered without drafts, by the drafter as it ships, by one that
remembers earlier answers, and by one that learns from them, too, in turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from experiments.results import Results, Row, page_of
from experiments.runner import EXACT, Experiment, Size, chosen, shown
from experiments.stream_prompts import STREAMS, prompts
from experiments.stream_report import picture, sections
from omnidraft.api import OmniDraft, load
from omnidraft.bench.compare import Question, questions_of
from omnidraft.bench.interleaved import ordered
from omnidraft.cli import flags
from omnidraft.cli.progress import progress
from omnidraft.config import Sampling

PLAIN = "plain"
WAYS: dict[str, dict[str, Any]] = {
    PLAIN: {"draft_length": 0, "reuse_answers": "nothing"},
    "frozen": {"reuse_answers": "nothing"},
    "memory": {"reuse_answers": "memory"},
    "learning": {"reuse_answers": "memory", "adapt": "inline"},
}
EDITS = "edits"  # whose answers are whole files
DIGITS = 5  # of seconds in the file


def models_of(options: argparse.Namespace) -> dict[str, OmniDraft]:
    """The ways, each a model with measurements and memory of its own, on one copy of the target's weights."""
    models: dict[str, OmniDraft] = {}
    places = {"dtype": options.dtype, "device": options.device, "profile": None, "warn": options.warn}
    for name in options.ways:
        models[name] = model = load(options.target, None if name == PLAIN else options.drafter, **places, **WAYS[name])
        first = models[options.ways[0]].target
        model.target, model.lane.target = first, first.lm.new_sequence()
    return models


def answer(model: OmniDraft, question: Question, new_tokens: int, temperature: float) -> tuple[list[int], Row]:
    """The tokens that a way answers with, and its counts and seconds, those of learning apart from the rest."""
    settings = asdict(Sampling(temperature=temperature))
    began = time.perf_counter()
    with model.stream(question.ids, max_new_tokens=new_tokens, seed=question.number, **settings) as stream:
        while stream.step() is not None and stream.rounds[-1].finish is None:
            pass
        decoded = time.perf_counter()
        while stream.step() is not None:  # where there is no round left, the answer is learned from
            pass
        learned = time.perf_counter()
    stats = stream.result.stats
    counts = {each: getattr(stats, each) for each in ("tokens", "rounds", "drafted", "counted", "proposed", "accepted")}
    counts["draft_passes"] = sum(each.counts.draft_passes for each in stream.rounds)
    taken = {each: getattr(stats, each) for each in ("draft_s", "verify_s", "overhead_s", "policy_s")}
    taken |= {"seconds": decoded - began, "learning_s": learned - decoded}
    return list(stream.result.token_ids), counts | {each: round(value, DIGITS) for each, value in taken.items()}


def follow(
    models: Mapping[str, OmniDraft], questions: Sequence[Question], new_tokens: int, temperature: float
) -> Iterator[tuple[int, Row]]:
    """Answer a stream's prompts in turns: for each its number and the row of all ways."""
    names = list(models)
    answer(models[names[0]], replace(questions[0], ids=questions[0].ids[-8:]), 2, temperature)  # warms up
    for place, question in enumerate(questions):
        found = {name: answer(models[name], question, new_tokens, temperature) for name in ordered(names, place)}
        first = found[names[0]][0]
        same = {name: {} if temperature else {"identical": found[name][0] == first} for name in names}
        yield question.number, {name: found[name][1] | same[name] for name in names}


class Streams(Experiment):
    """The prompts of one user after the other."""

    name = "streams"
    about = "Gains of memory and learning along the prompts of one user."
    examples = (
        "--target zoo:target-b --streams chinese,german --quick",
        "--target MODEL.gguf --dtype int8 --streams json,code --data DIR --out results/streams",
    )
    sizes: ClassVar = {
        "prompts": Size(120, 6, "prompts of a stream"),
        "new_tokens": Size(128, 16, "maximum tokens of an answer"),
        "edit_tokens": Size(700, 16, "maximum tokens of an answer of `edits`"),
    }

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", "--drafter", "--dtype", "--device")
        for name, known, what in (("--streams", STREAMS, "which"), ("--ways", WAYS, "methods to compare")):
            text = f"{what}, with commas (default: %(default)s)"
            to.add_argument(name, default=",".join(known), metavar="A,B", help=text)
        to.add_argument("--temperature", type=float, default=0.0, metavar="X", help="of answers (default: %(default)s)")
        to.add_argument("--data", type=Path, metavar="DIR", help="the folder of GSM8K and MBPP (default: the hub)")

    def setting(self, options: argparse.Namespace) -> Row:
        options.ways = chosen("way", options.ways.split(","), list(WAYS))
        options.streams = chosen("stream", options.streams.split(","), STREAMS)
        Sampling(temperature=options.temperature)
        for stream in options.streams:  # what is missing is known before minutes are spent
            prompts(stream, options.prompts, options.data)
        return super().setting(options) | {"ways": options.ways}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        options.warn = cache(console.print)  # each line once
        for stream in options.streams:
            _complete(options, stream, results, console)

    def page(self, results: Results) -> str:
        return page_of("Streams of one user", results, *sections(results))

    def write(self, results: Results, stem: Path) -> None:
        picture(results, stem.with_name(f"{stem.name}.svg"))

    def wrong(self, results: Results) -> bool:
        """Whether a greedy answer in float32 or int8 was not that of the first way."""
        ways = (way for row in results.of("answers").values() if row["exact"] for way in row["ways"].values())
        return any(way.get("identical") is False for way in ways)


def _complete(options: argparse.Namespace, stream: str, results: Results, console: Console) -> None:
    """Answer a stream that the file lacks, all of it: what is remembered and learned is of every answer before."""
    place = f"{shown(options.target)}|{stream}|{options.temperature:g}"
    if place in results.of("learned"):
        return
    models = models_of(options)
    new_tokens = options.edit_tokens if stream == EDITS else options.new_tokens
    first = models[options.ways[0]]
    exact = first.target.lm.precision in EXACT
    texts = prompts(stream, options.prompts, options.data)
    questions = questions_of(first, {stream: texts}, new_tokens, console)
    step = progress(console, place.replace("|", ", "), len(questions))
    for number, row in follow(models, questions, new_tokens, options.temperature):
        results.add("answers", f"{place}|{number}", {"number": number, "exact": exact, "ways": row})
        step()
    for model in models.values():
        model.close()
    results.add("learned", place, {name: model.learned for name, model in models.items() if model.learned})


main = Streams().main

if __name__ == "__main__":
    sys.exit(main())
