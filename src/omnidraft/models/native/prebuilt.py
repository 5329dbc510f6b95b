"""`step.c` compiled beforehand: a wheel for a system holds an object for each level of its processors.

setup.py makes them, by this module too: it imports nothing that has to be installed.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("step.c")
PROBE = Path(__file__).with_name("processor.c")  # names what levels need, of this processor
# products and sums are rounded one by one, so that no compiler's choice of loops shows in a row
COMMON = ("-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi")


class System(NamedTuple):
    """How libraries are made for an operating system."""

    suffix: str
    options: tuple[str, ...]  # of the compiler
    linking: tuple[str, ...]  # and of its linker
    apart: bool = False  # linked by another command
    compilers: tuple[str, ...] = ("cc", "gcc", "clang")  # that are tried
    packages: str = "apt install gcc, or "  # that bring one


SYSTEMS = {  # by the names of sys.platform
    "linux": System(".so", ("-fPIC", "-pthread"), ("-shared", "-lm")),
    "darwin": System(".dylib", ("-fPIC", "-pthread"), ("-shared",)),
    # of MinGW, which takes minutes to make, headers alone, and what functions with large frames call; gcc puts vectors
    # where a processor cannot take them, and clang has Visual Studio's headers, if any
    "win32": System(
        suffix=".dll",
        options=(),
        linking=("-shared", "-nostdlib", "-lkernel32", "-lucrtbase", "-lgcc"),
        apart=True,
        compilers=(),
        packages="",
    ),
}
SYSTEM = SYSTEMS.get(sys.platform, SYSTEMS["linux"])


def commands(
    compiler: Sequence[str], flags: Sequence[str], source: Path, made: Path, system: System
) -> list[list[str]]:
    """What makes a library of a source, for a kind of processor."""
    compiled = [*compiler, *COMMON, *system.options, *flags]
    if not system.apart:
        return [[*compiled, str(source), "-o", str(made), *system.linking]]
    half = str(made.with_suffix(".o"))
    return [[*compiled, "-c", str(source), "-o", half], [*compiler, half, "-o", str(made), *system.linking]]


class Platform(NamedTuple):
    """What a wheel is for, as its compiler calls it."""

    system: System
    processor: str
    target: str


PLATFORMS = {  # by the tags of wheels; of libraries those that are as old as PyTorch's
    "manylinux_2_28_x86_64": Platform(SYSTEMS["linux"], "x86_64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": Platform(SYSTEMS["linux"], "aarch64", "aarch64-linux-gnu.2.28"),
    "macosx_11_0_arm64": Platform(SYSTEMS["darwin"], "aarch64", "aarch64-macos.11.0"),
    "win_amd64": Platform(SYSTEMS["win32"], "x86_64", "x86_64-windows-gnu"),
    "win_arm64": Platform(SYSTEMS["win32"], "aarch64", "aarch64-windows-gnu"),
}
V3 = ("abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")  # flags of processors, as Linux calls them
V4 = (*V3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")


class Level(NamedTuple):
    """A kind of processors."""

    compiled_for: str  # as the compiler calls it
    flags: tuple[str, ...]  # that it needs


LEVELS = {  # the fastest first of each processor
    "x86_64_v4+avx512vnni": Level("x86_64_v4+avx512vnni", (*V4, "avx512_vnni")),
    "x86_64_v4": Level("x86_64_v4", V4),
    "x86_64_v3+avxvnni": Level("x86_64_v3+avxvnni", (*V3, "avx_vnni")),
    "x86_64_v3": Level("x86_64_v3", V3),
    "aarch64+dotprod+i8mm": Level("generic+dotprod+i8mm", ("asimd", "asimddp", "i8mm")),
    "aarch64+dotprod": Level("generic+dotprod", ("asimd", "asimddp")),
    "aarch64": Level("generic", ("asimd",)),
}
ANY = {"x86_64": "x86_64", "aarch64": "generic"}  # what the probe is compiled for


def source_bytes() -> bytes:
    """Return the bytes that a library depends on: options, and all C files in the order of their names."""
    files = (SOURCE, *sorted(SOURCE.parent.glob("*.h")))
    return repr((COMMON, SYSTEMS)).encode() + b"".join(file.read_bytes() for file in files)


def object_path(level: str, system: System = SYSTEM) -> Path:
    """Where the object for a level lies, if it is there; of another source it has another name."""
    return SOURCE.with_name(f"step-{level}-{_hash(source_bytes())}{system.suffix}")


def probe_path(system: System = SYSTEM) -> Path:
    """Where the compiled probe lies, if it is there."""
    return PROBE.with_name(f"processor-{_hash(source_bytes() + PROBE.read_bytes())}{system.suffix}")


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def processor_flags() -> frozenset[str]:
    """Return what levels need and this processor has; raises OSError where the wheel has no probe."""
    flags = ctypes.CDLL(str(probe_path())).processor_flags
    flags.restype = ctypes.c_char_p
    return frozenset(flags().decode().split())


def prebuilt(flags: Collection[str]) -> Path | None:
    """The object of the best level for a processor with these flags, None where there is none."""
    paths = (object_path(name) for name, level in LEVELS.items() if set(level.flags) <= set(flags))
    return next((path for path in paths if path.is_file()), None)
