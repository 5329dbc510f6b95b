"""To see, or to disturb, what a kind of model reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from omnidraft.models.language_model import Read
from omnidraft.models.native.model import NativeModel
from omnidraft.models.transformers_model import PretrainedModel


def watch(
    patch: pytest.MonkeyPatch,
    kind: type[PretrainedModel],
    before: Callable[[Read], object] = lambda _: None,
    after: Callable[[Read], object] = lambda _: None,
) -> None:
    """Have these called around each read of models of a kind, the single ones of a joint pass included."""
    true = kind.read

    def read(self: PretrainedModel, reads: Sequence[Read]) -> list[torch.Tensor]:
        for each in reads:
            before(each)
        logits = true(self, reads)
        for each in reads:
            after(each)
        return logits

    patch.setattr(kind, "read", read)


def passes_of(patch: pytest.MonkeyPatch) -> list[tuple[NativeModel, int]]:
    """A list that grows by the model of each native pass and how many sequences it reads."""
    found: list[tuple[NativeModel, int]] = []
    true = NativeModel.read

    def read(self: NativeModel, reads: Sequence[Read]) -> list[torch.Tensor]:
        found.append((self, len(reads)))
        return true(self, reads)

    patch.setattr(NativeModel, "read", read)
    return found
