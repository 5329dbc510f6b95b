"""Attach a drafter to a target: spelling table, n-gram cache, learned weights and the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable, default_cache_dir, load_table
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.config import Drafting, Learning
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation.adaptation import Adaptation, Learner
from omnidraft.distillation.background import BackgroundTrainer
from omnidraft.distillation.inline import InlineTrainer
from omnidraft.distillation.teacher import shared_tokens
from omnidraft.distillation.trainer import Trainer
from omnidraft.distillation.weights import Weights, check, parted
from omnidraft.draft_length.acceptance_head import Head, hidden_size
from omnidraft.errors import ConfigError, ModelError, ProfileError
from omnidraft.models.loading import LoadedModel
from omnidraft.profiles.autosave import Autosave, key_of, learning_for
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile import Profile
from omnidraft.profiles.profile_file import ProfileFile
from omnidraft.profiles.store import ProfileStore
from omnidraft.verification.round import Round

Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LearningSide:
    """What a drafter learns from one target, and the profile where that is kept."""

    loaded: LoadedModel  # the drafter
    adaptation: Adaptation
    memory: Autosave

    def teach(self, records: list[Round]) -> None:
        """Learn from a complete answer, and save where enough was learned."""
        self.adaptation.teach(records)
        self.memory.keep(self.adaptation)

    def finish(self) -> None:
        """Save what is not saved, and end what learns."""
        self.memory.finish(self.adaptation)


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """How a drafter learns, and where what it learned is kept."""

    adapt: str = "off"
    learning: Mapping[str, Any]  # what is asked of config.Learning
    profile: str | Path | None = "auto"
    warn: Warn


def attach_drafter(
    target: LoadedModel, vocab: Vocab, drafter: LoadedModel, drafting: Drafting, warn: Warn, shared: SharedDrafter
) -> AttachedDrafter:
    """Attach a drafter to a target whose vocabulary is `vocab`; the spelling table comes from the disk cache."""
    own = read_vocab(drafter.tokenizer, drafter.lm.vocab_size, drafter.lm.eos, drafts=True)
    speller = Speller(drafter.tokenizer, own)
    table = read_table(own, vocab, speller, Speller(target.tokenizer, vocab), warn)
    context = DrafterContext(table, vocab, own, speller)
    return AttachedDrafter(
        drafter=Drafter(shared.model),
        context=context,
        cache=make_cache(table, drafting),
        head=Head(hidden_size(drafter.lm.model)),
    )


def check_precision(target: LoadedModel, warn: Warn) -> None:
    """Warn where the target's logits depend on how many tokens are verified at once: in anything but float32."""
    dtype = target.lm.model.dtype
    if dtype not in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        warn(
            f"target {target.name} computes in {name}, where drafting may change a greedy token if others are nearly "
            "as likely: float32 keeps every token"
        )


def read_table(drafter: Vocab, target: Vocab, speller: Speller, target_speller: Speller, warn: Warn) -> SpellingTable:
    """The spelling table of a pair, from the disk cache where a home folder is known."""
    try:
        folder = default_cache_dir()
    except ConfigError as error:
        folder = None
        warn(f"spelling tables are not stored: {error}")
    return load_table(drafter, target, speller, target_speller, folder, warn)


def make_cache(table: SpellingTable, drafting: Drafting) -> NgramCache:
    """An n-gram cache as these settings start it."""
    if drafting.mode == "intersection":
        return NgramCache(table, seed="empty", frozen=True)
    return NgramCache(table, seed=drafting.ngram_seed, bound=drafting.ngram_bound, eviction=drafting.ngram_eviction)


# Who learns into which file: shared by all loads of a process, as its lock on the file is.
_LEARNING: WeakValueDictionary[Path, LearningSide] = WeakValueDictionary()


def attach_learning(
    target: LoadedModel, drafter: LoadedModel, attached: AttachedDrafter, shared: SharedDrafter, use: LearningOptions
) -> LearningSide:
    """Load what was learned for a pair and start its learner; raises ProfileError for a profile given by its path."""
    table = attached.cache.table
    file, key = _file(target, drafter, table, use)

    def read(file: ProfileFile | None) -> tuple[ProfileFile | None, Profile | None, Learning]:
        file, profile = _read(file, key, use, lambda found: _check(found, drafter, attached.cache))
        return file, profile, learning_for(profile, use.learning)

    file, profile, learning = read(file)
    if use.adapt != "off" and learning.adapter == "lora" and find_spec("peft") is None:
        raise ConfigError("adapter is 'lora' without the peft package: pip install 'omnidraft[lora]', or use 'full'")
    # an earlier model ends once nothing can be wrong with this one; what it saves then is read
    if use.adapt != "off" and file is not None and _take_over(file, use):
        file, profile, learning = read(file)
    memory = Autosave(file, key, learning, use.warn)
    state: Weights = {}
    if profile is not None:
        state = memory.restore(profile, attached.cache)
    if use.adapt != "off" and file is not None:
        memory.writes = _claim(file, use)
    try:
        learner = None if use.adapt == "off" else _learner(use.adapt, drafter, table, learning, state, use.warn)
    except BaseException:
        if file is not None and memory.writes:
            file.release()
        raise
    adaptation = Adaptation(attached, shared, learner, state, use.warn)
    side = LearningSide(loaded=drafter, adaptation=adaptation, memory=memory)
    if file is not None and memory.writes:
        _LEARNING[file.path.resolve()] = side
    return side


def _take_over(file: ProfileFile, use: LearningOptions) -> bool:
    """End what learns into the same file in this process, such as an earlier run of a notebook's cell."""
    earlier = _LEARNING.pop(file.path.resolve(), None)
    if earlier is None or not earlier.memory.writes:
        return False
    use.warn(f"profile {file.name} is taken over from a model loaded earlier here, which learns no more")
    try:
        earlier.finish()
    except Exception as error:  # noqa: BLE001  whatever it is, this model is not to blame
        use.warn(f"what that one learned last is not saved ({type(error).__name__}: {error})")
    return True


def _check(profile: Profile, drafter: LoadedModel, cache: NgramCache) -> None:
    """Raise ModelError unless what was learned fits the drafter and the tokenizers."""
    weights, head = parted(profile.weights)
    check(dict(drafter.lm.model.named_parameters()), weights)
    Head(hidden_size(drafter.lm.model)).load_weights(head)
    if profile.ngrams:
        NgramCache(cache.table).resume(profile.ngrams)


def _claim(file: ProfileFile, use: LearningOptions) -> bool:
    """Whether what is learned can be saved; where not, that is said, or an error for a profile given by its path."""
    try:
        if file.claim():
            return True
        use.warn(f"profile {file.name} is in use by another process: what is learned here is not saved")
    except ProfileError as error:
        if use.profile != "auto":
            raise
        use.warn(f"what is learned here is not saved: {error}")
    return False


def _learner(
    adapt: str, drafter: LoadedModel, table: SpellingTable, learning: Learning, state: Weights, warn: Warn
) -> Learner:
    if adapt == "background":
        return BackgroundTrainer(drafter.lm.model, learning, table, state or None, warn=warn)
    trainer = Trainer(drafter.lm.model, learning, shared_tokens(table))
    if state:
        trainer.load_state(state)
    return InlineTrainer(trainer, warn)


def _file(
    target: LoadedModel, drafter: LoadedModel, table: SpellingTable, use: LearningOptions
) -> tuple[ProfileFile | None, Key | None]:
    if use.profile is None:
        return None, None
    try:
        store = ProfileStore() if use.profile == "auto" else None
    except ConfigError as error:  # no home folder is known
        if use.adapt != "off":
            use.warn(f"what is learned here is not saved: {error}")
        return None, None
    key = key_of(drafter, target, table)
    if store is None:
        return ProfileFile(_path(use.profile)), key
    file = store.file(key)
    for name in () if file.path.exists() else store.outdated(key):
        use.warn(
            f"profile {name} was written by an earlier version, as a folder, and is not read: "
            f"`omnidraft profiles remove {name}`, and learning begins anew"
        )
    return file, key


def _path(profile: str | Path) -> Path:
    """The path of a profile given by it; raises ProfileError where it cannot be one."""
    try:
        path = Path(profile).expanduser()
        path.exists()
        if "\0" in str(path):  # which is no file for pathlib, and an error for everything after it
            raise ValueError("it holds a null byte")
    except (OSError, RuntimeError, ValueError) as error:
        raise ProfileError(f"profile {str(profile)!r} cannot be read ({error}): give another path") from error
    return path


def _read(
    file: ProfileFile | None, key: Key | None, use: LearningOptions, check: Callable[[Profile], None]
) -> tuple[ProfileFile | None, Profile | None]:
    """The profile of a file, and the file where it can be used.

    One of the store that is refused is set aside, or where that fails done without; one given by its path is an error.
    """
    if file is None or key is None:
        return None, None
    try:
        profile = file.load(key)
        if profile is not None:
            check(profile)
        return file, profile
    except (ProfileError, ModelError) as error:
        refused = error if isinstance(error, ProfileError) else ProfileError(f"profile {file.name}: {error}")
        if use.profile != "auto":
            raise refused from error
    if use.adapt == "off":  # who only looks changes nothing
        use.warn(f"{refused}; it is done without")
        return None, None
    try:
        use.warn(f"{refused}; it is kept as {file.set_aside().name}, and learning begins anew")
    except ProfileError as error:
        use.warn(f"{refused}; it cannot be set aside ({error}), so it is done without, and nothing is saved")
        return None, None
    return file, None
