"""The tables and figures of the paper, by a recipe of models, tasks and sizes.

A plan is printed first.  Every cell is written as soon as it is measured, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from experiments.adaptation.ablations import switch, targets
from experiments.paper import cache_study, recipe
from experiments.paper import figures as paper_figures
from experiments.paper import tables as paper_tables
from experiments.paper.evaluation import Evaluation, Speeds, Texts
from experiments.paper.tables import TABLES
from experiments.recordings import Recordings
from omnidraft.bench import environment as setting
from omnidraft.bench import prompts
from omnidraft.bench.environment import writing
from omnidraft.errors import ConfigError, InputError
from omnidraft.storage import replace_file

Row = dict[str, Any]
CACHE = ("table-14", "figure-7", "figure-8", "figure-9")  # come of one study
SWITCH, VISIT = "figure-5", "figure-6"
PARTS = (*TABLES, *CACHE, SWITCH, VISIT)
FILE = "paper.json"


@dataclass(frozen=True)
class Job:
    """One thing to be measured with a target: its place in the file, what it takes, and how it is done."""

    section: str
    key: str
    part: str  # the first that asks for it
    needs: tuple[tuple[str, float, bool], ...]  # recorded answers: of which task, temperature, and whether of a subset
    passes: float  # how often they are learned from, or drafted for
    timed: int  # ways that answer the tests
    run: Callable[[Evaluation], Row]


class Paper:
    """One run of the command."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options, self.console = options, console
        found = recipe.read(options.recipe, _instead(options.use))
        self.recipe = found.quick() if options.quick else found
        self.parts = _parts(options.parts)
        self.texts = _texts(self.recipe, options.data)
        self.result = self._kept()
        self.recordings = Recordings(options.out and options.out / "answers")
        self._device = torch.device("cpu")  # that of the models

    # ------------------------------------------------------------ what there is to do

    def jobs(self, target: str) -> Iterator[Job]:
        """What is to be measured with a target."""
        seen = set()
        for part, table in TABLES.items():
            for cell in table.cells(self.recipe) if part in self.parts else ():
                if cell.target == target and cell.key not in seen:
                    seen.add(cell.key)
                    needs = ((cell.task, cell.temperature, cell.subset),)
                    passes = 0.0 if paper_tables.METHODS[cell.method].learning is None else 1.0
                    yield Job("cells", cell.key, part, needs, passes, 2, partial(Evaluation.cell, cell=cell))
        if target == self.recipe.targets[0]:
            yield from self._studies(target)

    def _studies(self, target: str) -> Iterator[Job]:
        """Those of the cache, and of a change of task."""
        if set(CACHE) & set(self.parts):
            ways = 4 + len(cache_study.SHARES) * len(cache_study.EVICTIONS)
            for task, seed in product(self.recipe.tasks, cache_study.SEEDS):
                run = partial(cache_study.cache_study, task=task, seed=seed)
                yield Job("cache", f"{target}|{task}|{seed}", CACHE[0], ((task, 0.0, False),), 3.0, ways, run)
        names = list(self.recipe.tasks)[:2]
        if SWITCH in self.parts and len(names) == 2:
            needs = tuple((name, 0.0, True) for name in names)
            yield Job("switch", target, SWITCH, needs, 6.0, 0, partial(_switched, names=names))

    def left(self, target: str) -> list[Job]:
        """What is not measured yet."""
        return [job for job in self.jobs(target) if job.key not in self.result[job.section]]

    @property
    def targets(self) -> list[str]:
        """All targets that something is to be measured with, in order."""
        named = (*self.recipe.targets, *self.recipe.same, *self.recipe.larger)
        return [name for name in dict.fromkeys(named) if any(True for _ in self.jobs(name))]

    # ------------------------------------------------------------ doing it

    def plan(self) -> None:
        """Print what there is to do for each target, and how long it will take by costs measured now."""
        whole = sum(self._planned(target) for target in self.targets)
        if self._visits_left():
            self.console.print(f"{' and '.join(self.recipe.switch)}: {VISIT}")
        self.console.print(f"about {_duration(whole)} in all")

    def _planned(self, target: str) -> float:
        """Seconds that what is left of a target will take; it is let go of after that."""
        left = self.left(target)
        done = sum(1 for _ in self.jobs(target)) - len(left)
        if not left:
            self.console.print(f"{target}: all of {done} cells are there")
            return 0.0
        evaluation = self._loaded(target)
        speeds = evaluation.speeds()
        seconds = estimate(evaluation, left, speeds)
        parts = ", ".join(dict.fromkeys(job.part for job in left))
        self.console.print(
            f"{target}: {len(left)} cells ({parts}), {done} there already; "
            f"a token {1000 * speeds.token:.1f} ms, a lesson {1000 * speeds.lesson:.0f} ms: {_duration(seconds)}"
        )
        return seconds

    def run(self) -> None:
        """Measure what is left."""
        for target in self.targets:
            self._measure(target, self.left(target))
        if self._visits_left():
            one, other = (self._loaded(name) for name in self.recipe.switch)
            task = next(iter(self.recipe.tasks))
            self._add("targets", "|".join(self.recipe.switch), targets(one.study(task, task), other.study(task, task)))

    def _measure(self, target: str, left: Sequence[Job]) -> None:
        """Measure something with a target, and let go of it."""
        evaluation = self._loaded(target) if left else None
        for number, job in enumerate(left, 1):
            began = time.perf_counter()
            found = job.run(evaluation)  # type: ignore[arg-type]
            self._add(job.section, job.key, found)
            about = ", ".join(job.key.split("|")[1:4]) or job.part
            said = ""
            if "speedup" in found:
                said = f"acceptance {found['acceptance_rate']:.3f}, {found['speedup']:.2f}x, "
            self.console.print(f"{target}, {number} of {len(left)}: {about}: {said}{time.perf_counter() - began:.0f} s")

    def _visits_left(self) -> bool:
        return VISIT in self.parts and bool(self.recipe.switch) and not self.result["targets"]

    def _loaded(self, target: str) -> Evaluation:
        made = Evaluation(self.recipe, target, self.texts, self.recordings, self.options.device, self.console)
        self._device = made.model.target.lm.device
        return made

    # ------------------------------------------------------------ the file

    def _kept(self) -> Row:
        """What the file holds; raises ConfigError where it was made in another setting."""
        empty: Row = {"recipe": self._setting(), "runs": [], "cells": {}, "cache": {}, "switch": {}, "targets": {}}
        path = self.options.out and self.options.out / FILE
        if path is None or not path.exists():
            return empty
        try:
            found: Row = json.loads(path.read_text(encoding="utf-8"))
            was = found["recipe"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"cannot read {path} ({error!r}): remove it, or give --out another folder") from error
        now = empty["recipe"]
        different = [name for name in now if was.get(name) != now[name]]
        if different:
            raise ConfigError(
                f"{path} was made with another {', '.join(different)}: give the same recipe, or --out another folder"
            )
        return found

    def _setting(self) -> Row:
        """All that figures depend on, but for the machine."""
        instead = sorted(f"{name}={Path(place).name}" for name, place in self.recipe.instead.items())
        said = asdict(self.recipe) | {"instead": instead}
        said["hashes"] = {name: [prompts.digest(part) for part in its] for name, its in self.texts.items()}
        settings: Row = json.loads(json.dumps(said))
        return settings

    def _add(self, section: str, key: str, row: Row) -> None:
        self.result[section][key] = row | {"commit": setting.commit(), "threads": torch.get_num_threads()}
        self.write()

    def write(self) -> None:
        """Write the file, its tables and its figures, where there is a folder."""
        folder = self.options.out
        if folder is None:
            return
        with writing(folder / FILE):
            replace_file(folder / FILE, json.dumps(self.result).encode() + b"\n")
            (folder / "paper.md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """All tables that there is something for."""
        studies = list(self.result["cache"].values())
        sections = paper_tables.markdown(self.result["cells"], self.recipe, self.parts) + cache_study.markdown(studies)
        commands = "".join(f"    {run['command']}\n" for run in self.result["runs"])
        return "\n".join([f"# The paper's evaluation, {self.recipe.name}\n\n{commands}", *sections])

    def end(self) -> None:
        """Note how it was made, and draw the figures."""
        machine = setting.machine(self._device)
        run = {"command": setting.command(self.options.words), "machine": machine}
        # a run that went on where another stopped, on the same machine, takes its place
        self.result["runs"] = [old for old in self.result["runs"] if _undated(old) != _undated(run)] + [run]
        self.write()
        if self.options.out is not None:
            rows = {section: list(self.result[section].values()) for section in ("cache", "switch", "targets")}
            with writing(self.options.out / FILE):
                paper_figures.draw(rows, self.options.out)


def measure(options: argparse.Namespace, console: Console) -> int:
    """Print the plan and measure; 1 where a greedy answer was not the target's own."""
    paper = Paper(options, console)
    paper.plan()
    if options.plan:
        return 0
    paper.run()
    paper.end()
    if not options.json:
        print(paper.markdown())
    sys.stdout.write(json.dumps(paper.result) + "\n")
    rows = [
        *paper.result["cells"].values(),
        *(row for study in paper.result["cache"].values() for row in study["rows"]),
    ]
    return 0 if all(row["identical"] is not False for row in rows) else 1


def _undated(run: Row) -> Row:
    return run | {"machine": {name: value for name, value in run["machine"].items() if name != "date"}}


def estimate(evaluation: Evaluation, left: Sequence[Job], speeds: Speeds) -> float:
    """Seconds that jobs will take: answers that are not recorded, lessons, and tests."""
    settings = evaluation.recipe
    needs = {need for job in left for need in job.needs}
    widest = {need for need in needs if not (need[2] and (need[0], need[1], False) in needs)}
    unrecorded = sum(evaluation.unrecorded(task, warm, subset=subset) for task, warm, subset in widest)
    seconds = unrecorded * settings.new_tokens * speeds.token
    for job in left:
        for name, _, subset in job.needs:
            size = evaluation.size(name, subset=subset)
            seconds += job.passes * size.train * speeds.lesson
            seconds += job.timed * size.test * settings.repeats * settings.new_tokens * speeds.token
    return seconds


def _switched(evaluation: Evaluation, names: Sequence[str]) -> Row:
    return switch(evaluation.study(*names)) | {"tasks": ", then ".join(names)}


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"


def _parts(given: str) -> list[str]:
    asked = list(PARTS) if given == "all" else given.split(",")
    for part in asked:
        if part not in PARTS:
            raise ConfigError(f"part {part!r} is not known; use some of {', '.join(PARTS)}, with commas between")
    return asked


def _instead(given: Sequence[str]) -> dict[str, str]:
    """NAME=MODEL, each."""
    for one in given:
        if "=" not in one:
            raise ConfigError(f"--use {one!r} names no model to take instead: give it as NAME=MODEL")
    return dict(one.split("=", 1) for one in given)


def _texts(settings: recipe.Recipe, data: Path | None) -> Texts:
    found = {name: prompts.parts(name, data, unseen=settings.unseen) for name in settings.tasks}
    for name, its in found.items():
        for part, asked, here in zip(
            ("train", "test"), (settings.tasks[name].train, settings.tasks[name].test), its, strict=True
        ):
            if len(here) < asked:
                raise ConfigError(f"{name} has {len(here)} prompts for {part}, {asked} are asked for: use fewer")
    return found
