"""Draft-length policies against fixed lengths and plain decoding, in parts that can each be run alone.

cells      policies beside fixed draft lengths and plain decoding, by task and temperature; and the head's calibration
hopeless   cases in which drafts cannot pay
schedules  the acceptance head beside a drafter that learns: the shape of the paper's Table 2

All ways answer a prompt together, some tokens in turns, each with KV caches and n-grams of its own.  N-grams begin anew
with each repeat, what a policy measures with each cell.  The acceptance head learned beforehand, from other prompts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from experiments import tasks
from experiments.command import parts_of, write_report
from experiments.compared import UNITS, Row, compared, medians
from experiments.results import Results
from experiments.stopping import acceptance_head, worst_cases
from experiments.stopping.tables import markdown
from omnidraft.api import OmniDraft, load
from omnidraft.bench import prompts
from omnidraft.bench.environment import command
from omnidraft.bench.interleaved import PLAIN, EngineWay, isolated
from omnidraft.config import Drafting, Sampling
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.errors import ConfigError

Sizes = dict[str, int]
Ids = dict[str, list[list[int]]]  # prompts of each task
PARTS = ("cells", "hopeless", "schedules")
POLICIES = ("confidence", "entropy", "head", "goodput")
WITHOUT = "goodput without the head"
TASKS = ("gsm8k", "mbpp")
IN_TURNS = "in turns"  # of the tasks
TEMPERATURES = (0.0, 1.0)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
FULL = {"count": 50, "repeats": 3, "max_new_tokens": 96, "hopeless": 200, "learn": 100}
QUICK = {"count": 2, "repeats": 1, "max_new_tokens": 48, "hopeless": 8, "learn": 8}
QUICK_LENGTHS = (1, 2, 4)
KEYS = ("target", "task", "temperature", "way", "case", "repeat")


def ways(
    model: OmniDraft, lengths: Sequence[int], head: Head, sampling: Sampling, *, goodput_only: bool = False
) -> list[EngineWay]:
    """Plain decoding, fixed lengths, and the policies, of which `head` is for those that have one."""
    policies = ("goodput",) if goodput_only else POLICIES
    made = {
        "plain": isolated(model, PLAIN),
        **{f"fixed {length}": isolated(model, Drafting(draft_length=length), head) for length in lengths},
        **{name: isolated(model, Drafting(draft_length=name), head) for name in policies},
        WITHOUT: isolated(model, Drafting(draft_length="goodput"), Head()),
    }
    return [EngineWay(name, engine, sampling) for name, engine in made.items()]


class Study:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, console: Console, results: Results) -> None:
        self.options, self.console, self.results = options, console, results
        self.sizes = {name: getattr(options, name) or size for name, size in (QUICK if options.quick else FULL).items()}
        self.lengths = options.draft_length or (QUICK_LENGTHS if options.quick else LENGTHS)
        self.texts, self.others = texts(options.data, self.sizes)
        self.tasks = options.task or (*TASKS, IN_TURNS)
        self.temperatures = options.temperature or TEMPERATURES

    def run(self, name: str, parts: Sequence[str]) -> None:
        """The parts for one target."""
        model = load(name, self.options.drafter, dtype=self.options.dtype, profile=None)
        others, ids = (
            {task: [model.encode_message(text) for text in its] for task, its in some.items()}
            for some in (self.others, self.texts)
        )
        if "cells" in parts:
            self._cells(model, ids, others)
        if "hopeless" in parts:
            for row in worst_cases.cases(model, ids[TASKS[0]], self.sizes["hopeless"]):
                self._add("hopeless", model, row, f"{row['case']}: {row['speedup']:.3f} of plain decoding")
        if "schedules" in parts:
            for task in (task for task in TASKS if task in self.tasks):
                rows = acceptance_head.schedules(
                    model, others[task], ids[task], self.sizes["max_new_tokens"], self.sizes["repeats"]
                )
                for row in rows:
                    self._add("schedules", model, {"task": task} | row, f"{task}: {row['way']}: {row['speedup']:.3f}x")

    def _cells(self, model: OmniDraft, ids: Ids, others: Ids) -> None:
        new_tokens = self.sizes["max_new_tokens"]
        head = acceptance_head.teach(model, acceptance_head.examples(model, in_turns(others), new_tokens))
        mixed = in_turns({task: its[: -(-len(its) // 2)] for task, its in ids.items()})
        for task in self.tasks:
            for temperature in self.temperatures:
                self._cell(model, {**ids, IN_TURNS: mixed}[task], head, {"task": task, "temperature": temperature})
        for temperature in self.temperatures if IN_TURNS in self.tasks else ():
            for row in acceptance_head.calibration(model, head, mixed, new_tokens, temperature):
                error = f"calibration error {row['expected_calibration_error']:.3f} of {row['way']}"
                self._add("calibration", model, row, f"temperature {temperature:g}: {error}")

    def _cell(self, model: OmniDraft, ids: Sequence[list[int]], head: Head, where: Row) -> None:
        """One target, task and temperature; with --more its repeats are added to those that there are."""
        about = {"target": model.target.name, **where}
        if not self.options.more:
            self.results.forget("cells", about)
        done = [row["repeat"] for row in self.results.of("cells") if about.items() <= row.items()]
        first = max(done, default=-1) + 1
        made = ways(
            model, self.lengths, head, Sampling(temperature=where["temperature"]),
            goodput_only=self.options.goodput_only,
        )  # fmt: skip
        repeats = range(first, first + self.sizes["repeats"])
        rows = list(compared(made, ids, self.sizes["max_new_tokens"], repeats, restart=True))
        for row in rows:
            self.results.add("cells", about | row)
        found = medians(rows)
        for unit in UNITS:
            best = max((way for way in found if way.startswith("fixed")), key=lambda way: float(found[way][unit]))
            said = f"{unit} {found[best][unit]:.3f} of {best}, {found['goodput'][unit]:.3f} of goodput"
            self.console.print(f"{', '.join(map(str, about.values()))}: {said}")

    def _add(self, kind: str, model: OmniDraft, row: Row, words: str) -> None:
        self.results.add(kind, {"target": model.target.name} | row)
        self.console.print(f"{model.target.name}, {words}")


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure; 1 where a greedy answer was not the target's own."""
    parts = parts_of(options.parts, PARTS)
    if options.more and options.out is None:
        raise ConfigError("more repeats need a file that holds the others: give --out")
    results = Results(options.out and options.out.with_suffix(".jsonl"), "stopping", KEYS)
    study = Study(options, console, results)
    results.begin(command(options.words), sizes=study.sizes)
    for name in options.target:
        study.run(name, parts)
    write_report(options.out, markdown(results))
    print(json.dumps(results.as_dict()))
    rows = [*results.of("cells"), *results.of("hopeless"), *results.of("schedules")]
    return 0 if all(row["identical"] is not False for row in rows) else 1


def texts(data: Path, sizes: Sizes) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Prompts to answer, and others to learn from, for each task."""
    count, learn = sizes["count"], sizes["learn"]
    coding = prompts.read("mbpp", data, count + learn)
    unseen = tasks.training(data)[-tasks.KEPT_OUT :]
    answered = {"gsm8k": prompts.read("gsm8k", data, count), "mbpp": coding[:count]}
    return answered, {"gsm8k": unseen[:learn], "mbpp": coding[count:]}


def in_turns(ids: Ids) -> list[list[int]]:
    """Prompts of the tasks in turns."""
    return list(chain.from_iterable(zip(*(ids[task] for task in TASKS), strict=False)))
