"""The C code of matrices of blocks on ARM processors, by an emulator, and under the sanitizers of compilers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from omnidraft.models import native, prebuilt
from omnidraft.models.packed import GGML_TYPES, Packed, Stored
from support.blocks import blocks, filled, values
from support.compilers import needs_the_8_bit_step

HERE, SOURCE = Path(__file__).parent, Path(native.__file__).parent
OPTIONS = [option for option in prebuilt.OPTIONS if option not in {"-O3", "-shared"}]
ARM = ["aarch64-linux-gnu-gcc", "-static", "-O2"]
CHECKED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


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


def check(program: list[str]) -> None:
    """Values, products of whole numbers, and every bit of all others as this processor gives them."""
    needs_the_8_bit_step()
    given = list(cases())
    sent = b"".join(
        np.array([each.kind, len(each.raw), each.x.shape[1], len(each.x), 1 + number % 3]).tobytes()
        + each.raw.tobytes()
        + each.x.numpy().tobytes()
        for number, each in enumerate(given)
    )
    result = subprocess.run(program, input=sent, capture_output=True, check=False, timeout=300)
    if b"unexpected memory mapping" in result.stderr:
        pytest.skip("the sanitizer does not run here")
    assert result.returncode == 0, result.stderr.decode(errors="replace")[-4000:]
    found, at = torch.from_numpy(np.frombuffer(result.stdout, np.float32).copy()), 0
    for each in given:
        kind, raw, x, whole = each
        (rows, columns), out = x.shape, len(raw)
        weights = found[at : at + out * columns].view(out, columns)
        y = found[at + out * columns :][: rows * out].view(rows, out)
        at += (columns + rows) * out
        wanted = values(kind, raw)
        assert torch.equal(weights, wanted)
        if whole:
            assert torch.equal(y.long(), x.long() @ wanted.long().T)
        stored = Stored("it", kind, out, columns, lambda start, end, raw=raw: raw[start:end])  # type: ignore[misc]
        assert torch.equal(y, Packed(stored)(x))
    assert at == len(found)


def made(command: list[str], main: str, folder: Path) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    path = str(folder / "made")
    command = [*command, *OPTIONS, f"-I{SOURCE}", str(HERE / main), "-o", path, "-lm"]
    subprocess.run(command, check=True, timeout=native.SECONDS)
    return path


def emulator() -> str:
    if (found := shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")) is None:
        pytest.skip("there is no qemu-aarch64")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("flags", [["-march=armv8.2-a+dotprod"], ["-march=armv8-a"], ["-DPLAIN"]], ids=" ".join)
def test_arm_gives_the_same_bits(flags: list[str], tmp_path: Path) -> None:
    check([emulator(), made([*ARM, *flags], "panels.c", tmp_path)])


@pytest.mark.slow
def test_a_pass_on_arm(tmp_path: Path) -> None:
    program = [emulator(), made([*ARM, "-march=armv8.2-a+dotprod"], "sanitized.c", tmp_path)]
    result = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [["gcc", "-march=native"], ["clang", "-DPLAIN"]], ids=" ".join)
def test_matrices_under_sanitizers(compiler: list[str], tmp_path: Path) -> None:
    check([made([*compiler, *CHECKED], "panels.c", tmp_path)])
