"""Interleaved timing: decoding methods answer the same prompt in turns.

The speed of a shared machine drifts by more than methods differ, within seconds.  So all methods decode a prompt
together, some tokens each.  Methods that alternate within an answer need KV caches of their own.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import torch

from omnidraft.attach import make_cache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.verification.sampling import GeneratorSampler

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.verification.round import Round

TURN_TOKENS = 4  # tokens of a turn; the first one finds cold caches
PLAIN = Drafting(draft_length=0)
T = TypeVar("T")


@dataclass(frozen=True)
class TimedAnswer:
    """The tokens that follow a prompt."""

    tokens: list[int]
    rounds: list[Round] | None = None  # of our own loop
    passes: Sequence[int] = ()  # of others: tokens fed in each forward pass of the target


@dataclass(frozen=True)
class Timed:
    """An answer with its wall-clock seconds."""

    answer: TimedAnswer
    seconds: float


class Method(Protocol):
    """A decoding method that can be interrupted."""

    name: str

    def restart(self) -> None:
        """Begin a repeat: forget the n-grams seen."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        """Begin to answer a prompt."""

    def advance(self, length: int) -> bool:
        """Decode until the answer has `length` tokens; False if it ends before that."""

    def end(self) -> TimedAnswer:
        """The answer so far."""


class LaneMethod:
    """Decoding by our own loop."""

    def __init__(self, name: str, lane: Lane, sampling: Sampling) -> None:
        self.name, self.lane, self.sampling = name, lane, sampling
        self._rounds: Iterator[Round] = iter(())
        self._done: list[Round] = []
        self._length = 0

    def restart(self) -> None:
        """Forget the n-grams seen; the measurements of the draft-length policy are kept, as for users."""
        old = self.lane
        if old.attached is not None:
            attached = replace(old.attached, cache=make_cache(old.attached.cache.table, old.drafting))
            self.lane = Lane(old.target.model, old.eos, attached, old.drafting, old.policy)
            self.lane.counts = old.counts

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        self._rounds = decode(self.lane, ids, new_tokens, self.sampling, sampler(seed))
        self._done, self._length = [], 0

    def advance(self, length: int) -> bool:
        while self._length < length and (record := next(self._rounds, None)) is not None:
            self._done.append(record)
            self._length += len(record.emitted)
        return self._length >= length

    def end(self) -> TimedAnswer:
        return TimedAnswer(emitted(self._done), self._done)


def interleave(
    methods: Sequence[Method],
    ids: list[int],
    new_tokens: int,
    seed: int = 0,
    turn: int = 0,
    chunk: int = TURN_TOKENS,
) -> list[Timed]:
    """Answer a prompt by every method, `chunk` tokens at a time, in an order that changes with `turn` and every lap.

    The answers are in the order of `methods`.  Garbage collection is off meanwhile.
    """
    seconds = [0.0] * len(methods)
    for method in methods:
        method.begin(ids, new_tokens, seed)
    going, length = list(range(len(methods))), 0
    gc.collect(0)
    gc.disable()
    try:
        while going:
            length, left = length + chunk, []
            for place in ordered(going, turn):
                began = time.perf_counter()
                more = methods[place].advance(length)
                seconds[place] += time.perf_counter() - began
                if more and length < new_tokens:
                    left.append(place)
            going, turn = sorted(left), turn + 1
    finally:
        gc.enable()
    return [Timed(method.end(), taken) for method, taken in zip(methods, seconds, strict=True)]


def ordered(items: Sequence[T], turn: int) -> list[T]:
    """The order of one turn: over n turns of n items, each item has every place once.

    The neighbors change with each such cycle, because a method may leave caches behind that suit another.
    """
    if not items:
        return []
    cycle, first = divmod(turn, len(items))
    order = list(items)
    random.Random(cycle).shuffle(order)  # noqa: S311  the same in every run
    return order[first:] + order[:first]


def lane_for(model: OmniDraft, drafting: Drafting = PLAIN, *, attached: AttachedDrafter | None = None) -> Lane:
    """A lane on a loaded target and, unless another is `attached`, its drafter with a new n-gram cache."""
    target, eos = model.target.lm, model.lane.eos
    if drafting.longest == 0:
        return Lane(target, eos)
    if attached is None and model.drafter is not None:
        attached = drafter_of(model)
        attached = replace(attached, cache=make_cache(attached.cache.table, drafting))
    return Lane(target, eos, attached, drafting)


def drafter_of(model: OmniDraft) -> AttachedDrafter:
    """The drafter of a model; raises ValueError if it has none."""
    if model.lane.attached is None:
        raise ValueError("a comparison of drafts needs a drafter")
    return model.lane.attached


def emitted(rounds: Iterable[Round]) -> list[int]:
    """The target tokens of some rounds, in one list."""
    return [token for record in rounds for token in record.emitted]


def sampler(seed: int = 0) -> GeneratorSampler:
    """A sampler with the random generator of a seed."""
    return GeneratorSampler(torch.Generator().manual_seed(seed))
