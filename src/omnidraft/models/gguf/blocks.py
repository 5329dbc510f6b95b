"""The weights of a GGUF file for the native step: its matrices as they lie in the file, everything else in float32."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from omnidraft.models.gguf.config import model_tensors
from omnidraft.models.gguf.guards import reading
from omnidraft.models.gguf.header import TensorInfo
from omnidraft.models.gguf.parts import forget_headers, read_header
from omnidraft.models.gguf.weights import Source, read, rows_in, source_rows
from omnidraft.models.packed import KINDS, NUMBERS, Stored, StoredWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class BlockWeights(StoredWeights):
    """The tensors of a file by their names in `transformers`; each is read when it is asked for.

    Raises ModelError, as all of this package, where the file cannot be read.
    """

    def __init__(self, path: Path, sources: Sequence[Source]) -> None:
        self._path = path
        self._sources = {source.name: source for source in sources}

    def stored(self, name: str) -> Stored | None:
        """A matrix as it is in the file; None where the file lacks it."""
        source = self._sources.get(name)
        if source is None or source.info is None:
            return None
        (out, columns), info = source.shape, source.info
        order = source_rows(out, source.heads) if source.heads else None

        def rows(start: int, end: int) -> np.ndarray[Any, Any]:
            with reading(self._path):
                return rows_in(info, out, start, end)

        return Stored(name, info.quantization, out, columns, rows, order)

    def __getitem__(self, name: str) -> torch.Tensor:
        with reading(self._path):
            return read(self._sources[name], torch.float32)

    def __contains__(self, name: object) -> bool:
        return name in self._sources  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def held_bytes(path: Path) -> int:
    """Bytes of a file's weights as the native step holds them, which may take up to 3 % more."""
    with reading(path):
        tensors = read_header(path).tensors.values()
        return sum(_held(info) for info in tensors)


def _held(info: TensorInfo) -> int:
    if len(info.shape) == 1:
        return info.shape[0] * torch.float32.itemsize
    kept = info.quantization in KINDS and info.quantization not in NUMBERS
    return info.nbytes if kept else math.prod(info.shape)  # others are rounded to 8 bits


def weights_of(path: Path, skeleton: PreTrainedModel) -> BlockWeights:
    """The weights of a file's model; raises ModelError unless the file has those of the skeleton, and no other."""
    found = BlockWeights(path, model_tensors(path, skeleton))
    forget_headers()  # before memory is taken for the weights
    return found
