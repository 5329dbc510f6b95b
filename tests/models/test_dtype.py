"""The dtype that `auto` stands for."""

from __future__ import annotations

import pytest
import torch

from omnidraft.models import lean, native
from omnidraft.models.loading import BF16_PARAMETERS, choose_dtype, choose_precision
from support.models import random_model

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALLER, BIG = BF16_PARAMETERS - 1, BF16_PARAMETERS


@pytest.mark.parametrize(
    ("device", "native", "stored", "parameters", "dtype", "reason"),
    [
        (CPU, True, torch.float32, BIG, torch.bfloat16, "this cpu computes in it"),
        (CPU, True, torch.float32, SMALLER, torch.float32, "no faster below 100M"),
        (CPU, False, torch.bfloat16, BIG, torch.float32, "this cpu does not compute in bfloat16"),
        (GPU, True, torch.float32, BIG, torch.bfloat16, "this cuda computes in it"),
        (GPU, True, torch.bfloat16, SMALLER, torch.bfloat16, "this cuda computes in it"),
        (GPU, True, torch.float16, BIG, torch.float16, "as stored"),
        (GPU, True, torch.float32, SMALLER, torch.float32, "as stored"),
        (GPU, True, None, SMALLER, torch.float32, "as stored"),
        (GPU, False, torch.bfloat16, BIG, torch.float32, "this cuda does not compute in bfloat16"),
    ],
)
def test_the_dtype_that_auto_stands_for(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    native: bool,
    stored: torch.dtype | None,
    parameters: int,
    dtype: torch.dtype,
    reason: str,
) -> None:
    able = {"avx512_bf16": False, "amx_bf16": native}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_options: native)
    chosen, why = choose_dtype(device, stored, parameters)
    assert chosen == dtype
    assert reason in why


@pytest.mark.parametrize(("eight_bits_ms", "dtype"), [(1.0, torch.int8), (2.4, torch.int8), (2.6, torch.float32)])
def test_of_a_file_8_bits_are_taken_unless_they_are_slower(
    monkeypatch: pytest.MonkeyPatch, eight_bits_ms: float, dtype: torch.dtype
) -> None:
    seconds = {torch.int8: eight_bits_ms / 1e3, torch.float32: 2e-3}
    monkeypatch.setattr(native, "product_seconds", lambda dtype, _threads: seconds[dtype])
    monkeypatch.setattr(lean, "obstacle", lambda _model: None)
    model = random_model("llama", 60, seed=0).model
    chosen, why = choose_precision(CPU, model, rounds=True)
    assert chosen == dtype
    assert f"{eight_bits_ms:.1f} ms for a matrix in 8 bits and 2.0 in float32" in why
    assert choose_precision(CPU, model, rounds=False) == choose_dtype(CPU, torch.float32, 0)


def test_nothing_is_measured_where_8_bits_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "product_seconds", lambda *_: pytest.fail("it was measured"))
    model = random_model("llama", 60, seed=0).model
    assert choose_precision(GPU, model, rounds=True)[0] != torch.int8
    monkeypatch.setattr(lean, "obstacle", lambda _model: "there is no compiler")
    assert choose_precision(CPU, model, rounds=True) == choose_dtype(CPU, torch.float32, 0)


def test_a_product_is_measured_in_each_dtype() -> None:
    if native.obstacle() is None:
        assert 0 < native.product_seconds(torch.int8, 1) < 1
    assert 0 < native.product_seconds(torch.bfloat16, 1) < 10  # some processors have no instructions for it
    assert native.product_seconds(torch.float32, 1) == native.product_seconds(torch.float32, 1), "once in a process"
