"""Ways of decoding that answer the same prompts in turns.

A machine is now slower, now faster, for seconds at a time and by more than the ways differ, so all ways answer a
prompt together: some tokens of one, some of the next.  Ways that take turns within an answer need KV caches of their
own.
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
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.models.language_model import LanguageModel
from omnidraft.verification.sampling import GeneratorSampler

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft
    from omnidraft.draft_length.acceptance_head import Head
    from omnidraft.draft_length.policy import DraftLengthPolicy
    from omnidraft.verification.round import Round

CHUNK = 4  # tokens of a turn: the first of them finds little in the processor's caches
PLAIN = Drafting(draft_length=0)
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """The tokens that follow a prompt; `rounds` where our own loop made them, else tokens fed in each target pass."""

    tokens: list[int]
    rounds: list[Round] | None = None
    passes: Sequence[int] = ()


@dataclass(frozen=True)
class Timed:
    """An answer with the seconds it took, by the clock and of this process."""

    answer: Answer
    seconds: float
    cpu_s: float


class Way(Protocol):
    """A way of decoding that can be interrupted."""

    name: str

    def restart(self) -> None:
        """Begin a repeat: forget the n-grams seen."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        """Begin to answer a prompt."""

    def advance(self, length: int) -> bool:
        """Decode until the answer has `length` tokens; False where it ends before that."""

    def end(self) -> Answer:
        """The answer so far."""


class EngineWay:
    """Decoding by our own loop."""

    def __init__(self, name: str, engine: Engine, sampling: Sampling) -> None:
        self.name, self.engine, self.sampling = name, engine, sampling
        self._rounds: Iterator[Round] = iter(())
        self._done: list[Round] = []
        self._length = 0

    def restart(self) -> None:
        """Forget the n-grams seen; what the draft-length policy measured is kept, as it is for users."""
        old = self.engine
        if old.attached is not None:
            attached = replace(old.attached, cache=make_cache(old.attached.cache.table, old.drafting))
            self.engine = Engine(old.target.model, sorted(old.eos), attached, old.drafting, old.policy)
            self.engine.counts = old.counts

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        self._rounds = self.engine.rounds(ids, new_tokens, self.sampling, sampler(seed))
        self._done, self._length = [], 0

    def advance(self, length: int) -> bool:
        while self._length < length and (record := next(self._rounds, None)) is not None:
            self._done.append(record)
            self._length += len(record.emitted)
        return self._length >= length

    def end(self) -> Answer:
        return Answer(emitted(self._done), self._done)


def take_turns(
    ways: Sequence[Way],
    ids: list[int],
    new_tokens: int,
    seed: int = 0,
    turn: int = 0,
    chunk: int = CHUNK,
) -> list[Timed]:
    """Answer a prompt by every way, `chunk` tokens at a time, in an order that changes with `turn` and every lap.

    The answers are in the order of `ways`; no garbage is collected meanwhile.
    """
    seconds, busy = ([0.0] * len(ways) for _ in range(2))
    for way in ways:
        way.begin(ids, new_tokens, seed)
    going, length = list(range(len(ways))), 0
    gc.collect(0)
    gc.disable()
    try:
        while going:
            length, left = length + chunk, []
            for place in ordered(going, turn):
                began, cpu = time.perf_counter(), time.process_time()
                more = ways[place].advance(length)
                seconds[place] += time.perf_counter() - began
                busy[place] += time.process_time() - cpu
                if more and length < new_tokens:
                    left.append(place)
            going, turn = sorted(left), turn + 1
    finally:
        gc.enable()
    return [Timed(way.end(), *taken) for way, *taken in zip(ways, seconds, busy, strict=True)]


def ordered(items: Sequence[T], turn: int) -> list[T]:
    """The order of one turn: over as many turns as there are items, each has had every place.

    Which item follows which changes with each such cycle, as one may leave caches behind that suit another.
    """
    if not items:
        return []
    cycle, first = divmod(turn, len(items))
    order = list(items)
    random.Random(cycle).shuffle(order)  # noqa: S311  the same in every run
    return order[first:] + order[:first]


def engine_for(
    model: OmniDraft,
    drafting: Drafting = PLAIN,
    *,
    target: LanguageModel | None = None,
    attached: AttachedDrafter | None = None,
    policy: DraftLengthPolicy | None = None,
) -> Engine:
    """An engine over loaded models: by default over the target and drafter themselves, with a new n-gram cache."""
    target, eos = target or model.target.lm, sorted(model.engine.eos)
    if drafting.longest == 0:
        return Engine(target, eos)
    if attached is None and model.drafter is not None:
        attached = drafter_of(model)
        attached = replace(attached, cache=make_cache(attached.cache.table, drafting))
    return Engine(target, eos, attached, drafting, policy)


def isolated(model: OmniDraft, drafting: Drafting, head: Head | None = None) -> Engine:
    """An engine with separate KV caches and n-grams, which may take turns with others within an answer."""
    if drafting.longest == 0 or model.drafter is None:
        return engine_for(model)
    attached = drafter_of(model)
    # with the same weights as the others, which would else crowd the processor's caches
    drafter = Drafter(attached.drafter.model)
    cache = make_cache(attached.cache.table, drafting)
    attached = replace(attached, drafter=drafter, cache=cache, head=head or attached.head)
    return engine_for(model, drafting, attached=attached)


def drafter_of(model: OmniDraft) -> AttachedDrafter:
    """The drafter of a model; raises ValueError where it has none."""
    if model.engine.attached is None:
        raise ValueError("a comparison of drafts needs a drafter")
    return model.engine.attached


def emitted(rounds: Iterable[Round]) -> list[int]:
    """The target tokens of some rounds."""
    return [token for record in rounds for token in record.emitted]


def sampler(seed: int = 0) -> GeneratorSampler:
    """Draws that a seed decides."""
    return GeneratorSampler(torch.Generator().manual_seed(seed))
