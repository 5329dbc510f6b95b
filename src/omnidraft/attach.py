"""Attach a drafter to a target: spelling table, n-gram cache, learned weights and the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable, default_cache_dir, load_table
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.config import Drafting, Learning
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation.lora import Weights, check_fit, parted
from omnidraft.distillation.online_adaptation import Adaptation, Learner
from omnidraft.draft_length.acceptance_head import Head, hidden_size
from omnidraft.errors import ConfigError
from omnidraft.models.loading import LoadedModel
from omnidraft.models.native.model import NativeModel
from omnidraft.models.transformers_model import PretrainedModel
from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter, end_earlier
from omnidraft.profiles.manifest import Profile
from omnidraft.profiles.pair_profile import PairProfile, key_of

SHAPE = ("adapter", "rank")  # settings that decide the tensors of an adapter
Warn = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class LearningPlan:
    """The settings of a drafter's learning, and the profile that keeps its weights."""

    adapt: str = "off"
    learning: Mapping[str, Any]  # fields of config.Learning
    profile: str | Path | None = "auto"
    warn: Warn


def attach_drafter(
    target: LoadedModel, vocab: Vocab, drafter: LoadedModel, drafting: Drafting, warn: Warn, shared: SharedDrafter
) -> AttachedDrafter:
    """Attach a drafter to a target whose vocabulary is `vocab`; the spelling table comes from the disk cache."""
    drafter_vocab = read_vocab(drafter.tokenizer, drafter.lm.vocab_size, drafter.lm.eos, drafts=True)
    speller = Speller(drafter.tokenizer, drafter_vocab)
    table = read_table(drafter_vocab, vocab, speller, Speller(target.tokenizer, vocab), warn)
    context = DrafterContext(table, vocab, drafter_vocab, speller)
    return AttachedDrafter(
        drafter=Drafter(shared.model),
        context=context,
        cache=make_cache(table, drafting),
        head=Head(hidden_size_of(drafter.lm)),
    )


def hidden_size_of(drafter: PretrainedModel) -> int | None:
    """Width of the drafter's hidden states, by its config where no class of transformers was loaded."""
    return int(drafter.skeleton.config.hidden_size) if isinstance(drafter, NativeModel) else hidden_size(drafter.model)


def check_precision(target: LoadedModel, warn: Warn) -> None:
    """Warn where the target's logits depend on how many tokens are verified at once: in anything but float32."""
    if not target.lm.rows_independent and target.lm.precision not in ("float32", "float64"):
        warn(
            f"target {target.name} computes in {target.lm.precision}, where drafting may change a greedy token if "
            "others are nearly as likely: float32 keeps every token"
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
    return NgramCache(table, seed=drafting.ngram_seed)


def attach(
    target: LoadedModel,
    vocab: Vocab,
    drafter: LoadedModel,
    shared: SharedDrafter,
    drafting: Drafting,
    options: LearningPlan,
) -> AdaptiveDrafter:
    """Attach a drafter, load what it learned from this target before, and start its learner.

    Raises ProfileError for a profile given by its path.
    """
    check_precision(target, options.warn)
    attached = attach_drafter(target, vocab, drafter, drafting, options.warn, shared)
    learns, cache = options.adapt != "off", attached.cache
    key = partial(key_of, drafter, target, cache.table)
    pair = PairProfile(options.profile, key, learns=learns, warn=options.warn)

    def read() -> tuple[Profile, Learning]:
        profile = pair.load(partial(_check, drafter=drafter, cache=cache))
        return profile, learning_for(profile, options.learning)

    profile, learning = read()
    # an earlier model ends once nothing can be wrong with this one; what it saves then is read
    if learns and end_earlier(pair):
        profile, learning = read()
    if learns:
        pair.claim()
    try:
        learner = (
            make_learner(drafter, cache.table, options, learning, dict(profile.weights), shared) if learns else None
        )
    except BaseException:
        pair.release()
        raise
    if profile.ngrams and not cache.frozen:
        cache.resume(profile.ngrams)
    adaptation = Adaptation(attached, shared, learner, dict(profile.weights), options.warn)
    return AdaptiveDrafter(drafter, adaptation, pair, profile, learning)


def learning_for(profile: Profile, asked: Mapping[str, Any]) -> Learning:
    """The learning settings asked for, where the adapter's shape defaults to the profile's.

    Raises ConfigError where the two contradict.
    """
    shape = {name: profile.learning[name] for name in SHAPE if name in profile.learning}
    settings = Learning(**{**shape, **asked})
    for name, value in shape.items():
        if getattr(settings, name) != value and (name != "rank" or settings.adapter == "lora"):
            raise ConfigError(
                f"{name} is {getattr(settings, name)!r}, but the profile was learned with {value!r}: "
                "leave it out, or give another profile"
            )
    return settings


def make_learner(
    drafter: LoadedModel,
    table: SpellingTable,
    options: LearningPlan,
    learning: Learning,
    state: Weights,
    shared: SharedDrafter,
) -> Learner:
    """Return a trainer of the drafter, in another process or in this one, that starts from `state`."""
    from omnidraft.distillation.trainer import Trainer, check_memory

    lm = drafter.lm
    if options.adapt == "background":
        from omnidraft.distillation.background_trainer import BackgroundTrainer

        check_memory(lm.skeleton.num_parameters(), lm.device)
        model = lm.load if isinstance(lm, NativeModel) else lm.model
        return BackgroundTrainer(model, learning, table, state or None, options.warn, rounds=shared.rounds)
    from omnidraft.distillation.inline_trainer import InlineTrainer

    trainer = Trainer(lm.model, learning)
    if state:
        trainer.load_state(state)
    return InlineTrainer(trainer, options.warn)


def _check(profile: Profile, drafter: LoadedModel, cache: NgramCache) -> None:
    """Raise ModelError unless what was learned fits the drafter and the tokenizers."""
    weights, head = parted(profile.weights)
    check_fit(drafter.lm.parameters(), weights)
    Head(hidden_size_of(drafter.lm)).load_weights(head)
    if profile.ngrams:
        NgramCache(cache.table).resume(profile.ngrams)
