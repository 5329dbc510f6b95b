"""`python -m experiments.real`: speed with real models on everyday prompts, greedy and sampled.

`generate` of transformers, alone and with the same drafter (UAD), and our own loop answer each prompt in turns.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from experiments.results import Results, Row
from experiments.runner import EXACT, Experiment, Size, chosen, shown
from experiments.tasks import texts_of
from omnidraft.api import OmniDraft, load
from omnidraft.bench import methods, records, report
from omnidraft.bench.compare import Plan, Question, compare, questions_of
from omnidraft.bench.interleaved import EngineMethod, Method, Timed, engine_for
from omnidraft.bench.records import BASELINE
from omnidraft.cli import flags
from omnidraft.cli.progress import progress
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.errors import ConfigError

TASKS = ("instructions", "summaries", "slow", "gsm8k", "code")
TEMPERATURES = (0.0, 1.0)
Step = Callable[[], None]
COLUMNS = (
    *("target", "task", "temperature", "method", "speedup", "tokens_per_s", "acceptance_rate", "block_efficiency"),
    *("identical", "prompts", "logit_gap"),
)


def cell(
    model: OmniDraft,
    ways: list[Method],
    left_out: Mapping[str, str],
    questions: Sequence[Question],
    plan: Plan,
    step: Step,
) -> list[Row]:
    """A row for each way, the first of which is the baseline: `identical` counts the answers that are those of it."""
    task = questions[0].task
    results = records.Results(setting={"target": "", "tasks": {task: {}}})
    results.unavailable |= left_out
    gaps: dict[str, list[float]] = defaultdict(list)

    def watch(question: Question, answers: Sequence[Timed]) -> None:
        said = [each.answer.tokens for each in answers]
        for way, tokens in zip(ways, said, strict=True):
            if not plan.sampled and tokens != said[0]:
                gaps[way.name].append(gap(model, question.ids, said[0], tokens))

    compare(ways, questions, plan, results, step, watch)
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
    tasks: Sequence[str] = TASKS
    theirs = (BASELINE, "uad")  # methods of transformers

    def add_options(self, to: flags.CommandParser) -> None:
        flags.add(to, "--target", action="append", help="a folder, a GGUF file, a hub id or zoo:NAME; repeatable")
        flags.add(to, "--drafter", "--dtype", "--device")
        to.add_argument("--task", action="append", metavar="NAME", help=f"of {', '.join(self.tasks)} (default: all)")
        to.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")

    def setting(self, options: argparse.Namespace) -> Row:
        options.task = chosen("task", options.task or self.tasks, self.tasks)
        if len(set(map(shown, options.target))) < len(options.target):
            raise ConfigError("two targets have the same name: measure them one by one, each with an --out of its own")
        for task in options.task:  # what is missing is known before minutes are spent
            self.texts(task, options.data, options.prompts)
        return super().setting(options)

    def texts(self, task: str, data: Path | None, count: int) -> Sequence[str | Sequence[str]]:
        """The first prompts of a task, of a conversation all its turns."""
        return texts_of(task, data, count)

    def engines(self, model: OmniDraft) -> dict[str, Engine]:
        """Our own methods, whose draft-length policies keep what they measure on a task."""
        return {"frozen": engine_for(model, Drafting())}

    def questions(self, model: OmniDraft, texts: dict[str, Any], new_tokens: int, console: Console) -> list[Question]:
        """The prompts of a task as token ids."""
        return questions_of(model, texts, new_tokens, console)

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        places = {"dtype": options.dtype, "device": options.device, "profile": None, "warn": console.print}
        for target in options.target:
            model = load(target, options.drafter, **places)
            for task in options.task:
                left = [warm for warm in TEMPERATURES if f"{shown(target)}|{task}|{warm:g}" not in results.of("done")]
                engines = self.engines(model)
                texts = {task: self.texts(task, options.data, options.prompts)}
                questions = self.questions(model, texts, options.new_tokens, console) if left else []
                for warm in left:
                    sampling = Sampling(temperature=warm)
                    ways, left_out = methods.make(self.theirs, model, 0, sampling)
                    ways += [EngineMethod(name, engine, sampling) for name, engine in engines.items()]
                    plan = Plan(new_tokens=options.new_tokens, repeats=1, sampled=not sampling.greedy)
                    key = f"{shown(target)}|{task}|{warm:g}"
                    step = progress(console, key.replace("|", ", "), len(questions))
                    named = {"target": shown(target), "task": task, "temperature": warm}
                    named |= {"dtype": model.target.lm.precision, "drafter": model.drafter and model.drafter.name}
                    for row in cell(model, ways, left_out, questions, plan, step):
                        results.add("rows", f"{key}|{task}|{row['method']}", named | row)
                    results.add("done", key, {})

    def wrong(self, results: Results) -> bool:
        """Whether a greedy answer in float32 or int8 was not the target's own."""
        rows = (row for row in results.of("rows").values() if row["dtype"] in EXACT and row["identical"] is not None)
        return any(row["identical"] < row["prompts"] for row in rows)


main = Real().main

if __name__ == "__main__":
    sys.exit(main())
