"""A KV cache over preallocated buffers: new keys and values are written in place, without copying the old ones.

A hybrid's cache also holds states that a pass overwrites: of recurrences, and of convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
)

from omnidraft.models.language_model import ROOM

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


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

    def copied(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the keys and values of positions, in the memory of the CPU."""
        keys, values = (buffer[..., start:end, :].to("cpu", copy=True).contiguous() for buffer in self._buffers)
        return keys, values


def _enlarged(old: torch.Tensor, length: int, needed: int) -> torch.Tensor:
    new = old.new_empty(*old.shape[:-2], needed + max(ROOM, needed // 4), old.shape[-1])
    new[..., :length, :] = old[..., :length, :]
    return new


class HybridLayer(GrowingLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc, override]
    """Attention and states in one layer."""


def new_cache(hybrid: PreTrainedConfig | None = None) -> DynamicCache:
    """Return an empty cache whose every layer of attention keeps all keys; of a `hybrid`, by its config.

    Layers with a sliding window keep every key as well: no crop could restore what a window has dropped.  The window
    itself is applied by the attention mask.
    """
    if hybrid is None:
        cache = DynamicCache()
        cache.layer_class_to_replicate = GrowingLayer
        return cache
    cache = DynamicCache(config=hybrid)
    cache.layers = [_growing(layer) for layer in cache.layers]
    return cache


def _growing(layer: Any) -> Any:
    """The layer, or the one in its place that keeps all keys."""
    if not isinstance(layer, DynamicLayer):
        return layer
    # mypy knows of no class that is both
    kind: Any = HybridLayer if issubclass(type(layer), LinearAttentionCacheLayerMixin) else GrowingLayer
    return kind(number_of_states=getattr(layer, "number_of_states", 1))


@dataclass(frozen=True)
class CopiedBlock:
    """Copies of the keys and values of some positions, by the number of the layer, in the memory of the CPU."""

    layers: dict[int, tuple[torch.Tensor, torch.Tensor]]
    devices: dict[int, torch.device]  # of the layers

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for pair in self.layers.values() for each in pair)


def copied(cache: DynamicCache, start: int, end: int) -> CopiedBlock:
    """Copies of the keys and values of positions of a cache of attention."""
    filled = [(at, layer) for at, layer in enumerate(attention(cache)) if layer.is_initialized]
    return CopiedBlock(
        {at: layer.copied(start, end) for at, layer in filled}, {at: layer.device for at, layer in filled}
    )


def fill(cache: DynamicCache, blocks: Sequence[CopiedBlock], length: int) -> None:
    """Append the first `length` positions that blocks hold to a cache."""
    for at, device in blocks[0].devices.items() if blocks else ():
        keys, values = (torch.cat([block.layers[at][of] for block in blocks], -2)[..., :length, :] for of in (0, 1))
        cache.update(keys.to(device), values.to(device), at)


def state_layers(cache: DynamicCache) -> list[Any]:
    """The layers of a cache that hold states."""
    return [layer for layer in cache.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]


def states(layers: Sequence[Any]) -> list[torch.Tensor]:
    """The states of such layers, which passes overwrite, in an order that stays."""
    held = (state for layer in layers for of in (layer.conv_states, layer.recurrent_states) for state in of.values())
    return [state for state in held if state is not None]


def attention(cache: DynamicCache) -> list[GrowingLayer]:
    """The layers of a cache that hold keys and values."""
    return [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]


def held(cache: DynamicCache) -> int | None:
    """Number of tokens in a cache; None if no layer counts them, as with states alone."""
    layers = state_layers(cache)
    if layers and not attention(cache):
        return None if states(layers) else 0
    return cache.get_seq_length()
