"""Brackets, strings and marks in a text that may go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CLOSERS = {"{": "}", "[": "]", "(": ")"}
MARKS_END = ">`"  # with which closing marks do
WITHIN, OUTSIDE = re.compile(r'\\.|"', re.DOTALL), re.compile(rf'["\[\]{{}}{MARKS_END}]')  # a string
STEPS = {"{": 1, "[": 1, "}": -1, "]": -1}
STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
# strings, and in the group `open` the mark that opens one which goes on; brackets
JSON = rf'{STRING}|(?P<open>")|(?P<up>[\[{{])|(?P<down>[\]}}])'
PYTHON = (
    r"'''(?:[^\\]|\\.)*?'''|" r'"""(?:[^\\]|\\.)*?"""|'
    rf"""'(?!'')[^'\\]*(?:\\.[^'\\]*)*'|(?!\"\"\"){STRING}|(?P<open>'''|\"\"\"|['"])|"""
    r"(?P<up>[\[{(])|(?P<down>[\]})])"
)  # fmt: skip
GEMMA = (
    rf'<\|"\|>(?P<new>.*?)<\|"\|>|<escape>(?P<old>.*?)<escape>|{STRING}|(?P<open><\|"\|>|<escape>|")|'
    r"(?P<up>[\[{])|(?P<down>[\]}])"
)


@dataclass(frozen=True)
class Scan:
    """A value as far as it is there.

    `end` is where it is over, `mark` the place of a closing mark that comes before that, and `missing` the brackets
    that would close it, None within a string; `open` are the places of those that it would close.
    """

    end: int | None = None
    mark: int | None = None
    missing: str | None = None
    open: Sequence[int] = ()


def scan(text: str, start: int, syntax: str, close: Sequence[str] = ()) -> Scan:
    """Look at the value in brackets that begins at `start`, in a text where these marks may close it."""
    closers, opened = list[str](), list[int]()
    for token in tokens(syntax, tuple(close)).finditer(text, start):
        kind = token.lastgroup
        if kind == "up":
            closers.append(CLOSERS[token[0]])
            opened.append(token.start())
        elif kind == "down":
            del closers[-1:], opened[-1:]
            if not closers:
                return Scan(end=token.end())
        elif kind == "mark":
            return Scan(mark=token.start(), missing="".join(reversed(closers)))
        elif kind == "open":
            return Scan(open=opened)
    return Scan(missing="".join(reversed(closers)), open=opened)


class Brackets:
    """Brackets of JSON that comes in pieces: `scan` of all that there is, again and again, takes the square of that."""

    def __init__(self) -> None:
        self._depth, self._string, self._rest = 0, False, ""

    def may_end(self, text: str) -> bool:
        """Whether the value may end within this next piece, or a closing mark does, or no bracket is open behind it."""
        text, place, ends = self._rest + text, 0, False
        while (token := (WITHIN if self._string else OUTSIDE).search(text, place)) is not None:
            place = token.end()
            if token[0] == '"':
                self._string = not self._string
            elif not self._string:
                self._depth += STEPS.get(token[0], 0)
                ends |= self._depth <= 0 or token[0] in MARKS_END
        self._rest = "\\" if self._string and text.endswith("\\", place) else ""
        return ends or self._depth <= 0


@cache
def tokens(syntax: str, close: tuple[str, ...] = ()) -> re.Pattern[str]:
    """The strings, brackets and marks of a syntax."""
    marks = "|".join(map(re.escape, close)) or "(?!)"
    return re.compile(f"(?P<mark>{marks})|{syntax}", re.DOTALL)


def begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest beginning of a mark, less than all of it, that a text ends with."""
    longest = 0
    for mark in marks:
        tail = text[1 - len(mark) :] if len(mark) > 1 else ""
        place = tail.find(mark[0])
        while place >= 0 and not mark.startswith(tail[place:]):
            place = tail.find(mark[0], place + 1)
        longest = max(longest, len(tail) - place if place >= 0 else 0)
    return longest


def begins(text: str, marks: Sequence[str]) -> bool:
    """True where a text is the beginning of a mark, less than all of it."""
    return any(len(mark) > len(text) and mark.startswith(text) for mark in marks)
