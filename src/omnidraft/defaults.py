"""Defaults: sampling by the target's generation config, and the drafter of a target without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnidraft import zoo
from omnidraft.config import MIN_TEMPERATURE, Sampling, names
from omnidraft.errors import ConfigError

if TYPE_CHECKING:
    from transformers import GenerationConfig

AUTO = "auto"  # drafter name: the default drafter
DRAFTER = zoo.PREFIX + "general"  # the usual one
SMALL = zoo.PREFIX + "drafter"  # that of the embedded targets, in a checkout
TOP_K = 50  # default of `generate` of transformers when it samples
# options of a generation config that change the output and are not supported, with their neutral values
LEFT_OUT: dict[str, tuple[object, ...]] = {
    "num_beams": (1,),
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "sequence_bias": ({},),
    "guidance_scale": (1.0, 1),
    "min_length": (0,),
    "watermarking_config": (),
    "mirostat": (0,),  # this and the next of GGUF files
    "xtc_probability": (0,),
}


def sampling_of(config: GenerationConfig | None, warn: Callable[[str], None]) -> Sampling:
    """Sampling settings of a generation config; greedy unless it sets `do_sample`.

    `warn` receives one line for each option that is not followed, with the value used instead.
    """
    if config is None:
        return Sampling()
    sampled = bool(getattr(config, "do_sample", None))  # without it only what follows the text has an effect
    sampling = Sampling(temperature=1.0, top_k=TOP_K) if sampled else Sampling()
    for name in names(Sampling) if sampled else ("repetition_penalty", "min_new_tokens"):
        if (value := getattr(config, name, None)) is not None:
            if name == "temperature" and isinstance(value, float) and 0 < value < MIN_TEMPERATURE:
                value = 0  # logits would overflow: greedy decoding is meant
            changed: dict[str, Any] = {name: value}
            try:
                sampling = replace(sampling, **changed)
            except ConfigError as error:
                instead = getattr(sampling, name)
                warn(f"{name} of the target's generation config is left out, it is {instead} instead: {error}")
    if sampled and sampling.greedy:
        asked = f"sampling at temperature {config.temperature:g}"
        warn(f"the target's generation config asks for {asked}, which is greedy decoding here")
    left_out = [
        name
        for name, neutral in LEFT_OUT.items()
        if (value := getattr(config, name, None)) is not None and value not in neutral
    ]
    if left_out:
        warn(f"the target's generation config asks for {', '.join(left_out)}, which is ignored here")
    return sampling


def drafter_for(target: str | Path, note: Callable[[str], None]) -> str:
    """Name of the default drafter for a target; `note` is told where it is not the usual one.

    The embedded targets are test pieces of 14M parameters, for which the usual one is too large to pay; it drafts for
    them where the small one is not installed.
    """
    targets, drafters = ([zoo.PREFIX + name for name in zoo.names(role)] for role in ("target", "drafter"))
    if str(target) not in targets or SMALL not in drafters:
        return DRAFTER
    note(f"no drafter is named: using {SMALL}, trained on the same data as {target}")
    return SMALL
