"""Settings: frozen dataclasses, validated when created."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)

from omnidraft.errors import ConfigError

MODES = ("exact", "intersection", "paper")
VERIFICATIONS = ("block", "token")
NGRAM_SEEDS = ("empty", "vocabulary")
EVICTIONS = ("lfu", "lru")
DRAFT_LENGTHS = ("confidence", "entropy", "goodput", "head")  # or an integer: a fixed length
TRAINS = ("drafter", "head", "interleaved", "joint")
DRAFTER_STEPS = ("auto", "transformers")
LOSSES = ("forward", "forward+tv", "hybrid", "reverse", "tv")
ADAPTERS = ("full", "lora")
ADAPT = ("background", "inline", "off")
MAX_RANK = 1024
LONGEST_DRAFT = 64
MAX_SEED = 2**64 - 1  # what a torch.Generator takes
COLDEST = 1e-4  # logits divided by less may overflow
LARGEST = 1e30  # so do scores multiplied by more
LONGEST = 100  # characters of a value in a message


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """What is done to the target's logits before a token is drawn; temperature 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        _temperature(self, "temperature", fix="use 0 for greedy decoding")
        check_integer(self, "top_k", low=0, fix="use 0 to switch it off")
        check_number(self, "top_p", low=0.0, high=1.0, low_open=True, fix="use 1 to switch it off")
        check_number(self, "min_p", low=0.0, high=1.0, fix="use 0 to switch it off")
        check_number(self, "repetition_penalty", low=COLDEST, fix="use 1 to switch it off")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """How proposals are made and verified; `draft_length` 0 is plain decoding through the same loop."""

    draft_length: str | int = "goodput"  # a policy, or a fixed number of tokens
    max_draft_length: int = 16  # of a policy
    threshold: float | None = None  # of confidence, entropy or head; None: 0.4
    mode: str = "exact"
    verification: str = "block"
    drafter_temperature: float | None = None  # None: the target's
    ngram_seed: str = "vocabulary"
    ngram_bound: int | None = None  # None: unbounded
    ngram_eviction: str = "lfu"
    drafter_step: str = "auto"  # a lean one of our own where there is one, or that of transformers

    def __post_init__(self) -> None:
        if not isinstance(self.draft_length, str):
            fix = f"use 0 for plain decoding, or one of {', '.join(DRAFT_LENGTHS)}"
            check_integer(self, "draft_length", low=0, high=LONGEST_DRAFT, fix=fix)
        elif self.draft_length not in DRAFT_LENGTHS:
            raise ConfigError(
                f"draft_length is {shown(self.draft_length)}; use one of {', '.join(DRAFT_LENGTHS)}, or an integer"
            )
        check_integer(self, "max_draft_length", low=1, high=LONGEST_DRAFT, fix="use draft_length=0 for plain decoding")
        if self.threshold is not None:
            check_number(self, "threshold", low=0.0, high=1.0, fix="leave it out for 0.4")
            if self.draft_length not in ("confidence", "entropy", "head"):
                raise ConfigError(
                    f"threshold is for confidence, entropy or head, not for {self.draft_length!r}: leave it out"
                )
        choice("mode", self.mode, MODES)
        choice("verification", self.verification, VERIFICATIONS)
        if self.drafter_temperature is not None:
            _temperature(self, "drafter_temperature", fix="leave it out to follow the target")
        choice("ngram_seed", self.ngram_seed, NGRAM_SEEDS)
        if self.ngram_bound is not None:
            check_integer(self, "ngram_bound", low=1, fix="leave it out for no bound")
        choice("ngram_eviction", self.ngram_eviction, EVICTIONS)
        choice("drafter_step", self.drafter_step, DRAFTER_STEPS)

    @property
    def longest(self) -> int:
        """Largest number of draft tokens in a round."""
        return self.max_draft_length if isinstance(self.draft_length, str) else self.draft_length


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How a drafter learns from the answers of its target; `distillation.settings` has the rest."""

    trains: str = "interleaved"  # the drafter and its acceptance head, or one of them
    loss: str = "forward+tv"  # a divergence from the exact teacher distribution, or the paper's "hybrid"
    adapter: str = "full"
    rank: int = 32  # of LoRA
    learning_rate: float = 5e-4
    teacher_temperature: float = 0.5  # of the target's distributions that are learned from, whatever is sampled with
    interval: int = 8  # answers between updates
    replays: int = 1  # optimizer steps on earlier answers after each step on new ones

    def __post_init__(self) -> None:
        choice("trains", self.trains, TRAINS)
        choice("loss", self.loss, LOSSES)
        if self.loss == "hybrid" and self.trains in ("head", "joint"):
            raise ConfigError(
                f"trains is {self.trains!r} with the hybrid loss, which trains no head: use loss='forward+tv'"
            )
        choice("adapter", self.adapter, ADAPTERS)
        check_integer(self, "rank", low=1, high=MAX_RANK, fix="32 is usual")
        check_number(self, "learning_rate", low=0.0, high=1.0, low_open=True, fix="use adapt='off' not to learn")
        check_number(self, "teacher_temperature", low=COLDEST, fix="use 1 for the target's own distributions")
        check_integer(self, "interval", low=1, fix="use 1 to learn after every answer")
        check_integer(self, "replays", low=0, fix="use 0 for none")


@dataclass(frozen=True, kw_only=True)
class GenerationLimits:
    """How long a text may get, and which one of those that may be drawn it is."""

    max_new_tokens: int = 256
    seed: int = 0  # decides every draw

    def __post_init__(self) -> None:
        check_integer(self, "max_new_tokens", low=1, fix="ask for some")
        check_integer(self, "seed", low=0, high=MAX_SEED, fix="choose any of them")


def stop_strings(stop: object) -> tuple[str, ...]:
    """The strings that a text is to end before, of one or several; raises ConfigError for anything else."""
    given = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(given, Collection) or isinstance(given, Mapping | bytes | bytearray):
        raise ConfigError(f"stop is {shown(stop)}; it must be a string or a list of strings: leave it out for none")
    if not all(isinstance(end, str) and end for end in given):
        raise ConfigError(f"stop is {shown(stop)}; it must be strings that are not empty: leave it out for none")
    return tuple(given)


def names(cls: type[DataclassInstance]) -> list[str]:
    """The names of some settings."""
    return [f.name for f in fields(cls)]


def settings_of(cls: type[Settings], keywords: dict[str, Any], own: Sequence[str] = ()) -> Settings:
    """Settings from the keywords of a call whose own parameters are `own`; ConfigError for an unknown one."""
    known = [*(f.name for f in fields(cls)), *own]
    homes = {
        f.name: call
        for other, call in ((Drafting, "load"), (Learning, "load"), (Sampling, "generate"))
        for f in fields(other)
    }
    for name in keywords:
        if name not in known:
            fix = f"give it to {homes[name]}" if name in homes else suggestion(name, known)
            raise ConfigError(f"unknown option {name!r}: {fix}")
    return cls(**keywords)


def suggestion(name: str, known: Collection[str]) -> str:
    """The fix for a mistyped name: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"


def data_folder() -> Path:
    """Where what is kept between runs lies: OMNIDRAFT_HOME, else in the XDG data home.

    Raises ConfigError where neither is known.
    """
    if home := os.environ.get("OMNIDRAFT_HOME"):
        return Path(home)
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # the XDG standard has relative paths ignored
        try:
            data = Path.home() / ".local" / "share"
        except RuntimeError:
            raise ConfigError("no home folder is known: set OMNIDRAFT_HOME to a folder that can be written") from None
    return data / "omnidraft"


def _temperature(own: object, name: str, fix: str) -> None:
    check_number(own, name, low=0.0, fix=fix)
    if 0 < (value := getattr(own, name)) < COLDEST:
        raise ConfigError(f"{name} is {value!r}; it must be 0 or at least {COLDEST:g}: {fix}")


def check_number(
    own: object, name: str, *, low: float, high: float = math.inf, low_open: bool = False, fix: str = ""
) -> None:
    """Check a field, and make it a number of Python, which those who are given it ask for."""
    value = getattr(own, name)
    good = issubclass(type(value), Real) and not isinstance(value, bool) and _bounded(value)
    if not good or not (low <= value <= high) or (low_open and value == low):
        allowed = f"{'above' if low_open else 'at least'} {low:g}" + (f", at most {high:g}" if high < math.inf else "")
        raise ConfigError(f"{name} is {shown(value)}; it must be a finite number {allowed}: {fix}")
    object.__setattr__(own, name, int(value) if isinstance(value, Integral) else float(value))


def check_integer(own: object, name: str, *, low: int, high: int | None = None, fix: str = "") -> None:
    """Check a field likewise that is an integer."""
    value = getattr(own, name)
    good = issubclass(type(value), Integral) and not isinstance(value, bool)
    if not good or value < low or (high is not None and value > high):
        allowed = f"at least {low}" + (f", at most {high}" if high is not None else "")
        raise ConfigError(f"{name} is {shown(value)}; it must be an integer {allowed}: {fix}")
    object.__setattr__(own, name, int(value))


def _bounded(value: Any) -> bool:
    try:  # in double precision: a narrower type of numpy cannot be compared with the bound
        return abs(float(value)) < LARGEST
    except OverflowError:
        return False


def shown(value: object) -> str:
    """A value in a message of one line."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of thousands of digits
        text = f"of type {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def choice(name: str, value: object, allowed: Collection[str]) -> None:
    """Raise ConfigError unless the value is one of those allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} is {shown(value)}; use one of {', '.join(sorted(allowed))}")
