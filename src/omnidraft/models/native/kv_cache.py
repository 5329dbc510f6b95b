"""Keys and values of one text for step.c: 16-bit numbers, in blocks of positions that never move; and their angles.

Rejected tokens are dropped by `crop` of a sequence, in `model.py`; here the blocks they leave become free.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from omnidraft.errors import ModelError
from omnidraft.models.language_model import ROOM
from omnidraft.models.memory import SHORTER, shortage
from omnidraft.models.native.rotary import Rotation
from omnidraft.models.native.step import BLOCK, LANES, Cache, Shape, memory, pointer

SPARE = 1  # block beyond those in use that a crop keeps: drafts are cropped in every round
POINTERS = 16  # pointers to blocks for which there is room at first; then for twice as many


class KVBlocks:
    """The blocks of one text, taken as it grows."""

    def __init__(self, shape: Shape) -> None:
        self._shape = (shape.layers, shape.key_heads, BLOCK, _entries(shape))  # of a block
        self._blocks: list[torch.Tensor] = []
        self._shared = 0  # blocks, the first ones, that others read: they are never written to
        self._pointers = (ctypes.c_void_p * POINTERS)()

    @staticmethod
    def token_bytes(shape: Shape) -> float:
        """Memory of a token, in bytes."""
        return float(shape.layers * shape.key_heads * _entries(shape) * torch.float16.itemsize)

    @property
    def nbytes(self) -> int:
        """Memory of the blocks that no other reads."""
        return sum(block.nbytes for block in self._blocks[self._shared :])

    def reserve(self, start: int, length: int) -> None:
        """Have blocks of its own for the positions from `start` up to `length`.

        Raises ModelError, and changes nothing, if memory is short.
        """
        needed = -(-length // BLOCK)
        if start // BLOCK < self._shared:
            self._own_from(start, length)
        held = len(self._blocks)
        if needed > held:
            self._extend([self._allocate(length) for _ in range(held, needed)])

    def _own_from(self, start: int, length: int) -> None:
        """Put blocks of its own in place of shared ones, from the position `start` on."""
        first = start // BLOCK
        own = [self._allocate(length)] if start % BLOCK else []
        if own:
            own[0].copy_(self._blocks[first])
        del self._blocks[first:]
        self._shared = first
        self._extend(own)

    def _allocate(self, length: int) -> torch.Tensor:
        try:
            return memory(math.prod(self._shape) * torch.float16.itemsize).view(torch.float16).view(self._shape)
        except (MemoryError, RuntimeError) as error:  # what torch raises for want of memory
            taken = -(-length // BLOCK) * math.prod(self._shape) * torch.float16.itemsize
            raise ModelError(shortage(f"keys and values of {length} tokens", taken, SHORTER)) from error

    def _extend(self, blocks: Sequence[torch.Tensor]) -> None:
        held = len(self._blocks)
        while held + len(blocks) > len(self._pointers):
            self._pointers = (ctypes.c_void_p * (2 * len(self._pointers)))(*self._pointers)
        for number, block in enumerate(blocks, held):
            self._pointers[number] = pointer(block)
        self._blocks += blocks

    def share(self, at: int) -> torch.Tensor:
        """The block at a place, which others may read from now on, as those before it."""
        self._shared = max(self._shared, at + 1)
        return self._blocks[at]

    @staticmethod
    def data_of(block: torch.Tensor) -> memoryview:
        """The bytes of a block."""
        data: memoryview = block.view(torch.uint8).numpy().data
        return data.cast("B")

    def block_of(self, data: bytes) -> torch.Tensor:
        """The block of these bytes; raises ValueError for bytes of none."""
        return torch.from_numpy(np.frombuffer(bytearray(data), np.float16).reshape(self._shape))

    def adopt(self, blocks: Sequence[torch.Tensor]) -> None:
        """Hold blocks that others read, and no others."""
        self._blocks.clear()
        self._extend(blocks)
        self._shared = len(blocks)

    def crop(self, length: int) -> None:
        """Free the blocks beyond the first `length` positions and SPARE more; all of them for 0."""
        del self._blocks[-(-length // BLOCK) + (SPARE if length else 0) :]
        self._shared = min(self._shared, len(self._blocks))

    def at(self, position: int, angles: torch.Tensor) -> Cache:
        """The text before a position, as step.c takes it; valid until it is reserved or cropped again."""
        return Cache(ctypes.addressof(self._pointers), pointer(angles), position)


class Angles:
    """Cosines and sines (positions, columns) of a model's rotations, one beside the other.

    The last column, of a model that has it, are factors of queries by position.
    """

    def __init__(
        self, rotations: Sequence[Rotation], factors: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> None:
        self._rotations, self._factors = rotations, factors
        self.columns = sum(one.entries for one in rotations) + (factors is not None)
        self._made = torch.empty(0, self.columns, device="cpu")

    def upto(self, length: int) -> torch.Tensor:
        """Return the angles of at least `length` positions."""
        if length > len(self._made):
            length += max(ROOM, length // 2)
            positions = torch.arange(length, dtype=torch.float32, device="cpu")
            columns = [torch.empty(length, 0, dtype=torch.float32, device="cpu")]
            for frequencies, scaling in self._rotations:
                # in 64 bits, so that the last bit does not depend on how many there are
                angles = torch.outer(positions, frequencies).double()
                columns.append((torch.cat([angles.cos(), angles.sin()], -1) * scaling).float())
            if self._factors is not None:
                columns.append(self._factors(positions.double())[:, None].float())
            self._made = torch.cat(columns, -1)
        return self._made


def _entries(shape: Shape) -> int:
    """Entries of a key and a value: these have whole lanes."""
    return int(shape.size + -(-shape.size // LANES) * LANES)
