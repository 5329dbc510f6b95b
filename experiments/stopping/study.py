"""Draft-length policies against fixed lengths and plain decoding, in parts that can each be run alone.

cells      policies beside draft lengths that are fixed and no drafts at all, for tasks and temperatures
hopeless   where drafts cannot pay
schedules  the acceptance head beside a drafter that learns: the shape of the paper's Table 2

All ways answer a prompt at once, in turns.  Each has n-grams and, where it learns, measurements of its own:
n-grams begin anew with each repeat, measurements with each cell.  The acceptance head learned beforehand, from other
prompts of the tasks.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from rich.console import Console

from experiments.stopping import acceptance_head as head_study
from experiments.stopping import worst_cases as hopeless
from experiments.stopping.tables import markdown
from omnidraft.api import OmniDraft, load
from omnidraft.attach import make_cache
from omnidraft.bench import environment as setting
from omnidraft.bench import prompts
from omnidraft.bench.environment import writing
from omnidraft.bench.interleaved import UNITS, Way, apart, over, repeat
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.policies import make_policy
from omnidraft.errors import ConfigError, InputError
from omnidraft.models.cpu_llama import LeanLlama

Row = dict[str, Any]
Sizes = dict[str, int]
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
KEYS = ("target", "task", "temperature", "policy", "method", "case", "draft_length")  # what a row is about


def ways(model: OmniDraft, lengths: Sequence[int], head: Head, *, goodput_only: bool = False) -> list[Way]:
    """Plain decoding, fixed lengths, and the policies, of which `head` is for those that have one."""
    made = [("plain", Drafting(draft_length=0))]
    made += [("fixed", Drafting(draft_length=length)) for length in lengths]
    made += [(name, Drafting(draft_length=name)) for name in (("goodput",) if goodput_only else POLICIES)]
    compared = [Way(name, drafting, fresh(model, drafting, head)) for name, drafting in made]
    without = Drafting(draft_length="goodput")
    return [*compared, Way(WITHOUT, without, fresh(model, without, Head()))]


def fresh(model: OmniDraft, drafting: Drafting, head: Head, before: Engine | None = None) -> Engine:
    """An engine with n-grams and KV caches of its own, and the measurements of the one before it."""
    pair = model.engine.attached
    if pair is None or model.drafter is None:
        raise ValueError("a comparison of stop policies needs a drafter")
    target, eos = before.target if before else apart(model.target.lm), sorted(model.engine.eos)
    if drafting.draft_length == 0:
        return Engine(target, eos)
    step = pair.drafter.model
    if before and before.attached:
        drafter = before.attached.drafter
    else:  # all with the same weights, which would else crowd the caches of the processor
        drafter = Drafter(step.with_own_cache() if isinstance(step, LeanLlama) else apart(model.drafter.lm))
    own = replace(pair, drafter=drafter, cache=make_cache(pair.cache.table, drafting), head=head)
    stopping = before.policy if before else make_policy(drafting, head)
    return Engine(target, eos, own, drafting, stopping)


def cell(
    model: OmniDraft,
    compared: Sequence[Way],
    ids: Sequence[list[int]],
    sampling: Sampling,
    sizes: Sizes,
    first: int = 0,
) -> Iterator[Row]:
    """Rows of one target, task and temperature; greedy answers must all be the same.

    The first of the ways is plain decoding.  The repeats are numbered from `first` on, where there were others before.
    """
    order = random.Random(0)  # noqa: S311  an order, not a secret
    identical = True
    for number in range(first, first + sizes["repeats"]):
        for way in compared:
            own = way.engine.attached.head if way.engine.attached else Head()
            way.engine = fresh(model, way.drafting, own, way.engine)
        identical &= repeat(compared, ids, sizes["max_new_tokens"], sampling, order, 1000 * number)
    for way in compared:
        each = [
            mine | {f"plain_{unit}": plain[unit] for unit in UNITS} | {"ways": len(compared)}
            for mine, plain in zip(way.repeats, compared[0].repeats, strict=True)
        ]
        yield {
            "policy": way.policy,
            **way.summary(),
            **over(each),
            "prompts": len(ids),
            "identical": identical if sampling.greedy else None,
            "repeats": each,
        }


# ---------------------------------------------------------------- the command


class Bench:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options, self.console = options, console
        self.sizes = {name: getattr(options, name) or size for name, size in (QUICK if options.quick else FULL).items()}
        self.lengths = options.draft_length or (QUICK_LENGTHS if options.quick else LENGTHS)
        self.texts, self.others = _texts(options.data, self.sizes)
        self.rows: list[tuple[str, Row]] = []
        self.tasks = options.task or (*TASKS, IN_TURNS)
        self.before = keep(options.out, [], {})["cells"] if options.more else []

    def run(self, name: str, parts: Sequence[str]) -> None:
        """The parts for one target."""
        model = load(name, self.options.drafter, dtype=self.options.dtype, profile=None)
        about = {"target": model.target.name}
        others = {task: [model.encode_message(text) for text in its] for task, its in self.others.items()}
        ids = {task: [model.encode_message(text) for text in its] for task, its in self.texts.items()}
        new_tokens = self.sizes["max_new_tokens"]
        if "cells" in parts:
            head = head_study.teach(model, head_study.lessons(model, _in_turns(others), new_tokens))
            mixed = _in_turns({task: its[: -(-len(its) // 2)] for task, its in ids.items()})
            self._cells(model, about, {**ids, IN_TURNS: mixed}, head)
            for temperature in self.options.temperature or TEMPERATURES if IN_TURNS in self.tasks else ():
                for row in head_study.calibration(model, head, mixed, new_tokens, temperature):
                    self.add("calibration", about | row)
                    self.console.print(
                        f"{about['target']}, temperature {temperature:g}: expected calibration error "
                        f"{row['expected_calibration_error']:.3f} of {row['policy']}"
                    )
        if "hopeless" in parts:
            for row in hopeless.cases(model, ids[TASKS[0]], self.sizes["hopeless"]):
                self.add("never_slower", about | row)
                self.console.print(f"{about['target']}: {row['case']}: {row['ratio']:.3f} of the target alone")
        if "schedules" in parts:
            for task in (task for task in TASKS if task in self.tasks):
                plan = head_study.Schedule(others[task], ids[task], new_tokens, self.sizes["repeats"])
                for row in head_study.schedules(model, plan):
                    self.add("schedules", about | {"task": task} | row)
                    self.console.print(
                        f"{about['target']}, {task}: {row['method']}: acceptance {row['acceptance_rate']:.3f}, "
                        f"{row['speedup']:.3f}x"
                    )

    def _cells(self, model: OmniDraft, about: Row, ids: dict[str, list[list[int]]], head: Head) -> None:
        for task in self.tasks:
            for temperature in self.options.temperature or TEMPERATURES:
                where = {**about, "task": task, "temperature": temperature}
                first = max((len(row["repeats"]) for row in self.before if where.items() <= row.items()), default=0)
                sampling = Sampling(temperature=temperature)
                its = ways(model, self.lengths, head, goodput_only=self.options.goodput_only)
                rows = [where | row for row in cell(model, its, ids[task], sampling, self.sizes, first)]
                for row in rows:
                    self.add("cells", row)
                its.clear()  # before the next ones are made
                for unit in UNITS:
                    best = max((r for r in rows if r["policy"] == "fixed"), key=lambda row: float(row[unit]))
                    rate = next(row for row in rows if row["policy"] == "goodput")
                    self.console.print(
                        f"{about['target']}, {task}, temperature {temperature:g}: plain {rate['plain_' + unit]:.1f}, "
                        f"best fixed ({best['draft_length']}) {best[unit]:.1f}, goodput {rate[unit]:.1f} {unit}"
                    )

    def add(self, section: str, row: Row) -> None:
        """Keep a row, in the file too where there is one."""
        self.rows.append((section, row))
        if self.options.out is not None:
            keep(self.options.out, [(section, row)], {}, more=self.options.more)


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure; 1 where a greedy answer was not the target's own."""
    parts = options.parts.split(",")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"part {part!r} is not known; use some of {', '.join(PARTS)}, with commas between")
    if options.more and options.out is None:
        raise ConfigError("more repeats need a file that holds the others: give --out")
    bench = Bench(options, console)
    if options.out is not None:
        keep(options.out, [], {})
    for name in options.target:
        bench.run(name, parts)
    run = {
        "settings": {**setting.machine(torch.device("cpu")), "sizes": bench.sizes},
        "command": setting.command(options.words),
    }
    result = keep(options.out, [] if options.out else bench.rows, run)
    if options.out is not None:
        with writing(options.out):
            options.out.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if all(row.get("identical") is not False for _, row in bench.rows) else 1


def _texts(data: Path, sizes: Sizes) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Prompts to answer, and others to learn from, for each task."""
    count, learn = sizes["count"], sizes["learn"]
    coding = [each.text for each in prompts.read("mbpp", data, count + learn)]
    unseen = [each.text for each in prompts.training(data)[-prompts.KEPT_OUT :]]
    texts = {"gsm8k": [each.text for each in prompts.read("gsm8k", data, count)], "mbpp": coding[:count]}
    return texts, {"gsm8k": unseen[:learn], "mbpp": coding[count:]}


def _in_turns(ids: dict[str, list[list[int]]]) -> list[list[int]]:
    return list(chain.from_iterable(zip(*(ids[task] for task in TASKS), strict=False)))


def keep(stem: Path | None, rows: Sequence[tuple[str, Row]], run: Row, *, more: bool = False) -> Row:
    """Put rows into the file in place of those about the same, and a run beside the others; what it holds then.

    With `more`, the repeats of rows are put beside those that are there.  Two processes may write to one file.
    """
    if stem is None:
        return _merged({}, rows, run, more=more)
    path = stem.with_suffix(".json")
    with writing(stem), FileLock(stem.with_suffix(".lock")):
        try:
            found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except ValueError as error:
            raise InputError(f"cannot read {path} ({error}): remove it, or give --out another name") from error
        result = _merged(found, rows, run, more=more)
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return result


def _merged(result: Row, rows: Sequence[tuple[str, Row]], run: Row, *, more: bool) -> Row:
    for section in ("runs", "cells", "calibration", "never_slower", "schedules"):
        result.setdefault(section, [])
    for section, row in rows:
        same = [name for name in KEYS if name in row]
        before = [old for old in result[section] if all(old.get(name) == row[name] for name in same)]
        result[section] = [old for old in result[section] if old not in before]
        result[section].append(_together(before[0], row) if more and before and "repeats" in row else row)
    if run:
        result["runs"] = [old for old in result["runs"] if old.get("command") != run["command"]] + [run]
    return result


def _together(before: Row, row: Row) -> Row:
    """A row with the repeats of both."""
    each = [*before["repeats"], *row["repeats"]]
    identical = row["identical"] if row["identical"] is None else row["identical"] and before["identical"]
    return {**row, **over(each), "identical": identical, "repeats": each}
