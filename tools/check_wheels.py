"""Check wheels before they are released: `python tools/check_wheels.py .wheels/*.whl` says what is wrong with each.

The objects in them are taken apart: instructions (by llvm-objdump), what they need of the system and what they export.
`python tools/check_wheels.py --tags` lists the platforms that wheels are made for.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import lief

from omnidraft.models.native.prebuilt import LEVELS, PLATFORMS, Platform, object_path, probe_path
from omnidraft.models.native.step import FUNCTIONS

MOST_BYTES = 45_000_000  # of a wheel
FOLDER = "omnidraft/models/native"
LIBRARIES = {".so", ".dylib", ".dll", ".lib", ".pdb", ".o", ".obj"}
PROBE = "processor"  # instead of a level
GLIBC = 2, 28
MACOS = [11, 0, 0]
NEEDED = {  # the libraries that objects may need
    ".so": {"libc.so.6", "libm.so.6", "libpthread.so.0"},
    ".dylib": {"usr/lib/libSystem.B.dylib"},
    ".dll": {"kernel32.dll", "ucrtbase.dll"},
}
BY_LINKER = {"_mh_dylib_header", "__dso_handle"}  # names that a linker adds to those of functions
WORDS_OF = {  # words in disassembled code of a level, and those that no processor below it knows
    "x86_64_v4+avx512vnni": ({"zmm", "vpdpbusd"}, set()),
    "x86_64_v4": ({"zmm"}, {"vpdpbusd", "vpdpwssd"}),
    "x86_64_v3+avxvnni": ({"ymm", "vpdpbusd"}, {"zmm", "k"}),
    "x86_64_v3": ({"ymm"}, {"zmm", "k", "vpdpbusd"}),
    "aarch64+dotprod+i8mm": ({"sdot", "smmla"}, set()),
    "aarch64+dotprod": ({"sdot"}, {"smmla"}),
    "aarch64": (set(), {"sdot", "smmla"}),
    PROBE: (set(), {"ymm", "zmm", "k", "sdot", "smmla"}),
}
WORDS = re.compile(r"%(ymm|zmm|k)\d|\b(vpdpbusd|vpdpwssd|sdot|smmla)\b")


def problems(wheel: Path) -> list[str]:
    """What is wrong with a wheel, by its name one for a platform."""
    tag = wheel.stem.partition("-py3-none-")[2]
    if tag not in PLATFORMS:
        return [f"the name says no tag of {', '.join(PLATFORMS)}"]
    platform = PLATFORMS[tag]
    expected = {object_path(name, platform.system).name: name for name in LEVELS if name.startswith(platform.processor)}
    expected[probe_path(platform.system).name] = PROBE
    said = []
    if wheel.stat().st_size > MOST_BYTES:
        said.append(f"it has {wheel.stat().st_size} bytes, and {MOST_BYTES} are allowed")
    with zipfile.ZipFile(wheel) as archive:
        about = next(archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
        if re.findall(r"^Tag: (.*)$", about, re.MULTILINE) != [f"py3-none-{tag}"]:
            said.append("its file WHEEL has another tag than its name")
        objects = {Path(name) for name in archive.namelist() if Path(name).suffix in LIBRARIES}
        if objects != {Path(FOLDER, name) for name in expected}:
            said.append(f"it holds {sorted(path.name for path in objects)}, and not {sorted(expected)}")
            return said
        for name, level in expected.items():
            said += [f"{name}: {each}" for each in object_problems(archive.read(f"{FOLDER}/{name}"), platform, level)]
    return said


def object_problems(content: bytes, platform: Platform, level: str) -> Iterator[str]:
    """What is wrong with the object for a level, or with the probe."""
    functions = {"processor_flags"} if level == PROBE else set(FUNCTIONS)
    binary = lief.parse(content)
    if isinstance(binary, lief.ELF.Binary) and platform.system.suffix == ".so":
        yield from elf_problems(binary, platform)
        exports = {str(symbol.name) for symbol in binary.exported_symbols}
        needed = set(binary.libraries)
    elif isinstance(binary, lief.MachO.Binary) and platform.system.suffix == ".dylib":
        yield from macho_problems(binary, content)
        exports = {str(symbol.name).removeprefix("_") for symbol in binary.exported_symbols} - BY_LINKER
        own = lief.MachO.LoadCommand.TYPE.ID_DYLIB
        needed = {str(library.name).removeprefix("/") for library in binary.libraries if library.command != own}
    elif isinstance(binary, lief.PE.Binary) and platform.system.suffix == ".dll":
        yield from pe_problems(binary, platform)
        exports = {str(function.name) for function in binary.exported_functions}
        needed = {library.lower() for library in binary.libraries}
    else:
        yield f"it is no {platform.system.suffix}"
        return
    if exports != functions:
        yield f"it exports {sorted(exports)}, and Python calls {sorted(functions)}"
    if not needed <= NEEDED[platform.system.suffix]:
        yield f"it needs {sorted(needed - NEEDED[platform.system.suffix])}"
    yield from instruction_problems(content, platform.processor, level)


def elf_problems(binary: lief.ELF.Binary, platform: Platform) -> Iterator[str]:
    machine = {"x86_64": lief.ELF.ARCH.X86_64, "aarch64": lief.ELF.ARCH.AARCH64}[platform.processor]
    if binary.header.machine_type != machine:
        yield f"it is for {binary.header.machine_type.name}"
    for library in binary.symbols_version_requirement:
        for version in library.get_auxiliary_symbols():
            name = str(version.name)
            numbers = re.fullmatch(r"GLIBC_([\d.]+)", name)
            if numbers is None or tuple(map(int, numbers[1].split("."))) > GLIBC:
                yield f"it needs {name} of {library.name}, and systems may have GLIBC_2.28"


def pe_problems(binary: lief.PE.Binary, platform: Platform) -> Iterator[str]:
    types = lief.PE.Header.MACHINE_TYPES
    machine = {"x86_64": types.AMD64, "aarch64": types.ARM64}[platform.processor]
    if binary.header.machine != machine:
        yield f"it is for {binary.header.machine.name}"


def macho_problems(binary: lief.MachO.Binary, content: bytes) -> Iterator[str]:
    if binary.header.cpu_type != lief.MachO.Header.CPU_TYPE.ARM64:
        yield f"it is for {binary.header.cpu_type.name}"
    version = binary.build_version
    if version is None or list(version.minos) > MACOS:
        yield f"it needs macOS {version and version.minos}, and systems may have {MACOS}"
    signature = binary.code_signature
    if signature is None:
        yield "it has no code signature, without which macOS does not run it"
    elif not is_signed(content, signature.data_offset):
        yield "its code signature is that of other code"


def is_signed(content: bytes, offset: int) -> bool:
    """Whether the ad-hoc signature at an offset is that of what is before it: hashes of pages."""
    blobs = struct.unpack_from(">III", content, offset)[2]
    for number in range(blobs):
        kind, place = struct.unpack_from(">II", content, offset + 12 + 8 * number)
        if kind == 0:  # the code directory
            place += offset
            fields = struct.unpack_from(">9I4B", content, place)
            _, _, _, flags, hashes, _, _, pages, limit, size, algorithm, _, page = fields
            whole = all(
                hashlib.sha256(content[index << page : min((index + 1) << page, limit)]).digest()
                == content[place + hashes + index * size :][:size]
                for index in range(pages)
            )
            return bool(flags & 2) and algorithm == 2 and limit == offset and pages << page >= limit and whole
    return False


def instruction_problems(content: bytes, processor: str, level: str) -> Iterator[str]:
    """What a level must have, and does not, and what it has and must not."""
    found = instructions(content, processor)
    wanted, barred = WORDS_OF[level]
    for word in sorted(wanted - found.keys()):
        yield f"it has no {word}"
    for word in sorted(barred & found.keys()):
        yield f"it has {found[word]} {word}, which the level's processors need not know"


def instructions(content: bytes, processor: str) -> dict[str, int]:
    """How often words stand in the disassembled code."""
    program = shutil.which("llvm-objdump")
    if program is None:
        sys.exit("llvm-objdump is not there, and without it instructions are not counted: apt install llvm")
    arm = ["--mattr=+dotprod,+i8mm"] if processor == "aarch64" else []
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        command = [program, "-d", "--no-show-raw-insn", *arm, file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    counts: dict[str, int] = {}
    for register, word in WORDS.findall(text):
        counts[register or word] = counts.get(register or word, 0) + 1
    return counts


def main(names: list[str]) -> int:
    """Print what is wrong with wheels, and return how many have problems."""
    lief.logging.disable()  # it has remarks on signatures that have no certificate
    if names == ["--tags"]:
        print(*PLATFORMS)
        return 0
    missing = set(PLATFORMS) - {Path(name).stem.partition("-py3-none-")[2] for name in names}
    if missing:
        print(f"There is no wheel for {', '.join(sorted(missing))}.")
    bad = len(missing)
    for path in map(Path, names):
        said = problems(path)
        bad += bool(said)
        print(f"{path.name}: {'; '.join(said) or f'{path.stat().st_size} bytes, as it should be'}")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) and 1)
