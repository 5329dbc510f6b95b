"""The memory of this process at its peak, where the system tells (Linux)."""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin() -> int | None:
    """Forget the peak so far; bytes in use now, or None where the system does not tell."""
    gc.collect()
    _trim()
    try:
        FORGET.write_text("5", encoding="ascii")
    except OSError:
        return None
    return _field("VmRSS")


def _trim() -> None:
    """Hand freed memory back to the system, where the C library can: taken again, it would not show."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl and macOS; Windows
        return
    trim(0)


def peak() -> int | None:
    """Most bytes in use since `begin`."""
    return _field("VmHWM")


def _field(name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s*(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
