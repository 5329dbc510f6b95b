"""The tables and figures of the paper, by a recipe of models, tasks and sizes.

A plan is printed first.  Every cell is written as soon as it is measured, and not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from rich.console import Console

from experiments import tasks
from experiments.adaptation.ablations import switch, targets
from experiments.command import parts_of, write_report
from experiments.paper import cache_study, recipe
from experiments.paper import figures as paper_figures
from experiments.paper import tables as paper_tables
from experiments.paper.evaluation import Evaluation, Speeds, Texts
from experiments.paper.tables import TABLES
from experiments.recordings import Recordings
from experiments.results import Results, Row
from omnidraft.bench import prompts
from omnidraft.bench.environment import command
from omnidraft.errors import ConfigError

CACHE = ("table-14", "figure-7", "figure-8", "figure-9")  # come of one study
SWITCH, VISIT = "figure-5", "figure-6"
PARTS = (*TABLES, *CACHE, SWITCH, VISIT)
FILE = "paper.jsonl"


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
        self.parts = parts_of(options.parts, PARTS)
        self.texts = _texts(self.recipe, options.data)
        self.results = Results(options.out and options.out / FILE, "paper", ("key",))
        self.recordings = Recordings(options.out and options.out / "answers")

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
        return [job for job in self.jobs(target) if not self._is_done(job.section, job.key)]

    def _is_done(self, section: str, key: str) -> bool:
        return any(row["key"] == key for row in self.results.of(section))

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
        return VISIT in self.parts and bool(self.recipe.switch) and not self.results.of("targets")

    def _loaded(self, target: str) -> Evaluation:
        return Evaluation(self.recipe, target, self.texts, self.recordings, self.options.device, self.console)

    # ------------------------------------------------------------ results

    def _setting(self) -> Row:
        """All that figures depend on, but for the machine."""
        instead = sorted(f"{name}={Path(place).name}" for name, place in self.recipe.instead.items())
        said = asdict(self.recipe) | {"instead": instead}
        said["hashes"] = {name: [prompts.digest(part) for part in its] for name, its in self.texts.items()}
        settings: Row = json.loads(json.dumps(said))
        return settings

    def begin(self) -> None:
        """Note the command; raises ConfigError where the file was made in another setting."""
        now = self._setting()
        for setting in self.results.settings[:1]:
            if different := [name for name in now if setting["recipe"].get(name) != now[name]]:
                raise ConfigError(
                    f"{FILE} has another {', '.join(different)}: give the same recipe, or --out another folder"
                )
        self.results.begin(command(self.options.words), recipe=now)

    def _add(self, section: str, key: str, row: Row) -> None:
        self.results.add(section, {"key": key, **row, "threads": torch.get_num_threads()})

    def markdown(self) -> str:
        """All tables that there is something for."""
        cells = {row["key"]: row for row in self.results.of("cells")}
        sections = paper_tables.markdown(cells, self.recipe, self.parts)
        sections += cache_study.markdown(self.results.of("cache"))
        commands = "".join(f"    {each}\n" for each in dict.fromkeys(run["command"] for run in self.results.settings))
        return "\n".join([f"# The paper's evaluation, {self.recipe.name}\n\n{commands}", *sections])


def measure(options: argparse.Namespace, console: Console) -> int:
    """Print the plan and measure; 1 where a greedy answer was not the target's own."""
    paper = Paper(options, console)
    paper.plan()
    if options.plan:
        return 0
    paper.begin()
    paper.run()
    if options.out is not None:
        write_report(options.out / "paper", paper.markdown())
        paper_figures.draw(paper.results, options.out)
    if not options.json:
        print(paper.markdown())
    print(json.dumps(paper.results.as_dict()))
    rows = [*paper.results.of("cells"), *(row for study in paper.results.of("cache") for row in study["rows"])]
    return 0 if all(row["identical"] is not False for row in rows) else 1


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


def _instead(given: Sequence[str]) -> dict[str, str]:
    """NAME=MODEL, each."""
    for one in given:
        if "=" not in one:
            raise ConfigError(f"--use {one!r} names no model to take instead: give it as NAME=MODEL")
    return dict(one.split("=", 1) for one in given)


def _texts(settings: recipe.Recipe, data: Path | None) -> Texts:
    found = {name: tasks.parts(name, data, unseen=settings.unseen) for name in settings.tasks}
    for name, its in found.items():
        for part, asked, here in zip(
            ("train", "test"), (settings.tasks[name].train, settings.tasks[name].test), its, strict=True
        ):
            if len(here) < asked:
                raise ConfigError(f"{name} has {len(here)} prompts for {part}, {asked} are asked for: use fewer")
    return found
