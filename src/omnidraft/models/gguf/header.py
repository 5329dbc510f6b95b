"""The header of one GGUF file: its keys, and where each tensor lies.

Every count and length is checked against the file's size, so a damaged file gives one ModelError.  Little-endian
files of versions 2 and 3 are read.  Nothing is mapped: of a file that another program cuts meanwhile, a mapping kills
the process.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omnidraft.errors import ModelError
from omnidraft.models.gguf.not_gguf import MAGIC, foreign

VERSIONS = (2, 3)
ALIGNMENT = 32  # bytes, where the header gives no other
MAX_ITEMS = 2**24  # of an array, keys or tensors
MAX_DIMENSIONS = 4
MAX_NAME = 256  # characters
BEGINNING = 2**24  # bytes that are read first: most headers are in them
MAX_HEADER = 2**28  # bytes
STRING, ARRAY = 8, 9
EMBEDDING = "token_embd.weight"
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
# number of the type in a file: its name, entries of a block, bytes of a block
QUANTIZATIONS = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2),
    2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """Place, kind and shape of a tensor."""

    name: str
    shape: tuple[int, ...]  # as torch has it: the last dimension is contiguous
    quantization: int  # a key of QUANTIZATIONS
    path: Path
    start: int  # byte in the file
    nbytes: int
    stamp: Stamp  # of the file


class Stamp(NamedTuple):
    """Identity of a file's content: it changes when the file is changed or replaced."""

    number: int
    size: int
    written: int  # ns

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class Header:
    """Keys and tensors of a model, of one file or of several shards."""

    paths: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    whole: bool = True  # False: of the first shard alone, whose tensors are some of the model's

    @property
    def name(self) -> str:
        """Name of the (first) file."""
        return self.paths[0].name


def read_shard(path: Path, *, cut: bool = False) -> Header:
    """Read the header of one file or shard, which may be `cut` anywhere behind it.

    Raises ModelError for a file that is damaged, or of another kind.
    """
    with path.open("rb") as file:
        stamp = Stamp.of(os.fstat(file.fileno()))
        blob = file.read(BEGINNING)
        if fault := foreign(path.name, blob[:512]):
            raise ModelError(fault)
        while True:
            try:
                return _Reader(path, blob, stamp, cut).header()
            except _MoreError as error:
                if error.end > MAX_HEADER:
                    raise ModelError(
                        f"{path.name} is damaged: its header has more than {MAX_HEADER} bytes: get the complete file"
                    ) from None
                more = file.read(max(error.end, 2 * len(blob)) - len(blob))
                if not more:
                    raise ModelError(changed(path.name)) from None
                blob += more


def changed(name: str) -> str:
    """The message for a file that another program writes to, or has replaced."""
    return f"{name} was changed while it was read: load it again once it is complete"


class _MoreError(Exception):
    """A header continues behind what was read of the file, up to byte `end` at least."""

    def __init__(self, end: int) -> None:
        self.end = end


class _Reader:
    """Reads a header from its beginning to its end; `blob` is the file's beginning."""

    def __init__(self, path: Path, blob: bytes, stamp: Stamp, cut: bool) -> None:
        self._path, self._blob, self._stamp, self._size, self._may_end = path, blob, stamp, stamp.size, cut
        self._at = len(MAGIC)

    def header(self) -> Header:
        version = self._number("I")
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise ModelError(f"{self._path.name} is big-endian: get it in little-endian")
            raise ModelError(f"{self._path.name} is of GGUF version {version}: get it in version 2 or 3")
        tensors, keys = self._count(), self._count()
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._name()
            if key in metadata:
                raise self._damaged(f"the key {key} is there twice")
            metadata[key] = self._value(self._number("I"), key)
        return Header((self._path,), metadata, self._tensors(tensors, metadata))

    def _tensors(self, count: int, metadata: Mapping[str, Any]) -> dict[str, TensorInfo]:
        rows = [self._tensor() for _ in range(count)]
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, no power of two")
        data = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        end, previous = 0, ""
        for name, shape, kind, offset in sorted(rows, key=lambda row: row[3]):
            label, entries, size = QUANTIZATIONS[kind]
            if name in tensors:
                raise self._damaged(f"the tensor {name} is there twice")
            if shape[-1] % entries:
                raise self._damaged(
                    f"rows of tensor {name} have {shape[-1]} entries, no multiple of {label}'s {entries}"
                )
            if offset % alignment or offset < end:
                raise self._damaged(f"tensor {name} begins inside {previous or 'the header'}")
            nbytes = math.prod(shape) // entries * size
            if data + offset + nbytes > self._size and not self._may_end:
                raise self._damaged(f"tensor {name} ends at byte {data + offset + nbytes}, the file has {self._size}")
            end, previous = offset + nbytes, name
            tensors[name] = TensorInfo(name, shape, kind, self._path, data + offset, nbytes, self._stamp)
        return tensors

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._name(), self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(reversed(self._numbers("Q", dimensions)))
        kind, offset = self._number("I"), self._number("Q")
        if kind not in QUANTIZATIONS:
            names = ", ".join(label for label, *_ in QUANTIZATIONS.values())
            raise ModelError(
                f"{self._path.name} has tensor {name} in quantization type {kind}, which is not supported: "
                f"get a file in {names}"
            )
        if not all(shape):
            raise self._damaged(f"tensor {name} has shape {shape}")
        return name, shape, kind, offset

    def _value(self, kind: int, key: str) -> Any:
        errors = "strict" if key.startswith("tokenizer.") else "replace"  # a token must not turn into another one
        if kind in NUMBERS:
            return self._number(NUMBERS[kind])
        if kind == STRING:
            return self._text(errors, key)
        if kind != ARRAY:
            raise self._damaged(f"the key {key} has a value of type {kind}")
        kind, count = self._number("I"), self._count()
        if kind in NUMBERS:
            return list(self._numbers(NUMBERS[kind], count))
        if kind != STRING:
            raise self._damaged(f"the key {key} has an array of type {kind}")
        return self._texts(count, errors, key)

    def _texts(self, count: int, errors: str, key: str) -> list[str]:
        """A list of texts: vocabularies have some 100,000, so this is a plain loop."""
        blob, at, there, unpack = self._blob, self._at, len(self._blob), struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            begin = at + 8
            if begin > there:
                raise self._cut(begin)
            at = begin + unpack(blob, at)[0]
            if at > there:
                raise self._cut(at)
            texts.append(blob[begin:at])
        self._at = at
        try:
            return [text.decode(errors=errors) for text in texts]
        except UnicodeDecodeError as error:
            raise self._damaged(f"the key {key} holds text that is not UTF-8") from error

    def _name(self) -> str:
        at = self._at
        name = self._text("replace")
        if not name.isprintable() or len(name) > MAX_NAME:
            raise self._damaged(f"the name at byte {at} is none")
        return name

    def _text(self, errors: str, key: str = "") -> str:
        return self._texts(1, errors, key)[0]

    def _count(self) -> int:
        count: int = self._number("Q")
        if count > min(MAX_ITEMS, self._size):
            raise self._damaged(f"a count before byte {self._at} is {count}")
        return count

    def _number(self, code: str) -> Any:
        return self._numbers(code, 1)[0]

    def _numbers(self, code: str, count: int) -> tuple[Any, ...]:
        form = f"<{count}{code}"
        begin, self._at = self._at, self._at + struct.calcsize(form)
        if self._at > len(self._blob):
            raise self._cut(self._at)
        return struct.unpack_from(form, self._blob, begin)

    def _cut(self, end: int) -> Exception:
        if end <= self._size:
            return _MoreError(end)
        return self._damaged(f"its header goes on where the file ends, at byte {self._size}")

    def _damaged(self, fault: str) -> ModelError:
        return ModelError(f"{self._path.name} is damaged: {fault}: get the complete file")
