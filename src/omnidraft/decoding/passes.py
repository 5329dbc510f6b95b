"""Drafting and verifying as generators that ask for reads, so that those of several requests are made in one pass.

`alone` makes the reads of one after another.  A `turn` gives each of several a round: the drafts of all first, then one
pass of each target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import torch

from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import KVSequence, LanguageModel, Read

PARTS = 4  # of texts that drafters have yet to read, in a turn of several requests
T = TypeVar("T")
Stop = Callable[[], bool]  # whether to stop, asked between the parts of a long text
Passes = Generator[Read, torch.Tensor, T]
"""Work that asks for one read after another, is sent the logits of each, and returns a T."""


class Stopped(Exception):  # noqa: N818  not an error
    """A text was not read to its end, as it was to stop; its cache holds the beginning."""


class Behind(Exception):  # noqa: N818  likewise
    """A drafter has not read its text, and the others do not wait for it."""


def never() -> bool:
    """Do not stop."""
    return False


class Work(Generic[T]):
    """Some work on its way: the read that it asks for, or its `result`, or the `error` that ended it."""

    def __init__(self, passes: Passes[T], target: KVSequence | None = None, stop: Stop = never) -> None:
        self.asked: Read | None = None
        self.verifies = False  # whether that is of its target
        self.result: T | None = None
        self.error: Exception | None = None
        self._passes, self._target, self._stop = passes, target, stop
        self._go_on(passes.__next__)

    def send(self, logits: torch.Tensor) -> None:
        """Go on with the logits that it asked for."""
        part = self.asked is not None and not self.asked.keep
        self._go_on(self._after_part if part else self._passes.send, logits)

    def fail(self, error: Exception) -> None:
        """Tell it that there are no logits: it may go on in another way."""
        self._go_on(self._passes.throw, error)

    def done(self) -> T:
        """The result; raises the error."""
        if self.error is not None:
            raise self.error
        return cast("T", self.result)

    def _after_part(self, logits: torch.Tensor) -> Read:
        return self._passes.throw(Stopped()) if self._stop() else self._passes.send(logits)

    def _go_on(self, act: Callable[..., Read], *given: object) -> None:
        self.asked, self.verifies = None, False
        try:
            self.asked = act(*given)
            self.verifies = self.asked.sequence is self._target
        except StopIteration as end:
            self.result = end.value
        except Exception as error:  # noqa: BLE001  whoever began it is told
            self.error = error


def alone(passes: Passes[T], stop: Stop = never) -> T:
    """The result of some work, its reads made one by one; raises Stopped where `stop` says so between two parts."""
    work = Work(passes, stop=stop)
    while work.asked is not None:
        try:
            logits = work.asked.sequence.forward(work.asked.ids, work.asked.keep)
        except OmniDraftError as error:
            work.fail(error)
        else:
            work.send(logits)
    return work.done()


def together(passes: Sequence[Passes[T]]) -> list[T]:
    """The results of several, each as alone, reads of one model made together; raises an error when all have ended."""
    works = [Work(each) for each in passes]
    while asking := [each for each in works if each.asked is not None]:
        _make(asking)
    return [each.done() for each in works]


@dataclass
class Seconds:
    """What a turn took: all drafts, and the pass of each target."""

    drafts: float
    targets: dict[int, float]  # by the id of the model


def turn(works: Sequence[Work[T]]) -> Seconds:
    """Take each to the end of its round: one read of its target, after the reads of its draft.

    Beside others a drafter reads no more than some parts of a long text, and the round goes on without it.
    """
    began, parts = time.perf_counter(), 0
    while drafting := [each for each in works if each.asked is not None and not each.verifies]:
        for each in drafting:
            if each.asked is not None and not each.asked.keep and len(works) > 1:
                parts += 1
                if parts > PARTS:
                    each.fail(Behind())
        _make([each for each in drafting if each.asked is not None and not each.verifies])
    drafted = time.perf_counter()
    return Seconds(drafted - began, _make([each for each in works if each.verifies]))


def _make(works: Sequence[Work[T]]) -> dict[int, float]:
    """Make the reads that these ask for, those of one model together; the seconds of each model, by its id."""
    groups = dict[int, tuple[LanguageModel, list[Work[T]]]]()
    for each in works:
        if each.asked is not None:
            model = each.asked.sequence.model
            groups.setdefault(id(model), (model, []))[1].append(each)
    taken = dict[int, float]()
    for place, (model, group) in groups.items():
        began = time.perf_counter()
        _make_group(model, group)
        taken[place] = time.perf_counter() - began
    return taken


def _make_group(model: LanguageModel, group: Sequence[Work[T]]) -> None:
    """Make the reads of one model, together where it can; an error is told to whom it is of alone."""
    fine: list[tuple[Work[T], Read]] = []
    for each in group:
        try:
            if each.asked is not None:
                each.asked.check()
                fine.append((each, each.asked))
        except OmniDraftError as error:
            each.fail(error)
    rows: Sequence[torch.Tensor] | None = None
    if model.joint and len(fine) > 1:
        try:
            rows = model.read([asked for _, asked in fine])
        except Exception:  # noqa: BLE001  read one by one, it comes again where it is of one of them
            rows = None
    for place, (each, asked) in enumerate(fine):
        try:
            logits = asked.checked(model.read([asked])[0] if rows is None else rows[place])
        except Exception as error:  # noqa: BLE001  whoever began it is told
            each.fail(error)
        else:
            each.send(logits)
