"""Keys and values of one text for step.c: 16-bit numbers, in blocks of positions that never move; and their angles."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from omnidraft.errors import ModelError
from omnidraft.models.language_model import ROOM
from omnidraft.models.native import BLOCK, LANES, Cache, Shape, pointer

SPARE = 1  # block beyond those in use that a crop keeps: drafts are cropped in every round
POINTERS = 16  # pointers to blocks for which there is room at first; then for twice as many
REMEDY = "shorten the text, answer fewer at once, or take a smaller model"


class KVBlocks:
    """The blocks of one text, taken as it grows."""

    def __init__(self, shape: Shape) -> None:
        self._shape = (shape.layers, shape.key_heads, BLOCK, _entries(shape))  # of a block
        self._blocks: list[torch.Tensor] = []
        self._pointers = (ctypes.c_void_p * POINTERS)()

    @staticmethod
    def token_bytes(shape: Shape) -> float:
        """Memory of a token, in bytes."""
        return float(shape.layers * shape.key_heads * _entries(shape) * torch.float16.itemsize)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def reserve(self, length: int) -> None:
        """Take blocks for so many positions; raises ModelError, and takes none, where there is no memory for them."""
        held, needed = len(self._blocks), -(-length // BLOCK)
        try:
            made = [torch.empty(self._shape, dtype=torch.float16, device="cpu") for _ in range(held, needed)]
        except RuntimeError as error:  # what torch raises for want of memory
            raise ModelError(f"there is no memory for keys and values of {length} tokens: {REMEDY}") from error
        while needed > len(self._pointers):
            self._pointers = (ctypes.c_void_p * (2 * len(self._pointers)))(*self._pointers)
        for number, block in enumerate(made, held):
            self._pointers[number] = pointer(block)
        self._blocks += made

    def crop(self, length: int) -> None:
        """Give back the blocks beyond so many positions, all of them for none."""
        del self._blocks[-(-length // BLOCK) + (SPARE if length else 0) :]

    def at(self, position: int, angles: torch.Tensor) -> Cache:
        """The text before a position, as step.c takes it; valid until it is reserved or cropped again."""
        return Cache(ctypes.addressof(self._pointers), pointer(angles), position)


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


def _entries(shape: Shape) -> int:
    """Entries of a key and a value: these have whole lanes."""
    return int(shape.size + -(-shape.size // LANES) * LANES)
