"""Hybrids of `transformers`: the test of passes over several tokens, and fast short passes.

Some families begin a pass of several tokens from an empty state, some bound the time step in it alone.  A model that
does verifies no drafts: its answers would not be those of plain decoding.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.errors import ModelError
from omnidraft.models.transformers_cache import state_layers, states

if TYPE_CHECKING:
    from transformers import DynamicCache

# by name in the modules of transformers, with the chunk that each has where none is given
SCANS = {"torch_chunk_gated_delta_rule": 64, "mamba2_chunk_scan": 256}
FITTED = "omnidraft_fitted"  # attribute of a scan that fits its chunk

BEFORE, COUNT = 4, 12  # ids that are read before, and in all
LARGE = 1000.0  # times the state, so that one that is left out is missed whatever the weights
STATES, LOGITS = 1e-4, 1e-3  # largest relative differences
ROUNDED_STATES, ROUNDED_LOGITS = 0.02, 0.1  # the same for models in 16 bits
ONE_BY_ONE = "transformers computes several tokens of this model at once otherwise than one by one"
NOT_COPIED = "its states are in the model itself, and not in a cache that can be copied"
Run = Callable[["DynamicCache", list[int], int, int], torch.Tensor]
"""A pass: appends ids to a cache of the given length; returns the logits (T, V) of the last T of them."""


def fit_scans(model: torch.nn.Module) -> None:
    """Have the scans of a model's layers take no longer chunk than the pass, on a CPU; done once for a module.

    They pad each pass to a chunk of 64 to 256 tokens, and one over a draft has a handful.
    """
    for module in {sys.modules[type(layer).__module__] for layer in model.modules()}:
        for name, chunk in SCANS.items():
            scan = getattr(module, name, None)
            if scan is not None and not hasattr(scan, FITTED):
                fitted = _fitted(scan, chunk)
                setattr(fitted, FITTED, True)
                setattr(module, name, fitted)


def _fitted(scan: Callable[..., Any], chunk: int) -> Callable[..., Any]:
    @functools.wraps(scan)
    def fitted(first: torch.Tensor, *args: Any, **options: Any) -> Any:
        if first.device.type == "cpu":  # kernels of a GPU take what they were made for
            options["chunk_size"] = min(options.get("chunk_size", chunk), first.shape[1])
        return scan(first, *args, **options)

    return fitted


def bounded(model: torch.nn.Module) -> bool:
    """True if layers bound the time step when they read several tokens, but not when they read one."""
    limits = (getattr(layer, "time_step_limit", None) for layer in model.modules())
    return any(limit is not None and tuple(limit) != (0.0, float("inf")) for limit in limits)


def no_drafts(new: Callable[[], DynamicCache], run: Run, vocab_size: int, dtype: torch.dtype) -> str | None:
    """Return the reason why a model of that dtype cannot verify drafts, or None.

    Raises ModelError for one whose states are not in its cache.
    """
    ids = [(7919 * place + 1) % vocab_size for place in range(COUNT)]
    exact = dtype in (torch.float32, torch.float64)
    of_states, of_logits = (STATES, LOGITS) if exact else (ROUNDED_STATES, ROUNDED_LOGITS)
    for scale in (1.0, LARGE):
        readings = []
        for step in (1, COUNT - BEFORE):
            cache = new()
            run(cache, ids[:BEFORE], 0, 1)
            layers = state_layers(cache)
            if not states(layers):
                raise ModelError(NOT_COPIED)
            for state in (state for layer in layers for state in layer.recurrent_states.values() if state is not None):
                state.mul_(scale)
            rows = [run(cache, ids[at : at + step], at, 1)[-1] for at in range(BEFORE, COUNT, step)]
            readings.append((states(layers[:1]), rows[-1].float()))  # in deeper layers rounding adds up
        (one, last), (several, whole) = readings
        if max(map(distance, one, several)) > of_states:
            return ONE_BY_ONE
        if scale == 1 and distance(last - last.mean(), whole - whole.mean()) > of_logits:
            return ONE_BY_ONE
    return None


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Root mean square of the difference, relative to that of the first; 0 where both are 0."""
    one, other = one.float(), other.float()
    return float((one - other).pow(2).mean().sqrt() / one.pow(2).mean().sqrt().clamp_min(1e-30))
