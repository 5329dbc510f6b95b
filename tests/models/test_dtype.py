"""The dtype that `auto` stands for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omnidraft.api import load
from omnidraft.models import loading
from omnidraft.models.loading import (
    BF16_PARAMETERS,
    HINT_PARAMETERS,
    choose_dtype,
    choose_precision,
    load_model,
    slow_path,
)
from omnidraft.models.native import compared_times
from omnidraft.models.native import model as native_model
from omnidraft.models.native import step as native
from omnidraft.models.native.compared_times import compared_seconds
from support.models import random_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALLER, BIG = BF16_PARAMETERS - 1, BF16_PARAMETERS


@pytest.mark.parametrize(
    ("device", "native", "stored", "parameters", "dtype", "reason"),
    [
        (CPU, True, torch.float32, BIG, "bfloat16", "this cpu computes in it"),
        (CPU, True, torch.float32, SMALLER, "float32", "no faster below 100M"),
        (CPU, False, torch.bfloat16, BIG, "float32", "this cpu does not compute in bfloat16"),
        (GPU, True, torch.float32, BIG, "bfloat16", "this cuda computes in it"),
        (GPU, True, torch.bfloat16, SMALLER, "bfloat16", "this cuda computes in it"),
        (GPU, True, torch.float16, BIG, "float16", "as stored"),
        (GPU, True, torch.float32, SMALLER, "float32", "as stored"),
        (GPU, True, None, SMALLER, "float32", "as stored"),
        (GPU, False, torch.bfloat16, BIG, "float32", "this cuda does not compute in bfloat16"),
    ],
)
def test_the_dtype_that_auto_stands_for(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    native: bool,
    stored: torch.dtype | None,
    parameters: int,
    dtype: str,
    reason: str,
) -> None:
    able = {"avx512_bf16": False, "amx_bf16": native}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_options: native)
    chosen, why = choose_dtype(device, stored, parameters)
    assert chosen == dtype
    assert reason in why


@pytest.fixture(autouse=True)
def _kept_in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compared_times, "cache_folder", lambda: tmp_path / "cache")


@pytest.mark.parametrize(("other_ms", "kept"), [(1.9, False), (2.1, True), (0.51, False), (0.49, True)])
def test_times_that_are_far_apart_are_measured_once_on_a_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other_ms: float, kept: bool
) -> None:
    monkeypatch.setattr(native, "product_seconds", lambda dtype, _: 1e-3 if dtype == "int8" else other_ms / 1e3)
    assert compared_seconds("float32") == (1e-3, other_ms / 1e3)
    assert len([*tmp_path.rglob("times-*.json")]) == kept
    monkeypatch.setattr(native, "product_seconds", lambda *_: 5e-3)
    again = compared_seconds("float32")
    assert again == ((1e-3, other_ms / 1e3) if kept else (5e-3, 5e-3))
    for damaged in ("", "{}", "[1]", '["a", "b"]'):
        for path in tmp_path.rglob("times-*.json"):
            path.write_text(damaged, encoding="utf-8")
        assert compared_seconds("float32") == (5e-3, 5e-3)
    if kept:
        monkeypatch.setattr(native, "processor", lambda: "another")
        assert compared_seconds("float32") == (5e-3, 5e-3)


@pytest.mark.parametrize(("eight_bits_ms", "dtype"), [(1.0, "int8"), (2.4, "int8"), (2.6, "float32")])
def test_of_a_file_8_bits_are_taken_unless_they_are_slower(
    monkeypatch: pytest.MonkeyPatch, eight_bits_ms: float, dtype: str
) -> None:
    seconds = {"int8": eight_bits_ms / 1e3, "float32": 2e-3}
    monkeypatch.setattr(native, "product_seconds", lambda dtype, _threads: seconds[dtype])
    monkeypatch.setattr(native_model, "unsupported_reason", lambda _model: None)
    model = random_model("llama", 60, seed=0).model
    chosen, why = choose_precision(CPU, model, rounds=True)
    assert chosen == dtype
    assert f"{eight_bits_ms:.1f} ms for a matrix in 8 bits and 2.0 in float32" in why
    assert choose_precision(CPU, model, rounds=False) == choose_dtype(CPU, torch.float32, 0)


def test_nothing_is_measured_where_8_bits_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "product_seconds", lambda *_: pytest.fail("it was measured"))
    model = random_model("llama", 60, seed=0).model
    assert choose_precision(GPU, model, rounds=True)[0] != "int8"
    monkeypatch.setattr(native_model, "unsupported_reason", lambda _model: "there is no compiler")
    assert choose_precision(CPU, model, rounds=True) == choose_dtype(CPU, torch.float32, 0)


@pytest.mark.medium
def test_a_product_is_measured_in_each_dtype_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest of five counts."""
    able = ["bfloat16", "float32", *(["int8"] if native.unsupported_reason() is None else [])]
    for at, dtype in enumerate(able):
        now = iter([moment for taken in (7, 5, 3, 4, 6) for moment in (100.0, 100.0 + taken + at)])
        monkeypatch.setattr(native, "time", SimpleNamespace(perf_counter=partial(next, now)))
        threads = -1  # of no other test
        assert native.product_seconds(dtype, threads) == native.product_seconds(dtype, threads) == 3.0 + at


# ---------------------------------------------------------------- slow paths


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One where a matrix takes 1 ms in 8 bits and 4 ms otherwise, and every model is large."""
    monkeypatch.setattr(native, "product_seconds", lambda dtype, _: 1e-3 if dtype == "int8" else 4e-3)
    monkeypatch.setattr(native_model, "unsupported_reason", lambda _: None)
    monkeypatch.setattr(loading, "HINT_PARAMETERS", 0)
    return monkeypatch


@pytest.mark.medium
@pytest.mark.usefixtures("machine")
def test_that_8_bits_would_be_faster_is_said_of_a_target_alone(target: Path) -> None:
    said: list[str] = []
    load_model(target, say=said.append)  # a drafter
    for dtype in ("float32", "bfloat16"):
        load_model(target, dtype, say=said.append, verifies=True)
    assert not said
    load(target, None, draft_length=0, warn=said.append)
    (line,) = said
    assert line.startswith("target target is decoded in float32 by transformers: with dtype='int8' (--dtype int8) ")
    assert "1.0 ms for a matrix and not 4.0" in line
    assert "answers may differ" in line


def test_of_what_is_no_slow_path_nothing_is_said(machine: pytest.MonkeyPatch) -> None:
    assert HINT_PARAMETERS > 20_000_000, "the embedded targets have 14M"
    model = random_model("llama", 60, seed=0).model
    assert slow_path(model, CPU, "float32", of_file=False) is not None
    assert slow_path(model, GPU, "float32", of_file=False) is None
    assert slow_path(model, CPU, "int8", of_file=False) is None
    assert slow_path(model, CPU, "float32", of_file=True) is None, "it was measured to be no slower"
    with machine.context() as changed:
        changed.setattr(native, "processor", lambda: "another")  # whose times nobody has kept
        changed.setattr(native, "product_seconds", lambda dtype, _: 1e-3 if dtype == "int8" else 1.9e-3)
        assert slow_path(model, CPU, "float32", of_file=False) is None
    with machine.context() as changed:
        changed.setattr(loading, "HINT_PARAMETERS", model.num_parameters() + 1)
        assert slow_path(model, CPU, "float32", of_file=False) is None
    machine.setattr(native_model, "unsupported_reason", lambda _: "there is no compiler")
    machine.setattr(native, "product_seconds", lambda *_: pytest.fail("it was measured"))
    assert slow_path(model, CPU, "float32", of_file=False) is None
    assert slow_path(model, GPU, "float32", of_file=True) is None


@pytest.mark.medium
@pytest.mark.usefixtures("home")
def test_of_a_file_the_obstacle_is_said(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files: Any = pytest.importorskip("support.gguf_models")
    for module, name in ((native_model, "unsupported_reason"), (loading, "unsupported_config")):
        machine.setattr(module, name, lambda *_: f"there is no compiler: {native.REMEDY}")
    path = files.small_file(tmp_path / "small.gguf")
    said: list[str] = []
    load_model(path, say=said.append, verifies=True)
    load_model(path, "float32", say=said.append, verifies=True)
    (line,) = [each for each in said if "is converted" not in each]
    assert line.startswith("target small.gguf is decoded in float32 by transformers, several times slower")
    assert all(part in line for part in ("apt install gcc", "omnidraft[compiler]"))
