"""A KV cache in buffers of a fixed length, into which a pass can write by index: the length is an input of the pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class BucketLayer(DynamicLayer):
    """Keys and values of one layer, (1, key heads, capacity, head size) each, of which `length` are held.

    A pass with a `start` (0-dimensional, on the device) writes there by index and attends over the whole buffers, under
    the mask that `transformers` makes for static caches; any other pass attends over what is held, as in other caches.
    Cropped entries are overwritten by the next update.
    """

    start: torch.Tensor | None = None
    length = 0

    def __init__(self, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity = capacity
        self.buffers: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        """Memory of the buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers, for keys and values like these."""
        self.dtype, self.device = key_states.dtype, key_states.device
        # zeros: what is masked has weight 0, and 0 times a NaN that lay there would be NaN
        self.buffers = tuple(
            states.new_zeros(*states.shape[:-2], self.capacity, states.shape[-1])
            for states in (key_states, value_states)
        )
        self.keys, self.values = self.buffers
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write T' keys and values, and return those to attend over."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        (keys, values), count = self.buffers, key_states.shape[-2]
        if self.start is not None:
            places = self.start + torch.arange(count, device=self.device)
            return keys.index_copy_(-2, places, key_states), values.index_copy_(-2, places, value_states)
        end = self.length + count
        keys[..., self.length : end, :] = key_states
        values[..., self.length : end, :] = value_states
        self.length = end
        return keys[..., :end, :], values[..., :end, :]

    def get_seq_length(self) -> int:
        """The number of tokens before this pass; of one by index its `start`, as in `StaticLayer`."""
        return self.length if self.start is None else self.start  # type: ignore[return-value]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The keys that a pass attends over, and the position of the first."""
        return self.length + query_length if self.start is None else self.capacity, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last of the tokens, whose number is given as a negative one."""
        self.length = max(0, self.length + tokens_to_remove)

    def copy_into(self, other: BucketLayer) -> None:
        """Have another layer, of a larger capacity, hold what this one does."""
        if self.is_initialized:
            if not other.is_initialized:
                other.lazy_initialization(*self.buffers)
            for source, buffer in zip(self.buffers, other.buffers, strict=True):
                buffer[..., : self.length, :] = source[..., : self.length, :]
        other.length = self.length


class BucketCache(DynamicCache):
    """A cache of such layers; its buffers stay where they are, so that graphs can be recorded over them."""

    layers: list[BucketLayer]  # type: ignore[assignment]

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.layer_class_to_replicate = partial(BucketLayer, capacity)  # type: ignore[assignment]
        self.capacity = capacity

    @property
    def nbytes(self) -> int:
        """Memory of the buffers."""
        return sum(layer.nbytes for layer in self.layers)

    @contextmanager
    def by_index(self, start: torch.Tensor) -> Iterator[None]:
        """Have the pass inside write at this position, (), and attend over the whole buffers."""
        self._set(start)
        try:
            yield
        finally:
            self._set(None)

    def _set(self, start: torch.Tensor | None) -> None:
        for layer in self.layers:
            layer.start, layer.is_compileable = start, start is not None  # without it one row would have no mask

    def hold(self, length: int) -> None:
        """Hold this many tokens, which were written by index."""
        for layer in self.layers:
            layer.length = length

    def copy_into(self, other: BucketCache) -> None:
        """Have another cache, of a larger capacity, hold what this one does."""
        other.hold(0)  # it may have held another text, whose layers this one has not yet
        while len(other.layers) < len(self.layers):
            other.layers.append(BucketLayer(other.capacity))
        for mine, its in zip(self.layers, other.layers, strict=False):
            mine.copy_into(its)
