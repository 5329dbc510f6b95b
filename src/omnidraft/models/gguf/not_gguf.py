"""Kinds of files that are mistaken for GGUF files, by their first bytes."""

from __future__ import annotations

from pathlib import Path

MAGIC = b"GGUF"
POINTER = b"version https://git-lfs.github.com/spec/"
WHOLE = 1024  # bytes; a pointer is shorter
OLDER = (b"tjgg", b"fmgg", b"lmgg")  # formats of ggml before GGUF
OTHERS = {b"PK\x03\x04": "a zip archive, as PyTorch writes", b"\x80": "a pickle", b"\x1f\x8b": "a gzip archive"}


def foreign(name: str, beginning: bytes) -> str | None:
    """The message that says what a file is, by its first bytes, and the fix; None for a GGUF file."""
    if beginning.startswith(MAGIC):
        return (
            None if len(beginning) > len(MAGIC) else f"{name} is damaged: it ends after 4 bytes: get the complete file"
        )
    if beginning.startswith(POINTER):
        return pointer_fault(name)
    start = beginning.lstrip().lower()
    if not beginning:
        kind, fix = "empty", "get the complete file"
    elif start.startswith((b"<!doctype", b"<html", b"<?xml")):
        kind, fix = "an HTML page", "download the file itself, not the page about it"
    elif len(beginning) > 9 and beginning[8:9] == b"{" and int.from_bytes(beginning[:8], "little") < 2**32:
        kind, fix = "a safetensors file", "give the folder that holds it and its config.json"
    elif beginning.startswith(OLDER):
        kind, fix = "of a format older than GGUF", "get it as GGUF"
    else:
        kind = next((what for magic, what in OTHERS.items() if beginning.startswith(magic)), "no GGUF file")
        fix = "get the model as GGUF"
    return f"{name} is {kind}: {fix}"


def pointer_fault(name: str) -> str:
    """The message for a file that only points to the one that git-lfs keeps."""
    return f"{name} is a git-lfs pointer, not the file: run `git lfs pull` in its folder"


def begins_as_gguf(path: Path) -> bool:
    """True if a file that can be read has the first bytes of GGUF files."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def is_pointer(path: Path) -> bool:
    """True if a file that can be read is a git-lfs pointer."""
    try:
        if not path.is_file() or path.stat().st_size > WHOLE:
            return False
        with path.open("rb") as file:
            return file.read(len(POINTER)) == POINTER
    except OSError:
        return False
