"""Folders of what is kept, and files written so that a crash leaves the state before or the state after."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from functools import cache
from pathlib import Path

from omnidraft import systems
from omnidraft.errors import ConfigError

RANDOM_BYTES = 8  # in the name of a temporary file
LONGEST_NAME = 255  # bytes that file systems take
HASH_DIGITS = 16  # in place of what does not fit into a name


def data_folder() -> Path:
    """Folder of what is kept between runs: `OMNIDRAFT_HOME`, else the platform's data folder.

    Raises ConfigError where neither is known.
    """
    home = os.environ.get("OMNIDRAFT_HOME")
    return _home(home) if home else _platform_folder("user_data_path")


def cache_folder() -> Path:
    """Folder of what can be made again: `cache` in `OMNIDRAFT_HOME`, else the platform's cache folder.

    Raises ConfigError where neither is known.
    """
    home = os.environ.get("OMNIDRAFT_HOME")
    return _home(home) / "cache" if home else _platform_folder("user_cache_path")


def _platform_folder(kind: str) -> Path:
    import platformdirs

    with contextlib.suppress(RuntimeError):  # without a home folder; older versions return "~"
        folder: Path = getattr(platformdirs, kind)("omnidraft", appauthor=False)
        if folder.is_absolute():
            return folder
    raise ConfigError("no home folder is known: set OMNIDRAFT_HOME to a writable folder")


@cache  # a relative path is that of the working directory in which it was first used
def _home(path: str) -> Path:
    """The folder that `OMNIDRAFT_HOME` names, absolute; `~` is the home folder, and `~name` of no user is a name."""
    return Path(os.path.abspath(os.path.expanduser(path)))  # noqa: PTH100, PTH111  those of Path raise


def fitting(name: str, more: int) -> str:
    """A file's name, to which `more` bytes are added; one that would get too long ends with a hash of the whole."""
    data, room = name.encode("utf-8", "surrogateescape"), LONGEST_NAME - more
    if len(data) <= room:
        return name
    digest = hashlib.sha256(data).hexdigest()[:HASH_DIGITS]
    return f"{data[: room - HASH_DIGITS - 1].decode(errors='ignore')}-{digest}"


def beside(path: Path, suffix: str) -> Path:
    """The hidden file next to another that is named after it, with an ASCII suffix."""
    return path.with_name(f".{fitting(path.name, 1 + len(suffix))}{suffix}")


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents durably; an existing folder is left as it is."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with contextlib.suppress(FileExistsError):  # another process was quicker
        os.mkdir(path)  # noqa: PTH102  (tests replace `os` in this module to fake crashes)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable after files in it were created, replaced or removed."""
    if systems.on_windows():  # which opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_file(path: Path, data: bytes) -> None:
    """Write a file and sync its content; its name is durable once its folder is synced."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file at `path`, or create it, atomically and durably; raises OSError and leaves the old file.

    The data goes to a temporary file in the same folder first, whose name is random: several threads and processes may
    replace one file, and the last one wins.
    """
    temporary = beside(path, f".{secrets.token_hex(RANDOM_BYTES)}.tmp")
    try:
        write_file(temporary, data)
        systems.patiently(os.replace, temporary, path)  # noqa: TID251
    except BaseException:  # Ctrl-C, too
        with contextlib.suppress(OSError):
            remove(temporary)
        raise
    sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Remove the temporary files of calls of `replace_file` that were killed; for while nobody else replaces `path`."""
    digits = "0" * 2 * RANDOM_BYTES
    name = re.compile(re.escape(beside(path, f".{digits}.tmp").name).replace(digits, f"[0-9a-f]{{{len(digits)}}}"))
    for other in path.parent.iterdir():
        if name.fullmatch(other.name):
            remove(other)


def rename(source: Path, destination: Path) -> None:
    """Rename a file within its folder, durably."""
    systems.patiently(os.rename, source, destination)
    sync_folder(destination.parent)


def remove(path: Path) -> None:
    """Remove a file, or a folder with its content; symbolic links are removed, not followed."""
    if path.is_symlink() or not path.is_dir():
        systems.patiently(os.unlink, path)
        return
    for inner in sorted(path.iterdir()):
        remove(inner)
    os.rmdir(path)  # noqa: PTH106
