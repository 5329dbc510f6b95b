"""A study: parts (tables and figures) that are made of jobs, each measured once with a target and written at once.

A plan is printed first.  A run that was cut off goes on where it was, and targets can be measured side by side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from experiments import recipe as recipes
from experiments import tasks
from experiments.command import parser, run
from experiments.evaluation import Evaluation, Row, Texts
from experiments.recipe import Recipe
from experiments.recordings import Recordings
from experiments.results import Results
from omnidraft.bench.environment import command
from omnidraft.bench.output import figure, writing
from omnidraft.errors import ConfigError

SIZE = (10.0, 4.5)  # inches, of 100 dots each
Measured = Iterable[tuple[str, str, Callable[[Evaluation], Row]]]
"""For each job its target, the rest of its key, and how it is measured."""


@dataclass(frozen=True)
class Job:
    """Something to be measured with a target: its place in the file, and how."""

    kind: str
    key: str
    run: Callable[[Evaluation], Row]


class Part(Protocol):
    """A table or a figure."""

    def jobs(self, recipe: Recipe) -> Iterable[tuple[str, Job]]:
        """The jobs that it is made of, each with its target."""

    def markdown(self, results: Results, recipe: Recipe, *, partial: bool) -> str:
        """Its section of the report; empty where there is none, or not all of it and not `partial`."""

    def draw(self, results: Results, path: Path) -> None:
        """Write its figure, if it has one."""


@dataclass(frozen=True)
class JobPart:
    """A part of jobs of its own, with a table, a figure or both of their rows."""

    kind: str
    made: Callable[[Recipe], Measured]
    table: Callable[[Sequence[Row]], str] | None = None
    panel: Callable[[Row, Any], None] | None = None
    panels: Callable[[Sequence[Row]], Sequence[Row]] = list

    def jobs(self, recipe: Recipe) -> Iterable[tuple[str, Job]]:
        return ((target, Job(self.kind, f"{target}|{key}", act)) for target, key, act in self.made(recipe))

    def markdown(self, results: Results, recipe: Recipe, *, partial: bool) -> str:  # noqa: ARG002
        rows = list(results.of(self.kind).values())
        return self.table(rows) if self.table is not None and rows else ""

    def draw(self, results: Results, path: Path) -> None:
        rows = list(results.of(self.kind).values())
        if self.panel is not None and rows:
            figure(self.panels(rows), self.panel, path, SIZE)


class Study:
    """The parts of one command, and the run of it."""

    def __init__(self, name: str, about: str, parts: Mapping[str, Part], recipe: str) -> None:
        self.name, self.about, self.parts, self.recipe = name, about, parts, recipe

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Print the plan, measure what is missing, and return the exit code."""
        options = parser(
            self.name,
            self.about,
            f"{self.recipe} --data DIR --quick",
            f"{self.recipe} --data DIR --parts {next(iter(self.parts))} --out results/{Path(self.recipe).stem}",
            f"{self.recipe} --plan --use zoo:target-b=FOLDER",
        )
        options.add_argument("recipe", type=Path, metavar="FILE", help="models, tasks, sizes and settings: recipes/")
        options.add_argument(
            "--parts", default="all", metavar="A,B", help=f"some of {', '.join(self.parts)} (default: all)"
        )
        options.add_argument(
            "--target", action="append", metavar="NAME", help="one of the recipe's targets only; repeatable"
        )
        options.add_argument("--plan", action="store_true", help="print what is to be measured, and end")
        options.add_argument(
            "--use", action="append", default=[], metavar="NAME=MODEL",
            help="take a model in place of one that the recipe names; repeatable",
        )  # fmt: skip
        options.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
        options.add_argument("--device", default="auto", metavar="NAME", help="for all models (default: auto)")
        options.add_argument("--out", type=Path, metavar="DIR", help="write results there, and go on with those there")
        return run(options, self.measure, arguments)

    def measure(self, options: argparse.Namespace, console: Console) -> int:
        """Print the plan and measure; 1 where a greedy answer was not the target's own."""
        recipe = recipes.read(options.recipe, _instead(options.use))
        recipe = recipe.quick() if options.quick else recipe
        asked = chosen("part", list(self.parts) if options.parts == "all" else options.parts.split(","), self.parts)
        targets = chosen("target", options.target or recipe.every_target, recipe.every_target)
        results = Results(options.out and options.out / f"{self.name}.jsonl", self.name)
        left = {target: self._left(recipe, asked, target, results) for target in targets}
        for target, jobs in left.items():
            console.print(f"{target}: {len(jobs)} to be measured{''.join(f'; {job.key}' for job in jobs)}")
        if options.plan:
            return 0
        texts = _texts(recipe, options.data)
        _begin(results, recipe, texts, command(options.words))
        recordings = Recordings(options.out and options.out / "answers")
        for target, jobs in left.items():
            if not jobs:
                continue
            evaluation = Evaluation(recipe, target, texts, recordings, options.device, console)
            for job in jobs:
                began = time.perf_counter()
                results.add(job.kind, job.key, job.run(evaluation))
                console.print(f"{job.kind}, {job.key}: {time.perf_counter() - began:.0f} s")
        text = self.report(results, recipe, asked)
        if options.out is not None:
            with writing(options.out / self.name):
                (options.out / f"{self.name}.md").write_text(text, encoding="utf-8")
            for name, part in self.parts.items():
                part.draw(results, options.out / f"{name}.png")
        print(text)
        print(json.dumps(results.as_dict()))
        return 1 if wrong(results.as_dict()) else 0

    def report(self, results: Results, recipe: Recipe, asked: Sequence[str]) -> str:
        """The tables that are whole, and those that are asked for as far as they are measured."""
        commands = "".join(f"    {each}\n" for each in dict.fromkeys(run["command"] for run in results.settings))
        sections = [part.markdown(results, recipe, partial=name in asked) for name, part in self.parts.items()]
        return "\n".join([f"# {self.about}\n\n{commands}", *filter(None, sections)])

    def _left(self, recipe: Recipe, asked: Sequence[str], target: str, results: Results) -> list[Job]:
        """The jobs of a target that are not done yet; one that several parts are made of is there once."""
        jobs = {
            (job.kind, job.key): job for name in asked for its, job in self.parts[name].jobs(recipe) if its == target
        }
        return [job for (kind, key), job in jobs.items() if key not in results.of(kind)]


def chosen(what: str, given: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names given; raises ConfigError for one that does not exist."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{what} {name!r} is not known; use some of {', '.join(known)}")
    return list(given)


def wrong(found: Any) -> bool:
    """True if greedy answers in any row were not the target's own."""
    if isinstance(found, dict):
        return found.get("identical") is False or any(map(wrong, found.values()))
    return isinstance(found, list) and any(map(wrong, found))


def _begin(results: Results, recipe: Recipe, texts: Texts, words: str) -> None:
    """Note the command; raises ConfigError where the file was made with another recipe."""
    instead = sorted(f"{name}={Path(place).name}" for name, place in recipe.instead.items())
    hashes = {name: hashlib.sha256(json.dumps(its).encode()).hexdigest()[:12] for name, its in texts.items()}
    now: Row = json.loads(json.dumps(asdict(recipe) | {"instead": instead, "hashes": hashes}))
    for setting in results.settings[:1]:
        if different := [name for name in now if setting["recipe"].get(name) != now[name]]:
            raise ConfigError(
                f"--out has results of another {', '.join(different)}: give the same recipe, or another folder"
            )
    results.begin(words, now)


def _instead(given: Sequence[str]) -> dict[str, str]:
    """NAME=MODEL, each."""
    for one in given:
        if "=" not in one:
            raise ConfigError(f"--use {one!r} names no model to take instead: give it as NAME=MODEL")
    return dict(one.split("=", 1) for one in given)


def _texts(recipe: Recipe, data: Path | None) -> Texts:
    found = {name: tasks.parts(name, data, unseen=recipe.unseen) for name in recipe.tasks}
    for name, parts in found.items():
        for part, here in zip(("train", "test"), parts, strict=True):
            if len(here) < (asked := getattr(recipe.tasks[name], part)):
                raise ConfigError(f"{name} has {len(here)} prompts for {part}, {asked} are asked for: use fewer")
    return found
