"""Results of readers: an answer as a list of events, in the order in which what they tell of stands in its text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Functions = Mapping[str, Mapping[str, Any]]
"""The parameters of the functions that may be called, JSON schemas, by their names."""


@dataclass(frozen=True, slots=True)
class Text:
    """More text."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A call of a function begins; up to its end come arguments alone."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments, which are JSON text."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """A call is over; of one that is `cut`, with the answer, there is but the beginning of its arguments."""

    cut: bool = False


Event = Text | Reasoning | Begin | Arguments | End


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON text; of a call that is cut there is but the beginning."""

    name: str
    arguments: str
    cut: bool = False

    @property
    def events(self) -> list[Event]:
        """What is told of it."""
        said = [Arguments(self.arguments)] if self.arguments else []
        return [Begin(self.name), *said, End(self.cut)]


class Reader(ABC):
    """Tells text, reasoning and calls apart while an answer's text comes in.

    The events are a function of the text alone: however it is cut into pieces, texts that follow each other joined,
    they are the same.  What is told is never taken back, so a call is told when it is whole: one that turns out to be
    none is text, and that shows as late as in its last bracket.  Text and reasoning are told at once, and so are the
    arguments of a call that the answer's grammar forces, which cannot turn out to be anything else.
    """

    def __init__(self, functions: Functions, *, one: bool = False) -> None:
        self._functions, self._one = functions, one
        self._calls = 0  # so far

    @abstractmethod
    def feed(self, text: str) -> list[Event]:
        """What is certain with this text."""

    def end(self, *, cut: bool = False) -> list[Event]:  # noqa: ARG002
        """The rest; `cut`: the text may end within a call."""
        return []

    def _called(self, calls: Sequence[Call]) -> list[Event]:
        """The events of some calls; of all but the answer's first there are none where one alone is wanted."""
        taken = calls[: max(0, 1 - self._calls)] if self._one else calls
        self._calls += len(taken)
        return [event for call in taken for event in call.events]
