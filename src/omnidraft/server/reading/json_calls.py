"""Calls in JSON: an object with a name and arguments, or a list of such.

What is found in the beginning of a text, decided, is found in any longer text that begins so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from omnidraft.server.reading import scanning
from omnidraft.server.reading.events import Call
from omnidraft.server.reading.scanning import JSON, begins, begun, scan

NAMES, ARGUMENTS = ("name", "function", "tool"), ("arguments", "parameters", "args", "input")
BESIDE = (*NAMES, "id", "type")  # keys of a call without arguments
SCHEMA = {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "description",
    "title",
    "$schema",
    "$defs",
    "strict",
}
KEY = re.compile(r'\s*+(?:,\s*+)?"((?:[^"\\]|\\.)*)"\s*:\s*', re.DOTALL)
NO_MEMBER = re.compile(rf'\s*+(?:,\s*+)?+(?:[^\s"}}]|{scanning.STRING}\s*+[^\s:])', re.DOTALL)
# what may be the beginning of a value in brackets, by what stands next to each other
BEGUN = re.compile(
    rf"""(?:{scanning.STRING}(?=\s*+(?:[:,\]}}]|\Z))|\{{(?=\s*+(?:[",}}]|\Z))|\[(?=\s*+(?:[-"\dtfn{{\[\],]|\Z))"""
    r"""|[\]}](?=\s*+(?:[,\]}]|\Z))|[^"{}\[\]<`])*+(?:"(?:[^"\\]|\\.)*+\\?)?\Z""",
    re.DOTALL,
)
CLOSED = re.compile(r"\s*+(?:,\s*+)?\}")
STRING = re.compile(scanning.STRING, re.DOTALL)
OPEN_STRING = re.compile(f"{scanning.STRING}?", re.DOTALL)  # which may go on
LITERAL = re.compile(r"[^\s,\]}]+(?=[\s,\]}])")
ATOM = re.compile(rf'{OPEN_STRING.pattern}|([^\s"{{}}\[\],:]+)', re.DOTALL)
BETWEEN = re.compile(r"[\s,;]*")
TAGS = ("<tool_call>", "</tool_call>")
STRAY = re.compile(r"(?:</?tool_call>|[ \n\t\r,;])*")  # between calls and behind them
SPACE = re.compile(r"\s*")
AHEAD, JUNK = 150, 500  # characters of a value that are read before its end is looked for; of one that is no JSON
NOWHERE = -1  # the end of a value that has none
CONTROL = re.compile(r"[\x00-\x1f]")
LAST_COMMA = re.compile(rf"(?P<string>{scanning.STRING})|,(?=\s*[}}\]])", re.DOTALL)
IN_STRING = re.compile(r"\\.|[\x00-\x1f]", re.DOTALL)


@dataclass
class Found:
    """Calls in the beginning of a text: whole, up to `end`; none, where it is `wrong`.

    Else more text decides, and the calls are those that have begun.
    """

    calls: list[Call]
    end: int | None = None
    wrong: bool = False

    def behind(self, start: int) -> Found:
        """The same in a text with this many characters before it."""
        return self if self.end is None else replace(self, end=self.end + start)


NONE, MORE = Found([], wrong=True), Found([])


def read_json(text: str, names: Collection[str], close: Sequence[str] = (), *, over: bool = False) -> Found:
    """The calls of functions with these names that a JSON value stands for, in a text that these marks may close."""
    return mending(lambda given: checked(read_value(given, names)), text, JSON, close, over=over)


def read_arguments(name: str, text: str, close: Sequence[str] = (), *, over: bool = False) -> Found:
    """The call of a function whose arguments are the JSON object that a text begins with."""

    def read(given: str) -> Found:
        end = value_end(given, 0)
        if end == NOWHERE:
            return NONE
        return checked(Found([Call(name, given[:end], cut=end is None)], end))

    return mending(read, text, JSON, close, over=over)


def mending(read: Callable[[str], Found], text: str, syntax: str, close: Sequence[str], *, over: bool) -> Found:
    """What is read in a text whose last brackets may be missing: before a closing mark, or where the text is `over`."""
    marks = [text.find(mark) for mark in close if mark in text]
    sure = min(marks) if marks else len(text) if over else len(text) - begun(text, close)
    found = read(text[:sure])
    if found.wrong:  # whatever follows: the brackets of the rest, which may be long, are not looked at
        return NONE
    state = scan(text, 0, syntax, close)
    if found.end is None and sure < len(text):
        found = read(text)
    if found.end is not None and state.mark is None:  # a mark comes first, also where brackets behind it would close
        return found
    place = len(text) if state.mark is None and over and state.missing else state.mark
    if place is not None:
        found = read(text[:place] + (state.missing or ""))
        return NONE if found.end is None else replace(found, end=place)
    return MORE if found.wrong and not over and begun(text, close) else found


def checked(found: Found) -> Found:
    """The same with arguments as JSON has them; what is whole is wrong where they are no object in JSON."""
    if found.end is None:
        return found
    calls = [replace(call, arguments=_object_of(mended(call.arguments))) for call in found.calls]
    return replace(found, calls=calls) if all(call.arguments for call in calls) else NONE


def _object_of(text: str) -> str:
    """An object in JSON, without commas behind last values; empty for anything else."""
    if not isinstance(loaded(text), dict):
        text = LAST_COMMA.sub(lambda match: match["string"] or "", text)
    return text if isinstance(loaded(text), dict) else ""


def cut_calls(found: Found) -> list[Call]:
    """The calls that have begun where the answer is cut; none where their arguments are not JSON so far."""
    calls = [replace(call, arguments=mended(call.arguments)) for call in found.calls]
    fine = all(not call.arguments or isinstance(loaded(call.arguments, begun=call.cut), dict) for call in calls)
    return calls if fine and not found.wrong else []


def calls_in(text: str, names: Collection[str], *, cut: bool = False) -> list[Call] | None:
    """The calls that a whole text is, in JSON and nothing else, the last one maybe `cut`; None for anything else.

    Marks between and behind them say nothing more: the first may have lost its opening one.
    """
    calls: list[Call] = []
    text, place = text.strip(), 0
    while place < len(text):
        found = checked(read_value(text, names, place))
        if found.end is None:
            last = cut_calls(found) if cut else []
            return calls + last if last and last[-1].cut else None
        calls += found.calls
        place = _end_of(STRAY, text, found.end)
        if cut and _ends_in_tag(text, place):
            break
    return calls or None


def whole_calls(text: str, names: Collection[str], start: int = 0) -> tuple[int, bool]:
    """How far a text is whole calls in JSON from `start` on, and whether a longer one may be these and nothing else."""
    place = _end_of(STRAY, text, start)
    while place < len(text) and not _ends_in_tag(text, place):
        found = checked(read_value(text, names, place))
        if found.end is None:
            return place, not found.wrong
        place = _end_of(STRAY, text, found.end)
    return place, True


def _end_of(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where a pattern ends that matches everywhere."""
    found = pattern.match(text, start)
    return found.end() if found else start


def _ends_in_tag(text: str, start: int) -> bool:
    """True where nothing but the beginning of a tag is left of a text."""
    return len(text) - start < len(TAGS[1]) and begins(text[start:], TAGS)


def read_value(text: str, names: Collection[str], start: int = 0) -> Found:
    """The calls that the JSON value at this place of a text stands for, with their arguments as they are written."""
    place = _end_of(SPACE, text, start)
    if text[place : place + 1] != "[":
        return _object(text, place, names)
    calls: list[Call] = []
    place += 1
    while True:
        begin = _end_of(BETWEEN, text, place)
        if text[begin : begin + 1] == "]":
            return Found(calls, begin + 1) if calls else NONE
        found = _object(text, begin, names)
        calls += found.calls
        if found.end is None:
            return replace(found, calls=calls)
        place = found.end


@dataclass
class _Object:
    """An object as far as it is there: the values of its keys, whether the last is whole, and where the object ends."""

    values: dict[str, str]
    whole: bool = True
    end: int | None = None
    wrong: bool = False

    def of(self, keys: Collection[str]) -> tuple[str, bool] | None:
        """The value of the first of these keys in the text, and whether it is whole."""
        key = next((key for key in self.values if key in keys), None)
        return None if key is None else (self.values[key], self.whole or key != [*self.values][-1])


def _members(text: str, at: int) -> _Object:
    found = _Object({})
    place = at + 1
    while (key := KEY.match(text, place)) is not None:
        end = value_end(text, key.end())
        if end == NOWHERE:
            found.wrong = True
            return found
        found.values.setdefault(key[1], text[key.end() : end])
        if end is None:
            found.whole = False
            return found
        place = end
    closed = CLOSED.match(text, place)
    found.end = closed.end() if closed else None
    found.wrong = closed is None and NO_MEMBER.match(text, place) is not None
    return found


def value_end(text: str, start: int) -> int | None:
    """Where the JSON value that begins at `start` ends; None where it goes on, NOWHERE where it does so to no end.

    Many values that never end, each looked through to the end of the text, would take the square of it.
    """
    first = text[start : start + 1]
    if first in ("{", "["):
        ahead = text[start : start + AHEAD]
        end = scan(ahead, 0, JSON).end
        if end is not None:
            return start + end
        if BEGUN.match(ahead):
            return scan(text, start, JSON).end if len(text) > start + AHEAD else None
        end = scan(text[start : start + JUNK], 0, JSON).end
        return start + end if end is not None else NOWHERE if len(text) >= start + JUNK else None
    if first != '"':
        literal = LITERAL.match(text, start)
        return literal.end() if literal else None
    string = STRING.match(text, start)
    return string.end() if string else None


def _object(text: str, at: int, names: Collection[str], *, within: bool = False) -> Found:
    """The call that the object at this place, maybe within another, stands for."""
    if text[at : at + 1] != "{":
        return NONE if at < len(text) else MORE
    found = _members(text, at)
    called, given = found.of(NAMES), found.of(ARGUMENTS)
    if called is not None and called[0][:1] == "{" and not within:  # as OpenAI writes calls
        inner = _object(called[0], 0, names, within=True)
        calls = [replace(call, cut=found.end is None) for call in inner.calls]
        wrong = found.wrong or inner.wrong or (found.end is not None and inner.end is None)
        return NONE if wrong else Found(calls, found.end)
    name = loaded(called[0]) if called is not None and called[1] else None
    unknown = called is not None and called[1] and not (isinstance(name, str) and name in names)
    lost = given is None and not found.values.keys() <= {*BESIDE}  # arguments that stand elsewhere
    told_of = given is not None and given[1] and _is_schema(loaded(given[0]))  # a function repeated, and no call
    if found.wrong or unknown or told_of or (found.end is not None and (name is None or lost)):
        return NONE
    arguments = _arguments(*given) if given is not None else "{}" if found.end is not None else ""
    if arguments is None:
        return NONE
    return Found([Call(name, arguments, cut=found.end is None)] if name and arguments else [], found.end)


def _is_schema(value: Any) -> bool:
    """True of what says which arguments a function has."""
    return isinstance(value, dict) and value.get("type") == "object" and value.keys() <= SCHEMA


def _arguments(value: str, whole: bool) -> str | None:
    """The arguments that a value stands for, empty where that is not known; None for what stands for none."""
    if value[:1] == "{":
        return value
    if not whole:
        return ""
    if value == "null":
        return "{}"
    text = loaded(mended(value)) if value[:1] == '"' else None  # JSON in a string
    if not isinstance(text, str):
        return None
    return text.strip() or "{}"


def mended(text: str) -> str:
    """JSON, or its beginning, with the control characters in its strings escaped."""
    if not CONTROL.search(text):
        return text
    return OPEN_STRING.sub(lambda string: IN_STRING.sub(_escaped, string[0]), text)


def _escaped(match: re.Match[str]) -> str:
    return match[0] if match[0][0] == "\\" else json.dumps(match[0])[1:-1]


def loaded(text: str, *, begun: bool = False) -> Any:
    """A JSON value, or that of a beginning; None for none, and for what not every client can hold, such as 1e400."""
    try:
        value = from_json(text, allow_inf_nan=False, allow_partial=begun)
        json.dumps(value, allow_nan=False)  # which 1e400 cannot be
    except ValueError:
        return None
    return value


def quoted(text: str, *, whole: bool) -> str:
    """JSON, or its certain beginning, with literals that not every client can hold, such as 1e400, as strings."""

    def told(match: re.Match[str]) -> str:
        literal = match[1]
        if not literal or literal == "null":
            return match[0]
        if match.end() == len(text) and not whole:
            return ""
        return literal if loaded(literal) is not None else json.dumps(literal)

    return ATOM.sub(told, text)
