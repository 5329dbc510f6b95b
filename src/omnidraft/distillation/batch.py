"""Training examples side by side, as the tensors that one forward pass reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from omnidraft.distillation.losses import TeacherDistributions, TokenLabels
from omnidraft.distillation.teacher import TrainingExample

MAX_LOGITS = 2**25  # numbers in the logits of one pass: 128 MiB in fp32


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded examples; `teacher` and `labels` index the flattened logits of the last `keep` positions of each."""

    ids: torch.Tensor  # (B, T) int64, padded on the right, which a causal model does not see
    keep: int
    teacher: TeacherDistributions
    labels: TokenLabels

    @classmethod
    def of(cls, examples: Sequence[TrainingExample], device: torch.device) -> Batch:
        """Pad and concatenate examples."""
        ids = torch.nn.utils.rnn.pad_sequence([example.ids for example in examples], batch_first=True)
        first = min(example.first for example in examples)
        keep = ids.shape[1] - first
        offsets = [row * keep - first for row in range(len(examples))]
        return cls(
            ids=ids.to(device, torch.int64),
            keep=keep,
            teacher=_teacher([example.teacher for example in examples], offsets, device),
            labels=_labels([example.labels for example in examples], offsets, device),
        )


def groups(examples: Sequence[TrainingExample], vocab_size: int, most: int) -> Iterator[Sequence[TrainingExample]]:
    """Split examples into batches of at most `most`, and of fewer where their logits would exceed MAX_LOGITS."""
    group: list[TrainingExample] = []
    for example in examples:
        longer = [*group, example]
        rows = max(len(one.ids) for one in longer) - min(one.first for one in longer)
        if len(longer) > min(most, max(1, MAX_LOGITS // (rows * vocab_size))):
            yield group
            longer = [example]
        group = longer
    yield group


def _teacher(
    parts: Sequence[TeacherDistributions], offsets: Sequence[int], device: torch.device
) -> TeacherDistributions:
    starts = accumulate((len(part.positions) for part in parts[:-1]), initial=0)
    return TeacherDistributions(
        positions=_cat([part.positions + offset for part, offset in zip(parts, offsets, strict=True)], device),
        rows=_cat([part.rows + start for part, start in zip(parts, starts, strict=True)], device),
        symbols=_cat([part.symbols for part in parts], device),
        probs=_cat([part.probs for part in parts], device),
        rest=_cat([part.rest for part in parts], device),
        coarse=_cat([part.coarse for part in parts], device),
        best=_cat([part.best for part in parts], device),
    )


def _labels(parts: Sequence[TokenLabels], offsets: Sequence[int], device: torch.device) -> TokenLabels:
    return TokenLabels(
        positions=_cat([part.positions + offset for part, offset in zip(parts, offsets, strict=True)], device),
        symbols=_cat([part.symbols for part in parts], device),
        weights=_cat([part.weights for part in parts], device),
    )


def _cat(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    joined = torch.cat(list(parts)).to(device)
    return joined.long() if joined.dtype == torch.int32 else joined
