"""The C code of the 8-bit step under the sanitizers of compilers: memory, undefined behavior, and data races."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from omnidraft.models import native, prebuilt
from support.compilers import COMPILERS

MAIN = Path(__file__).with_name("sanitized.c")
SOURCE = Path(native.__file__).parent
OPTIONS = [option for option in prebuilt.OPTIONS if option not in {"-O3", "-shared"}]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    ("sanitizers", "flags"),
    [
        ("address,undefined", ["-march=native"]),
        ("address,undefined", ["-DSPAN=4", "-DPLAIN"]),
        ("thread", ["-march=native"]),
    ],
    ids=["memory", "memory, plain", "threads"],
)
def test_passes_under_sanitizers(compiler: str, sanitizers: str, flags: list[str], tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    made = tmp_path / "passes"
    how = [*OPTIONS, *flags, "-O1", "-g", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", f"-I{SOURCE}"]
    command = [compiler, *how, str(MAIN), "-o", str(made), "-lm"]
    subprocess.run(command, check=True, timeout=native.SECONDS)
    result = subprocess.run([str(made)], capture_output=True, text=True, check=False, timeout=300)
    if "unexpected memory mapping" in result.stderr or "cannot allocate" in result.stderr.lower():
        pytest.skip(f"the sanitizer does not run here: {result.stderr.strip().splitlines()[0]}")
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        ("attention.h", "cache->blocks == cache[-1].blocks && ", ""),  # a row reads the cache of another
        ("attention.h", "t + 1 < place + BLOCK ? t + 1 - place", "t + 2 < place + BLOCK ? t + 2 - place"),
        ("attention.h", "first < last ? first : to[j]", "first"),  # some positions are left out beside others
        ("attention.h", "block - run->block : block", "0 : block"),  # a block takes the place of another
        ("attention.h", "for (int64_t slot = 1;", "for (int64_t slot = 2;"),  # and one is left out
        ("attention.h", "t % BLOCK / LANES * LANES * size + t % LANES", "t % BLOCK / LANES * LANES * size"),
        ("step.c", "if (!memory) return NO_MEMORY;", ""),
    ],
)
def test_planted_faults_are_seen(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    for path in SOURCE.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert text.count(right) == 1
    (tmp_path / file).write_text(text.replace(right, wrong), encoding="utf-8")
    compiler = next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        pytest.skip("there is no C compiler")
    made = tmp_path / "passes"
    command = [compiler, *OPTIONS, "-march=native", "-O1", f"-I{tmp_path}", str(MAIN), "-o", str(made), "-lm"]
    subprocess.run(command, check=True, timeout=native.SECONDS)
    assert subprocess.run([str(made)], capture_output=True, check=False, timeout=300).returncode != 0
