"""Settings: frozen dataclasses whose fields carry bounds, choices and help, validated on creation."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from omnidraft.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    SettingsT = TypeVar("SettingsT", bound=DataclassInstance)

NGRAM_SEEDS = ("empty", "vocabulary")
DRAFT_LENGTHS = ("confidence", "entropy", "goodput", "head")  # or an integer: a fixed length
LONGEST_DRAFT = 64
ADAPTERS = ("full", "lora")
ADAPT = ("background", "inline", "off")
COLDEST = 1e-4  # logits divided by less may overflow
LARGEST = 1e30  # as may scores multiplied by more
LONGEST = 100  # characters of a value in a message

Metadata = dict[str, Any]  # of a field: "help"; "check", name and value -> value; "none", the meaning of None


def number(
    about: str,
    *,
    low: float,
    high: float = math.inf,
    above: bool = False,
    or_zero: bool = False,
    none: str | None = None,
    fix: str,
) -> Metadata:
    """Metadata of a finite number of at least `low`, or with `above` greater than it; `or_zero` also allows 0."""
    least = f"{'0 or ' if or_zero else ''}{'above' if above else 'at least'} {low:g}"
    allowed = f"{least}, at most {high:g}" if high < math.inf else least

    def check(name: str, value: Any) -> float:
        good = issubclass(type(value), Real) and not isinstance(value, bool) and _finite(value)
        if not good or not (low <= value <= high or (or_zero and value == 0)) or (above and value == low):
            raise ConfigError(f"{name} is {shown(value)}; it must be a finite number {allowed}: {fix}")
        return int(value) if isinstance(value, Integral) else float(value)  # a scalar of numpy becomes one of Python

    return {"help": about, "check": check, "none": none}


def integer(
    about: str, *, low: int, high: int | None = None, words: Sequence[str] = (), none: str | None = None, fix: str
) -> Metadata:
    """Metadata of an integer from `low` to `high`, or one of `words`."""
    allowed = f"at least {low}" + (f", at most {high}" if high is not None else "")

    def check(name: str, value: Any) -> int | str:
        if isinstance(value, str) and words:
            if value not in words:
                raise ConfigError(f"{name} is {shown(value)}; use one of {', '.join(words)}, or an integer")
            return value
        good = issubclass(type(value), Integral) and not isinstance(value, bool)
        if not good or value < low or (high is not None and value > high):
            raise ConfigError(f"{name} is {shown(value)}; it must be an integer {allowed}: {fix}")
        return int(value)

    return {"help": about, "check": check, "none": none}


def one_of(about: str, *allowed: str) -> Metadata:
    """Metadata of one of some words."""

    def check(name: str, value: Any) -> Any:
        choice(name, value, allowed)
        return value

    return {"help": f"{about}: {', '.join(allowed)}", "check": check, "none": None}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of all settings; creating one checks every field, and raises ConfigError with the fix."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value, check = getattr(self, f.name), f.metadata["check"]
            if value is not None or f.metadata["none"] is None:
                object.__setattr__(self, f.name, check(f.name, value))


@dataclass(frozen=True, kw_only=True)
class Sampling(Settings):
    """Warping of the target's logits before a token is drawn."""

    temperature: float = field(
        default=0.0,
        metadata=number(
            "sampling temperature; 0 is greedy decoding", low=COLDEST, or_zero=True, fix="use 0 for greedy decoding"
        ),
    )
    top_k: int = field(
        default=0, metadata=integer("keep the k most probable tokens; 0: all", low=0, fix="use 0 to switch it off")
    )
    top_p: float = field(
        default=1.0,
        metadata=number(
            "keep the most probable tokens of this total probability", low=0, high=1, above=True, fix="use 1 for all"
        ),
    )
    min_p: float = field(
        default=0.0,
        metadata=number(
            "keep tokens of at least this share of the highest probability", low=0, high=1, fix="use 0 for all"
        ),
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=number("above 1, tokens seen before get less probable", low=COLDEST, fix="use 1 to switch it off"),
    )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, kw_only=True)
class GenerationLimits(Settings):
    """Length of an answer, and the seed of its random draws."""

    max_new_tokens: int = field(
        default=256, metadata=integer("maximum tokens of the answer", low=1, fix="use 1 or more")
    )
    seed: int = field(
        default=0, metadata=integer("seed of every random draw", low=0, high=2**64 - 1, fix="choose any of them")
    )


@dataclass(frozen=True, kw_only=True)
class Drafting(Settings):
    """Drafting and verification; `draft_length` 0 is plain decoding through the same loop."""

    draft_length: str | int = field(
        default="goodput",
        metadata=integer(
            f"draft tokens per round: a policy ({', '.join(DRAFT_LENGTHS)}) or a fixed number; 0 is plain decoding",
            low=0,
            high=LONGEST_DRAFT,
            words=DRAFT_LENGTHS,
            fix=f"use 0 for plain decoding, or one of {', '.join(DRAFT_LENGTHS)}",
        ),
    )
    max_draft_length: int = field(
        default=16,
        metadata=integer(
            "maximum draft length of a policy", low=1, high=LONGEST_DRAFT, fix="use draft_length=0 for plain decoding"
        ),
    )
    threshold: float | None = field(
        default=None,
        metadata=number(
            "value of confidence, entropy or head below which a draft ends",
            low=0,
            high=1,
            none="0.4",
            fix="leave it out for 0.4",
        ),
    )
    mode: str = field(default="exact", metadata=one_of("verification scheme", "exact", "intersection", "paper"))
    verification: str = field(default="block", metadata=one_of("verify sampled drafts by", "block", "token"))
    drafter_temperature: float | None = field(
        default=None,
        metadata=number(
            "temperature of the drafter",
            low=COLDEST,
            or_zero=True,
            none="the target's",
            fix="leave it out to follow the target",
        ),
    )
    ngram_seed: str = field(default="vocabulary", metadata=one_of("n-grams active at first", *NGRAM_SEEDS))
    ngram_bound: int | None = field(
        default=None,
        metadata=integer("maximum number of active n-grams", low=1, none="no bound", fix="leave it out for no bound"),
    )
    ngram_eviction: str = field(default="lfu", metadata=one_of("eviction beyond the bound", "lfu", "lru"))
    drafter_step: str = field(
        default="auto",
        metadata=one_of("auto (8-bit step on CPUs where it applies) or the step of", "auto", "transformers"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and self.draft_length not in ("confidence", "entropy", "head"):
            raise ConfigError(
                f"threshold is for confidence, entropy or head, not for {self.draft_length!r}: leave it out"
            )

    @property
    def longest(self) -> int:
        """Largest number of draft tokens in a round."""
        return self.max_draft_length if isinstance(self.draft_length, str) else self.draft_length


@dataclass(frozen=True, kw_only=True)
class Learning(Settings):
    """Online distillation of the drafter; `distillation.settings` has what is only for experiments."""

    trains: str = field(
        default="interleaved",
        metadata=one_of(
            "what is trained: the drafter, its acceptance head, or both", "drafter", "head", "interleaved", "joint"
        ),
    )
    loss: str = field(
        default="forward+tv",
        metadata=one_of(
            "divergence from the exact teacher, or the paper's hybrid loss",
            *("forward", "forward+tv", "hybrid", "reverse", "tv"),
        ),
    )
    adapter: str = field(default="full", metadata=one_of("trained weights", *ADAPTERS))
    rank: int = field(default=32, metadata=integer("rank of LoRA", low=1, high=1024, fix="32 is usual"))
    learning_rate: float = field(
        default=5e-4,
        metadata=number("learning rate of AdamW", low=0, high=1, above=True, fix="use adapt='off' not to learn"),
    )
    teacher_temperature: float = field(
        default=0.5,
        metadata=number(
            "temperature of the teacher (the target), whatever the answer is sampled with",
            low=COLDEST,
            fix="use 1 for the target's own distributions",
        ),
    )
    interval: int = field(
        default=8, metadata=integer("answers between updates", low=1, fix="use 1 to learn after every answer")
    )
    replays: int = field(
        default=1,
        metadata=integer("optimizer steps on earlier answers after each on new ones", low=0, fix="use 0 for none"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "hybrid" and self.trains in ("head", "joint"):
            raise ConfigError(
                f"trains is {self.trains!r} with the hybrid loss, which trains no head: use loss='forward+tv'"
            )


def stop_strings(stop: object) -> tuple[str, ...]:
    """One or several stop strings as a tuple; raises ConfigError for anything else."""
    given = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(given, Collection) or isinstance(given, Mapping | bytes | bytearray):
        raise ConfigError(f"stop is {shown(stop)}; it must be a string or a list of strings: leave it out for none")
    if not all(isinstance(end, str) and end for end in given):
        raise ConfigError(f"stop is {shown(stop)}; it must be strings that are not empty: leave it out for none")
    return tuple(given)


def names(cls: type[DataclassInstance]) -> list[str]:
    """Field names of some settings."""
    return [f.name for f in fields(cls)]


def settings_of(cls: type[SettingsT], keywords: Mapping[str, Any], own: Sequence[str] = ()) -> SettingsT:
    """Settings from the keywords of a call with the parameters `own`; raises ConfigError for an unknown one."""
    known = [*names(cls), *own]
    calls = ((Drafting, "load"), (Learning, "load"), (Sampling, "generate"))
    homes = {name: call for other, call in calls for name in names(other)}
    for name in keywords:
        if name not in known:
            fix = f"give it to {homes[name]}" if name in homes else suggestion(name, known)
            raise ConfigError(f"unknown option {name!r}: {fix}")
    return cls(**keywords)


def suggestion(name: str, known: Collection[str]) -> str:
    """The fix for a mistyped name: the nearest known one, else all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"


def data_folder() -> Path:
    """Folder of what is kept between runs: `OMNIDRAFT_HOME`, else the platform's data folder.

    Raises ConfigError where neither is known.
    """
    if home := os.environ.get("OMNIDRAFT_HOME"):
        return Path(home)
    import platformdirs

    with suppress(RuntimeError):  # without a home folder; older versions return "~"
        folder = platformdirs.user_data_path("omnidraft", appauthor=False)
        if folder.is_absolute():
            return folder
    raise ConfigError("no home folder is known: set OMNIDRAFT_HOME to a writable folder")


def _finite(value: Any) -> bool:
    try:  # in double precision: a narrower type of numpy cannot be compared with the bound
        return abs(float(value)) < LARGEST
    except OverflowError:
        return False


def shown(value: object) -> str:
    """A value for an error message of one line."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of thousands of digits
        text = f"of type {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def choice(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ConfigError unless the value is one of those allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} is {shown(value)}; use one of {', '.join(sorted(allowed))}")
