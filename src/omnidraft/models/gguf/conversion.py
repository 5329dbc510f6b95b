"""The weights of GGUF files as safetensors, dequantized once and kept.

A folder that `transformers` loads is kept in the cache under the file's SHA-256 and the dtype.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from omnidraft.errors import ModelError
from omnidraft.models.gguf.config import model_tensors
from omnidraft.models.gguf.file_errors import reading, writing
from omnidraft.models.gguf.split_files import read_header
from omnidraft.models.gguf.tensors import Source, read
from omnidraft.models.gguf.tokenizer import load_tokenizer
from omnidraft.storage import cache_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FORMAT = 3  # of conversions; raised by each change to what one holds
KEPT_BYTES = 64 * 2**30  # of all conversions together; the one used longest ago is removed first
KEPT_SECONDS = 30 * 24 * 3600  # since it was last used: most files have been loaded without one since
OWN = re.compile(r"[0-9a-f]{16}-\d+-\w+")  # folders of conversions; others beside them are not ours to remove
SPARE_BYTES = 2**30  # of disk and memory, left free by a conversion
NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}  # in safetensors files


@dataclass(frozen=True)
class Kept:
    """A conversion in the cache."""

    folder: Path
    name: str  # of the file that it was made of, and the dtype
    size: int  # bytes
    used: float  # seconds since the epoch


def converted(path: Path, skeleton: PreTrainedModel, dtype: torch.dtype, say: Callable[[str], None]) -> Path:
    """The folder of a file's model in safetensors of a dtype, made where the cache has none.

    `skeleton` is the model without weights.  `say` is told of a conversion before it begins.  Raises ModelError, also
    where disk or memory is too small.
    """
    from filelock import FileLock

    digest = _digest(path)
    cache = cache_folder() / "gguf"
    folder = cache / f"{digest[:16]}-{FORMAT}-{str(dtype).removeprefix('torch.')}"
    if folder.is_dir() and not os.access(cache, os.W_OK):  # of another user, or on a medium that is only read
        return folder
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                _check_room(path, skeleton.num_parameters() * dtype.itemsize, cache)
                say(f"{path.name} is converted to safetensors once, kept in {folder} (see `omnidraft cache`)")
                _convert(path, skeleton, dtype, folder)
            os.utime(folder)
    remove_old(spared=folder)
    return folder


def kept() -> list[Kept]:
    """All conversions in the cache, the one used last first."""
    found = []
    for folder in sorted((cache_folder() / "gguf").glob("*-*")):
        if folder.is_dir() and (folder / "NAME").is_file():
            size = sum(file.stat().st_size for file in folder.iterdir())
            found.append(Kept(folder, (folder / "NAME").read_text(encoding="utf-8"), size, folder.stat().st_mtime))
    return sorted(found, key=lambda each: -each.used)


def remove_old(spared: Path | None = None) -> int:
    """Remove the conversions not used for KEPT_SECONDS, and the oldest beyond KEPT_BYTES; returns the bytes freed."""
    found, freed = kept(), 0
    total = sum(each.size for each in found)
    for each in reversed(found):
        old = time.time() - each.used > KEPT_SECONDS or total - freed > KEPT_BYTES
        if old and each.folder != spared and OWN.fullmatch(each.folder.name):
            with suppress(OSError):
                shutil.rmtree(each.folder)
                freed += each.size
    return freed


def clear() -> int:
    """Remove all conversions, and what was left of unfinished ones; returns the bytes freed."""
    freed = sum(each.size for each in kept())
    with writing(cache_folder() / "gguf"):
        if (cache_folder() / "gguf").is_dir():
            shutil.rmtree(cache_folder() / "gguf")
    return freed


# ---------------------------------------------------------------- conversion


def _convert(path: Path, skeleton: PreTrainedModel, dtype: torch.dtype, folder: Path) -> None:
    """Write the model to `folder`, whole or not at all."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir()
    try:
        with reading(path):
            _write(part / "model.safetensors", model_tensors(path, skeleton), dtype)
            config = copy(skeleton.config)
            config.dtype, config.architectures = dtype, [type(skeleton).__name__]
            config.save_pretrained(part)
            skeleton.generation_config.save_pretrained(part)
            load_tokenizer(path).save_pretrained(part)
        (part / "NAME").write_text(f"{path.name} in {str(dtype).removeprefix('torch.')}", encoding="utf-8")
        part.rename(folder)
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(part, ignore_errors=True)
        raise


def _write(path: Path, tensors: Sequence[Source], dtype: torch.dtype) -> None:
    """Write a safetensors file, one tensor after the other, so that there is never more than one in memory."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for source in tensors:
        begin, end = end, end + math.prod(source.shape) * dtype.itemsize
        entries[source.name] = {"dtype": NAMES[dtype], "shape": source.shape, "data_offsets": [begin, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for source in tensors:
            file.write(read(source, dtype).contiguous().view(torch.uint8).numpy().data)


def _digest(path: Path) -> str:
    """SHA-256 of a file, or of all its parts."""
    digest = hashlib.sha256()
    with reading(path):
        for part in read_header(path).paths:
            with part.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def _check_room(path: Path, needed: int, cache: Path) -> None:
    import psutil

    places = {"memory": psutil.virtual_memory().available, f"disk space in {cache}": shutil.disk_usage(cache).free}
    for place, free in places.items():
        if free < needed + SPARE_BYTES:
            raise ModelError(
                f"{path.name} takes {needed / 2**30:.1f} GiB as safetensors, and there are {free / 2**30:.1f} GiB of "
                f"{place}: use a smaller model, or free some"
            )
