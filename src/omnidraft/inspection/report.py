"""Inspection of a pair: the verdict, and every figure behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnidraft import zoo
from omnidraft.attach import read_table
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.draft_length.cost_model import CostModel, PassTimes, time_passes
from omnidraft.errors import ConfigError, ModelError
from omnidraft.inspection.break_even import BreakEven, break_evens
from omnidraft.inspection.models import Language, Memory, UnloadedModel, memory, read_model
from omnidraft.inspection.step import Step, refused, step_of
from omnidraft.inspection.vocabularies import Special, Spellings, Vocabulary, specials, spellings, vocabulary
from omnidraft.models.families import BY_CLASS
from omnidraft.models.gguf import KeyReport
from omnidraft.models.loading import load_model
from omnidraft.models.native_model import obstacle

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """Figures of one model; None is unknown."""

    name: str
    vocabulary: Vocabulary | None
    memory: Memory | None
    step: Step | None
    keys: KeyReport | None  # of a GGUF file's header


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
    pair: list[UnloadedModel] = []
    for name, drafts in ((target, False), (drafter, True)):
        say(f"reading {name}")
        pair.append(read_model(name, drafts=drafts))
    unchecked = tuple(one.name for one in pair if one.model is None and one.problem is None)
    figures: dict[str, Any] = {"target": _model(pair[0]), "drafter": _model(pair[1]), "unchecked": unchecked}
    if time and unchecked:
        raise ConfigError(f"{unchecked[0]} has no config.json, so no step can be timed: leave out --time")
    languages = [one.language for one in pair if one.language is not None]
    if len(languages) < len(pair):
        return Inspection(works=False, reason=next(one.problem for one in pair if one.problem), **figures)
    say("spelling the target's vocabulary in the drafter's tokens")
    figures |= _alignment(languages[0], languages[1], warn)
    if time:
        say("loading and timing both models")
        try:
            loaded = load_model(zoo.resolve(target), verifies=True).lm
            steps = time_passes(loaded, SharedDrafter(load_model(zoo.resolve(drafter)).lm).model)
        except ModelError as error:
            return Inspection(works=False, reason=str(error), **figures)
        figures |= {"steps": steps, "break_even": break_evens(CostModel.profiled(steps))}
    return Inspection(works=True, reason=None, **figures)


def _model(one: UnloadedModel) -> Model:
    return Model(
        name=one.name,
        vocabulary=None if one.language is None else vocabulary(one.language),
        memory=None if one.model is None else memory(one.model, rounds=one.rounds, packed=one.packed, held=one.held),
        step=_step(one),
        keys=one.keys,
    )


def _step(one: UnloadedModel) -> Step | None:
    if one.model is None:
        return None if one.problem is None else refused(one.problem)
    skeleton = one.model.model
    return step_of(BY_CLASS.get(type(skeleton).__name__), obstacle(skeleton))


def _alignment(target: Language, drafter: Language, warn: Say) -> dict[str, Any]:
    table = read_table(drafter.vocab, target.vocab, drafter.speller, target.speller, warn)
    return {"spellings": spellings(table, drafter, target), "specials": specials(drafter, target)}
