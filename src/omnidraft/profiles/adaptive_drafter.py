"""Automatic saving of what an adaptation learns to the profile of its models."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from omnidraft.config import Learning
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.profiles.pair_profile import PairProfile
from omnidraft.profiles.profile import ANSWER_TOKENS, Array, Profile
from omnidraft.verification.round import Round

SAVE_EVERY = 8  # updates
POSITION = "position_"  # prefix of counters; the digest of a data set follows


class Autosave:
    """Saves an adaptation's state to its profile every few updates and at the end; without a claim on it, never.

    `loaded` is the profile that the adaptation goes on from, but for the weights.  `positions` is the number of answers
    of a data set that were learned from, by the set's digest.  `measured` gives the measurements of a draft-length
    policy that makes any, `answers` the token ids of earlier answers: those loaded, unless others are to be kept.
    """

    def __init__(self, adaptation: Adaptation, profile: PairProfile, loaded: Profile, learning: Learning) -> None:
        self.adaptation = adaptation
        self.profile = profile
        self.loaded = loaded = replace(loaded, weights={})
        self.learning = learning
        counts = loaded.counters.items()
        self.positions = {n.removeprefix(POSITION): int(c) for n, c in counts if n.startswith(POSITION)}
        self.measured: Callable[[], Mapping[str, Array]] = lambda: loaded.measurements
        self.answers: Callable[[], Sequence[int]] = lambda: loaded.answers.get("drafter_tokens", np.empty(0)).tolist()
        own = (POSITION, ANSWER_TOKENS)
        self._before = {name: count for name, count in counts if not name.startswith(own)}
        self._saved = 0  # updates at the last save that succeeded
        self._begun = 0  # updates at the last one that was begun
        self._thread: threading.Thread | None = None
        self._failed = False
        if profile.file is not None and self.writes:
            _WRITERS[profile.file.path.resolve()] = self

    @property
    def writes(self) -> bool:
        """Whether this process learns into the profile."""
        return self.profile.claimed

    def totals(self) -> dict[str, int | float]:
        """Counters over all processes: those of the profile plus those of this adaptation."""
        counters = self.adaptation.counters
        now = {} if counters is None else asdict(counters)
        sums = {name: self._before.get(name, 0) + count for name, count in now.items() if isinstance(count, int)}
        latest = {name: value for name, value in now.items() if isinstance(value, float) and not math.isnan(value)}
        return self._before | sums | latest

    def teach(self, records: list[Round], lane: AttachedDrafter | None = None) -> None:
        """Learn from a complete answer, see `Adaptation.teach`, and save where enough was learned."""
        self.adaptation.teach(records, lane)
        self.keep()

    def save(self) -> None:
        """Write the profile now; raises ProfileError and leaves the old one, ConfigError where nothing is learned."""
        self.wait()
        if self.adaptation.learner is None and not self.writes:
            raise ConfigError("nothing is learned that could be saved: load with adapt='inline' and a profile")
        self._begun = self._updates
        self._write(self._snapshot(), self._begun)

    def keep(self, every: int = SAVE_EVERY) -> None:
        """Write the profile in a thread if `every` updates were made since the last time; warns once on failure."""
        writing = self._thread is not None and self._thread.is_alive()
        if not self.writes or self._updates - self._begun < every or writing:
            return
        self._begun = self._updates
        arguments = (self._snapshot(), self._begun)
        self._thread = threading.Thread(target=lambda: self._attempt(lambda: self._write(*arguments)))
        self._thread.start()

    def wait(self) -> None:
        """Wait for the thread that writes."""
        if self._thread is not None and self._thread is not threading.current_thread():  # a finalizer may run in it
            self._thread.join()

    def finish(self) -> None:
        """Learn from the remaining answers, save, end the learner and release the profile.

        A background trainer may take minutes for that, so each of its updates is saved as it comes.
        """
        self.wait()
        try:
            if self.writes:
                try:
                    self.adaptation.flush(lambda: self._save_since(self._begun))  # a single answer teaches, too
                except OmniDraftError as error:
                    self.profile.warn(f"not all answers were learned from: {error}")
                self._save_since(self._saved)
        finally:
            self.adaptation.end()
            self.profile.release()

    def _save_since(self, updates: int) -> None:
        def save() -> None:
            self.adaptation.poll()
            if self._updates > updates:
                self.save()

        self._attempt(save)

    def _attempt(self, save: Callable[[], None]) -> None:
        """Save; the first failure is a warning, the next ones are silent."""
        try:
            save()
        except OmniDraftError as error:
            if not self._failed:
                self.profile.warn(f"what was learned is not saved: {error}")
            self._failed = True

    def _write(self, snapshot: Profile, updates: int) -> None:
        self.profile.save(snapshot)
        self._saved = updates

    def _snapshot(self) -> Profile:
        cache, answers = self.adaptation.attached.cache, np.array(self.answers(), np.int32)
        positions = {POSITION + name: count for name, count in self.positions.items()}
        return replace(
            self.loaded,
            weights=dict(self.adaptation.state),
            ngrams=self.loaded.ngrams if cache.frozen else cache.state(),
            measurements=self.measured(),
            answers={"drafter_tokens": answers} if len(answers) else {},
            learning=asdict(self.learning),
            counters=self.totals() | positions | ({ANSWER_TOKENS: len(answers)} if len(answers) else {}),
        )

    @property
    def _updates(self) -> int:
        return 0 if self.adaptation.counters is None else self.adaptation.counters.updates


# Who learns into which file: shared by all loads of a process, as its lock on the file is.
_WRITERS: WeakValueDictionary[Path, Autosave] = WeakValueDictionary()


def take_over(profile: PairProfile) -> bool:
    """End what learns into the same file in this process, such as an earlier run of a notebook's cell."""
    earlier = None if profile.file is None else _WRITERS.pop(profile.file.path.resolve(), None)
    if profile.file is None or earlier is None or not earlier.writes:
        return False
    profile.warn(f"profile {profile.file.name} is taken over from a model loaded earlier here, which learns no more")
    try:
        earlier.finish()
    except Exception as error:  # noqa: BLE001  whatever it is, this model is not to blame
        profile.warn(f"what that one learned last is not saved ({type(error).__name__}: {error})")
    return True
