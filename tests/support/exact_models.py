"""Random models that lose nothing with matrices in 8 bits and keys and values in 16, to compare the native step with.

What is left is the rounding of inputs, and of keys and values that fall between two numbers of 16 bits.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from omnidraft.models.native.model import NativeModel, native_of
from omnidraft.models.native.step import Int8Group
from omnidraft.models.transformers_cache import GrowingLayer, new_cache
from omnidraft.models.transformers_model import PretrainedModel, TransformersModel, TransformersSequence
from support.compilers import needs_the_8_bit_step
from support.models import build


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


class HalfModel(TransformersModel):
    """A model whose sequences have keys and values of 16 bits."""

    def new_sequence(self, *, hidden: bool = False) -> TransformersSequence:
        sequence = super().new_sequence(hidden=hidden)
        vars(sequence).update(_new_cache=half_cache, cache=half_cache())
        return sequence


def representable(model: PreTrainedModel, spread: float = 0.2) -> PreTrainedModel:
    """The model with new weights, which 8 bits a row hold, and with norms and biases that show."""
    torch.manual_seed(0)
    less = 1 if type(model).__name__.startswith("Gemma") else 0  # norms add it to their weights
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=spread)
                parameter.copy_(Int8Group("it", parameter).rows(range(len(parameter))))
            else:
                parameter.uniform_(0.5 - less, 1.5 - less)
    return model


def exact_model(kind: str, spread: float = 0.2, **changes: Any) -> TransformersModel:
    """A model of `build` of this kind, of weights with a standard deviation."""
    return HalfModel(representable(build(kind, **{"max_position_embeddings": 2048} | changes), spread))


def native_step(source: PretrainedModel, *, drafts: bool = False) -> NativeModel:
    """The native step of a model; skips the test where there is no compiler."""
    needs_the_8_bit_step()
    fast = native_of(source, drafts=drafts)
    assert fast is not None
    return fast
