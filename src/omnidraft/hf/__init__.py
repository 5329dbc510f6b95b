"""Drafting inside `generate` of transformers.

    model.generate(**inputs, custom_generate=omnidraft.hf.generate, omnidraft_drafter="zoo:general")

`generate` here decodes with the processors and criteria that transformers made of its own arguments; `text` shows them
an answer, `kept_drafters` holds the drafters attached to a model.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from omnidraft.config import Drafting, drafting_of
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import Stream
from omnidraft.errors import ConfigError
from omnidraft.hf.kept_drafters import Drafts, Ready, make_ready
from omnidraft.hf.text import TextState, sampling_for
from omnidraft.models.transformers_model import CACHE_ARGUMENTS, TransformersModel
from omnidraft.verification.sampling import GeneratorSampler

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        LogitsProcessorList,
        PreTrainedModel,
        PreTrainedTokenizerBase,
        StoppingCriteriaList,
    )

__all__ = ["generate"]
UNSUPPORTED = {  # settings of `generate` that drafting cannot follow, with the values that leave them off
    "num_beams": (None, 1),
    "num_return_sequences": (None, 1),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "use_cache": (None, True),
    "cache_implementation": (None, "dynamic"),
    "prompt_lookup_num_tokens": (None,),
}
_log = logging.getLogger("omnidraft")


class Streamer(Protocol):
    """Receiver of the prompt's ids (1, T), then of each new token (1,), as the streamers of transformers are."""

    def put(self, value: torch.Tensor) -> None:
        """Receive the next ids."""

    def end(self) -> None:
        """End the stream."""


def generate(  # noqa: PLR0913  transformers hands over those of its arguments that are named here
    model: PreTrainedModel,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    omnidraft_drafter: Drafts | None = None,
    omnidraft_drafter_tokenizer: PreTrainedTokenizerBase | None = None,
    omnidraft_tokenizer: PreTrainedTokenizerBase | None = None,
    omnidraft_streamer: Streamer | None = None,
    omnidraft_options: Mapping[str, Any] | Drafting | None = None,
    **inputs: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Decode for `model.generate(custom_generate=omnidraft.hf.generate, omnidraft_drafter=...)`.

    The drafter is a folder, a hub id, `zoo:NAME`, an OmniDraft whose drafter is shared, or a transformers model.  The
    tokenizers default to those found under the models' names.  `omnidraft_options` takes the fields of
    `config.DraftingOptions`, or is a `config.Drafting`.  A drafter is kept for later calls as long as the model is.

    Takes input_ids (1, T) and returns what `generate` returns: ids (1, T + new), or with `return_dict_in_generate` a
    GenerateDecoderOnlyOutput, without a cache.  Torch's global seed decides every draw.  Raises
    ConfigError for an option, ModelError for a model, PromptError for a prompt that is empty, over-long or of ids that
    the model does not have, NumericsError for logits that are NaN.
    """
    _refuse_streamer()
    if model.training:
        raise ConfigError("the model is in training mode, so its outputs vary: call model.eval()")
    # made anew for each request: nothing that is kept may hold the model, and its KV cache goes with the request
    target = TransformersModel(model)
    _refuse(input_ids, generation_config, inputs)
    drafting = _drafting(omnidraft_options)
    streamer = _streamer(omnidraft_streamer)
    ready = make_ready(target, omnidraft_drafter, omnidraft_drafter_tokenizer, omnidraft_tokenizer, drafting)
    text = TextState(input_ids, logits_processor, stopping_criteria, generation_config)
    sampled = bool(generation_config.do_sample)
    sampling, processors, drafting = sampling_for(text, logits_processor, drafting, sampled=sampled)
    adaptive = ready.adaptive
    turns = adaptive.shared.turns
    lane = Lane(target, text.eos, adaptive.attached, drafting, ready.policy, turns=turns, learning=adaptive)
    draw = GeneratorSampler(torch.Generator().manual_seed(_seed(ready, drafting, sampled=sampled)))
    request = lane.request(input_ids[0].tolist(), text.most, sampling, draw, processors, memory=ready.memory)
    if streamer is not None:
        streamer.put(input_ids.cpu())
    with turns.lock:  # requests of several threads are decoded one after the other
        with Stream(lane, request, text) as stream:
            while stream.step() is not None:
                record = stream.records[-1]
                if record.finish == "context":
                    _log.warning("the text ends where the model's context does, at %d tokens", target.context)
                if streamer is not None:
                    for token in record.emitted:
                        streamer.put(torch.tensor([token]))
        if streamer is not None:
            streamer.end()
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=text.ids, scores=text.scores, logits=text.logits)
    ids: torch.Tensor = text.ids
    return ids


def _seed(ready: Ready, drafting: Drafting, *, sampled: bool) -> int:
    """The seed of an answer's draws."""
    seed = int(torch.randint(2**63 - 1, ())) if sampled else 0
    return ready.memory.seed_of(seed) if sampled and drafting.rejection and ready.memory is not None else seed


def _refuse_streamer() -> None:
    """Raise ConfigError where `model.generate` was given a `streamer`: transformers keeps it, with the prompt alone."""
    frame = inspect.currentframe()
    for _ in range(2):  # the frame of `generate`, the only place where it can be seen
        frame = None if frame is None else frame.f_back
    streamer = frame.f_locals.get("streamer") if frame and frame.f_code.co_name == "generate" else None
    if streamer is not None:
        streamer.end()  # whoever reads it must not wait for ever
        raise ConfigError("streamer is given, which gets no tokens here: give it as omnidraft_streamer")


def _streamer(streamer: Streamer | None) -> Streamer | None:
    """Validate a streamer; raises ConfigError for an object that cannot be one."""
    if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
        raise ConfigError(f"omnidraft_streamer is of type {type(streamer).__name__}: give a streamer of transformers")
    return streamer


def _drafting(options: Mapping[str, Any] | Drafting | None) -> Drafting:
    """Validate options; raises ConfigError for an unknown one."""
    if not isinstance(options or {}, Mapping | Drafting):
        raise ConfigError(f"omnidraft_options is of type {type(options).__name__}: give a dict, {{'draft_length': 4}}")
    drafting = options if isinstance(options, Drafting) else drafting_of(options or {})
    if drafting.reuse_answers == "profile":
        raise ConfigError("reuse_answers is 'profile' without a profile to save answers in: leave it out")
    return drafting


def _refuse(input_ids: torch.Tensor, config: GenerationConfig, inputs: Mapping[str, Any]) -> None:
    """Raise ConfigError for a setting or an input that drafting cannot follow."""
    for name, allowed in UNSUPPORTED.items():
        if (value := getattr(config, name, None)) not in allowed:
            raise ConfigError(f"{name} is {value!r}, which drafting cannot do: use {allowed[-1]!r}")
    mode = config.get_generation_mode().value
    if mode not in {"greedy_search", "sample"}:
        raise ConfigError(f"the generation config asks for {mode}: use greedy decoding or sampling")
    if len(input_ids) != 1:
        raise ConfigError(f"the batch has {len(input_ids)} texts, one is allowed: call generate for each of them")
    for name, value in inputs.items():
        if value is not None and not _plain(name, value, input_ids.shape[1]):
            fix = "leave the padding out" if name == "attention_mask" else "leave it out"
            raise ConfigError(f"{name} is given; only complete, unpadded ids are supported: {fix}")


def _plain(name: str, value: Any, length: int) -> bool:
    """True for an input of the model that is implied by `length` ids, such as an attention mask of ones."""
    match name:
        case "attention_mask":
            return bool((value == 1).all())
        case "position_ids":
            return bool(value.flatten().tolist() == list(range(length)))
        case _ if name in CACHE_ARGUMENTS:  # transformers makes an empty one
            return not (value.get_seq_length() or getattr(value, "_is_user_defined", False))
        case _:
            return name in {"logits_to_keep", "use_cache"}  # no text depends on these
