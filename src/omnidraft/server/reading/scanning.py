"""Brackets, strings and marks in a text that may go on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CLOSERS = {"{": "}", "[": "]", "(": ")"}
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
    that would close it, None within a string.
    """

    end: int | None = None
    mark: int | None = None
    missing: str | None = None


def scan(text: str, start: int, syntax: str, close: Sequence[str] = ()) -> Scan:
    """Look at the value in brackets that begins at `start`, in a text where these marks may close it."""
    closers: list[str] = []
    for token in tokens(syntax, tuple(close)).finditer(text, start):
        kind = token.lastgroup
        if kind == "up":
            closers.append(CLOSERS[token[0]])
        elif kind == "down":
            del closers[-1:]
            if not closers:
                return Scan(end=token.end())
        elif kind == "mark":
            return Scan(mark=token.start(), missing="".join(reversed(closers)))
        elif kind == "open":
            return Scan()
    return Scan(missing="".join(reversed(closers)))


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
