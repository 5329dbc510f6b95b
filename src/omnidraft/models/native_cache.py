"""Keys and values of one text as step.c takes them, and the angles that positions are rotated by."""

from __future__ import annotations

from typing import Any

import torch

from omnidraft.models import native
from omnidraft.models.language_model import ROOM
from omnidraft.models.native import LANES, pointer


class NativeCache:
    """Room for the keys and values of up to `limit` tokens; it grows by a half of itself."""

    def __init__(self, shape: native.Shape, limit: int) -> None:
        self._limit = limit
        self._entries = torch.empty(shape.layers, 2, shape.key_heads, 0, shape.size, device="cpu")

    @property
    def nbytes(self) -> int:
        """Memory of the keys and values, room to grow included."""
        return self._entries.nbytes

    def reserve(self, length: int, used: int) -> None:
        """Make room for so many tokens, of which the first `used` are kept."""
        if length <= self._entries.shape[3]:
            return
        capacity = _whole_blocks(min(self._limit, length + max(ROOM, length // 2)))
        shape = (*self._entries.shape[:3], capacity, self._entries.shape[4])
        entries = torch.empty(shape, dtype=torch.float32, device="cpu")
        used = _whole_blocks(used)
        entries[..., :used, :] = self._entries[..., :used, :]
        self._entries = entries

    def place(self, angles: torch.Tensor, position: int) -> native.Cache:
        """The cache, as step.c takes it, before the token at a position."""
        entries = self._entries
        return native.Cache(pointer(entries), pointer(angles), entries.shape[3], position, native.threads())


class Angles:
    """Cosines and sines (positions, size) of a model's rotary positions; a skeleton's have no values."""

    def __init__(self, rotary: Any) -> None:
        self._frequencies, self._scaling = rotary.inv_freq.float(), float(rotary.attention_scaling)
        self._made = torch.empty(0, 2 * len(self._frequencies), device="cpu")

    def upto(self, length: int) -> torch.Tensor:
        """Those of so many positions, at least."""
        if length > len(self._made):
            positions = torch.arange(length + max(ROOM, length // 2), dtype=torch.float32, device="cpu")
            # in 64 bits, so that the last bit does not depend on how many there are
            angles = torch.outer(positions, self._frequencies).double()
            self._made = (torch.cat([angles.cos(), angles.sin()], -1) * self._scaling).float()
        return self._made


def _whole_blocks(length: int) -> int:
    """A number of tokens, rounded up to what step.c keeps together."""
    return -(-length // LANES) * LANES
