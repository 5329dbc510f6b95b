"""The rotation of queries and keys: the header's keys and tensors as `rope_parameters` of transformers.

With y = freq_base ** (-2i / n), the angle of pair i at position p is p * y / (factor * d[i]), cosines and sines times
the attention factor.  d is the tensor rope_freqs.weight, ones without it.  yarn keeps the fast pairs and scales the
slow ones.  Transformers has a type for the general form: longrope with equal factors for short and long texts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from omnidraft.errors import ModelError
from omnidraft.models.gguf.header import QUANTIZATIONS, Header
from omnidraft.models.gguf.keys import ROTATION, SIZES, Keys

DIVISORS = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
TYPES = ("none", "linear", "yarn", "longrope")
SCALING = "rope.scaling."


def rotation(keys: Keys, header: Header, size: int, *, takes_factors: bool, partial: bool) -> dict[str, Any]:
    """The rotation of heads of `size` entries; raises ModelError for one that transformers has not.

    `takes_factors` is True of architectures that have tensors of factors, `partial` of those that may rotate some
    entries of each head.
    """
    rotated = keys.whole("rope.dimension_count", ROTATION, size)
    if rotated % 2 or rotated > size or (rotated < size and not partial):
        stated = keys.value("rope.dimension_count", ROTATION) is not None
        raise keys.refused("rope.dimension_count" if stated else "attention.key_length", f"heads have {size} entries")
    base: dict[str, Any] = {"rope_theta": keys.real("rope.freq_base", ROTATION, 1e4)}
    if not base["rope_theta"]:
        raise keys.refused("rope.freq_base", "a number above 0 is needed")
    if partial:
        base["partial_rotary_factor"] = rotated / size
    return base | _scaled(keys, header, rotated if takes_factors else 0, rotated)


def _scaled(keys: Keys, header: Header, given: int, rotated: int) -> dict[str, Any]:
    """Type and parameters; tensors of factors are for `given` entries, 0 where they are not taken."""
    kind = keys.value(f"{SCALING}type", ROTATION) or "linear"
    if kind not in TYPES:
        raise keys.refused(f"{SCALING}type", f"{', '.join(TYPES)} are supported")
    older = keys.real("rope.scale_linear", ROTATION, 0.0)
    factor = keys.real(f"{SCALING}factor", ROTATION, older) or 1.0
    factor = 1.0 if kind == "none" else factor
    context = keys.whole("context_length", SIZES)
    original = keys.whole(f"{SCALING}original_context_length", ROTATION, context)
    attention = keys.real(f"{SCALING}attn_factor", ROTATION, 1.0)
    divisors, short, long = _tensors(header, kind, given)
    if kind == "yarn":
        return _yarn(keys, factor, original, attention)
    if short is None and divisors is None and attention == 1.0:
        return {"rope_type": "default"} if factor == 1.0 else {"rope_type": "linear", "factor": factor}
    ones = [1.0] * (rotated // 2)
    return {
        "rope_type": "longrope",
        "short_factor": [factor * each for each in short or divisors or ones],
        "long_factor": [factor * each for each in long or divisors or ones],
        "attention_factor": attention,
        "original_max_position_embeddings": original if short else context,
    }


def _tensors(header: Header, kind: str, rotated: int) -> tuple[list[float] | None, ...]:
    """Factors for all texts, for short and for long ones, None where the file has none."""
    divisors, short, long = (_factors(header, name, rotated) for name in (DIVISORS, SHORT, LONG))
    if kind == "yarn" and (divisors or short or long):
        raise ModelError(
            f"{header.name} has factors beside the rotation yarn, which is not supported: use another model"
        )
    if divisors and (short or long):
        raise ModelError(f"{header.name} has the tensor {DIVISORS} beside those of longrope: use another model")
    if header.whole and (bool(short) != bool(long) or (kind == "longrope" and not short)):
        raise ModelError(f"{header.name} lacks the tensor {LONG if short else SHORT}: get the complete file")
    return divisors, short, long


def _yarn(keys: Keys, factor: float, original: int, attention: float) -> dict[str, Any]:
    fast = keys.real(f"{SCALING}yarn_beta_fast", ROTATION, 32.0)
    slow = keys.real(f"{SCALING}yarn_beta_slow", ROTATION, 1.0)
    extrapolation = keys.value(f"{SCALING}yarn_ext_factor", ROTATION)
    if extrapolation not in (None, 1.0, -1.0):  # -1: not set
        raise keys.refused(f"{SCALING}yarn_ext_factor", "1 is supported")
    if factor < 1.0 or fast < slow or not slow:
        raise keys.refused(f"{SCALING}factor", "yarn needs a factor from 1 on, and beta_fast above beta_slow above 0")
    log = math.log(factor)
    all_dimensions = keys.real(f"{SCALING}yarn_log_multiplier", ROTATION, 0.0)
    magnitude = attention * (0.1 * log + 1.0) / (0.1 * all_dimensions * log + 1.0)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": magnitude,
        "beta_fast": fast,
        "beta_slow": slow,
    }


def _factors(header: Header, name: str, rotated: int) -> list[float] | None:
    """The factors in a tensor, one a pair of entries; None where the file has none."""
    info = header.tensors.get(name)
    if info is None or not rotated:  # a tensor that is not taken is refused with the others
        return None
    label = QUANTIZATIONS[info.quantization][0]
    if info.shape != (rotated // 2,) or label != "F32":
        raise ModelError(
            f"{header.name} has tensor {name} of shape {info.shape} in {label}, ({rotated // 2},) in F32 is needed: "
            "get the complete file"
        )
    if info.path.stat().st_size < info.start + info.nbytes:  # of a header alone: they are behind it
        return [1.0] * (rotated // 2)
    values = np.fromfile(info.path, np.dtype("<f4"), count=rotated // 2, offset=info.start)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ModelError(
            f"{header.name} is damaged: tensor {name} holds factors that are not positive: get the file anew"
        )
    return [float(value) for value in values]
