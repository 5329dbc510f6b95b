"""The weights of a GGUF file: for the native step its matrices as they lie in the file, and all in a dtype."""

from __future__ import annotations

import hashlib
import math
import os
import re
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from omnidraft.errors import ModelError
from omnidraft.models.gguf.architectures import HEAD, describe
from omnidraft.models.gguf.config import model_tensors
from omnidraft.models.gguf.header import EMBEDDING, Stamp, TensorInfo, changed
from omnidraft.models.gguf.split_files import forget_headers, naming, read_header, reading
from omnidraft.models.gguf.tensors import Source, read, rows_in, source_rows
from omnidraft.models.memory import check_free
from omnidraft.models.native.packed_matrices import FLOAT_TYPES, GGML_TYPES, StoredMatrix, StoredWeights
from omnidraft.models.skeleton import Skeleton

SAMPLED = 64  # bytes
# matrices of a layer that are kept as they are, or rounded, together
SAME_INPUTS = re.compile(r"(blk\.\d+\.(?:attn|ffn))_(?:q|k|v|gate|up)\.weight")

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GgufWeights(StoredWeights):
    """The tensors of a file by their names in `transformers`; each is read, in a dtype, when it is asked for.

    Files stay open: one that takes the name of another, as updates do, changes nothing.  Nor does a new time of one
    that holds what it held by `sample`, a hash of names, kinds, shapes, first and last bytes of all tensors.  Raises
    ModelError, as all of this package, where a file cannot be read, or was written to since its header was read.
    """

    def __init__(self, path: Path, sources: Sequence[Source], dtype: torch.dtype) -> None:
        self._path, self._dtype = path, dtype
        self._sources = {source.name: source for source in sources}
        self._files: dict[Path, FileIO] = {}
        self._stamps = {source.info.path: source.info.stamp for source in sources if source.info is not None}
        with naming(path):
            for each, stamp in self._stamps.items():
                self._files[each] = file = FileIO(each)
                weakref.finalize(self, file.close)
                if Stamp.of(os.fstat(file.fileno())) != stamp:
                    raise ModelError(changed(each.name))
            self.sample = self._sampled()

    def stored(self, name: str) -> StoredMatrix | None:
        """A matrix as it is in the file; None where the file lacks it."""
        source = self._sources.get(name)
        if source is None or source.info is None:
            return None
        out, columns = source.shape
        order = source_rows(out, source.heads) if source.heads else None
        return StoredMatrix(name, source.info.quantization, out, columns, partial(self._rows, source.info, out), order)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read for it."""
        return self._sources[name].shape

    def _rows(self, info: TensorInfo, count: int, start: int, end: int) -> np.ndarray[Any, Any]:
        """Rows of a tensor, from a file which is what it was when its header was read."""
        with naming(self._path):
            file, known = self._files[info.path], self._stamps[info.path]
            if (now := Stamp.of(os.fstat(file.fileno()))) != known:
                if now.size != known.size or self._sampled() != self.sample:
                    raise ModelError(changed(info.path.name))
                self._stamps[info.path] = now
            return rows_in(file, info, count, start, end)

    def _sampled(self) -> bytes:
        digest = hashlib.sha256()
        for name, source in sorted(self._sources.items()):
            if (info := source.info) is not None:
                digest.update(f"{name} {info.shape} {info.quantization} ".encode())
                for start in (0, max(0, info.nbytes - SAMPLED)):
                    end = min(info.nbytes, start + SAMPLED)
                    digest.update(rows_in(self._files[info.path], info, info.nbytes, start, end).data)
        return digest.digest()

    def __getitem__(self, name: str) -> torch.Tensor:
        with naming(self._path):
            return read(self._sources[name], self._dtype, self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._sources  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def held_bytes(path: Path) -> int:
    """Bytes of a file's weights as the native step holds them, which may take up to 3 % more."""
    with reading(path):
        header = read_header(path)
        consumed = describe(header).consumed
    groups: dict[str, list[TensorInfo]] = {}
    for name, info in header.tensors.items():
        looked_up = name == EMBEDDING and HEAD in header.tensors and info.quantization in GGML_TYPES
        if not looked_up and name not in consumed:
            groups.setdefault(SAME_INPUTS.sub(r"\1", name), []).append(info)
    return sum(map(_held, groups.values()))


def _held(group: Sequence[TensorInfo]) -> int:
    """Bytes of a group of matrices, or of one vector."""
    if len(group[0].shape) == 1:
        return sum(4 * info.shape[0] for info in group)
    kinds = {info.quantization for info in group}
    if kinds <= set(GGML_TYPES) and not kinds <= set(FLOAT_TYPES):
        return sum(info.nbytes for info in group)
    return sum(math.prod(info.shape) for info in group)  # they are rounded to 8 bits


def weights_of(path: Path, skeleton: PreTrainedModel | Skeleton, dtype: torch.dtype | None = None) -> GgufWeights:
    """The weights of a file's model, to be held in a dtype; None: for the native step, which takes vectors in float32.

    Raises ModelError unless the file has those of the skeleton, and no other, and there is memory for them.
    """
    needed = held_bytes(path) if dtype is None else skeleton.num_parameters() * dtype.itemsize
    weights = GgufWeights(path, model_tensors(path, skeleton), dtype or torch.float32)
    forget_headers()  # before memory is taken for the weights
    check_free(needed, f"the weights of {path.name}")
    return weights
