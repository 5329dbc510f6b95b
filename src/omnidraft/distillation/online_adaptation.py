"""Online adaptation: finished answers go to a learner, and its weights to the drafter between two rounds.

After a change of weights the drafter prefills its text again, so that no draft stands on keys of other weights.
Decoding is exact either way: q is recorded as it was drawn from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.lane import Pausable
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation.lora import Weights, merged, parted
from omnidraft.distillation.teacher import Trace, trace_of
from omnidraft.models.forks import ForkLock
from omnidraft.verification.round import Round

if TYPE_CHECKING:
    from omnidraft.distillation.trainer import Counters
    from omnidraft.models.native.weights import PackedWeights

_log = logging.getLogger("omnidraft")


class Learned(NamedTuple):
    """A state, and all weights of the drafter with it, merged and rounded where it drafts by the native step."""

    state: Weights
    weights: PackedWeights | None = None  # where they are not made yet


class Learner(Pausable, Protocol):
    """A trainer beside the engine or in another process, which stands still while a request is decoded."""

    @property
    def counters(self) -> Counters:
        """Counts of what was learned so far."""

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Take in an answer, of which `cache` knows the active n-grams."""

    def poll(self) -> Learned | None:
        """The state after the last update, once."""

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Learn from everything taught so far, now; one that waits calls `meanwhile` now and then."""

    def close(self) -> None:
        """End; nothing may be taught after it."""


class Adaptation:
    """Hands what is learned from one target to a drafter; with `learner` None only what was learned before.

    Any thread may `poll`, one at a time, and not while a learner is taught; to `teach`, and to draft with what came by
    `load_weights`, is for who has a turn.
    """

    def __init__(
        self,
        attached: AttachedDrafter,
        shared: SharedDrafter,
        learner: Learner | None,
        state: Weights | None = None,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self.attached = attached
        self.shared = shared
        self.learner = learner
        self._warn = warn
        if learner is not None:
            shared.turns.background.append(learner)
        self._lock = ForkLock()  # of the learner; not that of the turns, which may be held for a whole answer
        self._last: Counters | None = None  # of a learner that has ended
        self._base = shared.source.parameters()
        self._model = shared.model  # that drafts
        self._weights: Weights | PackedWeights | None = None  # that will draft from the next round on
        self.state: Weights = {}
        self._receive(Learned(state or {}))

    @property
    def counters(self) -> Counters | None:
        """Counts of this process; None for a drafter that never learns."""
        learner = self.learner  # which another thread may end
        return self._last if learner is None else learner.counters

    def lane(self) -> AttachedDrafter:
        """The drafter once more, with a KV cache of its own and n-grams and head in common."""
        return replace(self.attached, drafter=Drafter(self._model, beside=True))

    def load_weights(self, lane: AttachedDrafter | None = None) -> None:
        """Draft with the latest learned weights, between two rounds; for who has a turn."""
        self.poll()
        if (weights := self._weights) is not None:  # which another thread may replace
            self._model = self.shared.lend(weights, self._model)
            with self._lock:
                if self._weights is weights:  # not before: where lending fails, the next round tries again
                    self._weights = None
        drafter = (lane or self.attached).drafter
        if drafter.model is not self._model:
            drafter.load_model(self._model)

    def poll(self) -> None:
        """Get what was learned since the last time, for `load_weights`; a failure is a warning and ends learning."""
        with self._lock:  # else an earlier state might be received last
            if (learner := self.learner) is not None:
                self._safely(lambda: self._receive(learner.poll()))

    def teach(self, records: list[Round], lane: AttachedDrafter | None = None) -> None:
        """Let the learner have a complete answer, of this lane where one is given, and draft with what comes of it."""
        if not records:
            return
        with self._lock:
            if (learner := self.learner) is None:
                return
            self._safely(lambda: learner.teach(self.answer(records, lane), self.attached.cache))
        self.load_weights(lane)

    def answer(self, records: list[Round], lane: AttachedDrafter | None = None) -> Trace:
        """Prompt, answer and target distributions of these rounds, cut to what the drafter's context holds."""
        tokens = [token for record in records for token in record.emitted]
        teacher = [one for record in records for one in record.teacher]
        drafter = (lane or self.attached).drafter
        prompt = drafter.text[: drafter.begun]  # its text may write the answer otherwise
        return trace_of(self.attached.context, prompt, tokens, teacher, drafter.model.context)

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Learn from all answers so far, to draft with it from the next request on; see `Learner.flush`."""
        if (learner := self.learner) is not None:
            learner.flush(meanwhile)
            self.poll()

    def end(self) -> None:
        """Learn no more; drafts stay as good as they are."""
        with self._lock:  # else another thread might teach one that is closed, or end it, too
            if self.learner is not None:
                self.shared.turns.background.remove(self.learner)
                self.learner.close()
                self._last, self.learner = self.learner.counters, None

    def _receive(self, learned: Learned | None) -> None:
        if learned is None:
            return
        (drafter, head), (before, _) = parted(learned.state), parted(self.state)
        if not _same(before, drafter):  # else the head alone has learned, and the drafter's cache stays
            self._weights = merged(self._base, drafter) if learned.weights is None else learned.weights
        self.state = learned.state
        self.attached.head.load_weights(head)

    def _safely(self, act: Callable[[], None]) -> None:
        """Do a step of learning; where it fails, warn and end learning, as no answer may be lost to it."""
        try:
            with torch.inference_mode(mode=False):  # the caller may be in it, where nothing can be trained
                act()
        except Exception as error:  # noqa: BLE001  whatever it is
            self._warn(f"the drafter learns no more ({type(error).__name__}: {error}): load the models again")
            self.end()


def _same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
