"""The tensors of a model's safetensors files, each read when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import torch

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class Tensors(Mapping[str, torch.Tensor]):
    """Tensors by name, of a folder or a hub id; raises OSError where it has no safetensors files."""

    def __init__(self, source: str, local: bool) -> None:
        self._files: dict[str, Any] = {}  # open, by the tensors' names
        self._stack = ExitStack()
        self._source, self._local = source, local

    def __enter__(self) -> Self:
        from safetensors import safe_open

        try:
            for path in self._paths():
                file = self._stack.enter_context(safe_open(path, framework="pt"))
                self._files |= dict.fromkeys(file.keys(), file)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _paths(self) -> list[str]:
        single = self._path(SINGLE)
        if single is not None:
            return [single]
        index = self._path(INDEX)
        if index is None:
            raise FileNotFoundError(f"neither {SINGLE} nor {INDEX} is there")
        names = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
        found = {name: self._path(name) for name in names}
        if missing := [name for name, path in found.items() if path is None]:
            raise FileNotFoundError(f"{missing[0]} is not there")
        return [path for path in found.values() if path is not None]

    def _path(self, name: str) -> str | None:
        from transformers.utils.hub import cached_file

        options: dict[str, Any] = {"local_files_only": self._local, "_raise_exceptions_for_missing_entries": False}
        found: str | None = cached_file(self._source, name, **options)
        return found

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self._files  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
