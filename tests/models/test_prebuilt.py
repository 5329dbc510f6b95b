"""Objects of `step.c` in the package: which one a processor takes, their bits, and what is done where none fits."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from omnidraft.models.native import prebuilt
from omnidraft.models.native import step as native
from omnidraft.models.native.packed_matrices import GGML_TYPES
from support.blocks import packed
from support.compilers import looked_for_anew, needs_the_8_bit_step
from support.exact_models import exact_model, native_step
from support.models import IDS

BEST, *OTHERS = prebuilt.LEVELS
WHEELS = Path(__file__).parents[2] / ".wheels"  # where `make wheels` has been
ALL = {flag for level in prebuilt.LEVELS.values() for flag in level.flags}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The C files in a folder of their own, on a processor that has all flags, without a compiler."""
    for _ in range(2):  # made where it is kept, if it is not there, and taken from there
        looked_for_anew(monkeypatch)
        needs_the_8_bit_step()
    for file in prebuilt.SOURCE.parent.glob("*.[ch]"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(prebuilt, "SOURCE", tmp_path / "step.c")
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(native, "processor_flags", lambda: ALL)
    monkeypatch.setattr(native, "find_spec", lambda _: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def library() -> Path:
    """The one of this machine, however it came here."""
    return Path(native.step_functions()._name)  # noqa: SLF001


def test_a_processor_takes_the_best_object_that_it_can_run(source: Path) -> None:
    for level in prebuilt.LEVELS:
        prebuilt.object_path(level).touch()
    for level, (_, flags) in prebuilt.LEVELS.items():
        assert prebuilt.prebuilt([*flags, "sse2"]) == prebuilt.object_path(level)
        assert all(prebuilt.prebuilt(set(flags) - {flag}) != prebuilt.object_path(level) for flag in flags)
    prebuilt.object_path(BEST).unlink()
    assert prebuilt.prebuilt(prebuilt.LEVELS[BEST].flags) == prebuilt.object_path(OTHERS[0])
    assert prebuilt.prebuilt(["fma", "avx2"]) is None
    (source / "vectors.h").write_text("other", encoding="utf-8")
    assert prebuilt.prebuilt(prebuilt.LEVELS[BEST].flags) is None, "they are of another source"


def test_with_an_object_no_compiler_is_needed(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, ready = library(), prebuilt.object_path(BEST)
    for damaged in (False, True):
        if damaged:
            ready.write_bytes(b"no library")
        looked_for_anew(monkeypatch)
        assert "there is no C compiler" in str(native.unsupported_reason()), "it is to be compiled"
    shutil.copy(made, ready)
    looked_for_anew(monkeypatch)
    assert library() == ready
    assert not list((source / "home").rglob("*.so"))


def test_without_a_probe_step_c_is_compiled(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(library(), prebuilt.object_path(BEST))
    monkeypatch.setattr(prebuilt, "PROBE", source / "processor.c")
    monkeypatch.setattr(native, "processor_flags", prebuilt.processor_flags)
    looked_for_anew(monkeypatch)
    assert "there is no C compiler" in str(native.unsupported_reason())
    prebuilt.probe_path().write_bytes(b"no library")
    looked_for_anew(monkeypatch)
    assert "there is no C compiler" in str(native.unsupported_reason())


@pytest.mark.parametrize("level", [level for level in prebuilt.LEVELS if level.startswith("x86_64")])
def test_objects_of_the_wheel_give_the_bits_of_this_machines_own(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_8_bit_step()
    name = prebuilt.object_path(level).name
    found = [
        path
        for path in WHEELS.glob("*-manylinux_2_28_x86_64.whl")
        if f"omnidraft/models/native/{name}" in zipfile.ZipFile(path).namelist()
    ]
    if not found:
        pytest.skip("there is no wheel of this source: make wheels")
    if not set(prebuilt.LEVELS[level].flags) <= set(native.processor().split()):
        pytest.skip("this processor cannot run it")

    def computed() -> list[torch.Tensor]:
        x = torch.randn(9, 768, generator=torch.Generator().manual_seed(0))
        text = step.new_sequence()
        return [matrix(x) for matrix in matrices] + [text.forward(IDS[:30], 30), text.forward(IDS[30:31], 1)]

    matrices = [packed(kind, 37, 768) for kind in GGML_TYPES]
    step = native_step(exact_model("llama"))
    expected = computed()
    with zipfile.ZipFile(found[0]) as wheel:
        ready = Path(wheel.extract(f"omnidraft/models/native/{name}", tmp_path))
    monkeypatch.setattr(native, "processor_flags", lambda: prebuilt.LEVELS[level].flags)
    monkeypatch.setattr(native, "prebuilt", lambda _: ready)
    looked_for_anew(monkeypatch)
    assert library() == ready
    assert all(torch.equal(given, wanted) for given, wanted in zip(computed(), expected, strict=True))
