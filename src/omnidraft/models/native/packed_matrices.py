"""Matrices in the blocks of GGUF files as step.c reads them: those of a file, and those that are rounded to such."""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from omnidraft.errors import ModelError
from omnidraft.models.memory import shortage
from omnidraft.models.native import step as native
from omnidraft.models.native.step import PANEL, Group, PackedMatrix

GGML_TYPES = (0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 20, 30)  # those that step.c takes, as in blocks.h
FLOAT_TYPES = (0, 1, 30)  # F32, F16 and BF16, which have no scales
SAMPLED = 16  # rows
READ_BYTES = 2**21  # of a file that are read at a time, about: they stay in a cache, and in memory that is used again
Q8_0 = 8  # a GGML type
Q5_1 = 7  # another: blocks of ENTRIES columns, with a scale and the least value in 16 bits, and 5 bits a column
ENTRIES, LARGEST = 32, 31
# the largest weight of a matrix whose scales and least values numbers of 16 bits hold: above and below
LARGEST_WEIGHTS = 2.0**-8, 2.0**14


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix whose bytes are those of a file."""

    name: str
    kind: int  # its GGML type
    out: int
    columns: int
    rows: Callable[[int, int], np.ndarray[Any, Any]]  # those from one number to another, (rows, bytes) uint8
    order: np.ndarray[Any, Any] | None = None  # (out) int64: which row of the file is where
    bias: torch.Tensor | None = None  # (out)

    def placed(self, order: np.ndarray[Any, Any] | None, bias: torch.Tensor | None) -> StoredMatrix:
        """The matrix with its rows, of those that `self` tells of, in an order, and with a bias."""
        both = order if self.order is None or order is None else self.order[order]
        return replace(self, order=self.order if both is None else both, bias=bias)


class StoredWeights(Mapping[str, torch.Tensor]):
    """Weights by name, of which matrices can be had as a file holds them."""

    @abstractmethod
    def stored(self, name: str) -> StoredMatrix | None:
        """A matrix as it is in the file; None where the file lacks it."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""


class BlockGroup(Group):
    """A group of matrices in the blocks of GGUF files; raises ModelError for NaN or infinite weights.

    16 rows lie side by side, with the bits of the file: the memory is that of the file and up to 3 % more.
    """

    def __init__(self, *stored: StoredMatrix) -> None:
        super().__init__(*map(_packed, stored))

    def sample(self) -> torch.Tensor:
        """Some rows that tell the matrix from others, (T, in) float32."""
        return self.rows(range(min(SAMPLED, self.struct.matrix[0].out)))

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Rows of the first matrix, (T, in) float32."""
        places = np.asarray(ids, dtype=np.int64)
        _check_ids(ids, self.struct.matrix[0].out)
        values = torch.empty(len(places), self.columns, dtype=torch.float32, device="cpu")
        first = ctypes.byref(self.struct.matrix[0])
        native.step_functions().unpack_rows(first, places.ctypes.data, len(places), values.data_ptr())
        return values


class StoredEmbedding:
    """A matrix whose rows alone are asked for, as those of embeddings: it stays in its file, and takes no memory.

    Raises ModelError for rows that are NaN or infinite, and where the file was changed.
    """

    def __init__(self, stored: StoredMatrix) -> None:
        self._stored = stored

    def sample(self) -> torch.Tensor:
        """Some rows that tell the matrix from others, (T, in) float32."""
        return self.rows(range(min(SAMPLED, self._stored.out)))

    def rows(self, ids: Sequence[int]) -> torch.Tensor:
        """Rows of the matrix, (T, in) float32."""
        if not len(ids):
            return torch.empty(0, self._stored.columns, dtype=torch.float32, device="cpu")
        _check_ids(ids, self._stored.out)
        rows = np.concatenate([self._stored.rows(row, row + 1) for row in ids])
        few = replace(self._stored, out=len(ids), rows=lambda start, end: rows[start:end])
        return BlockGroup(few).rows(range(len(ids)))


def _check_ids(ids: Sequence[int], out: int) -> None:
    if len(ids) and not 0 <= min(ids) <= max(ids) < out:
        raise IndexError(f"rows {min(ids)} to {max(ids)} of a matrix that has {out}")


def quantized_q5_1(name: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> BlockGroup | None:
    """A matrix (out, in) rounded to 5 bits; None where 8 are better: by its columns or weights, or without rows."""
    out, columns = weight.shape
    if not out or columns % ENTRIES:
        return None
    least, largest = weight.aminmax()
    if not LARGEST_WEIGHTS[0] < max(-float(least), float(largest)) < LARGEST_WEIGHTS[1]:
        return None
    return BlockGroup(
        StoredMatrix(name, Q5_1, out, columns, lambda start, end: _as_q5_1(weight[start:end].float()), bias=bias)
    )


def _as_q5_1(rows: torch.Tensor) -> np.ndarray[Any, Any]:
    """Rows (out, in) float32 rounded to the nearest in blocks of the kind Q5_1, as a file has them, (out, bytes)."""
    values = rows.reshape(-1, ENTRIES)
    least = values.amin(1, keepdim=True).half()
    scales = ((values.amax(1, keepdim=True) - least) / LARGEST).half()
    steps = (values - least).mul_(1 / scales.float().clamp_min(2.0**-24)).round_().clamp_(0, LARGEST)
    codes = steps.to(torch.uint8).numpy()
    low = codes[:, : ENTRIES // 2] & 15 | codes[:, ENTRIES // 2 :] << 4
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.hstack([scales.numpy().view(np.uint8), least.numpy().view(np.uint8), high, low]).reshape(len(rows), -1)


def _packed(stored: StoredMatrix) -> PackedMatrix:
    library, out = native.step_functions(), stored.out
    size = library.packed_bytes(stored.kind, out, stored.columns)
    try:
        weights = native.memory(size)
    except (MemoryError, RuntimeError) as error:
        raise ModelError(shortage(f"weights {stored.name}", size)) from error
    panels = -(-out // PANEL)
    step = out if stored.order is not None else max(1, READ_BYTES * panels // size) * PANEL
    order = None if stored.order is None else np.ascontiguousarray(stored.order, dtype=np.int64)
    for start in range(0, out, step):
        rows = np.ascontiguousarray(stored.rows(start, min(out, start + step)))
        places = (rows.ctypes.data, None if order is None else order.ctypes.data, len(rows), stored.columns)
        to = weights.data_ptr() + start // PANEL * (size // panels)
        if not library.pack_rows(stored.kind, *places, to, native.threads()):
            raise ModelError(f"weights {stored.name} are NaN or infinite: get the complete files of the model")
    bias = None if stored.bias is None else stored.bias.float().contiguous()
    return PackedMatrix(weights, torch.empty(0, device="cpu"), bias, out, stored.columns, 0, 0, stored.kind)
