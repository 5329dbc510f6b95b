"""What clients are told of an answer is a function of its text: the same whole and streamed, in whatever pieces."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from omnidraft.server.answers import request_answers
from omnidraft.server.reading.choice import Reading
from omnidraft.server.reading.events import Arguments, Event, Reasoning, Text
from omnidraft.server.reading.marks import RegionMarks, marks_of
from server.test_reading import (
    CHANNELS,
    CODER,
    DEEPSEEK,
    FAMILIES,
    FUNCTIONS,
    GEMMA3,
    GEMMA4,
    GLM,
    KIMI,
    LENIENT,
    LFM,
    LLAMA,
    MISTRAL,
    OWN,
    PHI,
    QWEN,
    THINK,
    UNCLOSED,
)
from support.answer_apis import APIS, Replayed

RANDOM = 2  # random cuttings of each text
TAGGED = f"{QWEN} {THINK}"
CALL = '{"name": "add", "arguments": ARGUMENTS}'
HARMONY = RegionMarks(channels=True)
# what the chat template holds, and a call as the family writes it
IN_JSON = {
    "Hermes": (TAGGED, f"<tool_call>\n{CALL}\n</tool_call>"),
    "a fence": (TAGGED, f"```json\n{CALL}\n```"),
    "alone": (TAGGED, CALL),
    "Llama": (LLAMA, f"<|python_tag|>{CALL}<|eom_id|>"),
    "Mistral, a list": (MISTRAL, f"[TOOL_CALLS][{CALL}]"),
    "Mistral": (MISTRAL, "[TOOL_CALLS]add[ARGS]ARGUMENTS"),
    "DeepSeek": (
        DEEPSEEK,
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\nARGUMENTS\n```"
            "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
        ),
    ),
    "Kimi": (
        KIMI,
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>ARGUMENTS"
            "<|tool_call_end|><|tool_calls_section_end|>"
        ),
    ),
    "Phi": (PHI, f"<|tool_call|>[{CALL}]<|/tool_call|>"),
    "gpt-oss": ("", "<|channel|>commentary to=functions.add <|constrain|>json<|message|>ARGUMENTS<|call|>"),
    "its own template": ("", f"<call>{CALL}</call>"),
}
ARGUMENTS = {
    "whole": '{"a": 1, "text": "Par}is"}',
    "empty": "{}",
    "a line break in a string": '{"text": "two\nlines\tand \\n"}',
    "no last brace": '{"a": 1, "text": "Paris"',
    "no last braces": '{"a": [1, {"b": "Paris"',
    "a brace too many": '{"text": "Paris"}}',
    "no end of a string": '{"text": "Paris}',
    "a word": '{"text": Paris}',
    "NaN": '{"b": NaN}',
    "too large": '{"b": [1e400]}',
    "infinity": '{"b": -Infinity}',
    "a lone surrogate": '{"text": "\\ud800"}',
    "a comma too many": '{"a": 1,}',
    "commas too many": '{"list": [1, [2,\n],], "text": "Par,}is" , }',
    "two commas": '{"a": 1,,}',
    "quotes of another language": "{'a': 1}",
}
MENDED = {
    "whole": {"a": 1, "text": "Par}is"},
    "empty": {},
    "a line break in a string": {"text": "two\nlines\tand \n"},
    "no last brace": {"a": 1, "text": "Paris"},
    "no last braces": {"a": [1, {"b": "Paris"}]},
    "a brace too many": {"text": "Paris"},
    "a comma too many": {"a": 1},
    "commas too many": {"list": [1, [2]], "text": "Par,}is"},
}
OTHERS = {
    "XML": (CODER, "<tool_call>\n<function=add>\n<parameter=text>\nParis\n</parameter>\n</function>\n</tool_call>"),
    "XML without the outer mark": (CODER, "<function=add>\n<parameter=a>\n5\n</parameter>\n</function>"),
    "pairs": (GLM, "<tool_call>add\n<arg_key>text</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>"),
    "Python": (LFM, "<|tool_call_start|>[add(text='Paris', a=1)]<|tool_call_end|>"),
    "Gemma": (GEMMA3, "<start_function_call>call:add{text:<escape>Paris<escape>,a:1}<end_function_call>"),
    "Gemma 4": (GEMMA4, '<|tool_call>call:add{text:<|"|>Paris<|"|>,a:1}<tool_call|>'),
}
CHANGES = {
    "as it is": ("", ""),
    "NaN": ("1", "NaN"),
    "too large": ("1", "1e400"),
    "a line break": ("Paris", "Pa\nris"),
    "another function": ("add", "other"),
    "no end of the arguments": ("</parameter>", ""),
    "no end of the value": ("</arg_value>", ""),
    "no end of the function": ("</function>", ""),
    "no bracket": (")]", ")"),
    "no brackets": (")]", ""),
    "no brace": ("}", ""),
    "no quote": ("'Paris'", "Paris'"),
}
AROUND = "Well, <b>.\n{0}\nThat was it. {0}\n And 1 < 2."


def texts() -> Iterator[tuple[str, str, str]]:
    """Names, what the chat template holds, and texts."""
    for family, (template, call) in IN_JSON.items():
        for change, arguments in ARGUMENTS.items():
            yield f"{family}: {change}", template, call.replace("ARGUMENTS", arguments)
    for family, (template, call) in OTHERS.items():
        for change, (old, new) in CHANGES.items():
            if old in call:
                yield f"{family}: {change}", template, call.replace(old, new)
    for name, each in (FAMILIES | LENIENT | UNCLOSED).items():
        yield name, each.template, each.text
    yield "channels", "", CHANNELS


def replayed(name: str, template: str, *, cut: bool = False) -> Replayed:
    if "template" in name:
        prompt = "<|im_start|>assistant\n"
        return Replayed(Reading(FUNCTIONS, reasons=True, template=OWN, prompt=prompt), marks_of("", {}, ()), cut)
    if name.startswith(("gpt-oss", "channels")):
        return Replayed(Reading(FUNCTIONS, reasons=True), HARMONY, cut)
    known = (FAMILIES | LENIENT | UNCLOSED).get(name)
    thinking = None if known is None else known.thinking
    return Replayed(Reading(FUNCTIONS, reasons=True, thinking=thinking), marks_of(template, {}, ()), cut)


def halves(text: str) -> Iterator[list[str]]:
    """A text cut at each place."""
    yield from ([text[:place], text[place:]] for place in range(1, len(text)))


def pieces_of(text: str) -> Iterator[list[str]]:
    """A text in one piece, in characters, and cut at several places."""
    yield [text]
    yield [*text]
    draw = random.Random(text)
    for count in [draw.randint(2, 9) for _ in range(RANDOM)]:
        places = sorted(draw.sample(range(len(text) + 1), min(count, len(text))))
        yield [text[begin:end] for begin, end in pairwise([0, *places, len(text)])]


def said(how: Replayed, cuttings: Iterable[list[str]]) -> dict[str, Any]:
    """What each API says of a text, the same whole and streamed and in whatever pieces."""
    alone: dict[str, Any] = {}
    known: set[Any] = set()
    for pieces in cuttings:
        feeds = how.feeds(pieces)
        if feeds in known:  # the APIs' answers are made of these, and of nothing else
            continue
        known.add(feeds)
        for name, api in APIS.items():
            whole, streamed = api.said(how, pieces)
            assert streamed == whole, (name, pieces)
            assert alone.setdefault(name, whole) == whole, (name, pieces)
    return alone


def joined(feeds: Iterable[Sequence[Event]]) -> list[Event]:
    """Events with texts that follow each other in one."""
    made: list[Event] = []
    for event in chain.from_iterable(feeds):
        last = made[-1] if made else None
        if isinstance(event, Text | Reasoning | Arguments) and type(last) is type(event):
            made[-1] = type(event)(getattr(last, "text", "") + event.text)
        else:
            made.append(event)
    return made


def calls_of(blocks: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Names and arguments of calls."""
    calls = [each for each in blocks if each[0] == "call"]
    return [(call[1], json.loads(call[2]) if isinstance(call[2], str) else call[2]) for call in calls]


def text_of(blocks: Sequence[tuple[Any, ...]]) -> str:
    return "".join(each[1] for each in blocks if each[0] == "text")


def same(found: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """The text and the calls that all APIs tell of."""
    told = [(text_of(blocks), calls_of(blocks)) for blocks in found.values()]
    assert told == told[:1] * len(APIS)
    return told[0]


ALL = [pytest.param(*each, id=each[0]) for each in texts()]


@pytest.mark.parametrize(("name", "template", "text"), ALL)
def test_what_is_said_of_a_text_does_not_depend_on_its_pieces(name: str, template: str, text: str) -> None:
    content, calls = same(said(replayed(name, template), [*pieces_of(text), *halves(text)]))
    family, _, change = name.partition(": ")
    lists = family in ("Mistral, a list", "Phi") and change in ("no last brace", "a brace too many")
    if family in IN_JSON and change in MENDED and not lists and not (family == "alone" and "brace" in change):
        assert (content, calls) == ("", [("add", MENDED[change])])
    elif family in IN_JSON and change:
        assert calls == []
        assert ARGUMENTS[change] in content
    elif family in OTHERS and change:
        assert (bool(calls), content) in ((True, ""), (False, text))


@pytest.mark.medium
@pytest.mark.parametrize(("name", "template", "text"), ALL)
def test_nor_among_others(name: str, template: str, text: str) -> None:
    how, whole = replayed(name, template), AROUND.format(text)
    same(said(how, pieces_of(whole)))
    alone = joined(how.feeds([whole]))
    assert all(joined(how.feeds(pieces)) == alone for pieces in halves(whole))


@pytest.mark.parametrize(("name", "template", "text"), ALL)
def test_nor_where_the_answer_is_cut(name: str, template: str, text: str) -> None:
    for end in (2 * len(text) // 3, len(text) - 1):
        said(replayed(name, template, cut=True), pieces_of(text[:end]))


@pytest.mark.medium
@pytest.mark.parametrize("family", [name for name, (_, call) in IN_JSON.items() if CALL in call])
def test_arguments_are_never_lost_without_a_word(family: str) -> None:
    template, call = IN_JSON[family]
    for written, arguments in (
        ('{"name": "add", "input": {"a": 1}}', {"a": 1}),
        ('{"id": "c1", "type": "function", "name": "add"}', {}),
        ('{"name": "add", "a": 1}', None),
        ('{"name": "add", "argument": {"a": 1}}', None),
    ):
        text = call.replace(CALL, written)
        content, calls = same(said(replayed(family, template), [*pieces_of(text), *halves(text)]))
        if arguments is None:
            assert written in content
            assert calls == []
        else:
            assert (content, calls) == ("", [("add", arguments)])


def test_a_line_of_a_stream_is_one_to_every_client() -> None:
    """Some also break lines at what Unicode calls ends of lines."""
    text = "So\u2028it\u2029is\x85done."
    found = said(replayed("Hermes", TAGGED), [[text], [*text]])
    assert found["ollama"] == [("reasoning", ""), ("text", text), ("stop",)]


@pytest.mark.medium
def test_a_mark_closes_a_call_whatever_follows_it() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {}, "id": {"a":</tool_call>: "Par}is"}}\n</tool_call>'
    content, calls = same(said(replayed("Hermes", TAGGED), [*pieces_of(text), *halves(text)]))
    assert (content, calls) == (text.partition("</tool_call>")[2], [("add", {})])


FIRST, SECOND = (IN_JSON["Hermes"][1].replace("ARGUMENTS", json.dumps({"a": number})) for number in (1, 2))
ORDERS = {
    f"{FIRST}\nThat was it.": [("call", "add", {"a": 1}), ("text", "\nThat was it.")],
    f"So:\n{FIRST}\nThen {SECOND}\nDone.\n": [
        *(("text", "So:\n"), ("call", "add", {"a": 1}), ("text", "\nThen")),
        *(("call", "add", {"a": 2}), ("text", "\nDone.")),
    ],
    f"<think>Hm.</think>\n\n{FIRST}\n{SECOND}": [
        *(("reasoning", "Hm."), ("call", "add", {"a": 1}), ("call", "add", {"a": 2})),
    ],
    f"{FIRST}{SECOND[:-14]}x</tool_call>": [("call", "add", {"a": 1}), ("text", f"{SECOND[:-14]}x</tool_call>")],
    "\n": [("text", "\n")],
    "": [("text", "")],
    "<think>Hm.</think>": [("reasoning", "Hm."), ("text", "")],
}


@pytest.mark.parametrize("text", ORDERS)
def test_blocks_are_in_the_order_of_the_text(text: str) -> None:
    expected = ORDERS[text]
    found = said(replayed("Hermes", TAGGED), [[text], [*text]])
    assert found["messages"][:-1] == expected
    items = [(*each[:2], json.loads(each[2])) if each[0] == "call" else each[:2] for each in found["responses"][:-1]]
    assert items == expected
    end = "tool_calls" if any(each[0] == "call" for each in expected) else "stop"
    assert (found["chat"][-1], found["ollama"][-1]) == ((end,), ("stop",))


def test_a_call_that_is_cut_has_the_arguments_that_are_whole() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "list": [2, 3], "text": "Par'
    found = said(replayed("Hermes", TAGGED, cut=True), [[text], [*text], *halves(text)])
    arguments = text.partition('"arguments": ')[2]
    assert found["chat"] == [("reasoning", ""), ("text", ""), ("call", "add", arguments), ("length",)]
    assert found["responses"] == [("call", "add", arguments, "incomplete"), ("incomplete",)]
    values = {"a": 1, "list": [2, 3]}
    assert found["messages"] == [("call", "add", values), ("max_tokens",)]
    assert found["ollama"] == [("reasoning", ""), ("text", ""), ("call", "add", values), ("length",)]


def test_a_part_of_the_answer_that_is_cut_is_incomplete_and_no_other() -> None:
    for text, states in (
        ("<think>Hm", ["incomplete", "incomplete"]),
        ("<think>Hm</think>So", ["completed", "incomplete"]),
        (f"So {FIRST} and", ["completed"] * 3),
    ):
        found = said(replayed("Hermes", TAGGED, cut=True), [[text], [*text]])
        assert [each[-1] for each in found["responses"][:-1]] == states


def test_calls_of_ollama_have_ids() -> None:
    text = f"{FIRST}{FIRST}"
    lines, whole = APIS["ollama"].sent(replayed("Hermes", TAGGED), [text])
    streamed = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert streamed == whole["message"]["tool_calls"]
    ids = [call["id"] for call in streamed]
    assert len(set(ids)) == 2
    assert all(re.fullmatch("call_[0-9a-f]{24}", each) for each in ids)


def test_reasoning_is_signed_when_it_is_complete() -> None:
    events, whole = APIS["messages"].sent(replayed("Hermes", TAGGED), ["<think>Hm", ".</think>", "So"])
    (signed,) = (place for place, each in enumerate(events) if each.get("delta", {}).get("type") == "signature_delta")
    assert events[signed]["delta"]["signature"] == whole["content"][0]["signature"] != ""
    assert events[signed + 1] == {"type": "content_block_stop", "index": 0}
    (begun, _) = (each["content_block"] for each in events if each["type"] == "content_block_start")
    assert begun == {"type": "thinking", "thinking": "", "signature": ""}
    assert "signature" not in whole["content"][1]


def test_reasoning_is_over_before_the_text_begins() -> None:
    """Within the stream, of which a client shows each part as complete with its last event."""
    how, text = replayed("Hermes", TAGGED), ["<think>Hm", ".</think>", "So", " it is."]
    kinds = [event["type"] for event in APIS["responses"].sent(how, text)[0]]
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    blocks = [event["type"] for event in APIS["messages"].sent(how, text)[0]]
    assert blocks[-5:] == [
        *("content_block_delta", "content_block_delta", "content_block_stop", "message_delta", "message_stop"),
    ]


def test_a_stream_says_that_it_is_alive_while_a_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rounds come, and tell nothing."""
    monkeypatch.setattr(request_answers, "QUIET_S", -1.0)
    how = replayed("Hermes", TAGGED)

    class Batch(SimpleNamespace):
        async def deltas(self, _: float) -> AsyncIterator[Any]:
            for event in self.events:
                yield self.task.answer, self.task.answer.take(event)

    (answer, *_), events = zip(*how.answers(["So", *FIRST]), strict=True)
    task = SimpleNamespace(served=answer.task.served, answer=answer, tells_logprobs=False)
    batch = Batch(task=task, answers=[answer], choices=[answer], prompts=[answer], events=events)
    reply = APIS["chat"].reply(batch, APIS["chat"].body)

    async def sent() -> list[bytes]:
        return [each async for each in reply.stream()]

    lines = asyncio.run(sent())
    assert lines.count(reply.alive()) == len(FIRST)  # one character has the call, and the end says nothing
    assert lines.index(reply.alive()) > next(place for place, line in enumerate(lines) if b'"So"' in line)
