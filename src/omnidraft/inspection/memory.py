"""What a model takes in memory, from its config alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from omnidraft.models.devices import choose_device, choose_dtype
from omnidraft.models.kv_cache import new_cache
from omnidraft.models.language_model import NO_LIMIT, TransformersModel


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a model as `load` would hold it here; None is unknown."""

    parameters: int
    stored: str | None  # the dtype in config.json
    stored_bytes: int | None
    dtype: str  # what `load` would choose on this machine
    dtype_reason: str
    device: str
    weight_bytes: int
    kv_bytes: int | None  # of keys and values, a token
    context: int | None  # tokens at most; None: no limit


def memory(model: TransformersModel) -> Memory:
    """Count a model that has no storage."""
    parameters = model.model.num_parameters()
    stored: torch.dtype | None = getattr(model.model.config, "dtype", None)
    device = choose_device("auto")
    dtype, reason = choose_dtype(device, stored, parameters)
    entries = _cache_entries(model)
    return Memory(
        parameters=parameters,
        stored=None if stored is None else str(stored).removeprefix("torch."),
        stored_bytes=None if stored is None else parameters * stored.itemsize,
        dtype=str(dtype).removeprefix("torch."),
        dtype_reason=reason,
        device=device.type,
        weight_bytes=parameters * dtype.itemsize,
        kv_bytes=None if entries is None else entries * dtype.itemsize,
        context=None if model.context >= NO_LIMIT else model.context,
    )


@torch.inference_mode()
def _cache_entries(model: TransformersModel) -> int | None:
    """Numbers that the cache holds for a token: those of one that the model reads, without computing anything.

    None for a model whose pass looks at what it computed, as some mixtures of experts do.
    """
    cache: Any = new_cache()
    try:
        model.model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), past_key_values=cache, use_cache=True)
    except Exception:  # noqa: BLE001  code that was never meant to run without storage raises anything
        return None
    return sum(int(layer.keys.numel() + layer.values.numel()) for layer in cache.layers)
