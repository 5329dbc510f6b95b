"""The C code of the 8-bit step under the sanitizers of compilers, on ARM by an emulator, and as it is in wheels."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from omnidraft.models.native import prebuilt, step
from omnidraft.models.native.packed_matrices import GGML_TYPES, BlockGroup
from support.blocks import blocks, filled, stored, values
from support.compilers import COMPILERS, needs_the_8_bit_step

SOURCE, MAIN = Path(step.__file__).parent, Path(__file__).with_name("step_test.c")
OPTIONS = [option for option in (*prebuilt.COMMON, *prebuilt.SYSTEMS["linux"].options) if option != "-O3"]
ARM = ["aarch64-linux-gnu-gcc", "-static", "-O2"]
ON_ARM = ["qemu-aarch64", "-L", str(Path("/", "usr", "aarch64-linux-gnu"))]  # where Debian has its libraries
PROCESSORS = {  # that an emulator plays, and what objects of the wheel use of them
    "qemu-aarch64": {
        "cortex-a53": {"asimd"},
        "cortex-a76": {"asimd", "asimddp"},
        "max": {"asimd", "asimddp", "i8mm"},
    },
    "qemu-x86_64": {"Nehalem": set(), "Haswell": set(prebuilt.V3)},
}
WINDOWS = [sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-windows-gnu"]
WHEELS = Path(__file__).parents[2] / ".wheels"  # where `make wheels` has been
MEMORY = ["-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
THREADS = ["-march=native", "-O1", "-g1", "-fsanitize=thread"]


class Case(NamedTuple):
    kind: int
    raw: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
    x: torch.Tensor
    whole: bool = False  # codes and inputs are whole numbers, so that results are exact


def cases() -> Iterator[Case]:
    """Of every kind; inputs that rounding does not change, as large as they get, and any."""
    draw = torch.Generator().manual_seed(0)
    for kind in GGML_TYPES:
        for number, (out, columns, rows) in enumerate(((1, 256, 1), (37, 512, 5), (16, 256, 17), (15, 768, 2))):
            x = torch.randint(-9, 10, (rows, columns), generator=draw).float()
            x[:, ::16] = 127
            yield Case(kind, blocks(kind, out, columns, seed=number, scale=1), x, whole=columns < 768)
            yield Case(kind, blocks(kind, out, columns, seed=number), torch.randn(rows, columns, generator=draw))
        x = torch.full((3, 256), 127.0)
        x[1], x[2, ::2] = -127, -127
        for byte in (0, 0x7F, 0x80, 0xFF):
            yield Case(kind, filled(kind, 20, 256, byte), x)


def run(program: list[str], given: bytes = b"") -> bytes:
    result = subprocess.run(program, input=given, capture_output=True, check=False, timeout=300)
    if b"unexpected memory mapping" in result.stderr or b"cannot allocate" in result.stderr.lower():
        pytest.skip(f"the sanitizer does not run here: {result.stderr.decode().strip().splitlines()[0]}")
    assert result.returncode == 0, result.stderr.decode(errors="replace")[-4000:]
    return result.stdout


@cache
def wanted_of_cases() -> list[tuple[Case, torch.Tensor, torch.Tensor]]:
    """Each with its values, and its products by this processor."""
    return [
        (each, values(each.kind, each.raw), BlockGroup(stored(each.kind, each.raw, each.x.shape[1]))(each.x))
        for each in cases()
    ]


def check_matrices(program: list[str]) -> None:
    """Values, products of whole numbers, and every bit of all others as this processor gives them."""
    needs_the_8_bit_step()
    given = wanted_of_cases()
    sent = b"".join(
        np.array([each.kind, len(each.raw), each.x.shape[1], len(each.x), 1 + number % 3]).tobytes()
        + each.raw.tobytes()
        + each.x.numpy().tobytes()
        for number, (each, _, _) in enumerate(given)
    )
    found, at = torch.from_numpy(np.frombuffer(run([*program, "matrices"], sent), np.float32).copy()), 0
    for each, wanted, products in given:
        _, raw, x, whole = each
        (rows, columns), out = x.shape, len(raw)
        weights = found[at : at + out * columns].view(out, columns)
        y = found[at + out * columns :][: rows * out].view(rows, out)
        at += (columns + rows) * out
        assert torch.equal(weights, wanted)
        if whole:
            assert torch.equal(y.long(), x.long() @ wanted.long().T)
        assert torch.equal(y, products)
    assert at == len(found)


def made(command: list[str], folder: Path, source: Path = SOURCE) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    path = str(folder / "made")
    command = [*command, *OPTIONS, f"-I{source}", str(MAIN), "-o", path, "-lm"]
    subprocess.run(command, check=True, timeout=step.SECONDS)
    return path


@pytest.fixture(scope="module")
def passes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What passes over the small model give on this processor."""
    compiler = next(filter(shutil.which, COMPILERS), "cc")
    return run([made([compiler, "-march=native", "-O1"], tmp_path_factory.mktemp("passes"))])


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [["-march=armv8.2-a+dotprod+i8mm"], ["-march=armv8.2-a+dotprod"], ["-march=armv8-a"], ["-DPLAIN"]],
    ids=" ".join,
)
def test_arm_gives_the_same_bits(flags: list[str], tmp_path: Path, passes: bytes) -> None:
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("there is no qemu-aarch64")
    program = [emulator, made([*ARM, *flags], tmp_path)]
    check_matrices(program)
    if "i8mm" in flags[0]:  # the one of processors of today
        assert run([*program, "emulated"]) == passes


def from_wheel(tag: str, name: str, folder: Path) -> str:
    """The path of an object that is taken out of the wheel for a platform."""
    place = f"omnidraft/models/native/{name}"
    for path in WHEELS.glob(f"*-{tag}.whl"):
        with zipfile.ZipFile(path) as wheel:
            if place in wheel.namelist():
                return wheel.extract(place, folder)
    pytest.skip("there is no wheel of this source: make wheels")


def loader(tag: str, folder: Path) -> list[str]:
    """What runs the program that loads an object of a wheel; skips the test where nothing can."""
    if tag == "win_amd64":
        if not shutil.which("wine"):
            pytest.skip("there is no wine")
        half, program = folder / "program.o", folder / "program.exe"
        compiled = [*WINDOWS, "-O1", "-DLIBRARY", "-ffp-contract=off", f"-I{SOURCE}", "-c", str(MAIN), "-o", str(half)]
        linked = [*WINDOWS, str(half), "-o", str(program), "-Wl,-e,mainCRTStartup"]
        for command in (compiled, linked + [each for each in prebuilt.SYSTEMS["win32"].linking if each != "-shared"]):
            subprocess.run(command, check=True, timeout=step.SECONDS)
        settings = f"WINEPREFIX={folder / 'wine'}", "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml="
        return ["env", *settings, "wine", str(program)]
    if tag == "manylinux_2_28_aarch64":
        if not shutil.which(ON_ARM[0]):
            pytest.skip(f"there is no {ON_ARM[0]}")
        return [*ON_ARM, made([ARM[0], "-DLIBRARY", "-O1"], folder)]
    return [made([next(filter(shutil.which, COMPILERS), "cc"), "-DLIBRARY", "-O1"], folder)]


@pytest.fixture(scope="module")
def loaders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """A loader for the objects of each platform."""
    return cache(lambda tag: loader(tag, tmp_path_factory.mktemp(tag)))


RUN_HERE = {tag: prebuilt.PLATFORMS[tag] for tag in ("manylinux_2_28_x86_64", "manylinux_2_28_aarch64", "win_amd64")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tag", "level"),
    [(tag, name) for tag, each in RUN_HERE.items() for name in prebuilt.LEVELS if name.startswith(each.processor)],
)
def test_objects_of_wheels_give_the_bits_of_this_processor(
    tag: str, level: str, tmp_path: Path, loaders: Callable[[str], list[str]], passes: bytes
) -> None:
    system, processor, _ = RUN_HERE[tag]
    library = from_wheel(tag, prebuilt.object_path(level, system).name, tmp_path)
    if processor == "x86_64" and not set(prebuilt.LEVELS[level].flags) <= flags_here():
        pytest.skip("this processor cannot run it")
    program = [*loaders(tag), library]
    assert run([*program, *(["brief"] if processor == "aarch64" else [])]) == passes
    check_matrices(program)


@pytest.mark.slow
@pytest.mark.parametrize("tag", RUN_HERE)
def test_probes_of_wheels_know_the_processor(tag: str, tmp_path: Path, loaders: Callable[[str], list[str]]) -> None:
    system, processor, _ = RUN_HERE[tag]
    probe = from_wheel(tag, prebuilt.probe_path(system).name, tmp_path)
    program = [*loaders(tag), probe]

    def flags(*emulator: str) -> set[str]:
        return set(run([*emulator, *program]).decode().split())

    if processor == "x86_64":
        needed = {flag for each in prebuilt.LEVELS.values() for flag in each.flags}
        assert flags() == needed & flags_here()
    emulator = f"qemu-{processor}"
    if tag.startswith("manylinux") and shutil.which(emulator):
        program = program[-2:]
        sysroot = ON_ARM[1:] if processor == "aarch64" else []
        for name, known in PROCESSORS[emulator].items():
            assert flags(emulator, *sysroot, "-cpu", name) == known


def flags_here() -> set[str]:
    return set(step.processor().split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("clang", ["-march=native", "-O0", *MEMORY]),
        ("gcc", ["-DSPAN=4", "-DPLAIN", "-O1", *MEMORY]),
        ("gcc", THREADS),
    ],
    ids=["memory", "memory, plain", "threads"],
)
def test_sanitizers_find_nothing(compiler: str, flags: list[str], tmp_path: Path) -> None:
    """Each path of the code by one compiler, either where it is the only one: most of the time goes into compiling."""
    compiler = next(filter(shutil.which, (compiler, *COMPILERS)), compiler)
    program = [made([compiler, *flags], tmp_path)]
    run(program)
    if flags is not THREADS:
        check_matrices(program)


WAIT = """
#include <pthread.h>
#include <time.h>
static int64_t told;
static int tell(clockid_t clock, struct timespec *time) {
    (void)clock;
    time->tv_sec = told / 1000000000;
    time->tv_nsec = told % 1000000000;
    return 0;
}
#define clock_gettime tell
#include "threads.h"
int main(void) {
    Wait wait = {0};
    told = 1999999000; /* just before the next second */
    for (int look = 0; look < 100000; look++)
        if (is_long(&wait)) return 1; /* whatever a pause takes */
    told += SPIN_NS - 1;
    for (int look = 0; look < LOOKS; look++)
        if (is_long(&wait)) return 2;
    told++;
    int looks = 0;
    while (!is_long(&wait) && looks <= LOOKS) looks++;
    if (looks >= LOOKS) return 3;
    told--;
    return is_long(&wait) ? 0 : 4; /* it stays so */
}
"""


@pytest.mark.medium
def test_a_wait_is_as_long_as_the_clock_says(tmp_path: Path) -> None:
    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    (tmp_path / "wait.c").write_text(f"#include <stdint.h>\n{WAIT}", encoding="utf-8")
    command = [compiler, "-pthread", "-w", f"-I{SOURCE}", "wait.c", "-o", "wait"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=step.SECONDS)
    assert subprocess.run([tmp_path / "wait"], check=False, timeout=300).returncode == 0


# each in place of what is right, where its number is the one that the environment has
FAULTS = (
    ("attention.h", "cache->blocks == cache[-1].blocks && ", "(PLANTED(1) || cache->blocks == cache[-1].blocks) && "),
    (
        "attention.h",
        "t + 1 < place + BLOCK ? t + 1 - place",
        "t + 1 + PLANTED(2) < place + BLOCK ? t + 1 + PLANTED(2) - place",
    ),
    ("attention.h", "first < last ? first : to[j]", "PLANTED(3) || first < last ? first : to[j]"),
    ("attention.h", "block - run->block : block", "PLANTED(4) ? 0 : block - run->block : block"),
    ("attention.h", "for (int64_t slot = 1;", "for (int64_t slot = 1 + PLANTED(5);"),
    (
        "attention.h",
        "t % BLOCK / LANES * LANES * size + t % LANES",
        "t % BLOCK / LANES * LANES * size + (PLANTED(6) ? 0 : t % LANES)",
    ),
    ("step.c", "if (!memory) return NO_MEMORY;", "if (!memory && !PLANTED(7)) return NO_MEMORY;"),
)
SWITCH = """
#ifndef PLANTED
static int planted;
__attribute__((constructor)) static void plant(void) { planted = atoi(getenv("PLANTED")); }
#define PLANTED(number) (planted == (number))
#endif
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program with all faults, of which the environment chooses one: most of the time goes into compiling."""
    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("faulty")
    for path in SOURCE.glob("*.[ch]"):
        shutil.copy(path, folder)
    for file, right, wrong in FAULTS:
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(right) == 1
        (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
    text = (folder / "system.h").read_text(encoding="utf-8")
    (folder / "system.h").write_text(text + SWITCH, encoding="utf-8")
    return made([compiler, "-march=native", "-O1"], folder, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    range(len(FAULTS) + 1),
    ids=[
        "none",
        "a row reads the cache of another",
        "and of one position more",
        "some positions are left out beside others",
        "a block takes the place of another",
        "a block is left out",
        "a position takes the place of another",
        "no look at whether there is memory",
    ],
)
def test_planted_faults_are_seen(number: int, faulty: str) -> None:
    chosen = {**os.environ, "PLANTED": str(number)}
    code = subprocess.run([faulty], env=chosen, capture_output=True, check=False, timeout=300).returncode
    assert (code != 0) == (number != 0)
