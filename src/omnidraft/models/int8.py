"""Linear layers with weights of 8 bits on a CPU: a step of a small model takes as long as its weights take to read."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.functional import linear

SMALLEST = 3 * 2**19  # weights; below this, rounding the input takes as long as reading them in full
CENTER = 128  # what 0 is written as: with signed inputs, single rows take a hundred times as long in oneDNN


class Linear(Protocol):
    """x (T, in) float32 -> (T, out) float32."""

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor: ...


class Int8Linear:
    """A matrix rounded to 8 bits, each row by its own scale; the input is rounded as it comes, by one scale.

    The kernels are those of oneDNN, which PyTorch's compiler uses for quantized models.
    """

    def __init__(self, weight: torch.Tensor) -> None:
        weight = weight.float()
        self._scales = weight.abs().amax(1).clamp_min(1e-20) / 127  # (out,)
        rounded = (weight / self._scales[:, None]).round_().to(torch.int8)
        self.nbytes = rounded.nbytes + self._scales.nbytes
        self._packed = torch.ops.onednn.qlinear_prepack(rounded, None)
        self._centers = torch.zeros(len(weight), dtype=torch.int64)

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        rounded, scale = (_rounded_row if len(x) == 1 else _rounded)(x)
        nothing: list[Any] = []
        result: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            rounded, scale, CENTER, self._packed, self._scales, self._centers, None, 1.0, 0, torch.float32, "none",
            nothing, "",
        )  # fmt: skip
        return result


def _rounded(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """x (T, in) as unsigned integers around CENTER, and what one of them stands for."""
    low, high = torch.aminmax(x)
    scale = max(-low.item(), high.item(), 1e-20) / 127
    return (x / scale).round_().add_(CENTER).to(torch.uint8), scale


def _rounded_row(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The same of one row, where numpy's calls take a quarter of the time of torch's."""
    row = x.numpy()
    scale = max(float(row.max()), -float(row.min()), 1e-20) / 127
    scaled = row / np.float32(scale)
    np.rint(scaled, out=scaled)
    scaled += CENTER
    with np.errstate(invalid="ignore"):  # NaN becomes some integer, and its scale makes it NaN again
        return torch.from_numpy(scaled.astype(np.uint8)), scale


@cache
def available() -> bool:
    """Whether this machine and this PyTorch have the kernels, and these compute what they should."""
    # Rows of ±1 with signs that change every 1, 2, 4, ... weights, and never: all are the largest that 8 bits hold, as
    # is the first input, because kernels for older processors add two products at a time in 16 bits, which overflow.
    weight = 1.0 - 2 * (torch.arange(256) // 2 ** torch.arange(9)[:, None] % 2)
    x = torch.stack([torch.ones(256), torch.linspace(-1, 1, 256)])
    try:
        layer = Int8Linear(weight)
        return all(torch.allclose(layer(rows), rows @ weight.T, atol=1.0) for rows in (x, x[:1], x[1:]))
    except (AttributeError, RuntimeError):  # NotImplementedError is a RuntimeError
        return False


def fastest(weight: torch.Tensor) -> Linear:
    """The linear layer of a weight (out, in) that takes the least time on this machine."""
    if weight.numel() >= SMALLEST and available():
        return Int8Linear(weight)
    return partial(linear, weight=weight.float())
