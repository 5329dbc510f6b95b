"""The tensors of a model's safetensors files, each read when it is asked for."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch

from omnidraft.errors import ModelError
from omnidraft.models import int8_format
from omnidraft.models.gguf.not_gguf import is_pointer, pointer_fault

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PREFIX, HEAD = "model.", "lm_head."  # of the names of all tensors but the head's; those saved of a base model lack it
BASE = "embed_tokens.weight"  # by which these are known: other architectures have names of their own


def in_8_bits(folder: Path) -> bool:
    """True if a folder's weights are in 8 bits; an ordinary file beside them, from later training, takes precedence."""
    return (folder / int8_format.FILE).is_file() and not any((folder / name).is_file() for name in (SINGLE, INDEX))


def holds_weights(folder: Path) -> bool:
    """True if a folder has safetensors files, or one that names them."""
    return any((folder / name).is_file() for name in (SINGLE, INDEX, int8_format.FILE))


def lacks_metadata(folder: Path) -> bool:
    """True if a folder's index of files is without the entry `metadata`, which `transformers` wants."""
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():
        return False
    return "metadata" not in _index(folder / INDEX)


def _index(path: Path | str) -> dict[str, Any]:
    index: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    return index


class Tensors(Mapping[str, torch.Tensor]):
    """Tensors by name, of a folder or a hub id, those of a file in 8 bits as the float32 that they stand for.

    Raises OSError where it has no safetensors files, ModelError for files, or scales, that are missing or damaged.
    """

    def __init__(self, source: str, local: bool) -> None:
        self.paths: tuple[Path, ...] = ()  # of the files
        self._files: dict[str, Any] = {}  # open, by the tensors' names in them
        self._prefix = ""  # that these names lack, but for the head's
        self._scales: set[str] | None = None  # their names, in a file in 8 bits
        self._stack = ExitStack()
        self._source, self._local = source, local

    def __enter__(self) -> Self:
        try:
            self.paths = tuple(map(Path, self._paths()))
            for path in map(str, self.paths):
                file = self._stack.enter_context(_opened(path))
                self._files |= dict.fromkeys(file.keys(), file)
                if Path(path).name == int8_format.FILE:
                    self._set_scales_apart((file.metadata() or {}).get("format"))
            self._prefix = PREFIX if BASE in self._files else ""
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def types(self) -> Counter[str]:
        """How many weights there are of each type, by safetensors' names of types."""
        counts: Counter[str] = Counter()
        for name, file in self._files.items():
            tensor = file.get_slice(name)
            counts[tensor.get_dtype()] += math.prod(tensor.get_shape())
        return counts

    def _set_scales_apart(self, version: object) -> None:
        if version != int8_format.INT8_FORMAT:
            raise ModelError(
                f"{int8_format.FILE} of {self._source!r} is of format {version!r}: "
                f"get one of {int8_format.INT8_FORMAT!r}"
            )
        self._scales = {name for name in self._files if name.endswith(int8_format.SCALE)}
        for name in self._scales:
            self._files.pop(name)

    def _paths(self) -> list[str]:
        if (single := self._path(SINGLE)) is not None:
            return [single]
        index = self._path(INDEX)
        if index is None and (in_8_bits := self._path(int8_format.FILE)) is not None:
            return [in_8_bits]
        if index is None:
            raise FileNotFoundError(f"neither {SINGLE} nor {INDEX} nor {int8_format.FILE} is there")
        names = sorted(set(_index(index)["weight_map"].values()))
        paths = {name: self._path(name) for name in names}
        if missing := [name for name, path in paths.items() if path is None]:
            raise ModelError(
                f"weights {missing[0]!r} are missing, which {INDEX} names: get the complete files of the model"
            )
        return [path for path in paths.values() if path is not None]

    def _path(self, name: str) -> str | None:
        if self._local:
            place = Path(self._source, name)
            return str(place) if place.is_file() else None
        from transformers.utils.hub import cached_file

        options: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False}
        path: str | None = cached_file(self._source, name, **options)
        return path

    def __getitem__(self, name: str) -> torch.Tensor:
        if not name.startswith((self._prefix, HEAD)):
            raise KeyError(name)
        name = name.removeprefix(self._prefix)
        file = self._files[name]
        tensor: torch.Tensor = file.get_tensor(name)
        if self._scales is None:
            return tensor
        scales = f"{name}{int8_format.SCALE}"
        return int8_format.restored(name, tensor, file.get_tensor(scales) if scales in self._scales else None)

    def __contains__(self, name: object) -> bool:
        return name in set(self)  # without reading it

    def __iter__(self) -> Iterator[str]:
        return (name if name.startswith(HEAD) else f"{self._prefix}{name}" for name in self._files)

    def __len__(self) -> int:
        return len(self._files)


def _opened(path: str) -> Any:
    """An open safetensors file; raises ModelError where its header does not fit its size, or it is none."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, ValueError) as error:
        damaged = f"weights {path!r} are damaged ({error}): get the complete file"
        raise ModelError(pointer_fault(path) if is_pointer(Path(path)) else damaged) from error
