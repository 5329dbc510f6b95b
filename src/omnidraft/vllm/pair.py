"""A drafter attached to the tokenizer of a target whose weights are elsewhere, and its settings inside vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnidraft import zoo
from omnidraft.alignment.vocab import Vocab, read_vocab
from omnidraft.attach import attach_drafter
from omnidraft.config import Drafting, drafting_of, shown
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.defaults import AUTO, drafter_for
from omnidraft.errors import ConfigError
from omnidraft.models.loading import LoadedModel, load_drafter, load_skeleton, load_tokenizer
from omnidraft.models.transformers_model import TransformersModel

TEXTS = ("drafter", "target", "device")


@dataclass(frozen=True, kw_only=True)
class ProposerSettings:
    """The drafter, where it runs, and how it drafts."""

    drafter: str = "auto"
    target: str | None = None  # whose tokenizer and config are read; None: the model that is served
    device: str = "cpu"
    drafting: Drafting

    @classmethod
    def of(cls, settings: object, longest: int) -> ProposerSettings:
        """Settings from a mapping of names to values; raises ConfigError for an unknown name or a wrong value."""
        if not isinstance(settings, Mapping):
            raise ConfigError(f"the settings of omnidraft are {shown(settings)}: give an object of names and values")
        texts: dict[str, Any] = {name: settings[name] for name in TEXTS if settings.get(name) is not None}
        for name, value in texts.items():
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} is {shown(value)}; it must be a string: leave it out for the default")
        options = {str(name): value for name, value in settings.items() if name not in TEXTS}
        drafting = drafting_of({"max_draft_length": longest} | options, TEXTS)
        if drafting.longest > longest:
            raise ConfigError(
                f"the draft length is up to {drafting.longest}, where the engine verifies {longest}: use less"
            )
        return cls(drafting=drafting, **texts)


@dataclass(frozen=True, kw_only=True)
class RemotePair:
    """A drafter with what its drafts need of a target: tokenizer, vocabulary and config, no weights."""

    attached: AttachedDrafter
    shared: SharedDrafter
    vocab: Vocab  # of the target


def load_pair(
    target: str | Path, drafter: str | Path, drafting: Drafting, device: str, warn: Callable[[str], None]
) -> RemotePair:
    """Load a drafter, and of the target what it takes to draft for it; raises ModelError for either."""
    place = zoo.resolve(target)
    lm = TransformersModel(load_skeleton(place))
    known = LoadedModel(lm=lm, tokenizer=load_tokenizer(place), name=str(target), dtype_reason="without its weights")
    vocab = read_vocab(known.tokenizer, lm.vocab_size, lm.eos)
    name = drafter_for(target, warn) if drafter == AUTO else drafter
    native_step = drafting.drafter_backend == "auto"
    loaded = load_drafter(zoo.resolve(name), "auto", device, warn, native_step=native_step)
    shared = SharedDrafter(loaded.lm, native_step=native_step)
    attached = attach_drafter(known, vocab, loaded, drafting, warn, shared)
    return RemotePair(attached=attached, shared=shared, vocab=vocab)


def fits(tokens: Sequence[object], vocab: Vocab) -> bool:
    """True if these are token ids of the target; they come from another machine."""
    return all(isinstance(token, int) and 0 <= token < vocab.size for token in tokens)
