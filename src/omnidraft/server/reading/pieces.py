"""What readers of answers find: calls, and what a piece of text adds to content, reasoning and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Functions = Mapping[str, Mapping[str, Any]]
"""The parameters of the functions that may be called, JSON schemas, by their names."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON text; of a call that is cut there is but the beginning."""

    name: str
    arguments: str
    cut: bool = False


@dataclass(frozen=True)
class CallPiece:
    """What comes of the call with this number; the name with the first piece of it."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True)
class Piece:
    """What a piece of an answer's text adds."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.content + other.content, self.reasoning + other.reasoning, [*self.calls, *other.calls])


class Reader(Protocol):
    """Tells content, reasoning and calls apart while the text comes in: what is certain is passed on at once."""

    def feed(self, text: str) -> Piece:
        """What is certain with this text."""

    def end(self, *, cut: bool = False) -> Piece:
        """The rest; `cut`: the text may end within a call."""

    @property
    def calls(self) -> Sequence[Call]:
        """The calls so far."""


class Calls:
    """The calls of an answer as they come, each as far as it is known."""

    def __init__(self, most: int | None = None) -> None:
        self.made: list[Call] = []
        self._most = most

    def update(self, start: int, found: Sequence[Call]) -> list[CallPiece]:
        """What is new, where the calls from number `start` on are those found."""
        pieces = []
        for index, call in enumerate(found, start):
            if self._most is not None and index >= self._most:
                break
            if index == len(self.made):
                self.made.append(call)
                pieces.append(CallPiece(index, call.name, call.arguments))
                continue
            known, self.made[index] = self.made[index].arguments, call
            if more := call.arguments[len(known) :]:
                pieces.append(CallPiece(index, None, more))
        return pieces
