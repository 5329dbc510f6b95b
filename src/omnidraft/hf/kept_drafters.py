"""Drafters attached to models in memory, kept as long as the models."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from omnidraft import zoo
from omnidraft.alignment.vocab import read_vocab
from omnidraft.api import OmniDraft, shared_drafter
from omnidraft.attach import LearningPlan, attach
from omnidraft.config import Drafting
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, make_policy
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.loading import LoadedModel, load_drafter, load_tokenizer
from omnidraft.models.transformers_model import PretrainedModel, TransformersModel
from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter

MARK = "_omnidraft_drafters"
KEPT = 4  # for a model: a drafter with its options each, the latest ones
KINDS = "a folder, a hub id, zoo:NAME, an OmniDraft, or a transformers model"
GIVEN = "as it was given"  # why weights have the dtype they have
Drafts = str | Path | OmniDraft | PreTrainedModel
Tokenizer = PreTrainedTokenizerBase | None
_log = logging.getLogger("omnidraft")


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An attached drafter with its draft-length policy, whose measured costs are kept; it does not hold the model."""

    policy: DraftLengthPolicy
    adaptive: AdaptiveDrafter
    memory: AnswerMemory | None  # of earlier answers


class ReadyDrafters(dict[tuple[object, ...], Ready]):
    """The drafters attached to a model, by the arguments that asked for them; an attribute of the model."""

    def __reduce__(self) -> tuple[type[ReadyDrafters], tuple[()]]:
        return ReadyDrafters, ()  # a copy of the model has none


def ready_drafters(model: PreTrainedModel) -> ReadyDrafters:
    """The drafters attached to a model, the latest last."""
    drafters = getattr(model, MARK, None)
    if not isinstance(drafters, ReadyDrafters):
        drafters = ReadyDrafters()
        setattr(model, MARK, drafters)
    return drafters


def make_ready(
    target: PretrainedModel,
    drafter: Drafts | None,
    drafter_tokenizer: Tokenizer,
    tokenizer: Tokenizer,
    drafting: Drafting,
) -> Ready:
    """Attach a drafter, or find it attached by an earlier call; raises ConfigError, and ModelError for a model."""
    what, load = _source(target, drafter, drafter_tokenizer, drafting)
    source = (what, drafter_tokenizer, drafting.drafter_backend)
    key = (source, tokenizer, drafting)
    kept = ready_drafters(target.model)
    ready = kept.pop(key, None)
    if ready is None:
        memory = AnswerMemory() if drafting.counts and drafting.reuse_answers == "memory" else None
        # with other options a drafter is not loaded again
        alike = next((each.adaptive for other, each in kept.items() if other[0] == source), None)
        loaded, shared = (alike.loaded, alike.shared) if alike else load()
        target_tokenizer = _tokenizer(target.model, "omnidraft_tokenizer") if tokenizer is None else tokenizer
        vocab = read_vocab(target_tokenizer, target.vocab_size, target.eos)
        plan = LearningPlan(learning={}, warn=_log.warning)
        model = LoadedModel(target, target_tokenizer, _name(target.model), GIVEN)
        adaptive = attach(model, vocab, loaded, shared, drafting, plan)
        ready = Ready(policy=make_policy(drafting, adaptive.attached.head), adaptive=adaptive, memory=memory)
    kept[key] = ready  # the latest last
    for old in list(kept)[:-KEPT]:
        del kept[old]
    return ready


def _source(
    target: PretrainedModel, drafter: object, tokenizer: Tokenizer, drafting: Drafting
) -> tuple[object, Callable[[], tuple[LoadedModel, SharedDrafter]]]:
    """The identity of a drafter, and a function that loads it; raises ConfigError for anything else."""
    if drafter is target.model:
        raise ConfigError("omnidraft_drafter is the model itself: give a smaller one")
    native_step = drafting.drafter_backend == "auto"
    if isinstance(drafter, PreTrainedModel):
        return drafter, lambda: _shared(_given(drafter, tokenizer), native_step)
    if tokenizer is not None:
        raise ConfigError("omnidraft_drafter_tokenizer is for a drafter that is given as a model: leave it out")
    if isinstance(drafter, str | Path):
        place = zoo.resolve(drafter)
        return place, lambda: _shared(
            load_drafter(place, device=str(target.device), native_step=native_step), native_step
        )
    if isinstance(drafter, OmniDraft):
        loaded, shared = shared_drafter(drafter, drafting)
        return shared, lambda: (loaded, shared)
    fault = "missing" if drafter is None else f"of type {type(drafter).__name__}"
    raise ConfigError(f"omnidraft_drafter is {fault}: give {KINDS}")


def _shared(drafter: LoadedModel, native_step: bool) -> tuple[LoadedModel, SharedDrafter]:
    return drafter, SharedDrafter(drafter.lm, native_step=native_step)


def _given(drafter: PreTrainedModel, tokenizer: Tokenizer) -> LoadedModel:
    drafter_tokenizer = _tokenizer(drafter, "omnidraft_drafter_tokenizer") if tokenizer is None else tokenizer
    return LoadedModel(TransformersModel(drafter), drafter_tokenizer, _name(drafter), GIVEN)


def _tokenizer(model: PreTrainedModel, option: str) -> PreTrainedTokenizerBase:
    """The tokenizer found under the model's name."""
    try:
        return load_tokenizer(model.name_or_path or "")
    except ModelError as error:
        raise ConfigError(f"no tokenizer is found under the name {model.name_or_path!r}: give {option}") from error


def _name(model: PreTrainedModel) -> str:
    """The model's hub id, or its folder's own name, as `load` has it."""
    name = model.name_or_path or ""
    folder = Path(name)
    return folder.resolve().name if name and folder.is_dir() else name or type(model).__name__
