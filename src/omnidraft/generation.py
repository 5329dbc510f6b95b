"""Answers as they are given out: whole, or piece by piece."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, Self

from omnidraft.decoding.stats import Stats
from omnidraft.errors import OmniDraftError
from omnidraft.verification.round import Round

LOOK_S = 0.02  # seconds between looks at whether a text is still the one in the making


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


class Text(Protocol):
    """Makes pieces of text of tokens."""

    def feed(self, ids: Iterable[int]) -> str:
        """What is certain of the text with these tokens."""

    def end(self) -> str:
        """What is left of it at its end."""


class Stream:
    """An answer in the making: iterate over it for pieces of text, whole characters each.

    `result` is the `Generation` so far, also after an interruption.  One that is not read to its end is to be closed,
    by `close`, of any thread, or at the end of a `with` block.  One thread at a time reads it, else OmniDraftError.
    """

    def __init__(self, rounds: Generator[Round], text: Text) -> None:
        self._rounds: list[Round] = []
        self._pieces: list[str] = []
        self._records = rounds
        self._source = self._read(rounds, text)
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
            return next(self._source)
        except OmniDraftError:
            if self._closed:  # while it waited for the models, which have a later text now
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

    def close(self) -> None:
        """End the answer here, and let go of what the models hold of it; with the round that another thread is at."""
        self._closed = True
        if self._busy.acquire(blocking=False):  # else the reader sees to it
            try:
                self._source.close()
                self._records.close()
            finally:
                self._busy.release()

    @property
    def result(self) -> Generation:
        last = self._rounds[-1] if self._rounds else None
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in self._rounds for token in record.emitted),
            finish_reason=(last and last.finish) or "interrupted",
            stats=Stats.of(self._rounds),
        )

    def _read(self, rounds: Iterator[Round], text: Text) -> Generator[str]:
        for record in rounds:
            piece = text.feed(record.emitted) + (text.end() if record.finish else "")
            self._rounds.append(record)
            if piece:
                self._pieces.append(piece)
                yield piece
            if self._closed:
                return


@contextmanager
def turn_of(turn: threading.RLock, current: Callable[[], bool]) -> Iterator[None]:
    """Hold `turn` for a text, or go on without it once that is not `current`: a later one may have it for long."""
    while not (held := turn.acquire(timeout=LOOK_S)) and current():
        pass
    try:
        yield
    finally:
        if held:
            turn.release()
