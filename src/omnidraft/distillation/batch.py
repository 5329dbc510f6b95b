"""Lessons side by side, as tensors: what one pass of training reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.distillation.losses import Labels, Laws
from omnidraft.distillation.teacher import Arrays, Tokens, TrainingExample

LOGITS = 2**25  # numbers that the logits of one pass may hold: 128 MiB in fp32
NO_TOKENS = Tokens(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))


@dataclass(frozen=True, eq=False)
class Batch:
    """A few lessons; the rows of laws and labels are those of the last `keep` positions of each, one after another."""

    ids: torch.Tensor  # (B, T) int64, padded behind: causal models see nothing of it before
    keep: int
    laws: Laws
    labels: Labels

    @classmethod
    def of(cls, lessons: Sequence[TrainingExample], device: torch.device) -> Batch:
        """Lay lessons side by side."""
        longest, first = max(len(lesson.ids) for lesson in lessons), min(lesson.first for lesson in lessons)
        ids = np.zeros((len(lessons), longest), np.int64)
        for row, lesson in zip(ids, lessons, strict=True):
            row[: len(lesson.ids)] = lesson.ids
        keep = longest - first
        offsets = [i * keep - first for i in range(len(lessons))]
        return cls(
            ids=torch.from_numpy(ids).to(device),
            keep=keep,
            laws=_laws([lesson.laws for lesson in lessons], offsets, device),
            labels=_labels([lesson.labels for lesson in lessons], offsets, device),
        )


def groups(lessons: Sequence[TrainingExample], columns: int, at_once: int) -> Iterator[Sequence[TrainingExample]]:
    """Lessons so many at a time, or fewer where the bound on logits of so many `columns` asks for it."""
    group: list[TrainingExample] = []
    for lesson in lessons:
        longer = [*group, lesson]
        rows = max(len(one.ids) for one in longer) - min(one.first for one in longer)
        if len(longer) > min(at_once, max(1, LOGITS // (rows * columns))):
            yield group
            longer = [lesson]
        group = longer
    yield group


def _laws(parts: Sequence[Arrays], offsets: Sequence[int], device: torch.device) -> Laws:
    starts = np.cumsum([0, *(len(part.positions) for part in parts)])
    moved = {
        "positions": [part.positions + offset for part, offset in zip(parts, offsets, strict=True)],
        "rows": [part.rows + start for part, start in zip(parts, starts, strict=False)],
    }
    columns = {f.name: moved.get(f.name) or [getattr(part, f.name) for part in parts] for f in fields(Arrays)}
    return Laws(**{name: _tensor(column, device) for name, column in columns.items()})


def _labels(parts: Sequence[Tokens | None], offsets: Sequence[int], device: torch.device) -> Labels:
    given = [(part or NO_TOKENS, offset) for part, offset in zip(parts, offsets, strict=True)]
    return Labels(
        positions=_tensor([part.positions + offset for part, offset in given], device),
        symbols=_tensor([part.symbols for part, _ in given], device),
        weights=_tensor([part.weights for part, _ in given], device),
    )


def _tensor(parts: Sequence[npt.NDArray[Any]], device: torch.device) -> torch.Tensor:
    array = np.concatenate(parts)
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array).to(device)
