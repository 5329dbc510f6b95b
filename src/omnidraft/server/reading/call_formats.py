"""Calls as models write them between marks of their own, read while they come.

Marks are listed by model in `marks.py`; a new style is only for text of another kind.  Each is given the text behind
the opening mark, as far as it is there, and finds the same calls in any longer text that begins so: arguments only
grow.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from omnidraft.server.reading.json_calls import Found, loaded, read_json, value_end
from omnidraft.server.reading.pieces import Call, Functions

Style = Callable[[str, Functions], Found]
NAME = r"[\w.-]{1,64}"
FUNCTION_MARK = "<function="
HEADER = re.compile(
    rf"\s*(?:function<｜tool▁sep｜>|functions\.)?({NAME}?)(?::\d+)?\s*"
    r"(?:<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|\[CALL_ID\]\w+(?:\[ARGS\])?|\[ARGS\])?\s*(?:```json\s*)?(?=\{)"
)
BEFORE_NAME = ("functions.", "function<｜tool▁sep｜>")
WORD = re.compile(rf"\s*(?:functions\.|function<｜tool▁sep｜>)?({NAME})?")
HEADER_LENGTH = 100  # characters between a name and its arguments at most
GEMMA = re.compile(rf"\s*call:({NAME})(?=\{{)")
GEMMA_MARKS = re.compile(r'(<\|"\|>|<escape>)(.*?)\1|"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
BARE_KEY = re.compile(r"(^|[{,]\s*)([A-Za-z_][\w-]*)\s*:")
PYTHON = {"True": True, "False": False, "None": None}
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
QUOTES = ('<|"|>', "<escape>")


@dataclass(frozen=True)
class Marked:
    """Calls whose arguments are texts between marks: a name, pairs of a key and a text, and an end."""

    head: re.Pattern[str]
    pair: re.Pattern[str]
    end: re.Pattern[str]
    begins: Callable[[str, Functions], bool]  # whether more of a text may make it a call

    def __call__(self, text: str, functions: Functions) -> Found:
        calls: list[Call] = []
        place = 0
        while (head := self.head.match(text, place)) is not None:
            if head[1] not in functions:
                return Found(calls, place if calls else None, wrong=True)
            values, place = [], head.end()
            while (each := self.pair.match(text, place)) is not None:
                values.append((each[1].strip(), each[2]))
                place = each.end()
            closed = self.end.match(text, place)
            calls.append(_call(head[1], values, functions, whole=closed is not None))
            if closed is None:
                return Found(calls, None)
            place = closed.end()
        if self.begins(text[place:].lstrip(), functions):
            return Found(calls, None)
        return Found(calls, place if calls else None, wrong=not calls)


def tagged(text: str, functions: Functions) -> Found:
    """JSON, XML or pairs: what is between `<tool_call>` and its end."""
    begun = text.lstrip()
    if begun[:1] in ("{", "["):
        return read_json(text, 0, functions)
    return (XML if begun.startswith(FUNCTION_MARK) or FUNCTION_MARK.startswith(begun) else PAIRS)(text, functions)


def function_in_xml(text: str, functions: Functions) -> Found:
    """A function in XML, behind a `<function=` that stands alone."""
    found = XML(f"{FUNCTION_MARK}{text}", functions)
    end = None if found.end is None else max(0, found.end - len(FUNCTION_MARK))
    return Found(found.calls, end, found.wrong)


def named(text: str, functions: Functions) -> Found:
    """A name, a mark, and arguments in JSON; several follow each other by the opening mark."""
    if text.lstrip()[:1] in ("[", "{"):
        return read_json(text, 0, functions)
    head = HEADER.match(text)
    if head is None:
        return Found([], None, wrong=not _may_be_named(text, functions))
    if head[1] not in functions:
        return Found([], None, wrong=True)
    end = value_end(text, head.end())
    call = Call(head[1], text[head.end() : end], cut=end is None)
    if end is None or "```" not in text[: head.end()]:
        return Found([call], end)
    rest = text[end:].lstrip()
    if "```".startswith(rest):
        return Found([call], None)
    return Found([call], len(text) - len(rest.removeprefix("```")))


def _may_be_named(text: str, functions: Functions) -> bool:
    """True where a text may be the beginning of a function's name, with little after it."""
    begun = text.lstrip()
    if any(mark.startswith(begun) for mark in BEFORE_NAME):
        return True
    word = WORD.match(text)
    name, rest = (word[1] or "", text[word.end() :]) if word else ("", text)
    if not rest:
        return any(each.startswith(name) for each in functions)
    return name in functions and len(rest) < HEADER_LENGTH


XML = Marked(
    re.compile(rf"\s*<function=({NAME})>"),
    re.compile(rf"\s*<parameter=({NAME})>\n?(.*?)\n?</parameter>", re.DOTALL),
    re.compile(r"\s*</function>"),
    lambda text, _: FUNCTION_MARK.startswith(text) or re.fullmatch(rf"{FUNCTION_MARK}(?:{NAME})?", text) is not None,
)
PAIRS = Marked(
    re.compile(rf"\s*({NAME})\s*(?=<arg_key>|</tool_call>)"),
    re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    re.compile(r"\s*(?=</tool_call>)"),
    _may_be_named,
)


def python(text: str, functions: Functions) -> Found:
    """A list of Python calls, whose arguments are literals."""
    start = len(text) - len(text.lstrip())
    if (first := text[start : start + 1]) != "[":
        return read_json(text, 0, functions) if first == "{" else Found([], None, wrong=bool(first))
    if (begin := re.compile(rf"\[\s*({NAME})\(").match(text, start)) is None:
        broken = re.compile(rf"\[\s*(?:{NAME})?$").match(text, start) is None
        return read_json(text, 0, functions) if broken else Found([], None)
    end = _python_end(text, start)
    if end is None or begin[1] not in functions:
        return Found([], None, wrong=begin[1] not in functions)
    try:
        tree = ast.parse(text[start:end], mode="eval").body
        calls = [_python_call(each, functions) for each in getattr(tree, "elts", ())]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return Found([], None, wrong=True)
    return Found(calls, end, wrong=not calls)


def _python_end(text: str, start: int) -> int | None:
    """Where a list ends that begins at `start`; None where it goes on."""
    depth, quote, place = 0, "", start
    for mark in re.compile(r"""\\.|'''|\"\"\"|['"]|[\[({]|[\])}]""", re.DOTALL).finditer(text, start):
        place = mark.end()
        if quote:
            quote = "" if mark[0] == quote else quote
        elif mark[0][0] in "'\"":
            quote = mark[0]
        else:
            depth += (mark[0] in "[({") - (mark[0] in "])}")
            if depth == 0:
                return place
    return None


def _python_call(node: ast.expr, functions: Functions) -> Call:
    """A call of Python; raises ValueError for anything else."""
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("no call with named arguments")
    name = ast.unparse(node.func)
    if name not in functions:
        raise ValueError("no function of this name")
    found = {each.arg: ast.literal_eval(each.value) for each in node.keywords if each.arg}
    return Call(name, json.dumps(found, ensure_ascii=False))


def gemma(text: str, functions: Functions) -> Found:
    """`call:name{...}`: JSON with keys as they are, and quotes of its own."""
    head = GEMMA.match(text)
    if head is None:
        begun = text.lstrip()
        return Found([], None, wrong=re.fullmatch(rf"(?:c|ca|cal|call|call:(?:{NAME})?)?", begun) is None)
    if head[1] not in functions:
        return Found([], None, wrong=True)
    depth, end, made = 0, None, ""
    place = head.end()
    for mark in GEMMA_MARKS.finditer(text, place):
        made += BARE_KEY.sub(r'\1"\2":', text[place : mark.start()])
        place = mark.end()
        if mark[1]:
            made += json.dumps(mark[2], ensure_ascii=False)
            continue
        made += mark[0]
        depth += (mark[0] in ("{", "[")) - (mark[0] in ("}", "]"))
        if depth == 0:
            end = place
            break
    if end is None or any(text[head.end() : end].count(quote) % 2 for quote in QUOTES):
        return Found([], None)
    return Found([Call(head[1], made)], end) if loaded(made) is not None else Found([], None, wrong=True)


# ---------------------------------------------------------------- arguments that are written as text


def _call(name: str, values: list[tuple[str, str]], functions: Functions, *, whole: bool) -> Call:
    """A call with these arguments so far, each of the type that its schema says."""
    known = functions[name].get("properties")
    parts = [
        f"{json.dumps(key, ensure_ascii=False)}: "
        f"{json.dumps(valued(text, known.get(key) if isinstance(known, Mapping) else None), ensure_ascii=False)}"
        for key, text in values
    ]
    return Call(name, "{" + ", ".join(parts) + ("}" if whole else ""), cut=not whole)


def valued(text: str, schema: Any) -> Any:
    """The value that a text stands for: of the types that a schema allows, where it names some."""
    kinds, bare = _kinds(schema), text.strip()
    if bare in PYTHON and "string" not in kinds:
        return PYTHON[bare]
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
    own = schema.get("type")
    found = {own} if isinstance(own, str) else {each for each in own or () if isinstance(each, str)}
    for key in ("anyOf", "oneOf"):
        for each in schema.get(key) or ():
            found |= _kinds(each)
    if isinstance(schema.get("enum"), list) and not found and all(isinstance(each, str) for each in schema["enum"]):
        found = {"string"}
    return found
