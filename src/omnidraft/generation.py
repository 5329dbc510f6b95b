"""Answers of loaded models: whole, or piece by piece, one or several together."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, cast

from omnidraft.decoding.batched_passes import Passes, Seconds, Stop, Stopped, Work, never, run_rounds
from omnidraft.decoding.engine import Engine, Request, Verified
from omnidraft.decoding.shared_drafter import Slot
from omnidraft.decoding.stats import Stats
from omnidraft.draft_length.batch_goodput import LEAST
from omnidraft.errors import OmniDraftError
from omnidraft.profiles.adaptive_drafter import AdaptiveDrafter
from omnidraft.verification.round import Round, TokenLogprobs

AGING = 64  # ids of a prompt that count as read for each turn since it came


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer.

    `token_ids` are the target's, an end-of-text id included.  `finish_reason` is "eos", "stop" (the text ends before a
    stop string, whose tokens are in `token_ids`), "length" (as many tokens as were asked for), "context" (the target
    holds no more) or "interrupted" (a stream that was not read to its end).
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


@dataclass(frozen=True, kw_only=True)
class Step:
    """Result of a turn for one answer: the text of a round, None at the end, or an error.

    Of one that `waits` the prompt is not read yet.
    """

    text: str | None = None
    error: Exception | None = None
    waits: bool = False


class Text(Protocol):
    """Receiver of the tokens of an answer."""

    def feed(self, ids: Sequence[int], /) -> tuple[str, int | None]:
        """Return the text that a round's tokens complete, and how many tokens stay if the answer ends among them."""

    def end(self) -> str:
        """The rest of the text at its end."""


class Stream:
    """A request and its answer so far: iterate over it for pieces of text, each of whole characters.

    Or call `step` for each round, of the streams of several lanes in turns, or `step_together` for one of each.
    `result` is the `Generation` so far, also after an interruption.  One that is not read to its end is to be closed,
    by `close`, of any thread, or at the end of a `with` block.  One thread at a time reads it, else OmniDraftError.

    It takes the slot of the models when it is made, and drafts with the latest learned weights from round to round.
    `begin` is `Engine.begin` with what is asked for; `stop` says, between rounds and while a long prompt is read,
    whether to end here.  In the end a complete answer is learned from, and the models drop its state, unless their
    engine keeps it and no round has failed.
    """

    def __init__(
        self,
        engine: Engine,
        slot: Slot,
        learning: AdaptiveDrafter | None,
        begin: Callable[[], Request],
        text: Text,
        stop: Stop = never,
    ) -> None:
        self.engine = engine
        self.records: list[Round] = []  # of the rounds so far
        self._turns = 0  # for which its prompt has waited, or was read
        self._slot, self._learning = slot, learning
        self._begin, self._text = begin, text
        self._pieces: list[str] = []
        self._request: Request | None = None
        self._ended = self._failed = False
        self._closed = closed = threading.Event()
        self._stops: Stop = lambda: closed.is_set() or stop()  # a request asks this, and does not keep the stream
        self._busy = threading.Lock()  # never waited for: who holds it may wait for the models
        self._holds = False  # the models, for a turn
        self._ticket = object()  # not this object, which its slot would keep alive
        slot.take(self._ticket)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (piece := self.step()) is not None:
            if piece:
                return piece
        raise StopIteration

    def step(self) -> str | None:
        """Do one round; return the text that it completes, possibly empty, or None after the last round."""
        while (step := step_together([self])[0]).waits:
            pass
        if step.error is not None:
            raise step.error
        return step.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the answer here, and let go of what the models hold of it; with the round that another thread is at.

        A long prompt that is being read is not read to its end.
        """
        self._closed.set()
        if self._busy.acquire(blocking=False):  # else the reader sees to it
            try:
                self._end()
            finally:
                self._busy.release()

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Records of the rounds so far."""
        return tuple(self.records)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of the prompt's tokens but the first, after the first round, where they are asked for."""
        return () if self._request is None else tuple(self._request.scores or ())

    @property
    def result(self) -> Generation:
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in self.records for token in record.emitted),
            finish_reason=(self.records[-1].finish if self.records else None) or "interrupted",
            stats=Stats.of(self.records),
        )

    # ------------------------------------------------------------ for a turn

    def enter(self) -> Step | None:
        """Take the stream and its models for a turn, until `leave`; return the last step if that is impossible."""
        if not self._busy.acquire(blocking=False):
            fix = "read it in one thread, not in its processors"
            error = None if self._closed.is_set() else OmniDraftError(f"the stream is being read already: {fix}")
            return Step(error=error)
        try:
            if self._ended or self._stops() or (self._request is not None and not self._request.open):
                self._end()
                step = Step()
            else:
                self._slot.hold(self._ticket)
                self._holds = True
                if self._learning is not None:
                    self._learning.adaptation.load_weights(self.engine.attached)
                self._turns += 1
                if self._request is None:
                    self._request = self._begin()
                    self._request.stop = self._stops
                return None
        except Exception as error:  # noqa: BLE001  one request's failure is no other's
            step = self._fail(error)
        except BaseException:
            self.abandon()
            self.leave()
            raise
        self.leave()
        return step

    @property
    def behind(self) -> int:
        """Ids that the target has yet to read."""
        return 0 if self._request is None else self.engine.behind(self._request)

    @property
    def rank(self) -> int:
        """Priority of the prompt, lowest first: the ids left, less some for each turn waited."""
        return self.behind - AGING * self._turns

    def work(self, part: int) -> Work[Verified | None]:
        """Return the reads of the next round, or of the next `part` ids of the prompt."""
        request, engine = cast("Request", self._request), self.engine
        passes: Passes[Verified | None] = engine.read_part(request, part) if part else engine.verifying(request)
        return Work(passes, engine.target, request)

    def take(self, work: Work[Verified | None]) -> Step:
        """Add the result of the work to the answer."""
        try:
            verified = work.done()
            if verified is None or self._request is None:
                return Step(waits=True)
            piece, kept = self._text.feed(verified.emitted)
            self._slot.check(self._ticket)  # a logits processor or stopping criterion may have begun another request
            record = self.engine.commit(self._request, verified, kept)
            if record.finish is not None:
                piece += self._text.end()
        except Stopped:
            self._end()
            return Step()
        except Exception as error:  # noqa: BLE001  any error ends this answer alone
            return self._fail(error)
        self.records.append(record)
        self._pieces.append(piece)
        return Step(text=piece)

    def leave(self) -> None:
        """Let go of it; it ends here where it was closed meanwhile."""
        if self._holds:
            self._holds = False
            self._slot.lock.release()
        self._busy.release()
        if self._closed.is_set():
            self.close()

    def abandon(self) -> None:
        """End after an incomplete round: nothing is learned and no cache is kept."""
        self._request, self._failed = None, True
        self._end()

    def _fail(self, error: Exception) -> Step:
        """End with an error, of which nobody is told who closed the stream while it waited for the models."""
        self.abandon()
        return Step() if isinstance(error, OmniDraftError) and self._closed.is_set() else Step(error=error)

    def _end(self) -> None:
        """Release the models, once; a complete answer is learned from."""
        if self._ended:
            return
        self._ended = True
        try:
            self._slot.hold(self._ticket)
        except OmniDraftError:  # a later request has them
            return
        try:
            self._slot.resume()
            if self._learning is not None and self._request is not None and self._request.finish is not None:
                self._learning.teach(self.records, self.engine.attached)
        finally:
            if self._failed or not self.engine.keeps:
                self.engine.release()
            else:
                self.engine.end()
            self._slot.lock.release()


def step_together(streams: Sequence[Stream]) -> list[Step]:
    """A round of each of several streams, in joint passes of the models that they share; an error is one stream's own.

    Of one whose prompt is long a part is read.  After an interruption all are ended.
    """
    steps, going = dict[int, Step](), dict[int, Stream]()
    try:
        for at, stream in enumerate(streams):
            if (step := stream.enter()) is None:
                going[at] = stream
            else:
                steps[at] = step
        parts = _parts(list(going.values()))
        rows = Counter(each.engine.batch for each, part in parts.items() if not part)
        for batch in {each.engine.batch for each in parts}:
            if batch is not None:
                batch.rows = max(1, rows[batch])
        read = {each: part or each.behind for each, part in parts.items() if not each.records}
        works = {each: each.work(part) for each, part in parts.items()}
        seconds = run_rounds(list(works.values()))
        began = time.perf_counter()
        found = {each: each.take(work) for each, work in works.items()}
        _measure(found, read, seconds, time.perf_counter() - began)
        steps |= {at: found.get(each, Step(waits=True)) for at, each in going.items()}
    except BaseException:
        for stream in going.values():
            stream.abandon()
        raise
    finally:
        for stream in going.values():
            stream.leave()
    return [steps[at] for at in range(len(streams))]


def _parts(streams: Sequence[Stream]) -> dict[Stream, int]:
    """Return the work of each stream in this turn: 0 for a round, else ids of a prompt; the lowest rank comes first."""
    parts, room = {each: 0 for each in streams if each.records}, dict[int, int]()
    measuring = {each.engine.batch for each in parts if each.engine.batch is not None and each.engine.batch.measures}
    for each in sorted((each for each in streams if not each.records), key=lambda each: each.rank):
        model, batch, behind = each.engine.target.model, each.engine.batch, each.behind
        if batch in measuring:
            continue
        most = model.chunk
        if batch is not None and batch.most > 1:
            # where logits depend on how a prompt is parted, its parts are the same whoever waits
            alone = len(streams) == 1
            most = batch.part(most, alone=alone) if model.rows_independent else min(most, model.part)
        left = room.setdefault(id(model), most)
        if behind <= left:
            parts[each] = 0
        elif left == most or (model.rows_independent and left >= LEAST):
            parts[each] = left
        room[id(model)] = left - parts.get(each, 0) if parts.get(each) else max(0, left - behind)
    return parts


def _measure(found: Mapping[Stream, Step], read: Mapping[Stream, int], seconds: Seconds, rest_s: float) -> None:
    """Update the batches with the cost of the turn; `read` are the ids read of prompts."""
    for batch, model in {each.engine.batch: each.engine.target.model for each in found}.items():
        taken = seconds.targets.get(id(model))
        if batch is None or taken is None:
            continue
        own = [each for each in found if each.engine.batch is batch]
        records = [each.records[-1] for each in own if found[each].text is not None]
        if ids := sum(read.get(each, 0) for each in own):
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
