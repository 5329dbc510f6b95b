"""Tool calls are read from an answer in whatever pieces it comes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from omnidraft.server.reading import pieces
from omnidraft.server.reading.pieces import Call
from omnidraft.server.reading.reader import CallReader, TextReader
from omnidraft.server.reading.regions import marks_of
from support.serving import QUESTION, At, user

FUNCTIONS: dict[str, dict[str, Any]] = {"add": {}}
ADD = Call("add", '{"a": 1, "b": {"c": "}</x>"}}')
WRITTEN = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}</x>"}}}'
CASES: dict[str, tuple[str, Sequence[Call]]] = {
    WRITTEN: ("", [ADD]),
    f"\n {WRITTEN}\n": ("", [ADD]),
    f"<tool_call>{WRITTEN}</tool_call> and more": (" and more", [ADD]),
    f"<tool_call>{WRITTEN}": ("", [ADD]),
    f"The JSON is {WRITTEN}": (f"The JSON is {WRITTEN}", []),
    f"{WRITTEN} and": (f"{WRITTEN} and", []),
    WRITTEN.replace("add", "other"): (WRITTEN.replace("add", "other"), []),
    WRITTEN[:-1]: (WRITTEN[:-1], []),
    "<tool_call>nothing</tool_call>": ("<tool_call>nothing</tool_call>", []),
    '{"name": "add", "arguments": "text"}': ('{"name": "add", "arguments": "text"}', []),
    '{"name": ["add"]}': ('{"name": ["add"]}', []),
    "[" * 20_000: ("[" * 20_000, []),
    "": ("", []),
}


def read(reader: pieces.Reader, text: str, size: int, *, cut: bool = False) -> tuple[str, Sequence[Call]]:
    """The content and the calls of a text in pieces of a size."""
    found = pieces.Piece()
    for start in range(0, len(text), size):
        found += reader.feed(text[start : start + size])
    return (found + reader.end(cut=cut)).content, reader.calls


def plain(functions: Any = FUNCTIONS) -> TextReader:
    return TextReader(functions, marks_of("", {}, ()))


SIZES = [(text, size) for text in CASES for size in (1, 3, 10**6) if len(text) < 1000 or size > 3]  # of pieces


@pytest.mark.parametrize(("text", "size"), SIZES, ids=[f"{text[:30]}-{size}" for text, size in SIZES])
def test_content_and_calls(text: str, size: int) -> None:
    assert read(plain(), text, size) == CASES[text]


def test_content_is_passed_on_at_once() -> None:
    reader = plain()
    assert reader.feed("I ").content == "I "
    assert reader.feed("<b>").content == "<b>"
    assert reader.feed("<tool_").content == ""
    assert reader.feed("x").content == "<tool_x"
    assert plain({}).feed(json.dumps({"name": "add"})).content == '{"name": "add"}'


PART = WRITTEN[:40]
BEGUN = Call("add", PART.partition('"arguments": ')[2], cut=True)


@pytest.mark.parametrize(
    ("text", "forced", "expected"),
    [
        (PART, True, ("", [BEGUN])),
        (PART, False, ("", [BEGUN])),
        (WRITTEN, True, ("", [ADD])),
        (WRITTEN[:-1], True, ("", [Call("add", WRITTEN[29:-1], cut=True)])),
        (WRITTEN[:12], True, ("", [])),
        (WRITTEN[:12], False, (WRITTEN[:12], [])),
        (PART.replace("add", "other"), False, (PART.replace("add", "other"), [])),
        (f"See {PART}", False, (f"See {PART}", [])),
        (f"<tool_call>\n{PART}", False, ("", [BEGUN])),
        (f"So: <tool_call>{WRITTEN}</tool_call>\n<tool_call>\n{PART}", False, ("So: ", [ADD, BEGUN])),
        (f"<tool_call>{WRITTEN}", False, ("", [ADD])),
        ("<tool_call>", False, ("<tool_call>", [])),
    ],
)
@pytest.mark.parametrize("size", [1, 10**6])
def test_a_call_that_is_cut_is_its_beginning(
    text: str, forced: bool, expected: tuple[str, Sequence[Call]], size: int
) -> None:
    assert read(CallReader(FUNCTIONS) if forced else plain(), text, size, cut=True) == expected


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_that_is_cut_by_the_length_is_no_content(server: At, stream: bool) -> None:
    word = {"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}
    function = {"name": "add", "parameters": word}
    asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "tool_choice": "required", "stream": stream}
    chat: Any = {"messages": user(QUESTION), "tools": [{"type": "function", "function": function}], **asked}
    found = server.post("/v1/chat/completions", chat)
    bodies = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: {")] or [found.json()]
    choices = [each["choices"][0] for each in bodies]
    said = [each.get("message") or each["delta"] for each in choices]
    assert not any(each.get("content") for each in said)
    calls = [each for one in said for each in one.get("tool_calls", ())]
    assert [each["function"]["name"] for each in calls if "id" in each] == ["add"]
    assert (len(calls) > 1) == stream  # arguments come as they are made
    assert "".join(each["function"]["arguments"] for each in calls).startswith('{"a": "')
    assert choices[-1]["finish_reason"] == "length"
    asked["max_output_tokens"] = asked.pop("max_tokens")
    found = server.post("/v1/responses", {"input": QUESTION, "tools": [{"type": "function", **function}], **asked})
    last = json.loads(found.text.splitlines()[-2][6:])["response"] if stream else found.json()
    (item,) = last["output"]
    assert (last["status"], item["type"], item["status"]) == ("incomplete", "function_call", "incomplete")
    assert item["arguments"].startswith('{"a": "')
