"""Drafting and verifying as generators that ask for reads, so that those of several requests can be made together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import KVSequence, Read

T = TypeVar("T")
Stop = Callable[[], bool]  # whether to stop, asked between the parts of a long text
Passes = Generator[Read, torch.Tensor, T]
"""Work that asks for one read after another, is sent the logits of each, and returns a T."""


class Stopped(Exception):  # noqa: N818  not an error
    """A text was not read to its end, as it was to stop; its cache holds the beginning."""


def never() -> bool:
    """Do not stop."""
    return False


def reading(sequence: KVSequence, ids: Sequence[int], keep: int) -> Passes[torch.Tensor]:
    """Append ids, in the parts that the model reads at once; the logits of the last `keep`."""
    start, size = 0, sequence.model.chunk
    while len(ids) - start - size >= max(1, keep):
        yield Read(sequence, ids[start : start + size], 0)
        start += size
    return (yield Read(sequence, ids[start:] if start else ids, keep))


@dataclass(frozen=True)
class Done(Generic[T]):
    """The result of some work."""

    result: T


def alone(work: Passes[T], stop: Stop = never) -> T:
    """The result of some work, its reads made one by one; raises Stopped where `stop` says so between two parts."""
    asked = _advance(work)
    while isinstance(asked, Read):
        try:
            logits = asked.sequence.forward(asked.ids, asked.keep)
        except OmniDraftError as error:
            asked = _advance(work, error=error)
            continue
        if not asked.keep and stop():
            raise Stopped
        asked = _advance(work, logits)
    return asked.result


def together(works: Sequence[Passes[T]]) -> list[T]:
    """The results of several, each as alone; reads of sequences of one model are made together."""
    found = [_advance(work) for work in works]
    while asked := {at: one for at, one in enumerate(found) if isinstance(one, Read)}:
        for at, logits in _made(asked).items():
            found[at] = _advance(works[at], logits)
    return [one.result for one in found if isinstance(one, Done)]


def _advance(
    work: Passes[T], logits: torch.Tensor | None = None, *, error: OmniDraftError | None = None
) -> Read | Done[T]:
    """The next read that some work asks for, or its result; it is sent logits, or told of an error."""
    try:
        if error is not None:
            return work.throw(error)
        return next(work) if logits is None else work.send(logits)
    except StopIteration as end:
        return Done(end.value)


def _made(asked: dict[int, Read]) -> dict[int, torch.Tensor]:
    """The logits of each read."""
    groups = defaultdict[int, dict[int, Read]](dict)  # by their weights
    for at, one in asked.items():
        one.check()
        groups[id(one.sequence.model)][at] = one
    logits: dict[int, torch.Tensor] = {}
    for group in groups.values():
        reads = list(group.values())
        rows = reads[0].sequence.model.read(reads)
        logits |= {at: one.checked(each) for (at, one), each in zip(group.items(), rows, strict=True)}
    return logits
