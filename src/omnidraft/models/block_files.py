"""Blocks of KV caches on disk: a file each, named after the text that it holds, written in the background.

A file is there whole or not at all, and is used only if its checksum is right.  What fails costs time and never an
answer: the first failure is a warning, and nothing more is written then.
"""

from __future__ import annotations

import hashlib
import os
import queue
import secrets
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from omnidraft import systems
from omnidraft.errors import ConfigError
from omnidraft.storage import beside, remove

MAGIC = b"OMNIKV1\n"  # of files with this layout; any other file in the folder is left alone, but for its space
HEAD = struct.Struct("<8s32s32sIQ")  # magic, checksum of what follows, the block before, ids, bytes of keys and values
SUFFIX = ".kv"
ABANDONED_S = 3600  # after which what a killed process was writing is removed
WAITING_BYTES = 2**30  # of blocks that wait to be written; those beyond are not written


class Header(NamedTuple):
    """What a file holds, without its keys and values."""

    name: bytes
    before: bytes
    ids: tuple[int, ...]


class BlockFiles:
    """The files of a folder, in `limit` bytes together; the least recently used go first.

    Raises ConfigError for a folder that cannot be read or made.
    """

    def __init__(self, folder: Path, limit: int, warn: Callable[[str], None]) -> None:
        self.folder, self.limit, self._warn = folder, limit, warn
        self._sizes: dict[bytes, int] = {}
        self._used: dict[bytes, float] = {}  # when each was used last, by the clock of the file system
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[tuple[Header, memoryview] | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._writes = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._headers = [*self._read_headers()]
        except OSError as error:
            why = f"the folder of blocks, {str(folder)!r}, cannot be used ({error.strerror})"
            raise ConfigError(f"{why}: choose another --cache-dir", option="cache_dir") from error
        self._thread = threading.Thread(target=self._write, name="blocks", daemon=True)
        self._thread.start()

    def headers(self) -> list[Header]:
        """What was there at the start, those used longest ago first."""
        return sorted(self._headers, key=lambda each: self._used.get(each.name, 0))

    def __contains__(self, name: bytes) -> bool:
        return name in self._sizes

    def put(self, header: Header, data: memoryview) -> None:
        """Write a block in the background; it must not change any more."""
        with self._lock:
            if not self._writes or header.name in self._sizes or self._waiting_bytes > WAITING_BYTES:
                return
            self._waiting_bytes += len(data)
        self._waiting.put((header, data))

    def get(self, header: Header) -> bytes | None:
        """The keys and values of a block; None where they are gone, damaged, or of another text."""
        path = self._path(header.name)
        try:
            data = path.read_bytes()
            magic, checksum, before, count, size = HEAD.unpack_from(data)
            rest = memoryview(data)[HEAD.size :]
            if magic != MAGIC or len(rest) != 4 * count + size or hashlib.sha256(data[40:]).digest() != checksum:
                raise ValueError("damaged")
            if before != header.before or struct.unpack_from(f"<{count}i", rest) != header.ids:
                raise ValueError("of another text")
            os.utime(path)
        except (OSError, ValueError, struct.error):
            with self._lock:
                self._sizes.pop(header.name, None)
            return None
        self._used[header.name] = time.time()
        return bytes(rest[4 * count :])

    def close(self) -> None:
        """Write what waits, and end."""
        self._waiting.put(None)
        self._thread.join()

    def _path(self, name: bytes) -> Path:
        return self.folder / f"{name.hex()}{SUFFIX}"

    def _read_headers(self) -> Iterator[Header]:
        now = time.time()
        for path in self.folder.iterdir():
            with suppress(OSError, ValueError, struct.error):
                status = path.stat()
                if path.suffix == ".tmp" and path.name.startswith(".") and now - status.st_mtime > ABANDONED_S:
                    remove(path)
                if path.suffix != SUFFIX:
                    continue
                name = bytes.fromhex(path.stem)
                self._sizes[name], self._used[name] = status.st_size, status.st_mtime
                with path.open("rb") as file:
                    magic, _, before, count, size = HEAD.unpack(file.read(HEAD.size))
                    if magic == MAGIC and status.st_size == HEAD.size + 4 * count + size:
                        yield Header(name, before, struct.unpack(f"<{count}i", file.read(4 * count)))

    def _write(self) -> None:
        while (item := self._waiting.get()) is not None:
            header, data = item
            with self._lock:
                self._waiting_bytes -= len(data)
            if not self._writes or header.name in self._sizes:  # several answers may have handed it over
                continue
            try:
                self._make_room(HEAD.size + 4 * len(header.ids) + len(data))
                self._write_file(header, data)
            except OSError as error:
                self._writes = False
                self._warn(f"blocks of prompts are not written any more ({error.strerror}): see {str(self.folder)!r}")

    def _write_file(self, header: Header, data: memoryview) -> None:
        ids = struct.pack(f"<{len(header.ids)}i", *header.ids)
        size = struct.pack("<IQ", len(header.ids), len(data))
        checksum = hashlib.sha256(header.before + size + ids)
        checksum.update(data)
        path = self._path(header.name)
        temporary = beside(path, f".{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(MAGIC + checksum.digest() + header.before + size + ids)
                file.write(data)
            systems.patiently(temporary.replace, path)
        except BaseException:
            with suppress(OSError):
                remove(temporary)
            raise
        with self._lock:
            self._sizes[header.name] = HEAD.size + len(ids) + len(data)
            self._used[header.name] = time.time()

    def _make_room(self, size: int) -> None:
        """Remove the files that were not used for longest, until one of this size fits."""
        with self._lock:
            total = sum(self._sizes.values()) + size
            for name in sorted(self._sizes, key=lambda each: self._used[each]):
                if total <= self.limit:
                    break
                with suppress(OSError):
                    remove(self._path(name))
                total -= self._sizes.pop(name)
