"""Learning from live traffic: every finished answer teaches, and what was learned drafts from the next round on.

At a change of weights the drafter reads its text again, so that no draft stands on keys of other weights.  Exact it
would be either way: q is recorded as it was drawn from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.decoding.drafter import SharedDrafter
from omnidraft.decoding.engine import AttachedDrafter
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Counters
from omnidraft.distillation.weights import Weights, merged, parted
from omnidraft.verification.round import Round

_log = logging.getLogger("omnidraft")
LONGEST = 2048  # drafter tokens of a lesson: attention over more would take seconds


class Learner(Protocol):
    """A trainer beside the engine or in another process."""

    @property
    def counters(self) -> Counters:
        """Counts of what was learned so far."""

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Take in an answer, of which `cache` knows the active n-grams."""

    def pause(self) -> None:
        """A reply is being made."""

    def resume(self) -> None:
        """It is made."""

    def poll(self) -> Weights | None:
        """The state after the last update, once."""

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Learn from everything taught so far, now; one that waits calls `meanwhile` now and then."""

    def close(self) -> None:
        """End; nothing may be taught after it."""


class Adaptation:
    """Keeps a drafter learning from one target; with `learner` None it only drafts with what was learned."""

    def __init__(
        self,
        pair: AttachedDrafter,
        serving: SharedDrafter,
        learner: Learner | None,
        state: Weights | None = None,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        self.pair = pair
        self._warn = warn
        if learner is not None:
            serving.learners.append(learner)
        self.serving = serving
        self.learner = learner
        self._last: Counters | None = None  # of a learner that has ended
        self.state: Weights = state or {}
        self._base = dict(serving.source.model.named_parameters())
        self._weights: Weights = {}
        self._stale = False  # the drafter has other weights than these
        self._take(self.state)
        self._stale = False  # whose weights they are is for `use` to see
        self.swaps = 0

    @property
    def counters(self) -> Counters | None:
        """What was learned since this was made; None for one that never learns."""
        return self._last if self.learner is None else self.learner.counters

    def following(self, rounds: Iterator[Round]) -> Generator[Round]:
        """The rounds of one text as they are, learned from once it is complete."""
        self.use()
        learner = self.learner
        for each in self.serving.learners:
            each.pause()
        self.serving.replies += 1
        reply = self.serving.replies
        records: list[Round] = []
        try:
            for record in rounds:
                records.append(record)
                yield record
                self._safely(self.refresh)
        finally:
            if reply == self.serving.replies:  # one that was left half-way must not wake a trainer beside a later one
                for each in self.serving.learners:
                    each.resume()
        if records and learner is not None and self.learner is not None:  # closed meanwhile
            self._safely(lambda: learner.teach(self.answer(records), self.pair.cache))
            self._safely(self.refresh)

    def _safely(self, act: Callable[[], None]) -> None:
        """Do what learning takes; where that fails, no reply is lost to it: it is said, and nothing is learned on."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  whatever it is
            self._warn(f"the drafter learns no more ({type(error).__name__}: {error}): load the models again")
            self.end()

    def use(self) -> None:
        """Draft with what was learned here, also after another target had the drafter."""
        self._safely(self.collect)
        if self._stale or (not self.serving.held_by(self) and (self._weights or not self.serving.pristine)):
            self._swap()

    def refresh(self) -> None:
        """Draft with what was learned since the last time, if anything was; for while this target has the drafter."""
        self.collect()
        if self._stale:
            self._swap()

    def collect(self) -> None:
        """Take over what was learned since the last time; drafts follow it from the next text on.

        Until then the drafter may be in the middle of a text for another target.
        """
        state = None if self.learner is None else self.learner.poll()
        if state is not None:
            self._take(state)

    def _take(self, state: Weights) -> None:
        drafter, head = parted(state)
        before, self._weights = self._weights, merged(self._base, drafter)
        self.state = state
        self.pair.head.take(head)
        self._stale |= not _same(before, self._weights)

    def answer(self, records: list[Round]) -> Trace:
        """What these rounds said; of a very long text, what the drafter's context holds."""
        tokens = [token for record in records for token in record.emitted]
        distributions = [p for record in records for p in record.teacher]
        written = [tuple(self.pair.translator.tokens([token])) for token in tokens]
        room = min(LONGEST, self.pair.drafter.model.context)
        drafter = self.pair.drafter
        prompt = drafter.text[: drafter.begun][-(room // 2) :]  # its text may write the answer otherwise
        length, kept = len(prompt), 0
        while kept < len(tokens) and length + len(written[kept]) <= room:
            length += len(written[kept])
            kept += 1
        return Trace(tuple(prompt), tuple(tokens[:kept]), tuple(written[:kept]), tuple(distributions[:kept]))

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Learn from everything so far, to draft with it from the next text on; see `Learner.flush`."""
        if self.learner is not None:
            self.learner.flush(meanwhile)
            self.collect()

    def end(self) -> None:
        """Learn no more; drafts stay as good as they are."""
        if self.learner is not None:
            self.serving.learners.remove(self.learner)
            self.learner.close()
            self._last, self.learner = self.learner.counters, None

    def _swap(self) -> None:
        self._stale = False
        self.pair.drafter.swap(self.serving.take(self, self._weights))
        self.swaps += 1


def _same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
