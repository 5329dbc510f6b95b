"""Linear layers with 8-bit weights on a CPU: a step of a small model is bound by the memory traffic of its weights."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import linear

SMALLEST = 3 * 2**19  # weights of a matrix; below it, rounding the input takes as long as reading them in 32 bits
CENTER = 128  # zero point of the input: with signed inputs, single rows take a hundred times as long in oneDNN


class Linear(Protocol):
    """x (T, in) float32 -> (T, out) float32."""

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor: ...


class Int8Linear:
    """Linear layer quantized to 8 bits: weights with one scale a row, inputs dynamically with one scale a call.

    The kernels come from oneDNN, which PyTorch's compiler uses for quantized models.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        weight = weight.float()
        self._scales = weight.abs().amax(1).clamp_min(1e-20) / 127  # (out,)
        rounded = (weight / self._scales[:, None]).round_().to(torch.int8)
        self.nbytes = rounded.nbytes + self._scales.nbytes
        self._packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._centers = torch.zeros(len(weight), dtype=torch.int64, device="cpu")

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        rounded, scale = (_rounded_row if len(x) == 1 else _rounded)(x)
        nothing: list[Any] = []
        result: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded, scale, CENTER, self._packed, self._scales, self._centers, None, 1.0, 0, torch.float32, "none",
            nothing, "",
        )  # fmt: skip
        return result


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Quantize x (T, in) to unsigned integers around CENTER; returns them and the scale."""
    low, high = torch.aminmax(x)
    scale = max(-low.item(), high.item(), 1e-20) / 127
    return (x / scale).round_().add_(CENTER).to(torch.uint8), scale


def _rounded_row(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Quantize one row, for which numpy's calls take a quarter of the time of torch's."""
    row = x.numpy()
    scale = max(float(row.max()), -float(row.min()), 1e-20) / 127
    scaled = row / np.float32(scale)
    np.rint(scaled, out=scaled)
    scaled += CENTER
    with np.errstate(invalid="ignore"):  # NaN becomes some integer, and its scale makes it NaN again
        return torch.from_numpy(scaled.astype(np.uint8)), scale


@cache
def available() -> bool:
    """Return True if this machine and this PyTorch have the kernels and these compute correctly."""
    # Rows of ±1 with signs that change every 1, 2, 4, ... weights, and never: all are the largest that 8 bits hold, as
    # is the first input, because kernels for older processors add two products at a time in 16 bits, which overflow.
    columns, rows = torch.arange(256, device="cpu"), torch.arange(9, device="cpu")[:, None]
    weight = 1 - 2 * (columns // 2**rows % 2).float()
    x = torch.stack([torch.ones_like(weight[0]), columns / 127.5 - 1]).float()
    try:
        layer = Int8Linear(weight)
        return all(torch.allclose(layer(part), part @ weight.T, atol=1.0) for part in (x, x[:1], x[1:]))
    except (AttributeError, RuntimeError):  # NotImplementedError is a RuntimeError
        return False


def fastest(weight: torch.Tensor) -> Linear:
    """Return the fastest linear layer for a weight (out, in) on this machine."""
    if weight.numel() >= SMALLEST and available():
        return Int8Linear(weight)
    return partial(linear, weight=weight.float())
