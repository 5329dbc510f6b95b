"""`step.c` compiled beforehand: the wheel for Linux on x86-64 holds an object for each level of its processors.

setup.py makes them, by this module too: it imports nothing that has to be installed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

SOURCE = Path(__file__).with_name("step.c")
# products and sums are rounded one by one, so that no compiler's choice of loops shows in a row
OPTIONS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-pthread", "-Wno-psabi")
V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")  # flags of processors, as Linux calls them
V4 = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
# processors as the compiler calls them, the fastest first, and the flags that they need
LEVELS = {
    "x86_64_v4+avx512vnni": (*V4, "avx512_vnni"),
    "x86_64_v4": V4,
    "x86_64_v3+avxvnni": (*V3, "avx_vnni"),
    "x86_64_v3": V3,
}


def source_bytes() -> bytes:
    """Return the bytes that a library depends on: options, and all C files in the order of their names."""
    files = (SOURCE, *sorted(SOURCE.parent.glob("*.h")))
    return " ".join(OPTIONS).encode() + b"".join(file.read_bytes() for file in files)


def object_path(level: str) -> Path:
    """Where the object for a level lies, if it is there; of another source it has another name."""
    return SOURCE.with_name(f"step-{level}-{hashlib.sha256(source_bytes()).hexdigest()[:16]}.so")


def prebuilt(flags: Collection[str]) -> Path | None:
    """The object of the best level for a processor with these flags, None where there is none."""
    paths = (object_path(level) for level, needed in LEVELS.items() if set(needed) <= set(flags))
    return next((path for path in paths if path.is_file()), None)
