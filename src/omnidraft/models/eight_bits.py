"""A target with weights of 8 bits on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.models.language_model import TransformersModel
from omnidraft.models.lean import CHUNK, LeanModel, Weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class EightBitModel(TransformersModel):
    """A target with 8-bit weights: of the `transformers` model there is only the skeleton."""

    chunk = CHUNK

    def __init__(self, skeleton: PreTrainedModel, weights: Weights) -> None:
        super().__init__(skeleton)
        self.device, self.dtype = torch.device("cpu"), torch.int8
        self._lean = LeanModel(skeleton, weights, self.vocab_size, self.context)

    def with_own_cache(self) -> EightBitModel:
        """Return a model that shares these weights and has a cache of its own, empty."""
        other = copy.copy(self)
        vars(other).update(_lean=self._lean.with_own_cache(), _length=0)
        return other

    @property
    def cache_bytes(self) -> int:
        """Memory of the keys and values, room to grow included."""
        return self._lean.cache_bytes

    def tensors(self) -> dict[str, Any]:
        """The first columns of the rounded matrices by name."""
        return self._lean.tensors()

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; raises InputError unless 0 <= length <= self.length."""
        self._lean.crop(length)
        self._length = length

    def _read(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        logits = self._lean.forward(ids, keep)
        self._length = self._lean.length
        return logits
