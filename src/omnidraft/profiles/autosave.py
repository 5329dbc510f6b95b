"""What was learned for one drafter and target, between its profile on disk and the models in memory."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.trie import SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.weights import Weights
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.models.loading import LoadedModel
from omnidraft.profiles.folder import ProfileFolder
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile import Array, Profile

SHAPE = ("adapter", "rank")  # what learned weights depend on
SAVE_EVERY = 8  # updates
BEGINNING = 64  # numbers of each of the target's weights that tell it from others
POSITION = "position_"  # before the digest of a data set


def key_of(drafter: LoadedModel, target: LoadedModel, table: SpellingTable) -> Key:
    """Under what a profile is kept; reads all of the drafter's weights, and a sample of the target's, for hashes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(drafter.lm.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(_rounded(tensor))
    beginnings = hashlib.sha256(table.fingerprint.encode())  # of another target with the same name and tokenizer, too
    for name, parameter in sorted(target.lm.model.named_parameters()):
        beginnings.update(f"{name} {tuple(parameter.shape)} ".encode())
        beginnings.update(_rounded(parameter.detach().flatten()[:BEGINNING]))
    return Key(drafter=drafter.name, target=target.name, tokenizers=beginnings.hexdigest(), weights=digest.hexdigest())


def _rounded(tensor: torch.Tensor) -> memoryview:
    """Bytes that are the same whatever precision the weights were loaded in."""
    return tensor.detach().to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().data


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
    """Keeps what an adaptation learned in a profile; without a folder, nowhere.

    `positions` say how far the answers of a data set were learned from, by the set's digest.
    """

    folder: ProfileFolder | None
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
            tensors=dict(adaptation.state),
            arrays=self.ngrams if adaptation.pair.cache.frozen else adaptation.pair.cache.state(),
            learning=asdict(self.learning),
            counters=self.totals(adaptation) | {POSITION + name: at for name, at in self.positions.items()},
        )

    def save(self, adaptation: Adaptation) -> None:
        """Write the profile; raises ProfileError where that fails, and the old one stays."""
        self.wait()
        if self.folder is None or self.key is None or (adaptation.learner is None and not self.writes):
            raise ConfigError("nothing is learned that could be saved: load with adapt='inline' and a profile")
        self._begun = updates = self._updates(adaptation)
        self.folder.save(self.key, self.profile(adaptation))
        self._saved = updates

    def keep(self, adaptation: Adaptation, every: int = SAVE_EVERY) -> None:
        """Write the profile once in `every` updates, beside whatever comes next; trouble is said once."""
        if not self.writes or self._updates(adaptation) - self._begun < every or self._writing:
            return
        folder, key, profile = self.folder, self.key, self.profile(adaptation)
        self._begun = updates = self._updates(adaptation)

        def write() -> None:
            try:
                if folder is not None and key is not None:
                    folder.save(key, profile)
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
            if self.folder is not None and self.writes:
                self.folder.release()
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
    if profile.arrays and not cache.frozen:
        cache.resume(profile.arrays)
    positions = {n.removeprefix(POSITION): int(at) for n, at in profile.counters.items() if n.startswith(POSITION)}
    counters = {name: count for name, count in profile.counters.items() if not name.startswith(POSITION)}
    return dict(profile.tensors), counters, positions
