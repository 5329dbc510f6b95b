"""A KV cache over preallocated buffers: new keys and values are written in place, without copying the old ones."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from omnidraft.models.language_model import ROOM


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, (1, key heads, T, head size) each, as views of larger buffers.

    Cropped entries are overwritten by the next update.
    """

    @property
    def nbytes(self) -> int:
        """Memory of the buffers."""
        return sum(buffer.nbytes for buffer in self._buffers) if self.is_initialized else 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append T' keys and values, and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = (key_states[..., :0, :], value_states[..., :0, :])
            self.keys, self.values = self._buffers
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            keys, values = self._buffers
            self._buffers = (_enlarged(keys, start, end), _enlarged(values, start, end))
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., start:end, :] = new
        keys, values = (buffer[..., :end, :] for buffer in self._buffers)
        self.keys, self.values = keys, values
        return keys, values


def _enlarged(old: torch.Tensor, length: int, needed: int) -> torch.Tensor:
    new = old.new_empty(*old.shape[:-2], needed + max(ROOM, needed // 4), old.shape[-1])
    new[..., :length, :] = old[..., :length, :]
    return new


def new_cache() -> DynamicCache:
    """Return an empty cache whose every layer keeps all keys.

    It is made without a config, so that layers with a sliding window keep every key as well: no crop could restore
    what a window has dropped.  The window itself is applied by the attention mask.
    """
    cache = DynamicCache()
    cache.layer_class_to_replicate = GrowingLayer
    return cache
