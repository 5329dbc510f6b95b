"""From the options of a body to those of `Lane.stream`: sampling, length, seed and ends."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from omnidraft.config import MIN_TEMPERATURE, GenerationLimits, Sampling, settings_of, stop_strings
from omnidraft.errors import ConfigError
from omnidraft.server.errors import ApiError, as_json, of_input
from omnidraft.server.requests import fields as base
from omnidraft.server.server_settings import Serving

SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty"),
    "logit_bias",
)
REPETITION = ("repetition_penalty", "repeat_penalty")
WINDOW = 64  # last tokens of the text that `repeat_penalty` covers in llama.cpp and Ollama


def sampling_of(body: base.Options, settings: Serving, default: int, *counts: str) -> dict[str, Any]:
    """Sampling, length, seed and stop strings as `Lane.stream` takes them; raises ApiError.

    `counts` are the names of one parameter, the length.  A length of 0, which an answer alone has that is read for its
    prompt, comes as 1.
    """
    asked = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    asked["top_k"] = max(0, asked["top_k"]) if "top_k" in asked else None
    if asked.get("temperature", 1) < MIN_TEMPERATURE or asked.get("top_p") == 0:  # the most probable token alone
        asked |= {"temperature": 0.0, "top_p": 1.0}
    asked |= _repetition(body)
    asked = {name: value for name, value in asked.items() if value is not None}
    seed = body.seed if body.seed not in (None, -1) else secrets.randbits(63)
    count = max(1, length_of(body, settings, default, counts))
    least = count if body.ignore_eos else min(count, body.min_tokens or 0)
    if least:
        asked["min_new_tokens"] = least
    try:
        settings_of(Sampling, asdict(Sampling()) | asked)
        ends = stop_strings(body.stop or None)  # an empty one stops nothing
        limits = GenerationLimits(max_new_tokens=count, seed=(seed or 0) % 2**64)
    except ConfigError as error:
        raise of_input(error) from error
    return {**asked, "max_new_tokens": limits.max_new_tokens, "seed": limits.seed, "stop": ends}


def _repetition(body: base.Options) -> dict[str, Any]:
    """The penalty for repetitions under whichever of its names, and the window that it looks into.

    A window of 0 tokens switches it off, -1 is the whole text.  Without one, `repetition_penalty` is of the whole text.
    """
    penalty, window = one_of(body, REPETITION), body.repeat_last_n
    if window == 0:
        return {"repetition_penalty": 1.0}
    if window is None and penalty is not None:
        window = WINDOW if body.repetition_penalty is None else -1
    return {"repetition_penalty": penalty, "repetition_window": None if window is None else max(0, window)}


def one_of(body: base.Body, names: Sequence[str]) -> Any:
    """The value under one of the names of a parameter; raises ApiError where two names have different values."""
    return agreed({name: getattr(body, name) for name in names})


def agreed(options: Mapping[str, Any]) -> Any:
    """The value that some parameters have, None where all are None; raises ApiError where two differ."""
    stated = {name: value for name, value in options.items() if value is not None}
    if len({str(value) for value in stated.values()}) > 1:
        said = " and ".join(f"{name} {as_json(value)}" for name, value in stated.items())
        raise ApiError(400, f"{said} contradict each other: leave one out", param=[*stated][-1])
    return next(iter(stated.values()), None)


def length_of(body: base.Options, settings: Serving, default: int, names: Sequence[str]) -> int:
    """Tokens of an answer at most; raises ApiError where two names of it say different things.

    0 is for prompts that are to be read alone: of a body that has none of these, it is an error.
    """
    count = one_of(body, names)
    count = default if count is None else count
    if count == 0 and not hasattr(body, "echo"):
        name = next(name for name in names if getattr(body, name) is not None)
        fix = "use 1 or more, or -1 for as many as fit"
        raise ApiError(400, f"{name} is 0, which asks for no answer: {fix}", param=name, code="invalid_value")
    return settings.max_tokens if count < 0 else min(count, settings.max_tokens)


def unstreamed(body: base.Options) -> list[str]:
    """The parameters of a stream, where there is none."""
    wanted = body.stream_options is not None and body.stream_options.include_usage
    return ["stream_options"] if wanted and not body.stream else []
