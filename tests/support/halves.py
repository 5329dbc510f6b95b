"""Keys and values of 16 bits in `transformers`, as the 8-bit step has them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache

from omnidraft.models.transformers_cache import GrowingLayer, new_cache


class HalfLayer(GrowingLayer):
    """Keys and values of a layer of `transformers`, rounded to 16 bits as those of step.c."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dtype = key_states.dtype
        return super().update(key_states.half().to(dtype), value_states.half().to(dtype))


def half_cache() -> DynamicCache:
    cache = new_cache()
    cache.layer_class_to_replicate = HalfLayer
    return cache
