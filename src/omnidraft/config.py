"""Settings: frozen dataclasses whose fields carry bounds, choices and help, validated on creation."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

from omnidraft.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    SettingsT = TypeVar("SettingsT", bound=DataclassInstance)

VERIFICATIONS = "seeded", "block", "token"
NGRAM_SEEDS = ("empty", "vocabulary")
REUSE_ANSWERS = ("memory", "nothing", "profile", "request")
DRAFT_LENGTHS = ("goodput", "head")  # or an integer: a fixed length
MAX_DRAFT = 64
ADAPTERS = ("full", "lora")
ADAPT = ("background", "inline", "off")
GRAPHS = ("off", "on")  # of CUDA
MIN_TEMPERATURE = 1e-4  # logits divided by less may overflow
MAX_NUMBER = 1e30  # of any number without another bound: scores multiplied by more may overflow
MAX_SHOWN = 100  # characters of a value in a message
EXPERIMENTAL = "it is for experiments, use {} with omnidraft.api.assemble"


def number(
    default: float | None,
    about: str,
    *,
    low: float,
    high: float = MAX_NUMBER,
    zero: bool | None = None,
    none: str | None = None,
    fix: str,
) -> Any:
    """A field that holds a finite number from `low` to `high`; `zero` allows or excludes 0 against these bounds.

    `none` says what None means, where it is allowed.
    """
    least = f"0 or at least {low}" if zero else "above 0" if zero is False else f"at least {low}"
    allowed = f"a finite number {least}" + (f", at most {high}" if high < MAX_NUMBER else "")

    def check(name: str, value: Any) -> float:
        if _is_a(Real, value):
            with suppress(OverflowError):  # a fraction beyond every float
                plain = int(value) if isinstance(value, Integral) else float(value)  # of numpy: Python's
                if low <= plain <= high if plain or zero is None else zero:
                    return plain
        raise ConfigError(f"{name} is {shown(value)}; it must be {allowed}: {fix}", option=name)

    return _field(default, about, check, none)


def integer(
    default: int | str | None,
    about: str,
    *,
    low: int,
    high: int | None = None,
    words: Sequence[str] = (),
    experimental: Sequence[str] = (),
    none: str | None = None,
    fix: str,
) -> Any:
    """A field that holds an integer from `low` to `high`, or one of `words`; `none` as for `number`.

    `experimental` are further words that `Drafting` takes.
    """
    allowed = f"an integer at least {low}" + (f", at most {high}" if high is not None else "")

    def check(name: str, value: Any) -> int | str:
        if words and isinstance(value, str):
            if value not in words:
                allowed_words = f"use one of {', '.join(words)}, or an integer"
                way = EXPERIMENTAL.format("config.Drafting") if value in experimental else allowed_words
                raise ConfigError(f"{name} is {shown(value)}; {way}", option=name)
            return value
        if _is_a(Integral, value) and low <= int(value) <= (value if high is None else high):
            return int(value)
        raise ConfigError(f"{name} is {shown(value)}; it must be {allowed}: {fix}", option=name)

    return _field(default, about, check, none)


def _is_a(kind: type, value: object) -> bool:
    """True for a number of the kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def one_of(default: str, about: str, *allowed: str) -> Any:
    """A field that holds one of some words."""
    return _field(default, f"{about}: {', '.join(allowed)}", lambda name, value: choice(name, value, allowed))


Biases = tuple[tuple[int, float], ...]


def biases(about: str) -> Any:
    """A field that holds numbers by token id: of a mapping or of pairs, as pairs in the order of the ids."""

    def check(name: str, value: Any) -> Biases:
        with suppress(TypeError, ValueError):
            biases = value.items() if isinstance(value, Mapping) else ((token, bias) for token, bias in value)
            pairs = [(_token(token), bias) for token, bias in biases]
            if all(
                _is_a(Integral, token) and token >= 0 and _is_a(Real, bias) and abs(bias) <= MAX_NUMBER
                for token, bias in pairs
            ):
                return tuple(sorted({int(token): float(bias) for token, bias in pairs}.items()))
        allowed = 'finite numbers by the ids of their tokens, such as {"5": -100}'
        raise ConfigError(f"{name} is {shown(value)}; it must be {allowed}: use {{}} for none", option=name)

    return _field((), about, check)


def _token(key: object) -> Any:
    """A token's id, which the keys of JSON write as text; anything else as it is."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() else key


def _field(default: Any, about: str, check: Callable[[str, Any], Any], none: str | None = None) -> Any:
    """A field whose metadata holds the help, the check (name and value -> value) and the meaning of None."""
    return field(default=default, metadata={"help": about, "check": check, "none": none})


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

    temperature: float = number(
        0.0,
        "sampling temperature; 0 is greedy decoding",
        low=MIN_TEMPERATURE,
        zero=True,
        fix="use 0 for greedy decoding",
    )
    top_k: int = integer(0, "keep the k most probable tokens; 0: all", low=0, fix="use 0 to switch it off")
    top_p: float = number(
        1.0, "keep the most probable tokens of this total probability", low=0, high=1, zero=False, fix="use 1 for all"
    )
    min_p: float = number(
        0.0, "keep tokens of at least this share of the highest probability", low=0, high=1, fix="use 0 for all"
    )
    repetition_penalty: float = number(
        1.0, "above 1, tokens seen before get less probable", low=MIN_TEMPERATURE, fix="use 1 to switch it off"
    )
    repetition_window: int = integer(
        0, "last tokens of the text that repetition_penalty covers; 0: all", low=0, fix="use 0 for all of them"
    )
    frequency_penalty: float = number(
        0.0,
        "subtracted from a token's score per occurrence in the answer",
        low=-MAX_NUMBER,
        fix="use 0 to switch it off",
    )
    presence_penalty: float = number(
        0.0, "subtracted from a token's score once it is in the answer", low=-MAX_NUMBER, fix="use 0 to switch it off"
    )
    min_new_tokens: int = integer(0, "minimum tokens of the answer", low=0, fix="use 0 to let it end anywhere")
    logit_bias: tuple[tuple[int, float], ...] = biases(
        'added to the scores of tokens, by token id, such as {"5": -100}'
    )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, kw_only=True)
class GenerationLimits(Settings):
    """Length of an answer, and the seed of its random draws."""

    max_new_tokens: int = integer(256, "maximum tokens of the answer", low=1, fix="use 1 or more")
    seed: int = integer(0, "seed of every random draw", low=0, high=2**64 - 1, fix="choose any of them")


@dataclass(frozen=True, kw_only=True)
class Details(Settings):
    """Optional content of the records of an answer."""

    logprobs: int | None = integer(
        None,
        "log-probability of each token, and this many of the most probable tokens at its position",
        low=0,
        high=20,
        none="none",
        fix="leave it out for none",
    )


def _draft_length(*policies: str) -> Any:
    listed = ", ".join(policies)
    return integer(
        "goodput",
        f"draft tokens per round: {listed}, or a fixed number; 0 is plain decoding",
        low=0,
        high=MAX_DRAFT,
        words=policies,
        experimental=[each for each in DRAFT_LENGTHS if each not in policies],
        fix=f"use 0 for plain decoding, or {listed}",
    )


@dataclass(frozen=True, kw_only=True)
class DraftingOptions(Settings):
    """The options of `load` for drafting; `draft_length` 0 is plain decoding through the same loop."""

    draft_length: str | int = _draft_length("goodput")
    max_draft_length: int = integer(
        16, "maximum draft length of a policy", low=1, high=MAX_DRAFT, fix="use draft_length=0 for plain decoding"
    )
    reuse_answers: str = one_of(
        "memory",
        "earlier text that drafts use (request: its own; memory: also earlier answers; profile: also saved ones)",
        *REUSE_ANSWERS,
    )


@dataclass(frozen=True, kw_only=True)
class Drafting(DraftingOptions):
    """All of drafting and verification: with the paper's method, and with what only experiments vary."""

    draft_length: str | int = _draft_length(*DRAFT_LENGTHS)
    threshold: float | None = number(
        None, "value of head below which a draft ends", low=0, high=1, none="0.4", fix="leave it out for 0.4"
    )
    mode: str = one_of("exact", "verification scheme", "exact", "intersection", "paper")
    verification: str = one_of(
        "seeded",
        "sampled drafts (seeded: kept while equal to what the seed draws; block, token: rejection sampling)",
        *VERIFICATIONS,
    )
    drafter_temperature: float | None = number(
        None,
        "temperature of the drafter",
        low=MIN_TEMPERATURE,
        zero=True,
        none="the target's",
        fix="leave it out to follow the target",
    )
    ngram_seed: str = one_of("vocabulary", "n-grams active at the start", *NGRAM_SEEDS)
    drafter_backend: str = one_of(
        "auto", "forward pass of the drafter, auto being the native one on CPUs that have it", "auto", "transformers"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and self.draft_length != "head":
            raise ConfigError(f"threshold is for head, not for {self.draft_length!r}: leave it out", option="threshold")

    def check_alone(self) -> None:
        """Raise ConfigError if there would be no drafts without a drafter."""
        if self.counts or self.longest == 0:
            return
        nothing = self.reuse_answers == "nothing"
        option, use = ("reuse_answers", "leave reuse_answers out") if nothing else ("mode", "use mode='exact'")
        why = f"{option} is {getattr(self, option)!r} without a drafter, so that there are no drafts"
        raise ConfigError(f"{why}: give a drafter, {use}, or use draft_length=0", option=option)

    @property
    def counts(self) -> bool:
        """True if drafts use counts of earlier text: in the exact mode, with a draft length above 0."""
        return self.reuse_answers != "nothing" and self.mode == "exact" and self.longest > 0

    @property
    def rejection(self) -> bool:
        """True if draft tokens are drawn, and verified by rejection sampling: then text depends on drafts and seed."""
        return self.mode != "exact" or self.verification != "seeded"

    @property
    def longest(self) -> int:
        """Largest number of draft tokens in a round."""
        return self.max_draft_length if isinstance(self.draft_length, str) else self.draft_length


@dataclass(frozen=True, kw_only=True)
class LearningOptions(Settings):
    """The options of `load` for the drafter's online distillation."""

    adapter: str = one_of("full", "trained weights", *ADAPTERS)
    rank: int = integer(32, "rank of LoRA", low=1, high=1024, fix="32 is usual")
    learning_rate: float = number(
        6e-4, "learning rate of AdamW", low=0, high=1, zero=False, fix="use adapt='off' not to learn"
    )
    update_every: int = integer(8, "answers between updates", low=1, fix="use 1 to learn after every answer")


@dataclass(frozen=True, kw_only=True)
class Learning(LearningOptions):
    """All of the distillation's settings."""

    train: str = one_of("joint", "what is trained: the drafter, or its acceptance head too", "drafter", "joint")
    loss: str = one_of("forward+tv", "divergence from the exact teacher", "forward", "forward+tv", "reverse", "tv")
    teacher_temperature: float = number(
        0.5,
        "temperature of the teacher (the target), independent of the answer's temperature",
        low=MIN_TEMPERATURE,
        fix="use 1 for the target's own distributions",
    )
    replay_steps: int = integer(
        3, "optimizer steps on earlier answers after each on new ones", low=0, fix="use 0 for none"
    )


def stop_strings(stop: object) -> tuple[str, ...]:
    """One or several stop strings as a tuple; raises ConfigError for anything else."""
    strings = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Collection) or isinstance(strings, Mapping | bytes | bytearray):
        raise ConfigError(
            f"stop is {shown(stop)}; it must be a string or a list of strings: leave it out for none", option="stop"
        )
    if not all(isinstance(end, str) and end for end in strings):
        raise ConfigError(
            f"stop is {shown(stop)}; it must be strings that are not empty: leave it out for none", option="stop"
        )
    return tuple(strings)


def names(cls: type[DataclassInstance]) -> list[str]:
    """Field names of some settings."""
    return [f.name for f in fields(cls)]


def settings_of(cls: type[SettingsT], keywords: Mapping[str, Any], parameters: Sequence[str] = ()) -> SettingsT:
    """Settings from the keywords of a call with these other `parameters`; raises ConfigError for an unknown one."""
    known = [*names(cls), *parameters]
    for name in keywords:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}: {_home(name) or suggestion(name, known)}", option=name)
    return cls(**keywords)


def drafting_of(options: Mapping[str, Any], parameters: Sequence[str] = ()) -> Drafting:
    """The settings that these fields of `DraftingOptions` give; arguments and errors as for `settings_of`."""
    return Drafting(**asdict(settings_of(DraftingOptions, options, parameters)))


def _home(name: str) -> str | None:
    """The fix for an option of another call."""
    calls = (
        (DraftingOptions, "load"),
        (LearningOptions, "load"),
        (Sampling, "generate"),
        (GenerationLimits, "generate"),
    )
    return next((f"give it to {call}" for cls, call in calls if name in names(cls)), None)


def suggestion(name: str, known: Collection[str]) -> str:
    """The fix for an unknown name: where it is for experiments, or the nearest known one."""
    plain = name.lstrip("-").replace("-", "_")
    for cls, public in ((Drafting, DraftingOptions), (Learning, LearningOptions)):
        if plain in names(cls) and plain not in names(public):
            return EXPERIMENTAL.format(f"config.{cls.__name__}")
    near = [each for each in known if each.lstrip("-").replace("-", "_") == plain]
    near = near or difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(sorted(known))}"


def shown(value: object) -> str:
    """A value for an error message of one line."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # an integer of thousands of digits
        text = f"of type {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def choice(name: str, value: Any, allowed: Collection[str]) -> Any:
    """The value itself; raises ConfigError unless it is one of those allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(f"{name} is {shown(value)}; use one of {', '.join(sorted(allowed))}", option=name)
    return value
