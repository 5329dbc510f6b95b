"""A drafter that may learn from one target, and is saved as it does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np

from omnidraft.config import Learning
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.token_index import BOUNDARY
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.distillation.online_adaptation import Adaptation
from omnidraft.draft_length.goodput_policy import Goodput
from omnidraft.draft_length.simple_policies import DraftLengthPolicy
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.models.forks import ForkLock
from omnidraft.models.loading import LoadedModel
from omnidraft.profiles.manifest import ANSWER_TOKENS, Array, Profile
from omnidraft.profiles.pair_profile import PairProfile
from omnidraft.verification.round import Round

SAVE_EVERY = 8  # updates
POSITION = "position_"  # prefix of counters; the digest of a data set follows


class AdaptiveDrafter:
    """A drafter attached to one target, with what it learns there, saved every few updates and at the end.

    `loaded` is its model, `saved` the profile that it goes on from, `learning` how it learns.  Without a claim on the
    profile nothing is saved.  `positions` is the number of answers of a data set that were learned from, by the set's
    digest.
    """

    def __init__(
        self, loaded: LoadedModel, adaptation: Adaptation, profile: PairProfile, saved: Profile, learning: Learning
    ) -> None:
        self.loaded, self.learning, self.adaptation = loaded, learning, adaptation
        self.attached, self.shared = adaptation.attached, adaptation.shared
        self.profile = profile
        self._before = before = replace(saved, weights={})
        counts = before.counters.items()
        self.positions = {n.removeprefix(POSITION): int(c) for n, c in counts if n.startswith(POSITION)}
        self._counted = {n: count for n, count in counts if not n.startswith((POSITION, ANSWER_TOKENS))}
        self._policy: Goodput | None = None  # the latest that measures
        self._costs = profile.costs
        self._memory: AnswerMemory | None = None  # whose answers are saved
        self._saved = 0  # updates at the last save that succeeded
        self._begun = 0  # updates at the last one that was begun
        self._thread: threading.Thread | None = None
        self._lock = ForkLock()  # of what is below, and of beginning a thread; never held while one is waited for
        self._taken, self._finishing = 0, False  # snapshots so far
        self._writing = ForkLock()
        self._written = 0  # number of the latest snapshot that is in the profile
        self._failed = False
        if self.saves and profile.file is not None:
            _LEARNING[profile.file.path.resolve()] = self

    @property
    def saves(self) -> bool:
        """True while this process may save the profile."""
        return self.profile.claimed

    @property
    def learns(self) -> bool:
        """False without a learner, also after one that failed."""
        return self.adaptation.learner is not None

    @property
    def counters(self) -> dict[str, int | float]:
        """Counters over all processes: those of the profile plus those of this one."""
        counters = self.adaptation.counters
        now = {} if counters is None else asdict(counters)
        sums = {name: self._counted.get(name, 0) + count for name, count in now.items() if isinstance(count, int)}
        latest = {name: value for name, value in now.items() if isinstance(value, float) and not math.isnan(value)}
        return self._counted | sums | latest

    @property
    def measurements(self) -> Mapping[str, Array]:
        """The costs and acceptance measured last, at first the profile's or those of an earlier run."""
        if self._policy is not None:
            return {"goodput": self._policy.state()}
        measured = None if self._costs is None else self._costs.load()
        return self._before.measurements if measured is None else {"goodput": measured}

    def resume(self, policy: DraftLengthPolicy) -> None:
        """Have a policy that measures go on from what was measured last, and keep what it measures."""
        if isinstance(policy, Goodput) and policy is not self._policy:  # else it holds what was measured last
            if "goodput" in (latest := self.measurements):
                policy.resume(latest["goodput"])
            self._policy = policy

    def keep_answers(self, memory: AnswerMemory) -> None:
        """Have a memory go on from the answers that the profile holds, and keep all that are in it."""
        held = set(_texts(memory.index.tokens()))  # of another target's profile, which saved those of both
        answers, size = self._before.answers.get("drafter_tokens", np.empty(0)), self.loaded.lm.vocab_size
        for text in _texts(token for token in answers.tolist() if BOUNDARY <= token < size):
            if text not in held:
                memory.index.extend([BOUNDARY, *text])
        self._memory = memory

    def load_weights(self, attached: AttachedDrafter | None = None) -> None:
        """Draft with the latest learned weights, see `Adaptation.load_weights`."""
        self.adaptation.load_weights(attached)

    def teach(self, records: list[Round], attached: AttachedDrafter | None = None) -> None:
        """Learn from a complete answer, see `Adaptation.teach`, and save where enough was learned."""
        self.adaptation.teach(records, attached)
        self.save_later()

    # ------------------------------------------------------------ saving

    def save(self) -> None:
        """Write the profile now; raises ProfileError and leaves the old one, ConfigError where nothing is learned."""
        self.wait()
        if self.profile.file is None or not (self.learns or self.saves):
            raise ConfigError("nothing is learned that could be saved: load with adapt='inline' and a profile")
        self._write(*self._latest())

    def save_later(self, every: int = SAVE_EVERY) -> None:
        """Write the profile in a thread if `every` updates were made since the last time; warns once on failure."""
        if not self.saves:  # such as in a process forked while another thread held the lock
            return
        with self._lock:
            writing = self._thread is not None and self._thread.is_alive()
            if self._finishing or self._updates - self._begun < every or writing:
                return
            arguments = self._latest()
            self._thread = threading.Thread(target=lambda: self._attempt(lambda: self._write(*arguments)))
            self._thread.start()

    def wait(self) -> None:
        """Wait for the thread that writes."""
        if self._thread is not None and self._thread is not threading.current_thread():  # a finalizer may run in it
            self._thread.join()

    def finish(self) -> None:
        """Learn from the remaining answers, save, end the learner and release the profile; or save costs alone.

        A background trainer may take minutes for that, so each of its updates is saved as it comes.
        """
        self.wait()
        try:
            if self.saves:
                try:
                    self.adaptation.flush(lambda: self._save_since(self._begun))  # a single answer teaches, too
                except OmniDraftError as error:
                    self.profile.warn(f"not all answers were learned from: {error}")
                self._save_since(self._saved)
            elif self._costs is not None and self._policy is not None and self._policy.measured:
                self._costs.save(self._policy.state())
        finally:
            with suppress(OmniDraftError):  # of a process forked while a lock was held, whose learner is the other's
                self.adaptation.end()
                with self._lock:
                    self._finishing = True
            self.wait()  # for a thread begun meanwhile: nothing may be written once another process has the profile
            self.profile.release()

    def _save_since(self, updates: int) -> None:
        if self._updates > updates:
            self._attempt(self.save)

    def _attempt(self, save: Callable[[], None]) -> None:
        """Save; the first failure is a warning, the next ones are silent."""
        try:
            save()
        except OmniDraftError as error:
            if not self._failed:
                self.profile.warn(f"what was learned is not saved: {error}")
            self._failed = True

    def _write(self, snapshot: Profile, updates: int, number: int) -> None:
        with self._writing:
            if number > self._written:  # else another thread was quicker with a later one
                self.profile.save(snapshot)
                self._written, self._saved = number, updates

    def _latest(self) -> tuple[Profile, int, int]:
        """What is to be saved now, the updates that are surely in it, polled after they are counted, and its number."""
        with self._lock:
            self._taken += 1
            return *self._snapshot(), self._taken

    def _snapshot(self) -> tuple[Profile, int]:
        self._begun = begun = self._updates
        self.adaptation.poll()
        cache, tokens = self.attached.cache, self._before.answers.get("drafter_tokens", np.empty(0, np.int32))
        if self._memory is not None:
            tokens = np.array(self._memory.index.tokens(), np.int32)
        positions = {POSITION + name: count for name, count in self.positions.items()}
        snapshot = replace(
            self._before,
            weights=dict(self.adaptation.state),
            ngrams=self._before.ngrams if cache.frozen else cache.state(),
            measurements=self.measurements,
            answers={"drafter_tokens": tokens} if len(tokens) else {},
            learning=asdict(self.learning),
            counters=self.counters | positions | ({ANSWER_TOKENS: len(tokens)} if len(tokens) else {}),
        )
        return snapshot, begun

    @property
    def _updates(self) -> int:
        return 0 if self.adaptation.counters is None else self.adaptation.counters.updates


def _texts(tokens: Iterable[int]) -> list[tuple[int, ...]]:
    """The texts between boundaries."""
    return [tuple(text) for end, text in groupby(tokens, BOUNDARY.__eq__) if not end]


# Who learns into which file: shared by all loads of a process, as its lock on the file is.
_LEARNING: WeakValueDictionary[Path, AdaptiveDrafter] = WeakValueDictionary()


def end_earlier(profile: PairProfile) -> bool:
    """End what learns into the same file in this process, such as an earlier run of a notebook's cell."""
    earlier = None if profile.file is None else _LEARNING.pop(profile.file.path.resolve(), None)
    if profile.file is None or earlier is None or not earlier.saves:
        return False
    profile.warn(f"profile {profile.file.name} is taken over from a model loaded earlier here, which learns no more")
    try:
        earlier.finish()
    except Exception as error:  # noqa: BLE001  whatever it is, this model is not to blame
        profile.warn(f"what that one learned last is not saved ({type(error).__name__}: {error})")
    return True
