"""A study: parts (tables) that are made of jobs, each measured once with a target and written at once.

A plan is printed first.  A run that was cut off goes on where it was, and targets can be measured side by side.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import recipe as recipes
from experiments import tasks
from experiments.evaluation import Evaluation, Row, Texts
from experiments.recipe import Recipe
from experiments.results import Results, page_of
from experiments.runner import Experiment, chosen
from experiments.tables import JobPart, Table
from omnidraft.cli import flags
from omnidraft.errors import ConfigError

Part = JobPart | Table


class Study(Experiment):
    """The parts of one command, by a recipe."""

    recipe: Recipe
    asked: Sequence[str]

    def __init__(self, name: str, about: str, parts: Mapping[str, Part], recipe: str) -> None:
        self.name, self.about, self.parts = name, about, parts
        self.examples = (
            f"{recipe} --data DIR --quick",
            f"{recipe} --data DIR --parts {next(iter(parts))} --out results/{Path(recipe).stem}",
            f"{recipe} --plan --use zoo:target-b=FOLDER",
        )

    def add_options(self, to: flags.CommandParser) -> None:
        to.add_argument("recipe", type=Path, metavar="FILE", help="models, tasks, sizes and settings: recipes/")
        about = f"some of {', '.join(self.parts)} (default: all)"
        to.add_argument("--parts", default=",".join(self.parts), metavar="A,B", help=about)
        about = "one of the recipe's targets only; repeatable"
        to.add_argument("--target", action="append", metavar="NAME", help=about)
        to.add_argument("--plan", action="store_true", help="print what is to be measured, and end")
        about = "take a model in place of one that the recipe names; repeatable"
        to.add_argument("--use", action="append", default=[], metavar="NAME=MODEL", help=about)
        to.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
        to.add_argument("--device", default="auto", metavar="NAME", help="for all models (default: auto)")

    def stem(self, options: argparse.Namespace) -> Path | None:
        return Path(options.out, self.name) if options.out else None

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Print the plan, then measure."""
        recipe = recipes.read(options.recipe, _instead(options.use))
        self.recipe = recipe.quick() if options.quick else recipe
        self.asked = chosen("part", options.parts.split(","), list(self.parts))
        options.target = chosen("target", options.target or recipe.every_target, recipe.every_target)
        stem = self.stem(options)
        results = Results(stem and stem.with_name(f"{stem.name}.jsonl"), self.name)
        for target in options.target:
            left = self._left(target, results)
            console.print(f"{target}: {len(left)} to be measured{''.join(f'; {key}' for _, key in left)}")
        return 0 if options.plan else super().run(options, console)

    def setting(self, options: argparse.Namespace) -> Row:
        options.texts = _texts(self.recipe, options.data)
        hashes = {
            name: hashlib.sha256(json.dumps(its).encode()).hexdigest()[:12] for name, its in options.texts.items()
        }
        instead = sorted(f"{name}={Path(place).name}" for name, place in self.recipe.instead.items())
        return asdict(self.recipe) | {"instead": instead, "hashes": hashes}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        for target in options.target:
            if jobs := self._left(target, results):
                evaluation = Evaluation(self.recipe, target, options.texts, options.device, console)
                for (kind, key), act in jobs.items():
                    began = time.perf_counter()
                    results.add(kind, key, act(evaluation))
                    console.print(f"{kind}, {key}: {time.perf_counter() - began:.0f} s")

    def page(self, results: Results) -> str:
        """The tables that are whole, and those that are asked for as far as they are measured."""
        parts = self.parts.items()
        sections = (part.markdown(results, self.recipe, partial=name in self.asked) for name, part in parts)
        return page_of(self.about, results, *sections)

    def wrong(self, results: Results) -> bool:
        return wrong(results.as_dict())

    def _left(self, target: str, results: Results) -> dict[tuple[str, str], Callable[[Evaluation], Row]]:
        """The jobs of a target that are not done yet; one that several parts are made of is there once."""
        parts = (self.parts[name] for name in self.asked)
        jobs = ((part.kind, job) for part in parts for job in part.jobs(self.recipe))
        return {(kind, key): act for kind, (its, key, act) in jobs if its == target and key not in results.of(kind)}


def wrong(found: Any) -> bool:
    """True if greedy answers in any row were not the target's own."""
    if isinstance(found, dict):
        return found.get("identical") is False or any(map(wrong, found.values()))
    return isinstance(found, list) and any(map(wrong, found))


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
