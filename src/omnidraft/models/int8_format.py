"""Matrices in 8 bits: integers with one scale a row, how they are rounded, and how a file holds them.

In a file of this kind a matrix NAME (out, in) is int8 and has beside it NAME.scale, float32 (out); a row's weights are
its integers times its scale.  Vectors are as they were.  The file's metadata says so, `INT8_FORMAT`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omnidraft.errors import ModelError

FILE = "model.int8.safetensors"  # another name than that of files which `transformers` reads: it knows no scales
INT8_FORMAT = "omnidraft int8 rows"  # the entry "format" of the metadata
SCALE = ".scale"
LARGEST = 127  # of a rounded weight


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Integers (out, in), float32, and scales (out) of a matrix; the scales tell of weights that are not finite.

    Rounding integers times their scales gives the same integers and scales again.
    """
    weight = weight.float()
    scales = weight.abs().amax(1).div_(LARGEST)
    return (weight / scales.clamp_min(1e-30)[:, None]).round_(), scales


def restored(name: str, stored: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """The weights that a file of this kind holds by a name, matrices in float32; raises ModelError for damaged ones."""
    if stored.dtype != torch.int8 and scales is None:
        return stored
    fault = None
    if stored.dtype != torch.int8:
        fault = f"have scales, and are {stored.dtype}"
    elif scales is None:
        fault = f"are integers, and {name}{SCALE} is missing"
    elif stored.ndim != 2 or scales.shape != stored.shape[:1] or scales.dtype != torch.float32:
        found = f"{tuple(stored.shape)} with {tuple(scales.shape)} of {scales.dtype}"
        fault = f"need one scale a row in float32, and are {found}"
    elif not (scales.isfinite() & (scales >= 0)).all():
        fault = f"have NaN, infinite or negative numbers in {name}{SCALE}"
    if fault is not None or scales is None:
        raise ModelError(f"weights {name} {fault}: get the complete files of the model")
    return stored.float().mul_(scales[:, None])


def packed(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of a file of this kind, of a model's weights by name; raises ModelError for NaN or infinite ones."""
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if weight.ndim != 2:
            tensors[name] = weight.contiguous()
            continue
        integers, scales = rounded(weight)
        if not scales.isfinite().all():
            raise ModelError(f"weights {name} are NaN or infinite: get the complete files of the model")
        tensors |= {name: integers.to(torch.int8), f"{name}{SCALE}": scales}
    return tensors
