"""What a model's files say of themselves: their format, the type of their weights, and their size."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from omnidraft.models.gguf.config import is_gguf
from omnidraft.models.gguf.header import QUANTIZATIONS, Header
from omnidraft.models.gguf.split_files import read_header, reading
from omnidraft.models.loading import locate
from omnidraft.models.safetensors_files import Tensors

# general.file_type of GGUF files, a mixture of types in most
MIXTURES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


class ModelFiles(NamedTuple):
    """The files of a model: `format` is gguf or safetensors, `weights` the type of their weights, as Q4_K_M or BF16."""

    format: str
    weights: str
    nbytes: int = 0
    written: float = 0.0  # seconds of the time of day


def files_of(name: str | Path) -> ModelFiles:
    """The files of a folder, a GGUF file or a hub id that was loaded; raises OSError and ModelError."""
    source, local = locate(name)
    if is_gguf(source):
        path = Path(source)
        with reading(path):
            header = read_header(path)
        return ModelFiles("gguf", _mixture(header), *_stamp(header.paths))
    with Tensors(source, local) as tensors:
        return ModelFiles("safetensors", _most(tensors.types()), *_stamp(tensors.paths))


def content_of(name: str | Path) -> bytes:
    """A hash of all that the files of a model hold; raises as `files_of`."""
    source, local = locate(name)
    if is_gguf(source):
        path = Path(source)
        with reading(path):
            paths = list(read_header(path).paths)
    else:
        with Tensors(source, local) as tensors:
            paths = [Path(each) for each in tensors.paths]
        paths.append(paths[0].with_name("config.json"))
    content = hashlib.blake2b()
    for path in sorted(paths):
        with path.open("rb") as file:
            content.update(hashlib.file_digest(file, hashlib.blake2b).digest())
    return content.digest()


def _mixture(header: Header) -> str:
    """The type that a file is called by; of one that does not say, that of most of its weights."""
    kind = header.metadata.get("general.file_type")
    if isinstance(kind, int) and kind in MIXTURES:
        return MIXTURES[kind]
    counts: Counter[str] = Counter()
    for tensor in header.tensors.values():
        counts[QUANTIZATIONS[tensor.quantization][0]] += math.prod(tensor.shape)
    return _most(counts)


def _most(counts: Counter[str]) -> str:
    return counts.most_common(1)[0][0]


def _stamp(paths: Iterable[Path]) -> tuple[int, float]:
    """The bytes of some files together, and when the last was written."""
    stats = [path.stat() for path in paths]
    return sum(each.st_size for each in stats), max(each.st_mtime for each in stats)
