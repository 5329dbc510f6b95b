"""Matrices in the blocks of GGUF files, of random codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.models.gguf.header import QUANTIZATIONS
from omnidraft.models.native.packed_matrices import BlockGroup, StoredMatrix

gguf = pytest.importorskip("gguf", reason="the gguf package is not installed")
# where numbers of 16 bits are, where it is not at the beginning alone
HALVES = {
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
}  # fmt: skip
Raw = np.ndarray[Any, Any]


def blocks(kind: int, out: int, columns: int, *, seed: int = 0, scale: float | None = None) -> Raw:
    """Rows (out, bytes) uint8 of a kind; `scale` is of all blocks, or they are random; with 1, numbers are whole."""
    name, entries, size = QUANTIZATIONS[kind]
    random = np.random.default_rng([seed, kind])
    if entries == 1:
        whole = random.integers(-100, 100, (out, columns))
        values = (whole if scale == 1 else random.normal(scale=16 * (scale or 0.1), size=(out, columns))).astype(
            np.float32
        )
        if name == "BF16":
            return np.ascontiguousarray(values.view(np.uint16)[:, 1::2]).view(np.uint8)
        return values.astype(np.float16 if name == "F16" else np.float32).view(np.uint8)
    raw = random.integers(0, 256, (out, columns // entries, size), dtype=np.uint8)
    for at in HALVES.get(name, (0,)):
        halves = (
            random.normal(scale=0.02, size=(*raw.shape[:2], 1))
            if scale is None
            else np.full((*raw.shape[:2], 1), scale)
        )
        raw[..., at : at + 2] = halves.astype(np.float16).view(np.uint8)
    return raw.reshape(out, -1)


def filled(kind: int, out: int, columns: int, byte: int) -> Raw:
    """Rows (out, bytes) uint8 with a scale of 1 and otherwise the same byte everywhere: codes as large as they get."""
    name, entries, size = QUANTIZATIONS[kind]
    raw = blocks(kind, out, columns, scale=1)
    if entries > 1:
        each = raw.reshape(out, -1, size)
        each[...] = byte
        for at in HALVES.get(name, (0,)):
            each[..., at : at + 2] = np.array([1], np.float16).view(np.uint8)
    return raw


def values(kind: int, rows: Raw) -> torch.Tensor:
    """What rows stand for, by the gguf package, float32."""
    from gguf.quants import dequantize

    return torch.from_numpy(np.array(dequantize(rows, gguf.GGMLQuantizationType(kind)), dtype=np.float32))


def stored(kind: int, rows: Raw, columns: int, **options: Any) -> StoredMatrix:
    """Rows of so many columns as those of a file's matrix."""
    return StoredMatrix(
        "blk.3.ffn_down.weight", kind, len(rows), columns, lambda start, end: rows[start:end], **options
    )


def packed(kind: int, out: int, columns: int) -> BlockGroup:
    """A matrix of random blocks."""
    return BlockGroup(stored(kind, blocks(kind, out, columns), columns))
