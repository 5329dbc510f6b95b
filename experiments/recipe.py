"""Recipes of studies: models, tasks, sizes and settings, from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments import tasks
from omnidraft.config import Learning, settings_of, suggestion
from omnidraft.errors import ConfigError, InputError

QUICK = {"train": 2, "test": 1}  # prompts
QUICK_TOKENS = 12
MODELS = ("targets", "same", "larger")  # the fields that name targets


@dataclass(frozen=True, kw_only=True)
class Task:
    """The number of prompts that a task is learned from, and of others for tests."""

    train: int
    test: int
    threshold: float = 0.4  # of the acceptance head: 1 − γ of the paper's Eq. 7

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be a positive integer: give another")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a study; models are folders, hub ids or zoo:NAME."""

    name: str
    drafter: str
    targets: tuple[str, ...]
    same: tuple[str, ...] = ()  # of the drafter's own tokenizer, for Table 2
    larger: tuple[str, ...] = ()  # for Table 3
    tasks: Mapping[str, Task]
    unseen: bool = False  # only prompts that the embedded models never saw
    new_tokens: int = 96
    draft_length: int = 4
    temperature: float = 0.0
    dtype: str = "float32"
    instead: Mapping[str, str] = field(default_factory=dict)  # models to take in place of those that are named
    learning: Learning = field(default_factory=Learning)

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError("the recipe has no targets: give at least one")
        if not self.tasks:
            raise ConfigError("the recipe has no tasks: give at least one")
        for task in self.tasks:
            if task not in tasks.NAMES:
                raise ConfigError(f"task {task!r} is not known: {suggestion(task, tasks.NAMES)}")

    @property
    def every_target(self) -> list[str]:
        """All targets that something is measured with, each once."""
        return list(dict.fromkeys((*self.targets, *self.same, *self.larger)))

    def place(self, model: str) -> str:
        """The model that is loaded for one of the recipe."""
        return self.instead.get(model, model)

    def quick(self) -> Recipe:
        """The same with next to no prompts: everything is gone through, and no figure means anything."""
        few = {name: replace(task, **QUICK) for name, task in self.tasks.items()}
        return replace(self, tasks=few, new_tokens=QUICK_TOKENS)


def read(path: Path, instead: Mapping[str, str] | None = None) -> Recipe:
    """The recipe in a file; `instead` has models to take in place of those it names.

    Raises InputError for a file that cannot be read, ConfigError for a mistake in it.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read recipe {path} ({error}): give one as in recipes/ of the project") from error
    try:
        return _recipe(found, path.stem, instead or {})
    except ConfigError as error:
        raise ConfigError(f"recipe {path.name}: {error}") from error


def _recipe(found: dict[str, Any], name: str, instead: Mapping[str, str]) -> Recipe:
    for key in ("drafter", "targets", "tasks"):
        if key not in found:
            raise ConfigError(f"there is no {key}: give it")
    named = {found["drafter"], *(each for key in MODELS for each in found.get(key, ()))}
    for model in instead:
        if model not in named:
            raise ConfigError(f"there is no model {model!r} to replace: {suggestion(model, named)}")
    made: dict[str, Any] = {**found, "learning": settings_of(Learning, found.get("learning", {}))}
    made |= {key: tuple(found[key]) for key in MODELS if key in found}
    made["tasks"] = {task: settings_of(Task, sizes) for task, sizes in found["tasks"].items()}
    return settings_of(Recipe, {**made, "name": name, "instead": instead})
