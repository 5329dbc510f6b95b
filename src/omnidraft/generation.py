"""Requests on loaded models, and their answers: whole, or piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from omnidraft.attach import LearningSide
from omnidraft.config import Sampling
from omnidraft.decoding.engine import Engine, Request
from omnidraft.decoding.shared_drafter import Slot
from omnidraft.decoding.stats import Stats
from omnidraft.detokenizer import StopStrings
from omnidraft.errors import OmniDraftError
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Processor, Sampler


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

    It takes the slot of the models when it is made, and drafts with the latest learned weights from round to round.
    `close` is to be called in the end: a complete answer is learned from then, and the models drop its state.
    """

    def __init__(
        self,
        engine: Engine,
        slot: Slot,
        learning: LearningSide | None,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        draw: Sampler,
        processors: Sequence[Processor] = (),
    ) -> None:
        self.records: list[Round] = []
        self._engine, self._slot, self._learning = engine, slot, learning
        self._asked = (prompt, max_new_tokens, sampling, draw, processors)
        self._request: Request | None = None
        self._closed = False
        self._ticket = object()  # not this object, which its slot would keep alive
        slot.take(self._ticket)

    def round(self, cut: Callable[[Sequence[int]], int | None]) -> Round | None:
        """The next round, or None after the last one.

        `cut` is told the tokens of the round before they count, and says how many of them stay where the answer ends
        among them.  Raises OmniDraftError where a later request has the slot, and what `Engine.verify` raises.
        """
        if self._closed or (self._request is not None and not self._request.open):
            self.close()
            return None
        try:
            with self._slot.round(self._ticket):
                if self._learning is not None:
                    self._learning.adaptation.load_weights()
                if self._request is None:
                    self._slot.pause()
                    self._request = self._engine.begin(*self._asked)
                verified = self._engine.verify(self._request)
                record = self._engine.commit(self._request, verified, cut(verified.emitted))
        except BaseException:
            self._request = None  # nothing to learn from
            self.close()
            raise
        self.records.append(record)
        return record

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
                    self._learning.autosave.teach(self.records)
            finally:
                self._engine.release()


class Stream:
    """An answer in the making: iterate over it for pieces of text, whole characters each.

    `result` is the `Generation` so far, also after an interruption.  One that is not read to its end is to be closed,
    by `close`, of any thread, or at the end of a `with` block.  One thread at a time reads it, else OmniDraftError.
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
        if not self._busy.acquire(blocking=False):
            if self._closed:
                raise StopIteration
            raise OmniDraftError("the stream is being read already: read it in one thread, not in its processors")
        try:
            return self._next_piece()
        except OmniDraftError:
            if self._closed:  # while it waited for the models, which have a later request now
                raise StopIteration from None
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
        """End the answer here, and let go of what the models hold of it; with the round that another thread is at."""
        self._closed = True
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

    def _next_piece(self) -> str:
        while not self._closed:
            found: list[str] = []

            def cut(tokens: Sequence[int], found: list[str] = found) -> int | None:
                piece, kept = self._text.feed(tokens)
                found.append(piece)
                return kept

            record = self._session.round(cut)
            if record is None:
                break
            piece = "".join(found) + (self._text.end() if record.finish else "")
            if piece:
                self._pieces.append(piece)
                return piece
        raise StopIteration
