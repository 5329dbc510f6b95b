"""Inspection of a pair: the verdict, and every figure behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omnidraft import zoo
from omnidraft.attach import read_table
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.draft_length.cost_model import CostModel, PassTimes, time_passes
from omnidraft.errors import ConfigError, ModelError
from omnidraft.inspection.models import Model, Unloaded, read_model
from omnidraft.inspection.vocabularies import Special, Spellings, specials, spellings
from omnidraft.models.loading import load_drafter, load_model

Say = Callable[[str], None]
DRAFT_LENGTHS = (1, 2, 4, 8)  # draft tokens per round


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The acceptance from which rounds of one draft length pay, with one target token per draft token."""

    length: int  # draft tokens
    cost: float  # of a round, in target steps
    acceptance: float | None  # of each draft token; None: never
    best: float  # speedup if everything is accepted


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """Verdict and figures of a pair; a figure is None if it could not be computed.

    `unchecked` names the models without a config.json, whose architecture could not be checked.  `reason` is the error
    message of `load`.
    """

    works: bool
    reason: str | None
    unchecked: tuple[str, ...]
    target: Model
    drafter: Model
    spellings: Spellings | None = None
    specials: tuple[Special, ...] | None = None
    steps: PassTimes | None = None
    break_even: tuple[BreakEven, ...] | None = None


def inspect_pair(target: str | Path, drafter: str | Path, *, time: bool = False, say: Say, warn: Say) -> Inspection:
    """Inspect two models, each a folder, a GGUF file, a hub id or `zoo:NAME`.

    Weights are read only with `time`, which measures forward passes.  `say` receives progress, `warn` warnings, a line
    each.  Raises ModelError for a model that does not exist, ConfigError if `time` finds no weights to load.
    """
    pair: list[Unloaded] = []
    for name, drafts in ((target, False), (drafter, True)):
        say(f"reading {name}")
        pair.append(read_model(name, drafts=drafts))
    unchecked = tuple(one.figures.name for one in pair if not one.checked)
    figures: dict[str, Any] = {"target": pair[0].figures, "drafter": pair[1].figures, "unchecked": unchecked}
    if time and unchecked:
        raise ConfigError(f"{unchecked[0]} has no config.json, so no step can be timed: leave out --time")
    languages = [one.language for one in pair if one.language is not None]
    if len(languages) < len(pair):
        return Inspection(works=False, reason=next(one.problem for one in pair if one.problem), **figures)
    say("spelling the target's vocabulary in the drafter's tokens")
    theirs, ours = languages  # the target's, and the drafter's
    table = read_table(ours.vocab, theirs.vocab, ours.speller, theirs.speller, warn)
    figures |= {"spellings": spellings(table, ours, theirs), "specials": specials(ours, theirs)}
    if time:
        say("loading and timing both models")
        try:
            loaded = load_model(zoo.resolve(target), verifies=True).lm
            steps = time_passes(loaded, SharedDrafter(load_drafter(zoo.resolve(drafter)).lm).model)
        except ModelError as error:
            return Inspection(works=False, reason=str(error), **figures)
        figures |= {"steps": steps, "break_even": break_evens(CostModel.profiled(steps))}
    return Inspection(works=True, reason=None, **figures)


def break_evens(costs: CostModel) -> tuple[BreakEven, ...]:
    """The break-even at each of DRAFT_LENGTHS."""
    lengths = []
    for length in DRAFT_LENGTHS:
        cost = 1 + costs.steps.of(length) + costs.tokens.of(length)
        acceptance = acceptance_at(cost, length)
        lengths.append(BreakEven(length=length, cost=cost, acceptance=acceptance, best=(1 + length) / cost))
    return tuple(lengths)


def acceptance_at(cost: float, length: int) -> float | None:
    """The acceptance a at which a round emits as many tokens as it costs target steps: 1 + a + ... + a^length = cost.

    Each draft token is accepted with probability a if those before it are.  0 if a round costs at most one step; None
    if accepting everything is not enough.
    """
    if not 1 < cost <= 1 + length:
        return 0.0 if cost <= 1 else None
    roots = np.roots([*[1.0] * length, 1 - cost])
    return float(max(root.real for root in roots if root.imag == 0))  # the only positive one
