"""Work on the models as generators that ask for reads, so that those of several requests are made in one pass."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch

from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import KVSequence, LanguageModel, Read

T = TypeVar("T")
Stop = Callable[[], bool]  # whether to stop, asked between the chunks of a long text
Passes = Generator[Read, torch.Tensor, T]
"""Work that asks for one read after another, is sent the logits of each, and returns a T."""


class Stopped(Exception):  # noqa: N818  not an error
    """A text was not read to its end, as it was to stop; its cache holds the beginning."""


class Behind(Exception):  # noqa: N818  no error: it tells of a state
    """A drafter has not read its text, and the others do not wait for it."""


def never() -> bool:
    """Do not stop."""
    return False


@dataclass(kw_only=True)
class Pace:
    """Stop condition of some work, and the seconds it waited for reads of others."""

    stop: Stop = never
    waited_s: float = 0.0


class Work(Generic[T]):
    """Some work on its way: the read that it asks for, or its `result`, or the `error` that ended it."""

    def __init__(self, passes: Passes[T], target: KVSequence | None = None, pace: Pace | None = None) -> None:
        self.asked: Read | None = None
        self.verifies = False  # whether that is of its target
        self.result: T | None = None
        self.error: Exception | None = None
        self._passes, self._target, self._pace = passes, target, pace or Pace()
        self._since = 0.0  # when it asked
        self._go_on(0.0, passes.__next__)

    def send(self, logits: torch.Tensor, took_s: float) -> None:
        """Resume with the logits of its read, and the seconds of the pass."""
        chunk = self.asked is not None and not self.asked.keep
        self._go_on(took_s, self._after_chunk if chunk else self._passes.send, logits)

    def fail(self, error: Exception) -> None:
        """Resume with an error in place of logits, which the work may handle."""
        self._go_on(0.0, self._passes.throw, error)

    def done(self) -> T:
        """The result; raises the error."""
        if self.error is not None:
            raise self.error
        return cast("T", self.result)

    def _after_chunk(self, logits: torch.Tensor) -> Read:
        return self._passes.throw(Stopped()) if self._pace.stop() else self._passes.send(logits)

    def _go_on(self, took_s: float, act: Callable[..., Read], *sent: object) -> None:
        if self.asked is not None:
            self._pace.waited_s += max(0.0, time.perf_counter() - self._since - took_s)
        self.asked, self.verifies = None, False
        try:
            self.asked = act(*sent)
            self.verifies = self.asked.sequence is self._target
        except StopIteration as end:
            self.result = end.value
        except Exception as error:  # noqa: BLE001  whoever began it is told
            self.error = error
        self._since = time.perf_counter()


def run(passes: Passes[T], pace: Pace | None = None) -> T:
    """The result of some work, its reads made one by one; raises Stopped where it is to stop between two chunks."""
    work = Work(passes, pace=pace)
    while work.asked is not None:
        try:
            logits = work.asked.sequence.forward(work.asked.ids, work.asked.keep)
        except OmniDraftError as error:
            work.fail(error)
        else:
            work.send(logits, math.inf)  # there is nothing to wait for
    return work.done()


def run_batched(passes: Sequence[Passes[T]]) -> list[T]:
    """Return the results of several, with reads of one model made together; raises an error when all have ended."""
    works = [Work(each) for each in passes]
    while asking := [each for each in works if each.asked is not None]:
        forward_by_model(asking)
    return [each.done() for each in works]


def forward_by_model(works: Sequence[Work[T]]) -> dict[int, float]:
    """Make the reads that these ask for, those of one model together; return the seconds of each model by its id."""
    groups = dict[int, tuple[LanguageModel, list[Work[T]]]]()
    for each in works:
        if each.asked is not None:
            model = each.asked.sequence.model
            groups.setdefault(id(model), (model, []))[1].append(each)
    taken = dict[int, float]()
    for place, (model, group) in groups.items():
        began = time.perf_counter()
        _forward_batch(model, group)
        taken[place] = time.perf_counter() - began
    return taken


def _forward_batch(model: LanguageModel, group: Sequence[Work[T]]) -> None:
    """Make the reads of one model, together if it can; an error goes only to the work that caused it."""
    fine: list[tuple[Work[T], Read]] = []
    for each in group:
        try:
            if each.asked is not None:
                each.asked.check()
                fine.append((each, each.asked))
        except OmniDraftError as error:
            each.fail(error)
    rows: Sequence[torch.Tensor] | None = None
    began, took_s = time.perf_counter(), 0.0
    if model.joint and len(fine) > 1:
        with suppress(Exception):  # read one by one, it comes again where it is of one of them
            rows = model.read([asked for _, asked in fine])
        took_s = time.perf_counter() - began
    for place, (each, asked) in enumerate(fine):
        try:
            if rows is None:
                began = time.perf_counter()
                logits = asked.checked(model.read([asked])[0])
                took_s = time.perf_counter() - began
            else:
                logits = asked.checked(rows[place])
        except Exception as error:  # noqa: BLE001  whoever began it is told
            each.fail(error)
        else:
            each.send(logits, took_s)
