"""Drafting as a generator that asks for forward passes, so that those of several requests can be made together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from omnidraft.models.language_model import LanguageModel
from omnidraft.models.lean import LeanModel

SHORT = 8  # tokens: a longer text is read alone, as the others would wait for it
T = TypeVar("T")
Stop = Callable[[], bool]  # whether to stop, asked between the parts of a long text


class Stopped(Exception):  # noqa: N818  not an error
    """A text was not read to its end, as it was to stop; the model's cache holds its beginning."""


def never() -> bool:
    """Do not stop."""
    return False


def read(model: LanguageModel, ids: Sequence[int], keep: int, stop: Stop) -> torch.Tensor:
    """`model.forward`, in the parts that the model reads at once; raises Stopped between two where `stop` says so."""
    start, size = 0, getattr(model, "chunk", len(ids))
    while len(ids) - start - size >= max(1, keep):
        model.forward(ids[start : start + size], 0)
        start += size
        if stop():
            raise Stopped
    return model.forward(ids[start:], keep)


@dataclass(frozen=True)
class Pass:
    """A forward pass of a model that is to be made: its logits (V,) after the last of these tokens are sent back."""

    model: LanguageModel
    tokens: Sequence[int]

    def make(self, stop: Stop = never) -> torch.Tensor:
        """The logits; raises Stopped where `stop` says so meanwhile."""
        return read(self.model, self.tokens, 1, stop)[-1]


Passes = Generator[Pass, torch.Tensor, T]
"""Work that asks for passes one after another and returns a T."""


@dataclass(frozen=True)
class Done(Generic[T]):
    """The result of some work."""

    result: T


def alone(work: Passes[T], stop: Stop = never) -> T:
    """The result of some work, its passes made one by one; raises Stopped where `stop` says so meanwhile."""
    asked = _advance(work)
    while isinstance(asked, Pass):
        asked = _advance(work, asked.make(stop))
    return asked.result


def together(works: Sequence[Passes[T]]) -> list[T]:
    """The results of several, each as alone; passes of 8-bit models that share weights are made together."""
    found = [_until_joint(work, _advance(work)) for work in works]
    while asked := {at: one for at, one in enumerate(found) if isinstance(one, Pass)}:
        for at, logits in _made(asked).items():
            found[at] = _until_joint(works[at], _advance(works[at], logits))
    return [one.result for one in found if isinstance(one, Done)]


def _advance(work: Passes[T], logits: torch.Tensor | None = None) -> Pass | Done[T]:
    """The next pass that some work asks for, or its result."""
    try:
        return next(work) if logits is None else work.send(logits)
    except StopIteration as end:
        return Done(end.value)


def _until_joint(work: Passes[T], asked: Pass | Done[T]) -> Pass | Done[T]:
    """Go on to a pass that can be made with others; what another model says beside its logits is read at once."""
    while isinstance(asked, Pass) and not (isinstance(asked.model, LeanModel) and len(asked.tokens) <= SHORT):
        asked = _advance(work, asked.make())
    return asked


def _made(asked: dict[int, Pass]) -> dict[int, torch.Tensor]:
    """The logits of each pass."""
    groups = defaultdict[int, dict[int, LeanModel]](dict)  # by their weights
    for at, one in asked.items():
        if isinstance(one.model, LeanModel):  # as all are that `_until_joint` leaves
            groups[id(one.model.loaded)][at] = one.model
    logits: dict[int, torch.Tensor] = {}
    for group in groups.values():
        first, *others = group.values()
        rows = first.forward_together(others, [asked[at].tokens for at in group])
        logits |= dict(zip(group, rows, strict=True))
    return logits
