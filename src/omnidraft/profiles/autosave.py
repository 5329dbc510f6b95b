"""Automatic saving of what an adaptation learns, and its way from a profile back into the models."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.trie import SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.weights import Weights
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.models.loading import LoadedModel
from omnidraft.profiles.file import ProfileFile
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile import Array, Profile

SHAPE = ("adapter", "rank")  # what learned weights depend on
SAVE_EVERY = 8  # updates
SAMPLE = 4096  # weights of each tensor, about, that tell a model from others of its name
POSITION = "position_"  # before the digest of a data set


def key_of(drafter: LoadedModel, target: LoadedModel, table: SpellingTable) -> Key:
    """The key of a pair's profile: names, tokenizers, and a hash of a sample of each model's weights."""
    return Key(
        drafter=drafter.name,
        target=target.name,
        tokenizers=table.fingerprint,
        drafter_weights=_hash_of_signs(drafter),
        target_weights=_hash_of_signs(target),
    )


def _hash_of_signs(loaded: LoadedModel) -> str:
    """A hash of the signs of evenly spaced weights: no rounding changes a sign, so every load dtype has the same."""
    digest = hashlib.sha256()
    for name, value in sorted(loaded.lm.model.state_dict().items()):
        if isinstance(value, torch.Tensor):
            sample = value.detach().flatten()[:: max(1, value.numel() // SAMPLE)]
            digest.update(f"{name} {tuple(value.shape)} ".encode())
            digest.update(np.packbits(torch.signbit(sample).cpu().numpy()).data)
    return digest.hexdigest()


def learning_for(profile: Profile | None, given: Mapping[str, Any]) -> Learning:
    """The settings to learn by: those given, and else the shape that the profile was learned in.

    Raises ConfigError where the two contradict.
    """
    if profile is None:
        return Learning(**given)
    shape = {name: profile.learning[name] for name in SHAPE if name in profile.learning}
    asked = Learning(**(shape | dict(given)))
    for name, value in shape.items():
        if getattr(asked, name) != value and (name != "rank" or asked.adapter == "lora"):
            raise ConfigError(
                f"{name} is {getattr(asked, name)!r}, but the profile was learned with {value!r}: "
                "leave it out, or give another profile"
            )
    return asked


@dataclass
class Autosave:
    """Keeps what an adaptation learned in a profile; without a file, nowhere.

    `positions` say how far the answers of a data set were learned from, by the set's digest.
    """

    file: ProfileFile | None
    key: Key | None
    learning: Learning
    warn: Callable[[str], None]
    counters: dict[str, int | float] = field(default_factory=dict)  # of earlier processes
    positions: dict[str, int] = field(default_factory=dict)
    ngrams: Mapping[str, Array] = field(default_factory=dict)  # of the profile, for a mode that learns none
    writes: bool = False  # whether this process learns into the profile
    _saved: int = 0  # updates at the last save that succeeded
    _begun: int = 0  # updates at the last one that was begun
    _thread: threading.Thread | None = None
    _failed: bool = False

    def totals(self, adaptation: Adaptation) -> dict[str, int | float]:
        """Counters of the profile, this process's part included."""
        own = {} if adaptation.counters is None else asdict(adaptation.counters)
        sums = {name: self.counters.get(name, 0) + count for name, count in own.items() if isinstance(count, int)}
        loss = own.get("held_out_loss", math.nan)
        last = self.counters.get("held_out_loss") if math.isnan(loss) else loss
        return self.counters | sums | ({} if last is None else {"held_out_loss": last})

    def profile(self, adaptation: Adaptation) -> Profile:
        """All that was learned so far, as it is now."""
        return Profile(
            weights=dict(adaptation.state),
            ngrams=self.ngrams if adaptation.pair.cache.frozen else adaptation.pair.cache.state(),
            learning=asdict(self.learning),
            counters=self.totals(adaptation) | {POSITION + name: at for name, at in self.positions.items()},
        )

    def save(self, adaptation: Adaptation) -> None:
        """Write the profile; raises ProfileError where that fails, and the old one stays."""
        self.wait()
        if self.file is None or self.key is None or (adaptation.learner is None and not self.writes):
            raise ConfigError("nothing is learned that could be saved: load with adapt='inline' and a profile")
        self._begun = updates = self._updates(adaptation)
        self.file.save(self.key, self.profile(adaptation))
        self._saved = updates

    def keep(self, adaptation: Adaptation, every: int = SAVE_EVERY) -> None:
        """Write the profile once in `every` updates, beside whatever comes next; trouble is said once."""
        if not self.writes or self._updates(adaptation) - self._begun < every or self._writing:
            return
        file, key, profile = self.file, self.key, self.profile(adaptation)
        self._begun = updates = self._updates(adaptation)

        def write() -> None:
            try:
                if file is not None and key is not None:
                    file.save(key, profile)
                    self._saved = updates
            except OmniDraftError as error:
                self._say(error)

        self._thread = threading.Thread(target=write)
        self._thread.start()

    def wait(self) -> None:
        """Wait for what is being written."""
        if self._thread is not None and self._thread is not threading.current_thread():  # a finalizer may run in it
            self._thread.join()

    def finish(self, adaptation: Adaptation) -> None:
        """Learn from what is left, save what is not saved, and end the learner."""
        self.wait()
        try:
            for act in (adaptation.flush, lambda: self._save_rest(adaptation)):  # a single answer teaches, too
                try:
                    if self.writes:
                        act()
                except OmniDraftError as error:
                    self._say(error)
        finally:
            adaptation.end()
            if self.file is not None and self.writes:
                self.file.release()
            self.writes = False

    def _save_rest(self, adaptation: Adaptation) -> None:
        adaptation.collect()
        if self._updates(adaptation) > self._saved:
            self.save(adaptation)

    @property
    def _writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _updates(self, adaptation: Adaptation) -> int:
        return 0 if adaptation.counters is None else adaptation.counters.updates

    def _say(self, error: OmniDraftError) -> None:
        if not self._failed:
            self.warn(f"what was learned is not saved: {error}")
        self._failed = True


def remember(profile: Profile, cache: NgramCache) -> tuple[Weights, dict[str, int | float], dict[str, int]]:
    """Bring a profile's n-grams into a cache that learns any; its weights, its counters and its positions."""
    if profile.ngrams and not cache.frozen:
        cache.resume(profile.ngrams)
    positions = {n.removeprefix(POSITION): int(at) for n, at in profile.counters.items() if n.startswith(POSITION)}
    counters = {name: count for name, count in profile.counters.items() if not name.startswith(POSITION)}
    return dict(profile.weights), counters, positions
