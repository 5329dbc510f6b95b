"""Results of readers: calls, and the content, reasoning and calls that a piece of text adds."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Functions = Mapping[str, Mapping[str, Any]]
"""The parameters of the functions that may be called, JSON schemas, by their names."""


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON text; of a call that is cut there is but the beginning."""

    name: str
    arguments: str
    cut: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The arguments by name; of a call that is cut there are none."""
        try:
            found = json.loads(self.arguments)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class CallPiece:
    """A piece of the call with this number, the first one with its name."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True)
class Piece:
    """The content, reasoning and calls that a piece of text adds."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.content + other.content, self.reasoning + other.reasoning, [*self.calls, *other.calls])


class Reader(ABC):
    """Tells content, reasoning and calls apart while the text comes in: what is certain is passed on at once."""

    def __init__(self, functions: Functions, *, one: bool = False) -> None:
        self.calls: list[Call] = []  # so far, each as far as it is known
        self._functions, self._one = functions, one

    @abstractmethod
    def feed(self, text: str) -> Piece:
        """The part that is certain with this text."""

    def end(self, *, cut: bool = False) -> Piece:  # noqa: ARG002
        """The rest; `cut`: the text may end within a call."""
        return Piece()

    def _called(self, start: int, found: Sequence[Call]) -> list[CallPiece]:
        """The new pieces, where the calls from number `start` on are those found."""
        pieces = []
        for index, call in enumerate(found[: max(0, 1 - start)] if self._one else found, start):
            if index == len(self.calls):
                self.calls.append(call)
                pieces.append(CallPiece(index, call.name, call.arguments))
                continue
            known, self.calls[index] = self.calls[index].arguments, call
            if more := call.arguments[len(known) :]:
                pieces.append(CallPiece(index, None, more))
        return pieces
