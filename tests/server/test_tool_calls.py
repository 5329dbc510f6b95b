"""Tool calls are read from an answer in whatever pieces it comes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from omnidraft.server.tools import Call, Reader

ADD = Call("add", '{"a": 1, "b": {"c": "}</x>"}}')
WRITTEN = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}</x>"}}}'
CASES: dict[str, tuple[str, Sequence[Call]]] = {
    WRITTEN: ("", [ADD]),
    f"\n {WRITTEN}\n": ("", [ADD]),
    f"[{WRITTEN}, {WRITTEN}]": ("", [ADD, ADD]),
    WRITTEN.replace("arguments", "parameters"): ("", [ADD]),
    f"<tool_call>\n{WRITTEN}\n</tool_call>": ("", [ADD]),
    f"Let me see. <tool_call>{WRITTEN}</tool_call>\n<tool_call>{WRITTEN}</tool_call>": ("Let me see. ", [ADD, ADD]),
    f"<tool_call>{WRITTEN}</tool_call> and more": (" and more", [ADD]),
    f"<tool_call>{WRITTEN}": ("", [ADD]),
    f"The JSON is {WRITTEN}": (f"The JSON is {WRITTEN}", []),
    f"{WRITTEN} and": (f"{WRITTEN} and", []),
    WRITTEN.replace("add", "other"): (WRITTEN.replace("add", "other"), []),
    WRITTEN[:-1]: (WRITTEN[:-1], []),
    "<tool_call>nothing</tool_call>": ("<tool_call>nothing</tool_call>", []),
    '{"name": "add", "arguments": "text"}': ('{"name": "add", "arguments": "text"}', []),
    '{"name": ["add"]}': ('{"name": ["add"]}', []),
    "1 < 2 <tool": ("1 < 2 <tool", []),
    "[" * 20_000: ("[" * 20_000, []),
    "": ("", []),
}


SIZES = [(text, size) for text in CASES for size in (1, 3, 10**6) if len(text) < 1000 or size > 3]  # of pieces


@pytest.mark.parametrize(("text", "size"), SIZES, ids=[f"{text[:30]}-{size}" for text, size in SIZES])
def test_content_and_calls(text: str, size: int) -> None:
    reader = Reader(["add"])
    content = "".join(reader.feed(text[i : i + size]) for i in range(0, len(text), size))
    rest, calls = reader.end()
    assert (content + rest, calls) == CASES[text]


def test_content_is_passed_on_at_once() -> None:
    reader = Reader(["add"])
    assert reader.feed("I ") == "I "
    assert reader.feed("<b>") == "<b>"
    assert reader.feed("<tool_") == ""
    assert reader.feed("x") == "<tool_x"
    assert Reader([]).feed(json.dumps({"name": "add"})) == '{"name": "add"}'
