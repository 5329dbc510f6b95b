"""Training examples joined for one forward pass: texts padded at the right, and the loss's positions in all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch

from omnidraft.distillation.losses import TeacherDistributions, TokenLabels
from omnidraft.distillation.teacher import TrainingExample

PASS = 1024  # tokens in a forward pass, padding included, unless one text alone has more
Part = TypeVar("Part", TeacherDistributions, TokenLabels)


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples as one: the teacher and the labels count their positions among `places`, which hold the former first."""

    ids: torch.Tensor  # (B, T) int64, zeros after the end of a text, which causal attention does not see
    places: torch.Tensor  # (N,) int64, of the B·T positions those with a term in the loss
    teacher: TeacherDistributions
    labels: TokenLabels

    @classmethod
    def of(cls, examples: Sequence[TrainingExample], device: torch.device) -> Batch:
        """Join examples on a device, with indices of int64, which every device can index by."""
        ids = torch.nn.utils.rnn.pad_sequence([example.ids for example in examples], batch_first=True)
        starts = [i * ids.shape[1] + example.first for i, example in enumerate(examples)]
        teacher, known = _joined([example.teacher for example in examples], starts, 0, device)
        labels, labelled = _joined([example.labels for example in examples], starts, len(known), device)
        return cls(_usable(ids, device), _usable(torch.cat([known, labelled]), device), teacher, labels)


def passes(examples: Sequence[TrainingExample], tokens: int = PASS) -> Iterator[list[TrainingExample]]:
    """Divide examples, in their order, into passes of at most so many tokens, padding included."""
    part: list[TrainingExample] = []
    for example in examples:
        if part and (len(part) + 1) * max(len(one.ids) for one in [*part, example]) > tokens:
            yield part
            part = []
        part.append(example)
    if part:
        yield part


class LossPositions:
    """A hook before an output layer that lets only the places of a batch through, and keeps their hidden states."""

    def __init__(self) -> None:
        self.places: torch.Tensor | None = None  # None: everything
        self.hidden: torch.Tensor | None = None  # (N, H)

    def __call__(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.places is None:
            return None
        self.hidden = inputs[0].flatten(0, 1)[self.places]
        return (self.hidden[None], *inputs[1:])


def _joined(
    parts: Sequence[Part], starts: Sequence[int], before: int, device: torch.device
) -> tuple[Part, torch.Tensor]:
    """One of several, whose positions are counted from `before`, with the places where they were."""
    offsets = [0, *itertools.accumulate(len(part.positions) for part in parts)]
    joined: dict[str, torch.Tensor] = {}
    for name in (f.name for f in fields(parts[0])):
        values = [getattr(part, name) for part in parts]
        if name == "rows":  # the distribution of an entry, counted from the first example
            values = [value + offset for value, offset in zip(values, offsets, strict=False)]
        joined[name] = torch.cat(values)
    joined["positions"] = torch.arange(before, before + offsets[-1])
    places = torch.cat([part.positions + start for part, start in zip(parts, starts, strict=True)])
    return type(parts[0])(**{name: _usable(tensor, device) for name, tensor in joined.items()}), places


def _usable(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, torch.int64 if tensor.dtype == torch.int32 else tensor.dtype)
