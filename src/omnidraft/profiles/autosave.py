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
from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.weights import Weights
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.models.loading import LoadedModel
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile import Array, Profile
from omnidraft.profiles.profile_file import ProfileFile

SHAPE = ("adapter", "rank")  # settings that decide the tensors of an adapter
SAVE_EVERY = 8  # updates
SAMPLE = 4096  # weights of each tensor, about, that tell a model from others of its name
POSITION = "position_"  # prefix of counters; the digest of a data set follows


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
    """The learning settings asked for, where the adapter's shape defaults to the profile's.

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
    """Saves an adaptation's state to a profile every few updates and at the end; without a file, never.

    `positions` is the number of answers of a data set that were learned from, by the set's digest.
    """

    file: ProfileFile | None
    key: Key | None
    learning: Learning
    warn: Callable[[str], None]
    counters: dict[str, int | float] = field(default_factory=dict)  # of earlier processes
    positions: dict[str, int] = field(default_factory=dict)
    ngrams: Mapping[str, Array] = field(default_factory=dict)  # as loaded, for a mode that updates none
    measurements: Mapping[str, Array] = field(default_factory=dict)  # as loaded
    measured: Callable[[], Mapping[str, Array]] | None = None  # the present ones, where a policy measures any
    writes: bool = False  # whether this process learns into the profile
    _saved: int = 0  # updates at the last save that succeeded
    _begun: int = 0  # updates at the last one that was begun
    _thread: threading.Thread | None = None
    _failed: bool = False

    def restore(self, profile: Profile, cache: NgramCache) -> Weights:
        """Go on from a profile: its counters, its n-grams in a cache that is not frozen; returns its weights."""
        if profile.ngrams and not cache.frozen:
            cache.resume(profile.ngrams)
        self.ngrams, self.measurements = profile.ngrams, profile.measurements
        for name, count in profile.counters.items():
            if name.startswith(POSITION):
                self.positions[name.removeprefix(POSITION)] = int(count)
            else:
                self.counters[name] = count
        return dict(profile.weights)

    def totals(self, adaptation: Adaptation) -> dict[str, int | float]:
        """Counters over all processes: those of the profile plus those of this adaptation."""
        own = {} if adaptation.counters is None else asdict(adaptation.counters)
        sums = {name: self.counters.get(name, 0) + count for name, count in own.items() if isinstance(count, int)}
        loss = own.get("held_out_loss", math.nan)
        last = self.counters.get("held_out_loss") if math.isnan(loss) else loss
        return self.counters | sums | ({} if last is None else {"held_out_loss": last})

    def profile(self, adaptation: Adaptation) -> Profile:
        """A snapshot of the current state as a profile."""
        return Profile(
            weights=dict(adaptation.state),
            ngrams=self.ngrams if adaptation.attached.cache.frozen else adaptation.attached.cache.state(),
            measurements=self.measurements if self.measured is None else self.measured(),
            learning=asdict(self.learning),
            counters=self.totals(adaptation) | {POSITION + name: at for name, at in self.positions.items()},
        )

    def save(self, adaptation: Adaptation) -> None:
        """Write the profile now; raises ProfileError and leaves the old one, ConfigError where nothing is learned."""
        self.wait()
        if self.file is None or self.key is None or (adaptation.learner is None and not self.writes):
            raise ConfigError("nothing is learned that could be saved: load with adapt='inline' and a profile")
        self._begun = updates = self._updates(adaptation)
        self.file.save(self.key, self.profile(adaptation))
        self._saved = updates

    def keep(self, adaptation: Adaptation, every: int = SAVE_EVERY) -> None:
        """Write the profile in a thread if `every` updates were made since the last time; warns once on failure."""
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
        """Wait for the thread that writes."""
        if self._thread is not None and self._thread is not threading.current_thread():  # a finalizer may run in it
            self._thread.join()

    def finish(self, adaptation: Adaptation) -> None:
        """Learn from the remaining answers, save, end the learner and release the profile.

        A background trainer may take minutes for that, so each of its updates is saved as it comes.
        """
        self.wait()
        try:
            if self.writes:
                try:
                    adaptation.flush(lambda: self._save_since(self._begun, adaptation))  # a single answer teaches, too
                except OmniDraftError as error:
                    self.warn(f"not all answers were learned from: {error}")
                self._save_since(self._saved, adaptation)
        finally:
            adaptation.end()
            if self.file is not None and self.writes:
                self.file.release()
            self.writes = False

    def _save_since(self, updates: int, adaptation: Adaptation) -> None:
        try:
            adaptation.poll()
            if self._updates(adaptation) > updates:
                self.save(adaptation)
        except OmniDraftError as error:
            self._say(error)

    @property
    def _writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _updates(self, adaptation: Adaptation) -> int:
        return 0 if adaptation.counters is None else adaptation.counters.updates

    def _say(self, error: OmniDraftError) -> None:
        if not self._failed:
            self.warn(f"what was learned is not saved: {error}")
        self._failed = True
