"""Requests on loaded models, and their answers: whole, or piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from omnidraft.attach import LearningSide
from omnidraft.counts.counts import AnswerMemory
from omnidraft.decoding.engine import Engine, Request
from omnidraft.decoding.passes import Stop, Stopped, never
from omnidraft.decoding.shared_drafter import Slot
from omnidraft.decoding.stats import Stats
from omnidraft.detokenizer import StopStrings
from omnidraft.errors import OmniDraftError
from omnidraft.prompting import Prompt
from omnidraft.verification.round import Round


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
        self._engine, self._slot, self._learning = engine, slot, learning
        self._begin, self._stop = begin, stop
        self._request: Request | None = None
        self._closed = self._failed = False
        self._ticket = object()  # not this object, which its slot would keep alive
        slot.take(self._ticket)

    def round(self, cut: Callable[[Sequence[int]], int | None]) -> Round | None:
        """The next round, or None after the last one, or where the request is to stop.

        `cut` is told the tokens of the round before they count, and says how many of them stay where the answer ends
        among them.  Raises OmniDraftError where a later request has the slot, and what `Engine.verify` raises.
        """
        if self._closed or self._stops() or (self._request is not None and not self._request.open):
            self.close()
            return None
        try:
            with self._slot.round(self._ticket):
                if self._learning is not None:
                    self._learning.adaptation.load_weights(self._engine.attached)
                self._slot.pause()
                if self._request is None:
                    self._request = self._begin()
                    self._request.stop = self._stops
                verified = self._engine.verify(self._request)
                record = self._engine.commit(self._request, verified, cut(verified.emitted))
        except Stopped:
            self.close()
            return None
        except BaseException:
            self._request, self._failed = None, True  # nothing to learn from, or to go on from
            self.close()
            raise
        self.records.append(record)
        return record

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
                    self._learning.autosave.teach(self.records, self._engine.attached)
            finally:
                if self._failed or not self._engine.keeps:
                    self._engine.release()
                else:
                    self._engine.end()


class Stream:
    """An answer in the making: iterate over it for pieces of text, whole characters each.

    Or call `step` for each round, of the streams of several lanes in turns.  `result` is the `Generation` so far, also
    after an interruption.  One that is not read to its end is to be closed, by `close`, of any thread, or at the end of
    a `with` block.  One thread at a time reads it, else OmniDraftError.
    """

    def __init__(self, session: Session, text: StopStrings) -> None:
        self._session = session
        self._text = text
        self._pieces: list[str] = []
        self._busy = threading.Lock()  # never waited for: who holds it may wait for the models
        self._closed = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (piece := self.step()) is not None:
            if piece:
                return piece
        raise StopIteration

    def step(self) -> str | None:
        """Do one round: the text that it completes, which may be empty, or None after the last one."""
        if not self._busy.acquire(blocking=False):
            if self._closed:
                return None
            raise OmniDraftError("the stream is being read already: read it in one thread, not in its processors")
        try:
            return self._round()
        except OmniDraftError:
            if self._closed:  # while it waited for the models, which have a later request now
                return None
            raise
        finally:
            self._busy.release()
            if self._closed:  # meanwhile
                self.close()

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
        self._closed = self._session.stopping = True
        if self._busy.acquire(blocking=False):  # else the reader sees to it
            try:
                self._session.close()
            finally:
                self._busy.release()

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Records of the rounds so far."""
        return tuple(self._session.records)

    @property
    def result(self) -> Generation:
        rounds = self.rounds
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in rounds for token in record.emitted),
            finish_reason=(rounds[-1].finish if rounds else None) or "interrupted",
            stats=Stats.of(rounds),
        )

    def _round(self) -> str | None:
        found: list[str] = []

        def cut(tokens: Sequence[int]) -> int | None:
            piece, kept = self._text.feed(tokens)
            found.append(piece)
            return kept

        record = None if self._closed else self._session.round(cut)
        if record is None:
            return None
        piece = "".join(found) + (self._text.end() if record.finish else "")
        self._pieces.append(piece)
        return piece


class Lane:
    """A place for one request at a time, beside those of a model's other lanes; made by `OmniDraft.lanes`.

    After an answer its KV caches stay, and the next request reads only what follows the beginning that it has in common
    with that one: of a conversation, the new messages.  A round that fails leaves them empty.
    """

    def __init__(self, engine: Engine, slot: Slot, stream: Callable[..., Stream]) -> None:
        self._engine, self._slot, self._stream = engine, slot, stream

    def stream(self, prompt: Prompt, *, memory: AnswerMemory | None = None, **options: Any) -> Stream:
        """Stream the answer to a prompt, as `OmniDraft.stream` does; another request on this lane ends it, too.

        `memory` holds the earlier answers of one user among several, in place of the model's own.
        """
        return self._stream(prompt, memory, **options)

    def common(self, ids: Sequence[int]) -> int:
        """How many leading token ids of a prompt the target's KV cache holds."""
        return self._engine.common(ids)

    @property
    def nbytes(self) -> int:
        """Memory of the KV caches of target and drafter now, in bytes."""
        attached = self._engine.attached
        return self._engine.target.nbytes + (attached.drafter.sequence.nbytes if attached else 0)

    def clear(self) -> None:
        """Empty the KV caches; a stream that is still open cannot go on."""
        with self._slot.lock:
            self._slot.take(object())
            self._engine.release()
