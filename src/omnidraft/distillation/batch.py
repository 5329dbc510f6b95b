"""Training examples joined for one forward pass: texts padded at the right, and the loss's positions in all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from omnidraft.distillation.losses import TeacherDistributions
from omnidraft.distillation.teacher import TrainingExample

PASS = 1024  # tokens in a forward pass, padding included, unless one text alone has more


@dataclass(frozen=True, eq=False)
class Batch:
    """Several examples as one, whose teacher counts its positions among `places`."""

    ids: torch.Tensor  # (B, T) int64, zeros after the end of a text, which causal attention does not see
    places: torch.Tensor  # (N,) int64, of the B·T positions those with a term in the loss
    teacher: TeacherDistributions

    @classmethod
    def of(cls, examples: Sequence[TrainingExample], device: torch.device) -> Batch:
        """Join examples on a device, with indices of int64, which every device can index by."""
        ids = torch.nn.utils.rnn.pad_sequence([example.ids for example in examples], batch_first=True)
        teachers = [example.teacher for example in examples]
        starts = [i * ids.shape[1] + example.first for i, example in enumerate(examples)]
        places = torch.cat([each.positions + start for each, start in zip(teachers, starts, strict=True)])
        joined = {f.name: torch.cat([getattr(each, f.name) for each in teachers]) for f in fields(TeacherDistributions)}
        before = [0, *itertools.accumulate(len(each.positions) for each in teachers)]
        joined["positions"] = torch.arange(before[-1])
        joined["rows"] = torch.cat([each.rows + count for each, count in zip(teachers, before, strict=False)])
        teacher = TeacherDistributions(**{name: _usable(tensor, device) for name, tensor in joined.items()})
        return cls(_usable(ids, device), _usable(places, device), teacher)


def passes(examples: Sequence[TrainingExample], tokens: int = PASS) -> Iterator[list[TrainingExample]]:
    """Divide examples, in their order, into passes of at most this many `tokens`, padding included."""
    one_pass: list[TrainingExample] = []
    for example in examples:
        if one_pass and (len(one_pass) + 1) * max(len(each.ids) for each in [*one_pass, example]) > tokens:
            yield one_pass
            one_pass = []
        one_pass.append(example)
    if one_pass:
        yield one_pass


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


def _usable(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.to(device, torch.int64 if tensor.dtype == torch.int32 else tensor.dtype)
