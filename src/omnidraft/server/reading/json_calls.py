"""Calls in JSON, read while they come: an object with a name and arguments, a list of such, or several in a row."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from omnidraft.server.reading.pieces import Call

NAMES, ARGUMENTS = ("name", "function", "tool"), ("arguments", "parameters", "args")
INNER = "function"  # whose value may be the object itself, as OpenAI writes calls
KEY = re.compile(r'\s*,?\s*"((?:[^"\\]|\\.)*)"\s*:\s*', re.DOTALL)
CLOSED = re.compile(r"\s*,?\s*\}")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
MARKS = re.compile(r'"(?:[^"\\]|\\.)*"|"|[\[{]|[\]}]', re.DOTALL)
LITERAL = re.compile(r"[^\s,\]}]+(?=[\s,\]}])")
BETWEEN = re.compile(r"[\s,;]*")


@dataclass
class Found:
    """The calls in the beginning of a text: `end` is where they are over, if that is known.

    `wrong`: what follows the calls found is none.
    """

    calls: list[Call]
    end: int | None = None
    wrong: bool = False


def value_end(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends; None where it goes on."""
    first = text[start : start + 1]
    if first == '"':
        found = STRING.match(text, start)
        return found.end() if found else None
    if first not in ("{", "["):
        found = LITERAL.match(text, start) if first else None
        return found.end() if found else None
    depth = 0
    for mark in MARKS.finditer(text, start):
        if mark[0] == '"':  # of a string that goes on
            return None
        depth += (mark[0] in ("{", "[")) - (mark[0] in ("}", "]"))
        if depth == 0:
            return mark.end()
    return None


def read_json(text: str, start: int, names: Collection[str]) -> Found:
    """The calls of functions with these names that a text holds from `start` on, in JSON."""
    place = start + len(text[start:]) - len(text[start:].lstrip())
    listed = text[place : place + 1] == "["
    place += listed
    calls: list[Call] = []
    end = None
    while True:
        gap = BETWEEN.match(text, place)
        begin = gap.end() if gap else place
        if listed and text[begin : begin + 1] == "]":
            return Found(calls, begin + 1, wrong=not calls)
        if text[begin : begin + 1] != "{":
            if begin == len(text):
                return Found(calls, None)
            return Found(calls, end, wrong=listed or not calls)
        call, end, wrong = _object(text, begin, names)
        if wrong:
            return Found(calls, begin if calls else None, wrong=True)
        if call is not None:
            calls.append(call)
        if end is None:
            return Found(calls, None)
        place = end


@dataclass
class _Object:
    """An object as far as it is there: the values of its keys, whether the last is whole, and where the object ends."""

    values: dict[str, str]
    whole: bool = True
    end: int | None = None
    wrong: bool = False

    def of(self, *keys: str) -> tuple[str, bool] | None:
        """The value of the first of these keys that is there, and whether it is whole."""
        key = next((key for key in keys if self.values.get(key)), None)
        return None if key is None else (self.values[key], self.whole or key != [*self.values][-1])


def _members(text: str, at: int) -> _Object:
    found = _Object({})
    place = at + 1
    while (key := KEY.match(text, place)) is not None:
        end = value_end(text, key.end())
        found.values.setdefault(key[1], text[key.end() : end])
        if end is None:
            found.whole = False
            return found
        place = end
    closed, rest = CLOSED.match(text, place), text[place:].lstrip()
    found.end = closed.end() if closed else None
    found.wrong = closed is None and bool(rest) and rest[0] not in '",'
    return found


def _object(text: str, at: int, names: Collection[str]) -> tuple[Call | None, int | None, bool]:
    """The call that an object stands for, as far as it is known, where the object ends, and whether it is none."""
    found = _members(text, at)
    if found.values.get(INNER, "")[:1] == "{":
        call, _, wrong = _object(found.values[INNER], 0, names)
        return call, found.end, wrong
    known = found.of(*NAMES)
    name = loaded(known[0]) if known is not None and known[1] else None
    given = found.of(*ARGUMENTS)
    arguments, whole = ("{}", found.end is not None) if given is None else _arguments(*given)
    unknown = name is not None and not (isinstance(name, str) and name in names)
    refused = unknown or (given is not None and whole and arguments is None)
    if found.wrong or refused or (found.end is not None and name is None):
        return None, None, True
    if name is None or arguments is None or (given is None and not whole):
        return None, None, False
    return Call(name, arguments, cut=found.end is None), found.end, False


def _arguments(value: str, whole: bool) -> tuple[str | None, bool]:
    """The arguments that a value stands for, and whether they are whole; None for what stands for none."""
    if value[0] == "{":
        return value, whole
    if not whole:
        return None, False
    if value == "null":
        return "{}", True
    text = loaded(value) if value[0] == '"' else None  # JSON in a string
    if not isinstance(text, str):
        return None, True
    return (text.strip() or "{}") if not text.strip() or isinstance(loaded(text), dict) else None, True


def loaded(text: str) -> Any:
    """A JSON value; None where it is none."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(text: str) -> float:
    """The number that a text stands for; raises ValueError for one that JSON cannot hold, such as NaN and 1e400."""
    if not math.isfinite(number := float(text)):
        raise ValueError(text)
    return number


def calls_in(text: str, names: Collection[str]) -> list[Call] | None:
    """The calls that a whole text is, in JSON and nothing else; None where it is anything else."""
    found = read_json(text, 0, names)
    if found.wrong or not found.calls or (found.end is not None and text[found.end :].strip(" \n\t\r,;")):
        return None
    whole = all(not call.cut and isinstance(loaded(call.arguments), dict) for call in found.calls)
    return found.calls if whole else None
