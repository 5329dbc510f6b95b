"""Calls as models write them between marks of their own.

Marks are listed by model in `marks.py`; a new style is only for text of another kind.  Each is given the text behind
the opening mark, as far as it is there, the marks that may close it, and whether the text is `over`.  It finds one
call, or one list of them.  What it has decided holds for any longer text that begins so.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from omnidraft.server.reading.events import Call, Functions
from omnidraft.server.reading.json_calls import (
    AHEAD,
    ARGUMENTS,
    MORE,
    NONE,
    NOWHERE,
    STRAY,
    TAGS,
    Found,
    calls_in,
    checked,
    loaded,
    mending,
    read_arguments,
    read_json,
    whole_calls,
)
from omnidraft.server.reading.scanning import GEMMA, PYTHON, begun, outside, scan, tokens

NAME = r"[\w.-]{1,260}"  # as long as bodies may have them, and namespaces before them
FUNCTION_MARK = "<function="
END_MARK = "</tool_call>"
LINE_MARK = '\n{"name"'
WITH_ARGUMENTS = re.compile(rf'"(?:{"|".join(ARGUMENTS)})"\s*:')
HEADER = re.compile(
    rf"\s*+(?:function<｜tool▁sep｜>|functions\.)?({NAME}?)(?::\d+)?\s*+"
    r"(?:(?:<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|\[CALL_ID\]\w+(?:\[ARGS\])?|\[ARGS\])\s*+)?"
    r"(?:```json\s*+)?(?=\{)"  # no space is tried twice: two of \s* in a row take the square of a long one
)
BEFORE_NAME = ("functions.", "function<｜tool▁sep｜>")
WORD = re.compile(rf"\s*(?:functions\.|function<｜tool▁sep｜>)?({NAME})?")
HEADER_LENGTH = 100  # characters between a name and its arguments are fewer
FENCE = "```"
LAST_LINE = re.compile(r"```[ \r]*$", re.MULTILINE)  # of a code fence
TOO_MANY = re.compile(r"^(?:\s*[}\]])+")  # brackets behind a call
PYTHON_CALL = re.compile(rf"\[\s*({NAME})\(")
PYTHON_BEGUN = re.compile(rf"\[\s*(?:{NAME})?")
GEMMA_CALL = re.compile(rf"\s*call:({NAME})(?=\{{)")
GEMMA_BEGUN = re.compile(rf"\s*(?:c|ca|cal|call|call:(?:{NAME})?)?")
BARE_KEY = re.compile(r"(^|[{,]\s*)([A-Za-z_][\w-]*)\s*:")
STRING_MARKS = ('<|"|>', "<escape>")  # Gemma's
LITERALS = {"True": True, "False": False, "None": None}  # as Python writes them
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class Style(Protocol):
    """A way to write calls."""

    def __call__(self, text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
        """What a text is, of which more comes unless it is over."""


@dataclass(frozen=True)
class Marked:
    """Calls whose arguments are texts between marks: a name, pairs of a key and a text, and an end."""

    head: re.Pattern[str]
    pair: re.Pattern[str]  # with a group `last` where space ends its text
    end: re.Pattern[str]
    begun: re.Pattern[str]  # what may become a pair
    marks: tuple[str, ...]  # one of which may begin behind that

    def __call__(self, text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:  # noqa: ARG002
        head = self.head.match(text)
        if head is None or head[1] not in functions:
            more = XML_BEGUN.match(text) or FUNCTION_MARK.startswith(text.strip()) or _may_be_named(text, functions)
            return MORE if head is None and more else NONE
        values, place = [], head.end()
        while (each := self.pair.match(text, place)) is not None:
            values.append((each[1].strip(), each[2] if each["last"] is None else each[2].rstrip()))
            place = each.end()
        closed, rest = self.end.match(text, place), text[place:].lstrip()
        if closed is not None or (over and not rest):
            end = len(text) if closed is None else closed.end()
            return checked(Found([_call(head[1], values, functions, whole=True)], end))
        last = self.begun.match(rest)
        tail = rest[last.end() :] if last else rest
        more = any(mark.startswith(tail) for mark in self.marks)
        return Found([_call(head[1], values, functions, whole=False)]) if more else NONE


XML_BEGUN = re.compile(rf"\s*{FUNCTION_MARK}(?:{NAME})?\Z")
XML = Marked(
    re.compile(rf"\s*<function=({NAME})>"),
    re.compile(
        rf"\s*<parameter=({NAME})>\n?([^<\n]*+(?:(?!\n?</parameter>|</function>\s*{END_MARK})[<\n][^<\n]*+)*+)"
        rf"(?:\n?</parameter>|(?P<last>(?=</function>\s*{END_MARK})))"  # the function's end ends the last text, too
    ),
    re.compile(rf"\s*(?:</function>|(?={END_MARK}))"),
    re.compile(rf"<parameter=(?:{NAME}(?:>.*)?)?", re.DOTALL),
    ("<parameter=", "</function>", END_MARK),
)
PAIRS = Marked(
    re.compile(rf"\s*({NAME})\s{{0,50}}(?=<arg_key>|{END_MARK})"),
    re.compile(
        r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>([^<]*+(?:(?!</arg_value>)<[^<]*+)*+)</arg_value>(?P<last>(?!))?"
    ),
    re.compile(rf"\s*(?={END_MARK})"),
    re.compile(r"<arg_key>[^<]*(?:</arg_key>\s*(?:<arg_value>.*)?)?", re.DOTALL),
    ("<arg_key>", "</arg_key>", "<arg_value>", END_MARK),
)


def tagged(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
    """JSON, XML or pairs: what is between `<tool_call>` and its end."""
    bare = text.lstrip()
    if bare[:1] in ("{", "["):
        return read_json(text, functions, close, over=over)
    return (XML if bare.startswith(FUNCTION_MARK) or FUNCTION_MARK.startswith(bare) else PAIRS)(
        text, functions, close, over=over
    )


def fenced(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
    """All calls of a code fence that holds nothing else, the first behind a `<tool_call>`, up to its closing mark."""
    calls: list[Call] = []
    rest = text
    while True:
        found = tagged(rest, functions, (*close, FENCE), over=over)
        calls += found.calls
        if found.end is None:
            return NONE if found.wrong else Found(calls)
        rest = STRAY.sub("", TOO_MANY.sub("", rest[found.end :]), count=1)
        if not over and any(mark.startswith(rest.rstrip(" ")) for mark in (FENCE, *TAGS, FUNCTION_MARK)):
            return Found(calls)
        if not rest or LAST_LINE.match(rest):
            return Found(calls, len(text) - len(rest.removeprefix(FENCE)))
        if not rest.startswith(("{", "[", FUNCTION_MARK)):
            return NONE


def function_in_xml(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
    """A function in XML, behind a `<function=` that stands alone."""
    return XML(f"{FUNCTION_MARK}{text}", functions, close, over=over).behind(-len(FUNCTION_MARK))


def last_lines(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:  # noqa: ARG001
    """Calls in JSON, with arguments, that end an answer of other text, behind a `{"name"` that begins a line."""
    lines = LINE_MARK.lstrip() + text
    if not over:
        return MORE if whole_calls(lines, functions)[1] else NONE
    calls = calls_in(lines, functions) if WITH_ARGUMENTS.search(lines) else None
    return Found(calls, len(text)) if calls else NONE


def named(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
    """A name, a mark, and arguments in JSON; several follow each other by the opening mark."""
    if text.lstrip()[:1] in ("[", "{"):
        return read_json(text, functions, close, over=over)
    head = HEADER.match(text)
    if head is None:
        return MORE if _may_be_named(text, functions) else NONE
    start = head.end()
    if head[1] not in functions or start - head.end(1) >= HEADER_LENGTH:
        return NONE
    fenced = FENCE in head[0]
    found = read_arguments(head[1], text[start:], (*close, FENCE) if fenced else close, over=over).behind(start)
    if found.end is None or not fenced:
        return found
    rest = TOO_MANY.sub("", text[found.end :]).lstrip()
    if not over and FENCE.startswith(rest):
        return Found(found.calls)
    return Found(found.calls, len(text) - len(rest.removeprefix(FENCE)))


def _may_be_named(text: str, functions: Functions) -> bool:
    """True where a text may be the beginning of a function's name, with little after it."""
    bare = text.lstrip()
    if any(mark.startswith(bare) for mark in BEFORE_NAME):
        return True
    word = WORD.match(text)
    name, rest = (word[1] or "", text[word.end() :]) if word else ("", text)
    if not rest:
        return any(each.startswith(name) for each in functions)
    return name in functions and len(rest) < HEADER_LENGTH


def python(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
    """A list of Python calls, whose arguments are literals."""
    bare = text.lstrip()
    if bare[:1] != "[":
        return read_json(text, functions, close, over=over) if bare[:1] == "{" else NONE if bare else MORE
    begin = PYTHON_CALL.match(bare)
    if begin is None:
        return MORE if PYTHON_BEGUN.fullmatch(bare) else read_json(text, functions, close, over=over)
    if begin[1] not in functions:
        return NONE
    found = mending(partial(_python_calls, functions), bare, PYTHON, close, over=over)
    return found.behind(len(text) - len(bare))


def _python_calls(functions: Functions, text: str) -> Found:
    end = _value_end(text, PYTHON)
    if end is None or end == NOWHERE:
        return MORE if end is None else NONE
    try:
        tree = ast.parse(text[:end], mode="eval").body
        calls = [_python_call(each, functions) for each in getattr(tree, "elts", ())]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return NONE
    return checked(Found(calls, end)) if calls else NONE


def _python_call(node: ast.expr, functions: Functions) -> Call:
    """A call of Python; raises ValueError or TypeError for anything else."""
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("no call with named arguments")
    name = ast.unparse(node.func)
    if name not in functions or not all(each.arg for each in node.keywords):
        raise ValueError("no function of this name, or arguments without one")
    values = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
    return Call(name, json.dumps(values, ensure_ascii=False))


def gemma(text: str, functions: Functions, close: Sequence[str], *, over: bool = False) -> Found:
    """`call:name{...}`: JSON with keys as they are, and quotes of its own."""
    head = GEMMA_CALL.match(text)
    if head is None:
        return MORE if GEMMA_BEGUN.fullmatch(text) else NONE
    if head[1] not in functions:
        return NONE
    found = mending(partial(_gemma_call, head[1]), text[head.end() :], GEMMA, close, over=over)
    return found.behind(head.end())


def _gemma_call(name: str, text: str) -> Found:
    end = _value_end(text, GEMMA)
    if end is None or end == NOWHERE:
        return MORE if end is None else NONE
    json_text, place = "", 0
    for token in tokens(GEMMA).finditer(text, 0, end):
        string = token["new"] if token["old"] is None else token["old"]
        json_text += BARE_KEY.sub(r'\1"\2":', text[place : token.start()])
        json_text += token[0] if string is None else json.dumps(string, ensure_ascii=False)
        place = token.end()
    return checked(Found([Call(name, json_text)], end))


def _value_end(text: str, syntax: str) -> int | None:
    """Where a value in brackets ends, as `value_end` says it: NOWHERE where it begins with what stands in no value."""
    ahead = text[:AHEAD]
    if (end := scan(ahead, 0, syntax).end) is None:
        bare = outside(ahead, syntax)
        bare = bare[: len(bare) - begun(bare, STRING_MARKS)]
        if ("<" in bare or "`" in bare) and "#" not in bare:  # a comment of Python's
            return NOWHERE
        end = scan(text, 0, syntax).end
    return end


# ---------------------------------------------------------------- arguments that are written as text


def _call(name: str, values: list[tuple[str, str]], functions: Functions, *, whole: bool) -> Call:
    """A call with these arguments so far, each of the type that its schema says."""
    known = functions[name].get("properties")
    members = [
        f"{json.dumps(key, ensure_ascii=False)}: "
        f"{json.dumps(valued(text, known.get(key) if isinstance(known, Mapping) else None), ensure_ascii=False)}"
        for key, text in values
    ]
    return Call(name, "{" + ", ".join(members) + ("}" if whole else ""), cut=not whole)


def valued(text: str, schema: Any) -> Any:
    """The value that a text stands for: of the types that a schema allows, where it names some."""
    kinds, bare = _kinds(schema), text.strip()
    if bare in LITERALS and "string" not in kinds:
        return LITERALS[bare]
    value = loaded(bare)
    if value is None:
        return None if bare == "null" and kinds != {"string"} else text
    kind = TYPES[type(value)]
    if kind != "string" and (not kinds or kind in kinds or (kind == "integer" and "number" in kinds)):
        return value
    return int(value) if kind == "number" and "integer" in kinds and value.is_integer() else text


def _kinds(schema: Any) -> set[str]:
    """The types that a schema names, those of its choices included."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else {each for each in kind or () if isinstance(each, str)}
    for key in ("anyOf", "oneOf"):
        for each in schema.get(key) or ():
            kinds |= _kinds(each)
    if isinstance(schema.get("enum"), list) and not kinds and all(isinstance(each, str) for each in schema["enum"]):
        kinds = {"string"}
    return kinds
