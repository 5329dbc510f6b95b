"""A GGUF model in one file or several shards, NAME-00001-of-00003.gguf and so on, as one header; errors of reading."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from omnidraft.errors import ModelError
from omnidraft.models.gguf.header import Header, Stamp, TensorInfo, read_shard
from omnidraft.models.gguf.ollama_files import without_rowless
from omnidraft.models.quiet import silenced
from omnidraft.models.readable import unreadable

SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
SAME = ("general.architecture", "general.name", "split.count", "split.tensors.count")  # in all shards, where given


def read_header(path: Path, *, cut: bool = False) -> Header:
    """Read the header of a file, of all shards where it is one of several, which may be `cut` behind their headers.

    Raises ModelError for a shard that is missing or of another model, and for damaged files.
    """
    paths = _named(path)
    return _joined(paths, tuple(Stamp.of(each.stat()) for each in paths if each.is_file()), cut)


def read_what_is_there(path: Path) -> Header:
    """Read the header of a file that may be cut behind it, of all shards where they are there, else of the first.

    Raises ModelError for another shard, and as `read_header`.
    """
    header = read_shard(path, cut=True)
    count, number = (header.metadata.get(f"split.{key}", 0) for key in ("count", "no"))
    if not isinstance(count, int) or not isinstance(number, int) or count < 2:
        return header
    paths = _named(path)
    if len(paths) == count and all(each.is_file() for each in paths):
        return read_header(path, cut=True)
    if number != 0:
        first = paths[0].name if len(paths) > 1 else f"NAME-00001-of-{count:05}.gguf"
        raise ModelError(f"{path.name} is shard {number + 1} of {count}: give the first, {first}")
    return replace(header, whole=False)


def forget_headers() -> None:
    """Free the headers that were read, with vocabularies of tens of MB: they are read again where they are needed."""
    _joined.cache_clear()


def _named(path: Path) -> tuple[Path, ...]:
    """The shards that a file's name tells of, itself alone where it tells of none."""
    match = SHARD.fullmatch(path.name)
    count = int(match["count"]) if match else 1
    if match is None or not 1 <= int(match["number"]) <= count:
        return (path,)
    names = (f"{match['stem']}-{number:05}-of-{match['count']}{match['suffix']}" for number in range(1, count + 1))
    return tuple(path.with_name(name) for name in names)


@lru_cache(maxsize=4)
def _joined(paths: tuple[Path, ...], _stamps: tuple[Stamp, ...], cut: bool) -> Header:
    first, count = paths[0], len(paths)
    missing = next((number for number, path in enumerate(paths) if not path.is_file()), None)
    if missing is not None:
        there = next((path.name for path in paths if path.is_file()), first.name)
        raise ModelError(f"shard {missing + 1} of {count} is missing: put {paths[missing].name} beside {there}")
    headers = [read_shard(path, cut=cut) for path in paths]
    split = headers[0].metadata.get("split.count", 1)
    number = headers[0].metadata.get("split.no", 0)
    if number != 0 and count == 1:
        raise ModelError(
            f"{first.name} is shard {number + 1} of {split}: give the first, NAME-00001-of-{split:05}.gguf"
        )
    if split not in ({0, 1} if count == 1 else {count}):
        raise ModelError(f"{first.name} is shard 1 of {split}: give them names as NAME-00001-of-{split:05}.gguf")
    tensors: dict[str, TensorInfo] = {}
    for number, header in enumerate(headers):
        _check_shard(header, number, headers[0])
        if twice := next((name for name in header.tensors if name in tensors), None):
            raise ModelError(f"tensor {twice} is in two shards of {first.name}: get all shards of one model")
        tensors |= header.tensors
    total = headers[0].metadata.get("split.tensors.count", len(tensors))
    if count > 1 and total != len(tensors):
        raise ModelError(
            f"the shards of {first.name} have {len(tensors)} tensors, not {total}: get all shards of one model"
        )
    return without_rowless(Header(paths, headers[0].metadata, tensors))


def _check_shard(header: Header, number: int, first: Header) -> None:
    if number and header.metadata.get("split.no") != number:
        other = header.metadata.get("split.no")
        said = "no shard" if other is None else f"shard {other + 1}"
        raise ModelError(f"{header.name} is {said}, not shard {number + 1}: get all shards of one model")
    for key in SAME:
        theirs, ours = header.metadata.get(key), first.metadata.get(key)
        if theirs is not None and theirs != ours:
            raise ModelError(
                f"{header.name} has {key} {theirs!r} and {first.name} {ours!r}: get all shards of one model"
            )


# ---------------------------------------------------------------- errors of reading as ModelErrors of one line


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any exception inside into a ModelError of one line, and silence `transformers`."""
    with silenced(), naming(path):
        yield


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any exception inside into a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except PermissionError as error:
        raise unreadable(error.filename or path, error) from error
    except ImportError as error:
        raise ModelError(f"reading {path.name} takes the gguf package: pip install 'omnidraft[gguf]'") from error
    except Exception as error:  # tokenizers raise anything
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise ModelError(
            f"cannot read GGUF file {path.name} ({reason}): get the complete file of a text model"
        ) from error
