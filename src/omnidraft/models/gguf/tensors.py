"""The tensors of a GGUF file as those of a model of transformers: every one is used, and none is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Any

import numpy as np
import torch

from omnidraft import systems
from omnidraft.errors import ModelError
from omnidraft.models.gguf.architectures import OUTSIDE, Described
from omnidraft.models.gguf.header import QUANTIZATIONS, Header, TensorInfo, changed

CHUNK_ENTRIES = 2**14  # that are dequantized at a time: 128 KiB and more are mapped anew each time, which takes longer
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
Shapes = Mapping[str, tuple[int, ...]]
RowsOf = Callable[[TensorInfo, int, int, int], np.ndarray[Any, Any]]
"""Rows start..end of a tensor that has so many, as in its file, (end - start, bytes of a row) uint8."""


@dataclass(frozen=True)
class Source:
    """A tensor of the model, and where it comes from."""

    name: str  # in transformers
    shape: tuple[int, ...]
    info: TensorInfo | None  # None: it is zero
    heads: int  # whose rows lie as pairs, 0 for none
    shifted: bool  # stored plus 1


def sources(header: Header, described: Described, shapes: Shapes) -> list[Source]:
    """Return the source of each of the model's tensors; `shapes` are those that the model needs.

    Raises ModelError for a tensor that is missing, of another shape, or that the model has no use for.
    """
    tied, listed = described.config["tie_word_embeddings"], []
    for name, shape in shapes.items():
        if tied and name == "lm_head.weight":
            continue
        tensor = _name_in_file(name, described)
        info = header.tensors.get(tensor)
        if info is None and not _is_zero(tensor, header, described):
            raise ModelError(f"{header.name} lacks the tensor {tensor}: get the complete file")
        if info is not None and info.shape != shape:
            raise ModelError(
                f"{header.name} has tensor {tensor} of shape {info.shape}, its keys need {shape}: get the file anew"
            )
        listed.append(Source(name, shape, info, _heads(tensor, described), _is_shifted(tensor, described)))
    used = {source.info.name for source in listed if source.info is not None}
    unused = set(header.tensors) - used - described.consumed
    if unused:
        raise ModelError(
            f"{header.name} has the tensor {min(unused)}, which is not supported for models of architecture "
            f"{described.keys.architecture}: use another model"
        )
    return listed


def read(source: Source, dtype: torch.dtype, rows_of: RowsOf) -> torch.Tensor:
    """The values of a tensor, whose bytes `rows_of` gives."""
    shape = source.shape
    if source.info is None:
        return torch.zeros(shape, dtype=dtype)
    rows = math.prod(shape[:-1])
    values = torch.empty(rows, shape[-1], dtype=dtype)
    at = 0
    for block in _dequantized(source.info, rows, rows_of):
        piece = torch.from_numpy(block if block.flags.writeable else block.copy())
        values[at : at + len(piece)] = piece - 1 if source.shifted else piece
        at += len(piece)
    if source.heads:
        values = values.reshape(shape)[torch.from_numpy(source_rows(shape[0], source.heads))]
    return values.reshape(shape)


def _dequantized(info: TensorInfo, rows: int, rows_of: RowsOf) -> Iterator[np.ndarray[Any, Any]]:
    """Rows of a tensor in float32, some at a time."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType[QUANTIZATIONS[info.quantization][0]]
    step = max(1, CHUNK_ENTRIES // info.shape[-1])
    for start in range(0, rows, step):
        data = rows_of(info, rows, start, min(rows, start + step))
        with np.errstate(all="ignore"):  # what is no number is seen in the values
            values = np.asarray(dequantize(data, kind), dtype=np.float32)
        yield values


def rows_in(file: FileIO, info: TensorInfo, rows: int, start: int, end: int) -> np.ndarray[Any, Any]:
    """Rows start..end of `rows` of a tensor as they are in its open file, (end - start, bytes of a row) uint8.

    Raises ModelError where the file ends before.  Nothing is mapped, as in `header.py`.
    """
    width = info.nbytes // rows
    content = np.empty((end - start, width), np.uint8)
    view, done = content.reshape(-1).data, 0
    while done < content.nbytes:  # the system gives no more than 2 GiB at once
        some = systems.read_at(file, view[done:], info.start + start * width + done)
        if not some:
            raise ModelError(changed(info.path.name))
        done += some
    return content


def source_rows(count: int, heads: int) -> np.ndarray[Any, Any]:
    """Order of the file's rows: in each head, pairs of neighbors become halves, 0 a 1 b 2 c -> 0 1 2 a b c."""
    return np.arange(count).reshape(heads, -1, 2).transpose(0, 2, 1).reshape(count)


def _name_in_file(name: str, described: Described) -> str:
    outside = {module: tensor for tensor, module in OUTSIDE.items()}
    inside = described.architecture.tensors
    if match := LAYER.fullmatch(name):
        number, module, kind = match.groups()
        if module in inside:
            return f"blk.{number}.{inside[module]}.{kind}"
    module, _, kind = name.rpartition(".")
    if module in outside:
        return f"{outside[module]}.{kind}"
    raise ModelError(f"model type {described.config['model_type']!r} has the weights {name}, which no GGUF file gives")


def _is_zero(tensor: str, header: Header, described: Described) -> bool:
    """True if a tensor is a bias that no layer has, in an architecture where any may be absent."""
    name_in_layer = tensor.split(".", 2)[-1]
    there = any(name.endswith(f".{name_in_layer}") for name in header.tensors)
    return described.architecture.biases and name_in_layer.endswith(".bias") and not there


def _heads(tensor: str, described: Described) -> int:
    counts = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
    matrix = tensor.split(".")[-2]
    wanted = described.architecture.interleaved and matrix in counts
    return int(described.config[counts[matrix]]) if wanted else 0


def _is_shifted(tensor: str, described: Described) -> bool:
    return described.architecture.family.shifted and tensor.endswith("norm.weight")
