"""Rotary positions by a config's `rope_parameters`, to the bit those of transformers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from omnidraft.models.families import heads_of, rotations_of

STRETCHED = "hunyuan_v1_dense"  # the type of models whose rotation of kind `dynamic` is stretched once and for all


class Rotation(NamedTuple):
    """Rotary positions of a kind of layer."""

    frequencies: torch.Tensor  # (entries / 2)
    scaling: float = 1.0

    @property
    def entries(self) -> int:
        """Entries of a head that are rotated."""
        return 2 * len(self.frequencies)


def rotations(config: Any) -> dict[str, Rotation]:
    """The rotations of a config by kind of layer; one for all has an empty name, and none is there without positions.

    Raises KeyError for parameters that are missing.
    """
    if getattr(config, "position_embedding_type", "rope") != "rope":
        return {}
    return {kind: _rotation(config, parameters) for kind, parameters in rotations_of(config).items()}


def _rotation(config: Any, parameters: Mapping[str, Any]) -> Rotation:
    entries = int(heads_of(config)[2] * (parameters.get("partial_rotary_factor") or 1.0))
    base, kind = parameters["rope_theta"], parameters.get("rope_type") or "default"
    exponents = torch.arange(0, entries, 2, dtype=torch.float32, device="cpu") / entries
    if kind == "longrope":
        return _longrope(config, parameters, base**exponents)
    if kind == "yarn":
        return _yarn(config, parameters, base**exponents, entries)
    if kind == "dynamic":  # as it is up to the model's context
        factor = parameters.get("factor", 1.0)
        times = (parameters.get("alpha") if config.model_type == STRETCHED else None) or factor - (factor - 1)
        base = base * times ** (entries / (entries - 2))
    frequencies = 1.0 / base**exponents
    if kind == "linear":
        frequencies /= parameters["factor"]
    return Rotation(_llama3(parameters, frequencies) if kind == "llama3" else frequencies)


def _stretch(config: Any, parameters: Mapping[str, Any]) -> float:
    """Times by which the context is longer than what a model was first trained with."""
    factor = parameters.get("factor")
    if factor is None:
        factor = config.max_position_embeddings / parameters["original_max_position_embeddings"]
    return float(factor)


def _longrope(config: Any, parameters: Mapping[str, Any], powers: torch.Tensor) -> Rotation:
    stretch, scaling = _stretch(config, parameters), parameters.get("attention_factor")
    if scaling is None:
        original = parameters["original_max_position_embeddings"]
        scaling = 1.0 if stretch <= 1 else math.sqrt(1 + math.log(stretch) / math.log(original))
    divisors = torch.tensor(parameters["short_factor"], dtype=torch.float32, device="cpu")
    return Rotation(1.0 / (divisors * powers), float(scaling))


def _yarn(config: Any, parameters: Mapping[str, Any], powers: torch.Tensor, entries: int) -> Rotation:
    """Fast pairs turn as they did, slow ones by the factor less, those between by a share of each."""
    factor, original = _stretch(config, parameters), parameters["original_max_position_embeddings"]
    scaling = parameters.get("attention_factor")
    if scaling is None:
        scale, of_all = parameters.get("mscale"), parameters.get("mscale_all_dim")
        scaling = _magnitude(factor, scale) / _magnitude(factor, of_all) if scale and of_all else _magnitude(factor, 1)
    base = parameters["rope_theta"]
    turns = (parameters.get("beta_fast") or 32, parameters.get("beta_slow") or 1)
    low, high = (entries * math.log(original / (each * 2 * math.pi)) / (2 * math.log(base)) for each in turns)
    if parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, entries - 1)
    pairs = torch.arange(entries // 2, dtype=torch.float32, device="cpu")
    kept = 1 - ((pairs - low) / ((high if high != low else high + 0.001) - low)).clamp(0, 1)
    return Rotation(1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, float(scaling))


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(parameters: Mapping[str, Any], frequencies: torch.Tensor) -> torch.Tensor:
    """Waves longer than a share of the original context are stretched, those between two shares by degrees."""
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
    slow, fast = parameters["low_freq_factor"], parameters["high_freq_factor"]
    waves = 2 * math.pi / frequencies
    stretched = torch.where(waves > original / slow, frequencies / factor, frequencies)
    share = (original / waves - slow) / (fast - slow)
    between = ~(waves < original / fast) * ~(waves > original / slow)
    return torch.where(between, (1 - share) * stretched / factor + share * stretched, stretched)
