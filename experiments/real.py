"""`python -m experiments.real`: speed with real models on everyday prompts, greedy and sampled.

`generate` of transformers, alone and with the same drafter (UAD), and our own loop answer each prompt in turns.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from experiments.results import Results, Row
from experiments.runner import EXACT, Experiment, Size, chosen, shown
from experiments.tasks import texts_of
from omnidraft.api import OmniDraft, load
from omnidraft.bench import methods, records, report
from omnidraft.bench.compare import Plan, Question, compare, questions_of
from omnidraft.bench.interleaved import LaneMethod, Timed, lane_for
from omnidraft.bench.records import BASELINE
from omnidraft.cli import flags
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.errors import ConfigError

TASKS = ("instructions", "summaries", "slow", "gsm8k", "code")
TEMPERATURES = (0.0, 1.0)
THEIRS = (BASELINE, "uad")  # methods of transformers
COLUMNS = (
    *("target", "task", "temperature", "method", "speedup", "tokens_per_s", "acceptance_rate", "block_efficiency"),
    *("identical", "prompts", "logit_gap"),
)


def cell(
    model: OmniDraft,
    lane: Lane,
    sampling: Sampling,
    questions: Sequence[Question],
    new_tokens: int,
    step: Callable[[], None],
) -> list[Row]:
    """A row for each way, the first of which is the baseline: `identical` counts the answers that are those of it."""
    task = questions[0].task
    ways, left_out = methods.make(THEIRS, model, 0, sampling)
    ways.append(LaneMethod("frozen", lane, sampling))
    results = records.Results(setting={"target": "", "tasks": {task: {}}})
    results.unavailable |= left_out
    gaps: dict[str, list[float]] = defaultdict(list)

    def watch(question: Question, answers: Sequence[Timed]) -> None:
        said = [each.answer.tokens for each in answers]
        for way, tokens in zip(ways, said, strict=True):
            if sampling.greedy and tokens != said[0]:
                gaps[way.name].append(gap(model, question.ids, said[0], tokens))

    compare(ways, questions, Plan(new_tokens=new_tokens, repeats=1, sampled=not sampling.greedy), results, step, watch)
    names = ("method", "speedup", "acceptance_rate", "block_efficiency", "prompts", "tokens", "unavailable")
    return [
        {name: row[name] for name in names}
        | {"tokens_per_s": row["tokens_per_s_total"], "logit_gap": max(gaps[row["method"]], default=None)}
        | {"identical": None if row["different"] is None else row["prompts"] - row["different"]}
        for row in report.rows([results])
        if row["task"] == task
    ]


def gap(model: OmniDraft, ids: list[int], expected: list[int], found: list[int]) -> float:
    """The distance of the target's logits of the first two tokens that differ: next to none at a tie."""
    pairs = enumerate(zip(expected, found, strict=False))
    place = next((place for place, (one, other) in pairs if one != other), None)
    if place is None:  # one ends before the other
        return math.inf
    logits = model.target.lm.new_sequence().forward([*ids, *expected[:place]], 1)[0].float()
    return abs(float(logits[expected[place]] - logits[found[place]]))


class Real(Experiment):
    """Targets on tasks."""

    name = "real"
    about = "Speed with real models on everyday prompts, greedy and sampled."
    examples: Sequence[str] = (
        "--target HuggingFaceTB/SmolLM2-135M-Instruct --data DIR --quick",
        "--target FOLDER --target MODEL.gguf --drafter FOLDER --data DIR --out results/real",
    )
    sizes: ClassVar = {
        "prompts": Size(20, 2, "prompts of a task"),
        "new_tokens": Size(128, 32, "maximum tokens of an answer"),
    }
    title, columns, first, places = "Real models", COLUMNS, "speedup", 3

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", action="append", help="a folder, a GGUF file, a hub id or zoo:NAME; repeatable")
        flags.add(to, "--drafter", "--dtype", "--device")
        to.add_argument("--task", action="append", metavar="NAME", help=f"of {', '.join(TASKS)} (default: all)")
        to.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")

    def setting(self, options: argparse.Namespace) -> Row:
        options.task = chosen("task", options.task or TASKS, TASKS)
        if len(set(map(shown, options.target))) < len(options.target):
            raise ConfigError("two targets have the same name: measure them one by one, each with an --out of its own")
        for task in options.task:  # what is missing is known before minutes are spent
            texts_of(task, options.data, options.prompts)
        return super().setting(options)

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        places = {"dtype": options.dtype, "device": options.device, "profile": None, "warn": console.print}
        for target in options.target:
            model = load(target, options.drafter, **places)
            about = {"target": shown(target), "dtype": model.target.lm.precision}
            drafter = model.drafter.name if model.drafter else None
            for task in options.task:
                lane = lane_for(model, Drafting())  # whose policy keeps what it measures on a task
                for warm in TEMPERATURES:
                    if (key := f"{shown(target)}|{task}|{warm:g}") in results.of("done"):
                        continue
                    texts = {task: texts_of(task, options.data, options.prompts)}
                    questions = questions_of(model, texts, options.new_tokens, console)
                    step = progress(console, key.replace("|", ", "), len(questions))
                    named = about | {"task": task, "temperature": warm, "drafter": drafter}
                    for row in cell(model, lane, Sampling(temperature=warm), questions, options.new_tokens, step):
                        results.add("rows", f"{key}|{task}|{row['method']}", named | row)
                    results.add("done", key, {})

    def wrong(self, results: Results) -> bool:
        """Whether a greedy answer in float32 or int8 was not the target's own."""
        rows = (row for row in results.of("rows").values() if row["dtype"] in EXACT and row["identical"] is not None)
        return any(row["identical"] < row["prompts"] for row in rows)


main = Real().main

if __name__ == "__main__":
    sys.exit(main())
