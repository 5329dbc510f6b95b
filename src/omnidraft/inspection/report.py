"""A pair looked at as a whole: the verdict, and every figure behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omnidraft import zoo
from omnidraft.attach import make_cache, read_table
from omnidraft.config import Drafting
from omnidraft.decoding.drafter import SharedDrafter
from omnidraft.errors import ConfigError, ModelError
from omnidraft.inspection import texts, timing
from omnidraft.inspection.memory import Memory, memory
from omnidraft.inspection.sides import Language, Side, read_side
from omnidraft.inspection.vocabularies import Special, Spellings, Vocabulary, specials, spellings, vocabulary
from omnidraft.models.language_model import load_model

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """One of the two models; None is unknown."""

    name: str
    vocabulary: Vocabulary | None
    memory: Memory | None


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """From which acceptance on rounds of one draft length pay."""

    text: str | None  # whose ratio it is; None: one target token in a draft token
    ratio: float  # target tokens in a draft token
    length: int  # draft tokens
    cost: float  # of a round, in steps of the target alone
    acceptance: float | None  # of each draft token; None: never
    best: float  # the gain over the target alone where everything is accepted


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What can be said of a pair; what is None could not be looked at.

    `unchecked` names the models of which only a tokenizer is there: whether the models themselves are supported is not
    known.  `reason` is what `load` would refuse the pair with.
    """

    works: bool
    reason: str | None
    unchecked: tuple[str, ...]
    target: Model
    drafter: Model
    spellings: Spellings | None = None
    specials: tuple[Special, ...] | None = None
    texts: tuple[texts.TextFigures, ...] | None = None
    steps: timing.Steps | None = None
    break_even: tuple[BreakEven, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON; the figures that are asked for most are at the top."""
        sizes = {
            f"{role}_vocab": model.vocabulary and model.vocabulary.size
            for role, model in (("target", self.target), ("drafter", self.drafter))
        }
        counts = {
            name: self.spellings and getattr(self.spellings, name)
            for name in ("byte_matches", "spelled", "table_bytes")
        }
        own = {"texts": self.texts and [text.as_dict() for text in self.texts]}
        return {"works": self.works, "reason": self.reason, **sizes, **counts, **asdict(self), **own}


def inspect_pair(
    target: str | Path,
    drafter: str | Path,
    samples: Mapping[str, str],
    *,
    time: bool = False,
    say: Say,
    warn: Say,
) -> Inspection:
    """Look at two models, each a folder, a hub id or `zoo:NAME`, and at texts in the tokens of both.

    No weights are read but with `time`, which measures steps.  `say` hears of what takes a while, `warn` of what is
    worth knowing.  Raises ModelError where there is no model of a name, ConfigError where there is nothing to time.
    """
    sides: list[Side] = []
    for name, drafts in ((target, False), (drafter, True)):
        say(f"{name} is read")
        sides.append(read_side(name, drafts=drafts))
    models = [_model(side) for side in sides]
    about: dict[str, Any] = {
        "target": models[0],
        "drafter": models[1],
        "unchecked": tuple(side.name for side in sides if side.model is None and side.problem is None),
    }
    if time and about["unchecked"]:
        raise ConfigError(f"{about['unchecked'][0]} has no config.json, so no step can be timed: leave out --time")
    languages = [side.language for side in sides if side.language is not None and side.problem is None]
    if len(languages) < len(sides):
        return Inspection(works=False, reason=next(side.problem for side in sides if side.problem), **about)
    about |= _compared(languages[0], languages[1], samples, say, warn)
    if time:
        say("both models are loaded and timed")
        try:
            steps = _steps(target, drafter)
        except ModelError as error:
            return Inspection(works=False, reason=str(error), **about)
        about |= {"steps": steps, "break_even": tuple(_break_even(steps, about["texts"]))}
    return Inspection(works=True, reason=None, **about)


def _model(side: Side) -> Model:
    return Model(
        name=side.name,
        vocabulary=None if side.language is None else vocabulary(side.language),
        memory=None if side.model is None else memory(side.model),
    )


def _compared(target: Language, drafter: Language, samples: Mapping[str, str], say: Say, warn: Say) -> dict[str, Any]:
    say("the target's vocabulary is spelled in the drafter's tokens")
    table = read_table(drafter.vocab, target.vocab, drafter.speller, target.speller, warn)
    cache = make_cache(table, Drafting())
    return {
        "spellings": spellings(table, drafter, target),
        "specials": specials(drafter, target),
        "texts": tuple(texts.measure(name, text, cache, drafter, target) for name, text in samples.items()),
    }


def _steps(target: str | Path, drafter: str | Path) -> timing.Steps:
    loaded = load_model(zoo.resolve(target)).lm
    return timing.measure(loaded, SharedDrafter(load_model(zoo.resolve(drafter)).lm).model)


def _break_even(steps: timing.Steps, measured: tuple[texts.TextFigures, ...]) -> list[BreakEven]:
    ratios: dict[str | None, float] = {None: 1.0}
    ratios |= {text.name: text.ratio for text in measured if text.ratio is not None}
    found = []
    for text, ratio in ratios.items():
        for length in timing.LENGTHS:
            cost = steps.cost(length, ratio)
            found.append(
                BreakEven(
                    text=text,
                    ratio=ratio,
                    length=length,
                    cost=cost,
                    acceptance=timing.break_even(cost, length, ratio),
                    best=timing.expected(1.0, length, ratio) / cost,
                )
            )
    return found
