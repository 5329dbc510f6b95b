"""What is done where nothing else is asked for: a model's own way to sample, and the drafter beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from omnidraft import zoo
from omnidraft.config import COLDEST, Sampling, names
from omnidraft.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from omnidraft.models.loading import LoadedModel

AUTO = "auto"  # as the name of a drafter
DRAFTER = "JackFram/llama-68m"  # small, trained on much text, of an open license
EMBEDDED = zoo.PREFIX + "drafter"  # where that is out of reach
PATIENCE = 5.0  # seconds that the hub may take to answer
# what `generate` of transformers does by itself where a generation config says to sample and nothing else
TOP_K = 50
# options of a generation config that change what is said, with the values that change nothing
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
    "min_new_tokens": (0,),
    "watermarking_config": (),
}


def sampling_of(config: GenerationConfig | None, warn: Callable[[str], None]) -> Sampling:
    """How a model is sampled from by its own generation config; greedy where that does not ask for sampling.

    What it asks for and is not done goes to `warn`, one line each, with what is done instead.
    """
    if config is None:
        return Sampling()
    sampled = bool(getattr(config, "do_sample", None))  # all but the penalty are of no effect without it
    sampling = Sampling(temperature=1.0, top_k=TOP_K) if sampled else Sampling()
    for name in names(Sampling) if sampled else ("repetition_penalty",):
        if (value := getattr(config, name, None)) is not None:
            if name == "temperature" and isinstance(value, float) and 0 < value < COLDEST:
                value = 0  # too cold to be sampled at: greedy decoding is what is meant
            try:
                sampling = replace(sampling, **{name: value})
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
        warn(f"the target's generation config asks for {', '.join(left_out)}, which is left out here")
    return sampling


def drafter_for(target: str | Path, note: Callable[[str], None]) -> str:
    """The drafter for a target that comes without one, which is told to `note`.

    That is `DRAFTER` from the hub, and where it cannot be had, or the target is one that ships, the one that ships.
    """
    if str(target).startswith(zoo.PREFIX):
        chosen, why = EMBEDDED, "which learned from the same texts"
    elif at_hand(DRAFTER):
        chosen, why = DRAFTER, "the default"
    else:
        chosen, why = EMBEDDED, f"as {DRAFTER} is out of reach"
    note(f"no drafter is named: {chosen} drafts, {why}")
    return chosen


def load_drafter(
    target: str | Path, drafter: str | Path, dtype: str, device: str, warn: Callable[[str], None]
) -> LoadedModel:
    """Load a drafter, where it is `AUTO` the default for a target; raises ModelError."""
    from omnidraft.models.loading import load_model  # PyTorch, which the names above do without

    if not isinstance(drafter, str) or drafter != AUTO:
        return load_model(zoo.resolve(drafter), dtype, device)
    chosen = drafter_for(target, warn)
    try:
        return load_model(zoo.resolve(chosen), dtype, device)
    except ModelError as error:
        if chosen == EMBEDDED:
            raise
        warn(f"{EMBEDDED} drafts instead: {error}")
        return load_model(zoo.resolve(EMBEDDED), dtype, device)


def at_hand(name: str) -> bool:
    """Whether a model of the hub is on this machine, or the hub answers when it is asked for it."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return True
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        HfApi().model_info(name, timeout=PATIENCE)
    except Exception:  # noqa: BLE001  of whatever library it asks the hub by
        return False
    return True
