"""Brackets, strings and marks in a text that may go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CLOSERS = {"{": "}", "[": "]", "(": ")"}
STEPS = {"up": 1, "down": -1}
TAIL = 32  # characters; no mark has more
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


def outside(text: str, syntax: str) -> str:
    """The beginning of a text without its strings, up to one that goes on."""
    rest, place = "", 0
    for token in tokens(syntax).finditer(text):
        if token.lastgroup not in STEPS:
            rest += text[place : token.start()]
            place = token.end()
            if token.lastgroup == "open":
                return rest
    return rest + text[place:]


class Brackets:
    """Brackets of a value that grows: `scan` of all that there is, again and again, takes the square of that."""

    def __init__(self, syntax: str, close: Sequence[str] = ()) -> None:
        self._tokens = tokens(syntax, tuple(close))
        self._string: re.Pattern[str] | None = None  # the end of the one that is open
        self._place, self._depth, self._seen = 0, 0, 0

    def may_end(self, text: str) -> bool:
        """Whether the value ends in what is new of this text, or a mark does, or no bracket is open behind it."""
        place, depth, string, ends = self._place, self._depth, self._string, False
        sure = len(text) - TAIL  # what begins behind it may be part of something longer
        while (token := (string or self._tokens).search(text, place)) is not None:
            place = token.end()
            if string is not None:
                string = string if token[0][0] == "\\" else None
            elif token.lastgroup == "open":
                string = _end_of_string(token[0])
            else:
                depth += STEPS.get(str(token.lastgroup), 0)
                ends |= place > self._seen and (token.lastgroup == "mark" or depth <= 0)
            if place <= sure:
                self._place, self._depth, self._string = place, depth, string
        if place < sure:
            self._place = sure
        self._seen = len(text)
        return ends or depth <= 0


@cache
def _end_of_string(mark: str) -> re.Pattern[str]:
    """What ends a string that this mark opens, or must not: a character behind a backslash, but for Gemma's marks."""
    return re.compile(re.escape(mark) if mark[0] == "<" else rf"\\.|{mark}", re.DOTALL)


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
