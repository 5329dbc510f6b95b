"""File operations of which a crash leaves the state before or the state after, and nothing in between."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, where there is none, so that a power cut does not undo it."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was quicker
        os.mkdir(path)  # noqa: PTH102  (all that changes the disk is called by its bare name, which tests replace)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable: what was made, replaced or removed there."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file and make its content durable; its name is durable once its folder is synced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Put a file with this content in place of what is at `path`, in one step, and make that durable.

    Its content is written to `temporary` first, by default a name that no other thread uses.
    """
    own = temporary or path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        write_file(own, data)
        os.replace(own, path)
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            remove(own)
        raise
    sync_folder(path.parent)


def rename(source: Path, destination: Path) -> None:
    """Give a file another name next to it, durably."""
    os.rename(source, destination)  # noqa: PTH104
    sync_folder(destination.parent)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it; links are removed, not followed."""
    if path.is_symlink() or not path.is_dir():
        os.unlink(path)  # noqa: PTH108
        return
    for inner in sorted(path.iterdir()):
        remove(inner)
    os.rmdir(path)  # noqa: PTH106
