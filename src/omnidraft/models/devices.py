"""Where a model is put, and in which dtype it computes there."""

from __future__ import annotations

import re
from typing import Any

import torch

from omnidraft.errors import ConfigError

BF16_PARAMETERS = 100_000_000  # below this, a token took as long in bfloat16 as in float32 on a CPU with AMX
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(asked: str) -> torch.device:
    """The device that `asked` names; auto is the GPU where there is one.  Raises ConfigError where it is not here."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    match = re.fullmatch(r"(cpu|cuda|mps)(?::(\d+))?", str(asked))
    if match is None or int(match[2] or 0) >= there[match[1]]:
        names = [kind for kind, count in there.items() if count]
        raise ConfigError(f"device {asked!r} is not here: use auto or {', '.join(names)}")
    return torch.device(asked)


def choose_dtype(device: torch.device, stored: torch.dtype | None, parameters: int) -> tuple[torch.dtype, str]:
    """The dtype for `auto` and the reason, one phrase; `stored` is the checkpoint's own."""
    small = parameters < BF16_PARAMETERS
    gpu = device.type == "cuda"
    if gpu and (stored == torch.float16 or (small and stored in {torch.float32, None})):
        return stored or torch.float32, "as stored"
    if not _has_bfloat16(device):
        return torch.float32, f"this {device.type} does not compute in bfloat16"
    if small and not gpu:
        return torch.float32, f"bfloat16 is no faster below {BF16_PARAMETERS // 10**6}M parameters"
    return torch.bfloat16, f"this {device.type} computes in it, and half the bytes are read"


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # older versions of PyTorch do not tell what a CPU can do
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)() if device.type == "cpu" else {}
    return bool(able.get("amx_bf16") or able.get("avx512_bf16"))
