"""Answers as families of models write them: reasoning and calls are read from them, in whatever pieces they come."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from omnidraft.server.grammars.grammar import SLASH
from omnidraft.server.reading import call_formats, json_calls
from omnidraft.server.reading import reader as reader_module
from omnidraft.server.reading.call_formats import Marked, valued
from omnidraft.server.reading.channels import ChannelReader
from omnidraft.server.reading.choice import reading_of
from omnidraft.server.reading.events import Arguments, Begin, Call, End, Event, Reader, Reasoning, Text
from omnidraft.server.reading.json_calls import Found, read_value
from omnidraft.server.reading.marks import marks_of
from omnidraft.server.reading.reader import CallReader, TextReader
from omnidraft.server.reading.scanning import scan
from omnidraft.server.reading.template_reader import TemplateReader

ADD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "number"},
        "text": {"type": "string"},
        "sure": {"type": ["boolean", "null"]},
        "list": {"anyOf": [{"type": "array"}, {"type": "null"}]},
    },
}
FUNCTIONS = {"add": ADD, "get_time": {}, "ns.find": {"type": "object", "properties": {"text": {"type": "string"}}}}
TIME: tuple[str, dict[str, Any]] = ("get_time", {})


@dataclass
class Transcript:
    """An answer, and what is in it."""

    text: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    template: str = ""  # what the chat template holds of the family's marks
    thinking: str | None = None
    cut: bool = False


QWEN, THINK = "<tool_call> </tool_call>", "<think> </think>"
CODER = "<tool_call> <function= <parameter="
GLM = "<tool_call> <arg_key> <think> </think>"
LLAMA, PHI = "<|python_tag|> <|eom_id|>", "<|tool_call|> <|/tool_call|>"
MISTRAL = "[TOOL_CALLS] [ARGS] [CALL_ID] [THINK] [/THINK]"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
    "<think> </think>"
)
KIMI = (
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_end|> "
    "<|tool_call_argument_begin|> <think> </think>"
)
LFM, GEMMA3 = "<|tool_call_start|> <|tool_call_end|>", "<start_function_call> <end_function_call> <escape>"
GEMMA4 = '<|tool_call> <tool_call|> <|"|> <|channel>thought <channel|>'
TRICKY = 'say "<tool_call>" or {"}'
XML = (
    "<tool_call>\n<function=add>\n<parameter=a>\n4\n</parameter>\n<parameter=text>\nfirst\n  second\n</parameter>\n"
    '<parameter=list>\n[1, {"x": 2}]\n</parameter>\n<parameter=sure>\nTrue\n</parameter>\n</function>\n</tool_call>'
)
XML_CALL = ("add", {"a": 4, "text": "first\n  second", "list": [1, {"x": 2}], "sure": True})
FAMILIES = {
    "Hermes and Qwen2.5": Transcript(
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "text": ' + json.dumps(TRICKY) + "}}\n"
        '</tool_call>\n<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>',
        [("add", {"a": 1, "text": TRICKY}), TIME],
        "Let me see.\n",
        template=QWEN,
    ),
    "Qwen3 with reasoning": Transcript(
        '<think>\nI need <tool_call> now.\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n'
        "</tool_call>",
        [("add", {"a": 2})],
        reasoning="I need <tool_call> now.",
        template=f"{QWEN} {THINK}",
    ),
    "Qwen3 thinks in the prompt": Transcript(
        "So it is 24.\n</think>\n\nIt is 24.",
        content="It is 24.",
        reasoning="So it is 24.",
        template=f"{QWEN} {THINK}",
        thinking="</think>",
    ),
    "Qwen3-Coder and Qwen3.5": Transcript(
        f"I add.\n\n{XML}\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        [XML_CALL, TIME],
        "I add.\n\n",
        template=CODER,
    ),
    "Qwen3-Coder without the outer mark": Transcript(XML.removeprefix("<tool_call>\n"), [XML_CALL], template=CODER),
    "Llama 3": Transcript('{"name": "add", "parameters": {"a": 3, "b": 0.5}}', [("add", {"a": 3, "b": 0.5})]),
    "Llama 3.1, two": Transcript(
        '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 3}}; {"name": "get_time", '
        '"parameters": {}}<|eom_id|>',
        [("add", {"a": 3}), TIME],
        template=LLAMA,
    ),
    "Llama 4": Transcript('[add(a=3, text="x)"), get_time()]', [("add", {"a": 3, "text": "x)"}), TIME]),
    "Mistral, a list": Transcript(
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "x1"}, {"name": "get_time", "arguments": {}}]',
        [("add", {"a": 1}), TIME],
        template=MISTRAL,
    ),
    "Mistral": Transcript(
        '[THINK]Hm.[/THINK]Well.[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"a": 1}[TOOL_CALLS]get_time[ARGS]{}',
        [("add", {"a": 1}), TIME],
        "Well.",
        "Hm.",
        template=MISTRAL,
    ),
    "FunctionGemma": Transcript(
        "<start_function_call>call:add{a:5,text:<escape>two: {words}<escape>}<end_function_call>",
        [("add", {"a": 5, "text": "two: {words}"})],
        template=GEMMA3,
    ),
    "Gemma 4": Transcript(
        '<|channel>thought\nA call.\n<channel|><|tool_call>call:add{a:5,list:[{x:<|"|>y, "z"<|"|>}],sure:true}'
        "<tool_call|>",
        [("add", {"a": 5, "list": [{"x": 'y, "z"'}], "sure": True})],
        reasoning="A call.",
        template=GEMMA4,
    ),
    "DeepSeek V3 and R1": Transcript(
        "<think>Hm</think>\n\nI ask.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n"
        '{"a": 1}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("add", {"a": 1}), TIME],
        "I ask.",
        "Hm",
        template=DEEPSEEK,
    ),
    "DeepSeek V3.1": Transcript(
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("add", {"a": 1})],
        template=DEEPSEEK,
    ),
    "GLM-4.5": Transcript(
        "<think>Two.</think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>4</arg_value>\n<arg_key>text</arg_key>\n"
        "<arg_value>5</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
        [("add", {"a": 4, "text": "5"}), TIME],
        reasoning="Two.",
        template=GLM,
    ),
    "Kimi K2": Transcript(
        "One moment.<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
        '{"a": 1}<|tool_call_end|><|tool_call_begin|>functions.ns.find:1<|tool_call_argument_begin|>{"text": "x"}'
        "<|tool_call_end|><|tool_calls_section_end|>",
        [("add", {"a": 1}), ("ns.find", {"text": "x"})],
        "One moment.",
        template=KIMI,
    ),
    "LFM2": Transcript(
        "<|tool_call_start|>[add(a=1, text='it\\'s [1]', sure=None), get_time()]<|tool_call_end|>Done.",
        [("add", {"a": 1, "text": "it's [1]", "sure": None}), TIME],
        "Done.",
        template=LFM,
    ),
    "Granite 4": Transcript(
        '<tool_call>{"name": "add", "arguments": {"a": 7}}</tool_call>', [("add", {"a": 7})], template=QWEN
    ),
    "Phi-4": Transcript(
        '<|tool_call|>[{"name": "add", "arguments": {"a": 7}}, {"name": "get_time"}]<|/tool_call|>',
        [("add", {"a": 7}), TIME],
        template=PHI,
    ),
}
HERMES, IN_TAGS = f"{QWEN} {THINK}", '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
ADD_1 = ("add", {"a": 1})
SECTION = (
    "<|tool_calls_section_begin|> <|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a": 1}<|tool_call_end|><|tool_calls_section_end|>'
)


def thought(text: str, reasoning: str, *calls: tuple[str, dict[str, Any]], content: str = "") -> Transcript:
    """An answer whose reasoning the prompt has begun."""
    return Transcript(text, [*calls], content, reasoning, HERMES, "</think>")


UNCLOSED = {
    "a call in open reasoning": thought(f"I should look.\n{IN_TAGS}", "I should look.", ADD_1),
    "a call at once": thought(f"\n{IN_TAGS}\n", "", ADD_1),
    "behind an opening mark": thought(f"<think>\nI should look.\n{IN_TAGS}", "I should look.", ADD_1),
    "in reasoning of the answer's": replace(thought(f"<think>\nSo.\n{IN_TAGS}", "So.", ADD_1), thinking=None),
    "two calls": thought(f"So.{IN_TAGS}\n{IN_TAGS}", "So.", ADD_1, ADD_1),
    "text behind it": thought(f"So.\n{IN_TAGS}\nThat is it.", f"So.\n{IN_TAGS}\nThat is it."),
    "decided against": thought(f"I could {IN_TAGS} but I stop.</think>", f"I could {IN_TAGS} but I stop."),
    "another one is made": thought(f"I could {IN_TAGS} but:\n{IN_TAGS}", f"I could {IN_TAGS} but:", ADD_1),
    "two in one": thought(f"So.\n{IN_TAGS[:-13]}\n{IN_TAGS[12:]}", "So.", ADD_1, ADD_1),
    "behind a mark that opens none": thought(f"I need <tool_call> now.{IN_TAGS}", "I need <tool_call> now.", ADD_1),
    "closed behind it": thought(f"So.\n{IN_TAGS}\n</think>\n", "So.", ADD_1),
    "closed, with an answer": thought(f"Say {IN_TAGS}\n</think>\n\nYes.", f"Say {IN_TAGS}", content="Yes."),
    "closed, with a call": thought(f"Say {IN_TAGS}.\n</think>\n\n{IN_TAGS}", f"Say {IN_TAGS}.", ADD_1),
    "closed, with a mark": thought("I need <tool_call></think>Yes.", "I need <tool_call>", content="Yes."),
    "a mark alone": thought("I need <tool_call>", "I need <tool_call>"),
    "a call of another": thought(f"So {IN_TAGS.replace('add', 'sub')}", f"So {IN_TAGS.replace('add', 'sub')}"),
    "a broken call": thought(f"So {IN_TAGS.replace('1', 'one')}", f"So {IN_TAGS.replace('1', 'one')}"),
    "no end of it": thought(f"So.\n{IN_TAGS[:-14]}", "So.", ADD_1),
    "in a section": replace(thought(f"So. {SECTION}", "So.", ADD_1), template=KIMI),
    "no section": replace(thought(f"{SECTION[:29]}add", f"{SECTION[:29]}add"), template=KIMI),
    "in XML": replace(thought(f"So.\n\n{XML}", "So.", XML_CALL), template=f"{CODER} {THINK}"),
    "repeated": thought("<think>\n\n</think>\n\nyes", "", content="yes"),
    "repeated, with reasoning": thought("\n<think>\nHm.</think>yes", "Hm.", content="yes"),
    "later": thought("Use <think> here.</think>yes", "Use <think> here.", content="yes"),
    "begun": thought("<thin", "<thin"),
}
BARE = '{"name": "add", "arguments": {"a": 1}}'
TOLD_OF = '{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}'
SCHEMA = '{"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}'
SEED = "<seed:tool_call> <function= <parameter= <seed:think> </seed:think>"
WRAPPED = {
    **{
        f"wrapped: {text}": Transcript(text, [ADD_1] * text.count(BARE), template=QWEN)
        for text in (
            *(f"<{word}>\n{BARE}\n</{word}>" for word in ("tools", "function_call", "function-call")),
            *(f"<tools>\n{BARE}\n{BARE}\n</tools>", f"{BARE}\n</tool_call>", f"{BARE}</tool_call>\n{BARE}"),
            *(f"{BARE}\n</tool_call>\n{IN_TAGS}", f"```json\n{IN_TAGS}\n```\n"),
            *(f"```xml\n{IN_TAGS}```", f"```xml\n<tool_call>\n{BARE}\n```", f"```xml\n{IN_TAGS}\n```"),
            *(f"```xml\n{IN_TAGS}\n{IN_TAGS}\n```", f"```json\n{IN_TAGS}{IN_TAGS}```", f"```xml\n{IN_TAGS}"),
            *(f"```xml\n<tool_call>\n{BARE}\n{BARE}\n</tool_call>\n```", f"```json\n{BARE};\n{BARE};\n```\n"),
            *(f"```json\n{BARE}\n{BARE}\n```", f"```json\n[{BARE},\n{BARE}]\n```"),
            *(f"```\n{BARE}\n\n{BARE}\n```", f"```tool_call\n[{BARE}, {BARE}]\n```"),
            *(f"<tool_call>\n```json\n{BARE}\n```\n</tool_call>", f"<tool_call>\n```json\n{BARE}\n</tool_call>"),
        )
    },
    "text behind calls in a fence": Transcript(
        f"```xml\n{IN_TAGS}\n{IN_TAGS}\nDone.", [ADD_1, ADD_1], "\nDone.", template=QWEN
    ),
    "brackets behind a mark between calls": Transcript(
        f"```xml\n{IN_TAGS} <tool_call>\n}}{IN_TAGS}", [ADD_1, ADD_1], template=QWEN
    ),
    **{
        f"a fence of calls: {text}": Transcript(text, [ADD_1] * text.count(BARE), before + after, template=QWEN)
        for before, fence, after in (
            *(("", f"```\n{IN_TAGS}\n```", ""), ("So:\n", f"```\n{IN_TAGS}\n{IN_TAGS}\n```", "\nDone.")),
            *(
                ("", f"```text\n{IN_TAGS}```", ""),
                ("", f"```\n{IN_TAGS}", ""),
                ("", f"```\n<tool_call>{BARE}\n```", ""),
            ),
            ("```python\nx = 1\n```\n\n", f"```\n{IN_TAGS}\n``` ", ""),
            ("````\nx = 1\n````\n", f"```python\n{IN_TAGS}\n```", "\n```python\nx = 2\n```\n."),
        )
        for text in (before + fence + after,)
    },
    **{
        f"no fence of calls: {text}": Transcript(
            text, [ADD_1] * text.count(BARE), text.replace(IN_TAGS, "").rstrip("\n"), template=QWEN
        )
        for text in (
            *(f"```\n{IN_TAGS}\nDone.\n```", f"```\n{IN_TAGS}\n```python\nx = 1\n```", f"So: ```\n{IN_TAGS}\n```"),
            *(f"```\nx = 1\n```\n{IN_TAGS}\nYes.", f"```\nx = 1\n```\n{IN_TAGS}\n```\nx = 2\n```"),
            *("```\n<tool_call>no</tool_call>\n```", "``` \nx = 1\n```"),
        )
    },
    "a fence around text": Transcript("```xml\n<tool_call>no\n```\n", content="```xml\n<tool_call>no\n```\n"),
    "behind code": Transcript(
        f"So:\n```python\nprint(1)\n```\n{IN_TAGS}\n```python\nx = 2\n```\nEnd.",
        [ADD_1],
        "So:\n```python\nprint(1)\n```\n\n```python\nx = 2\n```\nEnd.",
        template=QWEN,
    ),
    "a function repeated": Transcript(f"It is:\n{SCHEMA}", content=f"It is:\n{SCHEMA}"),
    "with a description": Transcript(
        f'<tool_call>{BARE[:-1].replace("arguments", "parameters")}, "description": "x"}}</tool_call>', [ADD_1]
    ),
    "functions repeated": Transcript(f"<tools>\n{TOLD_OF}\n</tools>", content=f"<tools>\n{TOLD_OF}\n</tools>"),
    "a list of tools": Transcript("<tools>\n<tool>x</tool>", content="<tools>\n<tool>x</tool>"),
    "behind prose": Transcript(f"I will look.\n\n{BARE}\n", [ADD_1], "I will look.\n"),
    "two behind prose": Transcript(f"I look.\n{BARE}\n{BARE}\n</tool_call>", [ADD_1, ADD_1], "I look."),
    **{
        f"no last call: {text}": Transcript(text, content=text)
        for text in (
            *(f"So:\n{BARE}\nThat is it.", f"So:\n{BARE.replace('add', 'sub')}", 'So:\n{"name": "add"}', "a\n\n{b"),
            *(f"So: {BARE}", f"So:\n```python\n{BARE}\n```\n", f"So:\n{BARE[:-2]}", 'So:\n{"name": 1}\n', "So.\n"),
        )
    },
    "Seed-OSS": Transcript(
        "<seed:think>Hm.</seed:think>I look.\n"
        + XML.replace("tool_call>", "seed:tool_call>")
        + "\n<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
        [XML_CALL, TIME],
        "I look.\n",
        "Hm.",
        template=SEED,
    ),
}
UNCLOSED |= WRAPPED
LONG_NAME = "mcp__server__" + "x" * 115
WRITTEN = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}</x>"}}}'
WHOLE = ("add", {"a": 1, "b": {"c": "}</x>"}})
NO_CALLS = (
    *(f"The JSON is {WRITTEN}", f"{WRITTEN} and", WRITTEN.replace("add", "other"), WRITTEN[:-1], ""),
    *("<tool_call>nothing</tool_call>", '{"name": "add", "arguments": "text"}', '{"name": ["add"]}'),
)
LENIENT = {
    **{f"no call: {text}": Transcript(text, content=text) for text in NO_CALLS},
    "JSON alone": Transcript(f"\n {WRITTEN}\n", [WHOLE]),
    "more behind a call": Transcript(f"<tool_call>{WRITTEN}</tool_call> and more", [WHOLE], " and more"),
    "no end": Transcript(f"<tool_call>{WRITTEN}", [WHOLE]),
    "a fence": Transcript(
        'I call it:\n```json\n{"name": "add", "arguments": {"a": 1}}\n```', [("add", {"a": 1})], "I call it:\n"
    ),
    "a fence without a word": Transcript('```\n{"name": "get_time"}\n```\n', [TIME]),
    "code in a fence": Transcript('```json\n{"a": 1}\n```\n', content='```json\n{"a": 1}\n```\n'),
    "code": Transcript("```\nget_timer()\n```\nyes", content="```\nget_timer()\n```\nyes"),
    "lines of JSON": Transcript(
        '{"name": "add", "arguments": {"a": 1}}\n{"name": "get_time", "arguments": {}}', [("add", {"a": 1}), TIME]
    ),
    "arguments as text": Transcript(
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [("add", {"a": 1})]
    ),
    "no arguments": Transcript('<tool_call>{"name": "get_time"}</tool_call>', [TIME]),
    "null": Transcript('{"name": "get_time", "arguments": null}', [TIME]),
    "arguments first": Transcript('<tool_call>{"arguments": {"a": 1}, "name": "add"}</tool_call>', [("add", {"a": 1})]),
    "as OpenAI writes calls": Transcript(
        '[{"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1}"}}]',
        [("add", {"a": 1})],
    ),
    "a mark in content": Transcript("It writes `<tool_call>` first.", content="It writes `<tool_call>` first."),
    "a mark at the end": Transcript("It ends with <tool_call>", content="It ends with <tool_call>"),
    "another function": Transcript(
        '<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
        content='<tool_call>{"name": "sub", "arguments": {}}</tool_call>',
    ),
    "XML of another function": Transcript(
        "<function=sub>\n</function>", content="<function=sub>\n</function>", template=CODER
    ),
    "JSON that is none": Transcript('{"pens": 3}', content='{"pens": 3}'),
    "no thoughts": Transcript("<think>\n\n</think>\n\nYes.", content="Yes.", template=THINK),
    "thoughts without an end": Transcript("<think>\nWell, ", reasoning="Well,", template=THINK),
    "a mark of thoughts later": Transcript("Use <think> here", content="Use <think> here", template=THINK),
    "less than": Transcript("1 < 2 <tool", content="1 < 2 <tool"),
}


def make(transcript: Transcript) -> Reader:
    marks = marks_of(transcript.template, {}, ())
    return TextReader(FUNCTIONS, marks, thinking=transcript.thinking)


@dataclass
class Told:
    """What a reader told: each kind joined, and calls put together."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    @property
    def values(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.calls]


def told(events: Sequence[Event]) -> Told:
    made, open_ = Told(), False
    for each in events:
        if isinstance(each, Begin):
            assert not open_
            made.calls.append(Call(each.name, "", cut=True))
        elif isinstance(each, Text | Reasoning):
            assert not open_
            assert each.text
            name = "content" if isinstance(each, Text) else "reasoning"
            setattr(made, name, getattr(made, name) + each.text)
        else:
            assert open_
            last = made.calls[-1]
            more = each.text if isinstance(each, Arguments) else ""
            cut = each.cut if isinstance(each, End) else True
            made.calls[-1] = replace(last, arguments=last.arguments + more, cut=cut)
        open_ = isinstance(each, Begin | Arguments)
    assert not open_
    return made


def read(reader: Reader, text: str, size: int, *, cut: bool = False) -> Told:
    """What comes of a text in pieces of a size."""
    events = [event for start in range(0, len(text), size) for event in reader.feed(text[start : start + size])]
    return told([*events, *reader.end(cut=cut)])


@pytest.mark.parametrize("size", [1, 2, 7, 10**6])
@pytest.mark.parametrize("name", [*FAMILIES, *LENIENT, *UNCLOSED])
def test_content_reasoning_and_calls(name: str, size: int) -> None:
    expected = (FAMILIES | LENIENT | UNCLOSED)[name]
    found = read(make(expected), expected.text, size)
    assert found.values == expected.calls
    assert (found.content, found.reasoning) == (expected.content, expected.reasoning)


PIECES = (
    *(
        "```",
        "```\n",
        "```text\n",
        "```xml\n",
        "`",
        "\n",
        " ",
        "}",
        "{",
        "]",
        '"',
        "x = 1\n",
        "Hello",
        "y" * 205,
        BARE,
        BARE[:30],
    ),
    *(IN_TAGS, f"{IN_TAGS}\n", "<tool_call>\n", "</tool_call>", "<|tool_call_start|>[add(a=1)]", "<|tool_call_end|>"),
    *("<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n", "<|tool_call>call:add{a:", "1}<tool_call|>"),
)


@pytest.mark.parametrize("seed", range(5))
def test_any_pieces_of_a_text_tell_the_same(seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(30):
        text = "".join(drawn.choices(PIECES, k=drawn.randint(2, 12)))
        thinking = drawn.choice([None, None, "</think>"])
        transcript = Transcript(text, template=f"{HERMES} {LFM} {GEMMA4}", thinking=thinking)
        whole = make(transcript)
        expected = told([*whole.feed(text), *whole.end()])
        assert read(make(transcript), text, drawn.randint(1, 9)) == expected, text


CHANNELS = (
    "<|channel|>analysis<|message|>The user asks.<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
    "<|end|><|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>"
    '{"a": 1}<|call|><|start|>assistant<|channel|>commentary to=functions.get_time<|message|>{}<|call|>'
)


@pytest.mark.parametrize("size", [1, 5, 10**6])
def test_channels(size: int) -> None:
    found = read(ChannelReader(FUNCTIONS), CHANNELS, size)
    assert (found.content, found.reasoning) == ("I look.", "The user asks.")
    assert found.values == [("add", {"a": 1}), TIME]
    final = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is 24.<|return|>"
    assert read(ChannelReader(FUNCTIONS), final, size) == Told("It is 24.", "Hm.")
    assert read(ChannelReader(FUNCTIONS), "Just text", size).content == "Just text"


OWN: dict[str, Any] = {
    "start_anchor": "<|im_start|>assistant\n",
    "defaults": {"role": "assistant"},
    "fields": {
        "thinking": {"open": "<think>", "close": "</think>"},
        "tool_calls": {
            "open": "<call>",
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": "<|im_end|>"},
    },
}


@pytest.mark.parametrize("size", [1, 5, 10**6])
def test_the_models_own_response_template(size: int) -> None:
    prompt = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n"
    text = 'I think.</think>Well.<call>{"name": "add", "arguments": {"a": "1"}}</call><call>{"name": "get_time"}</call>'
    reader = TemplateReader(OWN, prompt, FUNCTIONS)
    found = read(reader, text, size)
    assert (found.content, found.reasoning) == ("Well.", "I think.")
    assert found.values == [("add", {"a": 1}), TIME]
    found = read(TemplateReader(OWN, "", FUNCTIONS), "Well.<call>{no</call> more", size)
    assert (found.content[:5], found.calls) == ("Well.", [])


@pytest.mark.parametrize("name", ["Hermes and Qwen2.5", "Mistral", "Kimi K2", "Qwen3-Coder and Qwen3.5"])
def test_a_call_is_told_with_its_last_character(name: str) -> None:
    transcript = FAMILIES[name]
    reader = make(transcript)
    before, last = "", len(transcript.calls)
    for place, character in enumerate(transcript.text):
        if any(isinstance(event, Begin) for event in reader.feed(character)):
            before, last = transcript.text[: place + 1], last - 1
            assert before.endswith(("}", "</function>"))
    assert last == 0


def test_arguments_of_a_forced_call_stream_as_they_come() -> None:
    reader = CallReader(FUNCTIONS)
    pieces = [event.text for each in WRITTEN for event in reader.feed(each) if isinstance(event, Arguments)]
    assert len(pieces) > 10
    assert "".join(pieces) == json.dumps(WHOLE[1])


def test_a_long_forced_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again from the beginning with each piece of its arguments."""
    text, seen = f'{{"name": "add", "arguments": {{"list": [1.5, null, true], "text": {CODE}}}, "id": "x"}}', [0]

    def counted(given: str, names: Collection[str]) -> Found:
        seen[0] += len(given)
        return read_value(given, names)

    monkeypatch.setattr(reader_module, "read_value", counted)
    found = read(CallReader(FUNCTIONS), text, 4)
    assert found.values == [("add", {"list": [1.5, None, True], "text": json.loads(CODE)})]
    assert seen[0] < 10 * len(text)


@pytest.mark.parametrize("size", range(1, 40))
def test_what_stands_behind_the_arguments_of_a_forced_call_is_none(size: int) -> None:
    found = read(CallReader(FUNCTIONS), f'{WRITTEN[:-1]}, "id": {{"x": [1, "}}"]}}}}', size)
    assert found.values == [WHOLE]


def test_numbers_that_no_client_can_hold_are_strings_in_a_forced_call() -> None:
    for size in (1, 3, 100):
        found = read(
            CallReader(FUNCTIONS), '{"name": "add", "arguments": {"b": 1e400, "a": [-1e999, 1.5, null]}}', size
        )
        assert found.values == [("add", {"b": "1e400", "a": ["-1e999", 1.5, None]})]


def test_a_call_in_reasoning_that_is_cut_is_reasoning() -> None:
    text = f"So.\n{IN_TAGS}"
    for size in (1, 10**6):
        assert read(make(UNCLOSED["a call at once"]), text, size, cut=True) == Told("", text)


def test_reasoning_is_passed_on_at_once() -> None:
    reader = make(UNCLOSED["a call at once"])
    pieces = ("I", " <b>", "<tool_", "x", "\n", "so<tool_call>", "no", "w", "</think>", "Y")
    said = [told(reader.feed(text)) for text in pieces]
    thoughts = ["I", " <b>", "", "<tool_x", "", "\nso", "<tool_call>no", "w", ""]
    assert said == [*(Told("", each) for each in thoughts), Told("Y")]


def test_text_behind_a_line_of_json_is_passed_on_at_once() -> None:
    reader, line = make(Transcript("")), BARE.replace("1", '1, "text": "' + 300 * "x" + '"')
    said = [told(reader.feed(text)).content for text in ("So:\n", line, "\n", "That", " is")]
    assert said == ["So:", "", "", f"\n{line}\nThat", " is"]


def test_the_opening_line_of_a_fence_is_held_back_until_it_is_known() -> None:
    reader = make(Transcript(""))
    pieces = ("So:", "\n", "```", "python", "\n", "x", " = 1\n", "```", "\n")
    said = [told(reader.feed(text)).content for text in pieces]
    assert said == ["So:", "", "\n", "", "", "```python\nx", " = 1", "\n", ""]


MANY = 200
CODE = json.dumps("def f(x):\n    return {'a': [x(1) > 2, \"y\"]}\n" * MANY)
LONG_ANSWERS = {
    "lines": "So:" + f"\n{BARE}" * MANY,
    "lines, then text": "So:" + f"\n{BARE}" * MANY + "\nDone.",
    "brackets that stay open": "So:" + '\n{"name": "add", "arguments": {"a": ' * MANY,
    "brackets that stay open before others": "So:" + '\n{"name": "add", "arguments": {"a": ' * MANY + "}",
    "code in JSON": f'<tool_call>\n{{"name": "add", "arguments": {{"text": {CODE}}}}}\n</tool_call>',
    "code in a fence": f'```json\n{{"name": "add", "arguments": {{"text": {CODE}}}}}\n```',
    "code in a last line": f'So:\n{{"name": "add", "arguments": {{"text": {CODE}}}}}',
    "code in Python": f"<|tool_call_start|>[add(text={CODE})]<|tool_call_end|>",
    "code in Gemma's form": f'<|tool_call>call:add{{text:<|"|>{CODE[1:-1]}<|"|>}}<tool_call|>',
    **{
        f"openings: {text}": MANY * text
        for text in (
            *(
                "<tool_call>{",
                '<tool_call>{"',
                '<tool_call>{"name": "add", "arguments": {',
                '<tool_call>{"id": {"x": {',
            ),
            *("```json\n{", '```json\nadd{"a": ', '\n{"name"add{"b": <|"|>'),
            *('<|tool_call_start|>[add(text="', "<|tool_call_start|>[add(", "<|tool_call>call:add{a:"),
            *('<|tool_call>call:add{text:<|"|>x', "<tool_call>{}{"),
        )
    },
    "brackets that close nothing": "<|tool_call_start|>[add(" + "}{" * MANY,
    "ends of strings": '```json\nadd{"text": "' + '"a>",' * MANY,
    "code in XML": f"<tool_call>\n<function=add>\n<parameter=text>\n{CODE}\n</parameter>\n</function>\n</tool_call>",
}


@pytest.mark.parametrize("size", [5, 10**6])
@pytest.mark.parametrize("name", LONG_ANSWERS)
def test_long_answers_are_read_once(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not again from the beginning with each piece, or from each line on."""
    text, seen = LONG_ANSWERS[name], [0]

    def counted(read: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            found = read(*arguments, **options)
            (whole,) = (each for each in arguments[:2] if isinstance(each, str))
            start = next((each for each in arguments if isinstance(each, int)), 0)
            seen[0] += (found.end or getattr(found, "mark", None) or len(whole)) - start
            return found

        return call

    for module in (json_calls, call_formats, reader_module):
        monkeypatch.setattr(module, "scan", counted(scan))
    if not name.startswith("openings"):  # of what is wrong at once, its length is counted, too
        monkeypatch.setattr(json_calls, "_members", counted(json_calls._members))  # noqa: SLF001
        monkeypatch.setattr(Marked, "__call__", counted(Marked.__call__))
    reader = make(Transcript("", template=CODER if "XML" in name else f"{QWEN} {LFM} {GEMMA4}"))
    found = read(reader, text, size)
    if not name.startswith("openings"):  # whose last is a call where only brackets are missing
        assert len(found.calls) == (MANY if name == "lines" else int(name.startswith("code")))
    assert seen[0] < (10 if name.startswith(("code", "line")) else 50) * len(text)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("<tool_call>{", "{"),
        ('<tool_call>{"name": "add"', "{"),
        ("```json\nadd", "<"),
        ("<tool_call>\n<function=add>\n<parameter=text>x", "<"),
    ],
)
def test_much_space_is_read_once(begin: str, end: str) -> None:
    """Patterns that try it in several ways take the square or the cube of it: here minutes, and hours."""
    text = begin + 100_000 * " " + end
    assert read(make(Transcript("")), text, 10**6) == Told(text)


@pytest.mark.parametrize("name", [name for name, each in FAMILIES.items() if "add" in each.text])
def test_names_may_be_as_long_as_bodies_allow(name: str) -> None:
    text = re.sub(r"\badd\b", LONG_NAME, FAMILIES[name].text)
    reader = TextReader({**FUNCTIONS, LONG_NAME: ADD}, marks_of(FAMILIES[name].template, {}, ()))
    expected = [(LONG_NAME if called == "add" else called, values) for called, values in FAMILIES[name].calls]
    assert read(reader, text, 7).values == expected


PART = WRITTEN[:40]
CALL, BEGUN = (Call("add", text.partition('"arguments": ')[2], cut=text == PART) for text in (WRITTEN[:-1], PART))


@pytest.mark.parametrize(
    ("text", "forced", "expected"),
    [
        (PART, True, ("", [BEGUN])),
        (PART, False, ("", [BEGUN])),
        (WRITTEN, True, ("", [CALL])),
        (WRITTEN[:-1], True, ("", [replace(CALL, cut=True)])),
        (WRITTEN[:12], True, ("", [])),
        (WRITTEN[:12], False, (WRITTEN[:12], [])),
        (PART.replace("add", "other"), False, (PART.replace("add", "other"), [])),
        (f"See {PART}", False, (f"See {PART}", [])),
        (f"<tool_call>\n{PART}", False, ("", [BEGUN])),
        (f"So: <tool_call>{WRITTEN}</tool_call>\n<tool_call>\n{PART}", False, ("So: ", [CALL, BEGUN])),
        (f"<tool_call>{WRITTEN}", False, ("", [CALL])),
        ("<tool_call>", False, ("<tool_call>", [])),
        ("[" * 20_000, False, ("[" * 20_000, [])),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("size", [1, 10**6])
def test_a_call_that_is_cut_is_its_beginning(
    text: str, forced: bool, expected: tuple[str, Sequence[Call]], size: int
) -> None:
    reader = CallReader(FUNCTIONS) if forced else make(Transcript(""))
    found = read(reader, text, max(size, len(text) // 100), cut=True)
    assert (found.content, found.calls) == expected


def test_content_is_passed_on_at_once() -> None:
    reader = make(Transcript(""))
    said = [reader.feed(text) for text in ("I ", "<b>", "<tool_", "x")]
    assert said == [[Text("I ")], [Text("<b>")], [], [Text("<tool_x")]]
    assert TextReader({}, marks_of("", {}, ())).feed('{"name": "add"}') == [Text('{"name": "add"}')]


def test_one_call_of_several() -> None:
    transcript = FAMILIES["Hermes and Qwen2.5"]
    reader = TextReader(FUNCTIONS, marks_of(transcript.template, {}, ()), one=True)
    assert [call.name for call in read(reader, transcript.text, 3).calls] == ["add"]


def test_channels_make_one_call_whatever_pieces_are_empty() -> None:
    reader = ChannelReader(FUNCTIONS)
    pieces = ["<|channel|>commentary to=functions.add<|message|>", "", "", '{"a":1}', "", "<|call|>"]
    events = [event for text in pieces for event in reader.feed(text)]
    assert told([*events, *reader.end()]).calls == [Call("add", '{"a":1}')]


def test_channels_keep_the_first_of_calls_where_one_is_wanted() -> None:
    text = "".join(
        f'<|start|>assistant<|channel|>commentary to=functions.{name}<|message|>{{"a":1}}<|call|>'
        for name in ("add", "get_time")
    )
    assert [call.name for call in read(ChannelReader(FUNCTIONS, one=True), text, 7).calls] == ["add"]


@pytest.mark.parametrize("text", ["a", "as", "assistant", "assistants help", "<"])
@pytest.mark.parametrize("size", [1, 10**6])
def test_channels_keep_short_answers_without_a_header(text: str, size: int) -> None:
    assert read(ChannelReader(FUNCTIONS), text, size).content == text


@pytest.mark.parametrize("text", ["[Note] it", "[link](x)", "{% if", "{ x: 1", '{"x": 1, '])
def test_what_can_be_no_call_any_more_is_passed_on(text: str) -> None:
    transcript = FAMILIES["Hermes and Qwen2.5"]
    reader = TextReader(FUNCTIONS, marks_of(transcript.template, {}, ()))
    assert any(reader.feed(character) for character in text)


def test_slashes_of_a_pattern_are_escaped_once() -> None:
    patterns = [SLASH.sub(lambda found: found[1] or r"\/", each) for each in ("a/b", r"a\/b", r"a\\/b")]
    assert patterns == [r"a\/b", r"a\/b", r"a\\\/b"]


@pytest.mark.parametrize("text", ["1e400", "NaN", "-Infinity", "[1, 1e999]"])
def test_a_number_that_json_cannot_hold_stays_text(text: str) -> None:
    assert valued(text, {"type": ["number", "array"]}) == text


@pytest.mark.parametrize(
    ("prompt", "said", "expected"),
    [
        ("assistant\n<think>\n", "", ("</think>", False)),
        ("assistant\n", "", (None, False)),
        ("user\n<think>\nassistant\n", "", (None, False)),
        ("assistant\n<think>\nOk, it is", "<think>\nOk, it is", ("</think>", True)),
        ("assistant\n<think>\nOk, it is", "Ok, it is ", ("</think>", True)),
        ("assistant\n<think>\n", "<think>\n", ("</think>", False)),
        ("assistant\n<think>Ok</think>It is", "<think>Ok</think>It is", (None, False)),
        ("assistant\nIt is", "It is", (None, False)),
    ],
)
def test_reasoning_that_the_prompt_has_begun(prompt: str, said: str, expected: tuple[str | None, bool]) -> None:
    class Tokenizer:
        def decode(self, ids: list[int], **_: Any) -> str:
            return "".join(map(chr, ids))

    ids, marks = [*map(ord, prompt)], marks_of(THINK, {}, ())
    reading = reading_of(Tokenizer(), ids, marks, {}, reasons=True, forced=False, said=said)
    assert (reading.thinking, reading.goes_on) == expected
    assert reading_of(Tokenizer(), ids, marks, {}, reasons=False, forced=False, said=said).thinking is None


def test_the_rest_of_begun_reasoning_keeps_its_first_space() -> None:
    reader = TextReader({}, marks_of(THINK, {}, ()), thinking="</think>", goes_on=True)
    assert read(reader, " 4.\n</think>\n\nFour.", 1) == Told("Four.", " 4.")
