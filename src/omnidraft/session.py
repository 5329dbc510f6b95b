"""Requests on loaded models, from prefill to the last token: sessions, and the turns of several in joint passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import cast

from omnidraft.attach import LearningSide
from omnidraft.decoding.engine import Engine, Request, Verified
from omnidraft.decoding.passes import Passes, Seconds, Stop, Stopped, Work, never, turn
from omnidraft.decoding.shared_drafter import Slot
from omnidraft.draft_length.batch_goodput import LEAST
from omnidraft.errors import OmniDraftError
from omnidraft.verification.round import Round

Cut = Callable[[Sequence[int]], int | None]
"""Is told the tokens of a round before they count; how many of them stay, where the answer ends among them."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a turn made of a request: the record of a round, or an error, or neither, where it is over.

    Of one that `waits` the prompt is not read yet.
    """

    record: Round | None = None
    error: Exception | None = None
    waits: bool = False


class Session:
    """One request on the models, from prefill to the last token, a round at a time.

    `begin` is `Engine.begin` with what is asked for.  `stop` says, between rounds and while a long prompt is read,
    whether to end here; so does `stopping`, which any thread may set.  A session takes the slot of the models when it
    is made, and drafts with the latest learned weights from round to round.  `close` is to be called in the end: a
    complete answer is learned from then, and the models drop its state, unless their engine keeps it and no round has
    failed.
    """

    def __init__(
        self,
        engine: Engine,
        slot: Slot,
        learning: LearningSide | None,
        begin: Callable[[], Request],
        stop: Stop = never,
    ) -> None:
        self.records: list[Round] = []
        self.stopping = False
        self.engine = engine
        self._slot, self._learning = slot, learning
        self._begin, self._stop = begin, stop
        self._request: Request | None = None
        self._closed = self._failed = False
        self._held = ExitStack()  # the models, for a turn
        self._ticket = object()  # not this object, which its slot would keep alive
        slot.take(self._ticket)

    def round(self, cut: Cut) -> Round | None:
        """The next round, or None after the last one, or where the request is to stop.

        Raises OmniDraftError where a later request has the slot, and what `Engine.verify` raises.
        """
        while (outcome := take_turn([self], [cut])[0]).waits:
            pass
        if outcome.error is not None:
            raise outcome.error
        return outcome.record

    def enter(self) -> Outcome | None:
        """Hold the models for a turn, until `leave`; what became of the request where it has no round any more."""
        try:
            if self._closed or self._stops() or (self._request is not None and not self._request.open):
                self.close()
                return Outcome()
            self._held.enter_context(self._slot.round(self._ticket))
            if self._learning is not None:
                self._learning.adaptation.load_weights(self.engine.attached)
            self._slot.pause()
            if self._request is None:
                self._request = self._begin()
                self._request.stop = self._stops
        except Exception as error:  # noqa: BLE001  one request's failure is no other's
            return self.fail(error)
        return None

    @property
    def behind(self) -> int:
        """Ids that the target has yet to read."""
        return 0 if self._request is None else self.engine.behind(self._request)

    def work(self, part: int) -> Work[Verified | None]:
        """The next round as the reads that it asks for, or where there is a `part` of the prompt, that."""
        request, engine = cast("Request", self._request), self.engine
        passes: Passes[Verified | None] = engine.read_part(request, part) if part else engine.verifying(request)
        return Work(passes, engine.target, self._stops)

    def take(self, work: Work[Verified | None], cut: Cut) -> Outcome:
        """Add what came of the work to the answer."""
        try:
            verified = work.done()
            if verified is None or self._request is None:
                return Outcome(waits=True)
            self._slot.check(self._ticket)  # a logits processor may have begun another request
            record = self.engine.commit(self._request, verified, cut(verified.emitted))
        except Stopped:
            self.close()
            return Outcome()
        except Exception as error:  # noqa: BLE001  likewise
            return self.fail(error)
        return Outcome(record=record)

    def leave(self, outcome: Outcome) -> Outcome:
        """Let go of the models; the outcome, or the error of one whose state a later request has taken meanwhile."""
        try:
            self._held.close()
        except OmniDraftError as error:
            return self.fail(error)
        if outcome.record is not None:
            self.records.append(outcome.record)
        return outcome

    def fail(self, error: Exception) -> Outcome:
        """End the request with an error: there is nothing to learn from, or to go on from."""
        self.abandon()
        return Outcome(error=error)

    def abandon(self) -> None:
        """End the request where its round is not whole."""
        self._request, self._failed = None, True
        with suppress(OmniDraftError):
            self._held.close()
        self.close()

    def _stops(self) -> bool:
        return self.stopping or self._stop()

    def close(self) -> None:
        """End the request here; from any thread."""
        if self._closed:
            return
        self._closed = True
        with self._slot.turn(self._ticket):
            if not self._slot.held_by(self._ticket):
                return
            try:
                self._slot.resume()
                if self._learning is not None and self._request is not None and self._request.finish is not None:
                    self._learning.autosave.teach(self.records, self.engine.attached)
            finally:
                if self._failed or not self.engine.keeps:
                    self.engine.release()
                else:
                    self.engine.end()


def take_turn(sessions: Sequence[Session], cuts: Sequence[Cut]) -> list[Outcome]:
    """A round of each of several sessions, in joint passes, or of those with a long prompt a part of it.

    An error is that of the session whose it is.  After an interruption all are ended.
    """
    found = [Outcome(waits=True) for _ in sessions]
    try:
        ended = [session.enter() for session in sessions]
        parts = _parts({at: session for at, session in enumerate(sessions) if ended[at] is None})
        for batch in {id(s.engine.batch): s.engine.batch for s in sessions if s.engine.batch is not None}.values():
            batch.rows = max(1, sum(sessions[at].engine.batch is batch for at, part in parts.items() if not part))
        read = {at: sessions[at].behind for at in parts if not sessions[at].records}
        works = {at: sessions[at].work(part) for at, part in parts.items()}
        seconds = turn(list(works.values()))
        began = time.perf_counter()
        for at, work in works.items():
            found[at] = sessions[at].take(work, cuts[at])
        _measure(
            sessions,
            {at: found[at] for at in works},
            {at: parts[at] or ids for at, ids in read.items()},
            seconds,
            time.perf_counter() - began,
        )
        return [
            session.leave(outcome) if end is None else end
            for session, outcome, end in zip(sessions, found, ended, strict=True)
        ]
    except BaseException:
        for session in sessions:
            session.abandon()
        raise


def _parts(sessions: Mapping[int, Session]) -> dict[int, int]:
    """Whose turn it is: 0 for a round, or so many ids of a prompt; that with the fewest left to read comes first."""
    parts, room = dict[int, int](), dict[int, int]()
    for at, session in sorted(sessions.items(), key=lambda each: each[1].behind):
        model, behind = session.engine.target.model, session.behind
        if session.records:
            parts[at] = 0
            continue
        most = model.chunk
        if model.rows_independent and session.engine.batch is not None:  # else logits depend on how a prompt is parted
            most = session.engine.batch.part(most, alone=len(sessions) == 1)
        left = room.setdefault(id(model), most)
        if behind <= left:
            parts[at] = 0
        elif left == most or (model.rows_independent and left >= LEAST):
            parts[at] = left
        room[id(model)] = left - parts.get(at, 0) if parts.get(at) else max(0, left - behind)
    return parts


def _measure(
    sessions: Sequence[Session], found: Mapping[int, Outcome], read: Mapping[int, int], seconds: Seconds, rest_s: float
) -> None:
    """Let batches learn what the turn cost; `read` are ids of prompts, which have no plain rounds."""
    batches = {id(sessions[at].engine.batch): sessions[at].engine for at in found}
    for engine in batches.values():
        batch, taken = engine.batch, seconds.targets.get(id(engine.target.model))
        if batch is None or taken is None:
            continue
        records = [each.record for at, each in found.items() if each.record and sessions[at].engine.batch is batch]
        if ids := sum(count for at, count in read.items() if sessions[at].engine.batch is batch):
            batch.learn_part(ids, taken)
        elif records:
            batch.learn(
                rows=len(records),
                emitted=sum(len(record.emitted) for record in records),
                proposed=sum(len(record.proposals) for record in records),
                passes=sum(record.counts.draft_passes for record in records),
                read=sum(record.counts.draft_read for record in records),
                draft_s=seconds.drafts,
                verify_s=taken + rest_s,
            )
