"""Answers as they are given out: whole, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from omnidraft.engine import Round
from omnidraft.metrics import Stats
from omnidraft.text import TextStream


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer.

    `token_ids` are the target's, an end-of-text id included.  `finish_reason` is "eos", "length" (as many tokens as
    were asked for), "context" (the target holds no more) or "interrupted" (a stream that was not read to its end).
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


class Stream:
    """An answer in the making: iterate over it for pieces of text, whole characters each.

    `result` is the `Generation` so far, also after an interruption.
    """

    def __init__(self, rounds: Iterator[Round], text: TextStream) -> None:
        self._rounds: list[Round] = []
        self._pieces: list[str] = []
        self._source = self._read(rounds, text)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._source)

    @property
    def result(self) -> Generation:
        last = self._rounds[-1] if self._rounds else None
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in self._rounds for token in record.emitted),
            finish_reason=(last and last.finish) or "interrupted",
            stats=Stats.of(self._rounds),
        )

    def _read(self, rounds: Iterator[Round], text: TextStream) -> Iterator[str]:
        for record in rounds:
            piece = text.feed(record.emitted) + (text.end() if record.finish else "")
            self._rounds.append(record)
            if piece:
                self._pieces.append(piece)
                yield piece
