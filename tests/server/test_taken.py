"""What clients send by default is answered: what has no effect is named in the answer, what has one is done."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from llguidance import LLMatcher
from transformers import PreTrainedTokenizerBase

from omnidraft.api import OmniDraft
from omnidraft.server.apis.anthropic import as_chat
from omnidraft.server.apis.anthropic_bodies import MessagesRequest
from omnidraft.server.grammars.grammar import ResponseFormat, answer_grammar, followed, tokens_of
from omnidraft.server.requests.bodies import read
from omnidraft.server.requests.chat_bodies import ChatRequest
from omnidraft.server.requests.messages import of_chat
from omnidraft.server.requests.response_bodies import ResponseRequest
from omnidraft.server.requests.tools import tools_of
from support.serving import QUESTION, TOOL_TEMPLATE, At, events, serving, user, with_tools

CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CHAT: dict[str, Any] = {"messages": user(QUESTION), "max_tokens": 2, "temperature": 0}
TEXT: dict[str, Any] = {"prompt": "x", "max_tokens": 2, "temperature": 0}
RESPONSE: dict[str, Any] = {"input": QUESTION, "max_output_tokens": 2, "temperature": 0}
BODIES = {CHATS: CHAT, TEXTS: TEXT, RESPONSES: RESPONSE}
STRICT = {"name": "add", "strict": True, "parameters": {"type": "object", "properties": {}}}
SAID: dict[str, Any] = {  # as clients hand an answer back
    "role": "assistant",
    "content": None,
    "refusal": None,
    "audio": None,
    "function_call": None,
    "annotations": [],
    "provider_specific_fields": None,
    "whatever": None,
    "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}
REASONED = {"role": "assistant", "content": "24", "reasoning": "4 by 6", "reasoning_content": "4 by 6"}
PART = {"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
FORM = {"type": "json_schema", "json_schema": {"description": "pens", "schema": {"type": "object"}}}


def deep(levels: int) -> dict[str, Any]:
    return {"items": deep(levels - 1)} if levels > 1 else {}


def allowing(*tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": list(tools)}}


def named(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": list(messages)}


ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
SUB: dict[str, Any] = {"type": "function", "function": {"name": "sub"}}
DEEP: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": deep(64)}}
STRICTLY: dict[str, Any] = {"type": "function", "function": STRICT}
SEARCH = {"type": "web_search", "search_context_size": "low"}
CUSTOM = {"type": "custom", "custom": {"name": "write", "format": {"type": "text"}}}
THAT = {"type": "function", "function": {"name": "add"}}
HISTORY = named(*user("x"), SAID, RESULT)
CALLED: list[dict[str, Any]] = [
    *user("x"),
    {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "5"},
]
REPLAYED = ["messages[1].tool_calls[0].index", "messages[1].annotations"]
TAKEN: list[tuple[str, dict[str, Any], list[str]]] = [  # a body, and what is named as ignored
    (CHATS, {"tools": [STRICTLY]}, ["tools[0].function.strict"]),
    (CHATS, {"tools": [STRICTLY], "tool_choice": "auto"}, ["tools[0].function.strict"]),
    (CHATS, {"tools": [STRICTLY], "tool_choice": "required"}, []),
    (CHATS, {"tools": [STRICTLY], "tool_choice": THAT}, []),
    (RESPONSES, {"tools": [{"type": "function", **STRICT}]}, ["tools[0].strict"]),
    (RESPONSES, {"tools": [{"type": "function", **STRICT}], "tool_choice": "required"}, []),
    (CHATS, {"tools": [{"type": "function", "function": STRICT}], "tool_choice": "none"}, ["tools"]),
    (
        CHATS,
        named(
            {"role": "system", "content": "x", "name": "s"},
            {"role": "developer", "content": "x", "name": "d"},
            *user("x"),
            {**SAID, "name": "a"},
            {**RESULT, "name": "add"},
        ),
        [*(f"messages[{place}].name" for place in (0, 1, 3, 4)), *(each.replace("1", "3") for each in REPLAYED)],
    ),
    (RESPONSES, {"input": [{"role": "user", "content": "x", "name": "Al"}]}, ["input[0].name"]),
    (CHATS, {"response_format": FORM}, ["response_format.json_schema.description"]),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "x", "description": "d", "schema": {"type": "object"}}}},
        ["text.format.description"],
    ),
    (CHATS, named(*user("x"), SAID, RESULT), REPLAYED),
    (CHATS, named(*user("x"), REASONED, *user("y")), ["messages[1].reasoning", "messages[1].reasoning_content"]),
    (CHATS, named({"role": "user", "content": [PART]}), ["messages[0].content[0].cache_control"]),
    (CHATS, named(*user("x"), SAID, {**RESULT, "content": None}), REPLAYED),
    (CHATS, named(*user("x"), SAID, {**RESULT, "content": [IMAGE]}), REPLAYED),
    (RESPONSES, {"input": [*CALLED[:2], CALLED[2] | {"output": [{"type": "input_image", "image_url": "x"}]}]}, []),
    (CHATS, {"snippy": {"enabled": False}, "usage": {"include": True}}, ["snippy", "usage"]),
    (
        CHATS,
        {"thinking": {"type": "enabled", "budget_tokens": 9, "block_binding": "x"}, "enable_thinking": True},
        ["thinking", "enable_thinking"],
    ),
    (CHATS, {"model": ""}, []),
    (CHATS, {"reasoning_effort": "low"}, ["reasoning_effort"]),
    (CHATS, {"verbosity": "low", "metadata": {"a": "b"}, "store": True}, ["verbosity", "metadata", "store"]),
    (CHATS, {"prompt_cache_key": "x", "user": "me", "safety_identifier": "x", "cache_salt": "y"}, []),
    (CHATS, {"parallel_tool_calls": True, "tool_choice": "auto"}, ["parallel_tool_calls", "tool_choice"]),
    (CHATS, {"tools": [ADD, SEARCH], "parallel_tool_calls": True}, ["tools[1]"]),
    (CHATS, {"tools": [ADD, SEARCH], "tool_choice": "none"}, ["tools"]),
    (CHATS, {"tools": [SUB, ADD, SEARCH], "tool_choice": THAT}, ["tools[0]", "tools[2]"]),
    (CHATS, {"tools": [ADD, SEARCH], "tool_choice": "required"}, ["tools[1]"]),
    (CHATS, {"tools": [CUSTOM, ADD], "tool_choice": "required"}, ["tools[0]"]),
    (CHATS, {"tools": [ADD, SUB, SEARCH], "tool_choice": allowing(THAT, SEARCH)}, ["tools[1]", "tools[2]"]),
    (CHATS, {"tools": [SEARCH], "tool_choice": "auto"}, ["tools[0]", "tool_choice"]),
    (RESPONSES, {"tools": [{"type": "custom", "name": "x"}, {"type": "function", "name": "add"}]}, ["tools[0]"]),
    (RESPONSES, {"tools": [SEARCH, {"type": "function", "name": "add"}], "tool_choice": "required"}, ["tools[0]"]),
    (CHATS, {"tools": [STRICTLY], "response_format": {"type": "json_object"}}, []),
    (CHATS, {"tools": [ADD], "tool_choice": THAT, "response_format": FORM}, ["response_format"]),
    (CHATS, {"model": "zoo:target-b", **HISTORY}, [*REPLAYED, "messages[1].tool_calls"]),
    (RESPONSES, {"model": "zoo:target-b", "input": CALLED}, ["input[1]"]),
    (RESPONSES, {"input": CALLED}, []),
    (RESPONSES, {"input": [*CALLED[:2], {**CALLED[2], "output": None}]}, []),
    (
        CHATS,
        {
            "reasoning": {"effort": "low"},
            "reasoning_effort": "low",
            "chat_template_kwargs": {"reasoning_effort": "low"},
        },
        ["reasoning.effort", "reasoning_effort", "chat_template_kwargs.reasoning_effort"],
    ),
    (
        CHATS,
        {**named({"role": "user", "content": "x", "name": "Al"}), "chat_template_kwargs": {"name": "x"}},
        ["messages[0].name", "chat_template_kwargs.name"],
    ),
    (CHATS, {"chat_template_kwargs": {"enable_thinking": False}}, ["chat_template_kwargs.enable_thinking"]),
    (CHATS, {"thinking": False}, ["thinking"]),
    (CHATS, named(*user("x"), SAID, {"role": "tool", "content": "5"}), REPLAYED),
    (CHATS, {"tools": [ADD["function"] | {"type": "function"}]}, []),
    (RESPONSES, {"tools": [ADD]}, []),
    (TEXTS, {"logprobs": False}, []),
    (TEXTS, {"logprobs": True}, []),
    (CHATS, named({"role": "control", "content": "thinking"}, *user("x")), ["messages[0]"]),
    (CHATS, named({"role": "control", "content": "length long"}, *user("x")), ["messages[0]"]),
    (CHATS, {"stream_options": {"include_usage": True}}, ["stream_options"]),
    (CHATS, {"logit_bias": {}, "n": 1, "presence_penalty": 0, "colour": None, "tools": None, "stop": None}, []),
    (CHATS, {"top_logprobs": 0, "logprobs": False, "frequency_penalty": 0, "presence_penalty": 0.0}, []),
    (CHATS, {"response_format": {"type": "text"}, "tools": [DEEP], "parallel_tool_calls": True}, []),
    (TEXTS, {"best_of": 1, "echo": False, "suffix": None, "logit_bias": {}, "store": True}, ["store"]),
    (RESPONSES, {"truncation": "auto", "max_tool_calls": 3}, ["truncation", "max_tool_calls"]),
    (RESPONSES, {"reasoning": {"effort": "low", "summary": "auto"}}, ["reasoning.summary", "reasoning.effort"]),
    (RESPONSES, {"reasoning": {"mode": "x"}}, ["reasoning.mode"]),
    (RESPONSES, {"stream_options": {"include_obfuscation": False}}, ["stream_options.include_obfuscation"]),
    (RESPONSES, {"store": False, "truncation": "disabled"}, ["store", "truncation"]),
    (CHATS, {"colour": "red", "mirostat": 2, "omnidraft": {"trice": 1}}, ["colour", "mirostat", "omnidraft.trice"]),
    (TEXTS, {"colour": {"a": None}, "dry_multiplier": 0.8}, ["colour", "dry_multiplier"]),
    (RESPONSES, {"colour": [1], "text": {"colour": 1}}, ["colour", "text.colour"]),
    (RESPONSES, {"include": ["file_search_call.results"]}, ["include[0]"]),
    (RESPONSES, {"text": {"verbosity": "low"}, "previous_response_id": None}, ["text.verbosity"]),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "r", "summary": []}, *user("x")]}, ["input[0]"]),
    (CHATS, {"temperature": 1e-6}, []),
    (CHATS, {"temperature": 3.5, "seed": -1}, []),
    (CHATS, {"top_k": -1}, []),
    (CHATS, {"top_k": 0}, []),
    (CHATS, {"top_p": 0, "temperature": 1}, []),
    (CHATS, {"max_tokens": None, "stop": ["a", "e", "n"]}, []),
    (CHATS, {"max_completion_tokens": 2}, []),
]


def test_a_call_without_arguments_is_one_with_none() -> None:
    call = {"id": "a", "function": {"name": "x" * 128, "arguments": ""}}
    asked = {"messages": [{"role": "assistant", "tool_calls": [call]}], "tools": [{"function": {"name": "x" * 128}}]}
    (message,) = of_chat(read(asked, ChatRequest).body).messages
    assert message["tool_calls"][0]["function"]["arguments"] == {}


THOUGHTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "thinking", "thinking": "hm", "signature": "x"}, "hm"),  # Anthropic's
    ({"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "hm"),  # Mistral's
    ({"type": "reasoning", "text": "hm"}, "hm"),
    ({"type": "reasoning", "reasoning": "hm"}, "hm"),
    ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}, "hm"),
    ({"type": "redacted_thinking", "data": "hm"}, ""),
    ({"type": "thinking", "thinking": None}, ""),
]


@pytest.mark.parametrize(("part", "told"), THOUGHTS, ids=str)
def test_reasoning_among_the_parts_of_an_answer(part: dict[str, Any], told: str) -> None:
    said = {"role": "assistant", "content": [part, {"type": "text", "text": "24"}]}
    prompt = of_chat(read({"messages": [*user("x"), said]}, ChatRequest).body)
    assert prompt.messages[1].get("reasoning_content", "") == told
    assert prompt.messages[1]["content"] == "24"
    where = "messages[1].content[0]"
    assert (prompt.dropped, prompt.optional) == (([], {"reasoning_content": [where]}) if told else ([where], {}))
    twice = of_chat(read({"messages": [*user("x"), said | {"reasoning": "so"}]}, ChatRequest).body)
    assert twice.messages[1]["reasoning_content"] == "so"
    assert twice.dropped == [where]


@pytest.mark.parametrize(
    ("kind", "tool"),
    [
        (ChatRequest, {"type": "function", **STRICT}),
        (ChatRequest, {"name": "add", "input_schema": STRICT["parameters"], "strict": True}),
        (ResponseRequest, STRICTLY),
    ],
    ids=["a response's in a chat", "a message's in a chat", "a chat's in a response"],
)
def test_a_function_is_read_in_the_form_of_another_api(kind: type[Any], tool: dict[str, Any]) -> None:
    received = read({"messages": user("x"), "input": "x", "tools": [tool]}, kind)
    (function,) = tools_of(received.body).functions.values()
    assert function.model_dump(include={*STRICT}) == STRICT
    assert not any("tools" in path for path in received.ignored)


@pytest.mark.parametrize(
    "tool", [STRICTLY, {"type": "function", **STRICT}], ids=["a chat's in a message", "a response's in a message"]
)
def test_a_function_of_openai_is_read_in_a_message(tool: dict[str, Any]) -> None:
    own = {"name": "add", "input_schema": STRICT["parameters"], "strict": True}
    assert _function_of_a_message(tool) == _function_of_a_message(own) == STRICT
    assert _function_of_a_message(ADD)["parameters"] == {"type": "object"}, "OpenAI's may lack a schema"


def _function_of_a_message(tool: dict[str, Any]) -> Any:
    received = read({"messages": user("x"), "tools": [tool]}, MessagesRequest)
    assert received.ignored == []
    (read_as,) = as_chat(received.body)["tools"]
    return read_as["function"]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("auto", "auto"),
        ("required", "required"),
        ("none", "none"),
        (THAT, THAT),
        ({"type": "function", "name": "add"}, THAT),
    ],
    ids=str,
)
def test_the_choice_of_a_function_of_openai_is_read_in_a_message(asked: Any, chosen: Any) -> None:
    received = read({"messages": user("x"), "tools": [ADD], "tool_choice": asked}, MessagesRequest)
    assert received.ignored == []
    assert as_chat(received.body)["tool_choice"] == chosen


@pytest.mark.parametrize(("asked", "thinks"), [(True, True), (False, False), ({"type": "disabled"}, False)], ids=str)
def test_thinking_may_be_a_switch(asked: Any, thinks: bool) -> None:
    prompt = of_chat(read({"messages": user("x"), "thinking": asked}, ChatRequest).body)
    assert prompt.variables == {"enable_thinking": thinks, "thinking": thinks}


def test_a_result_without_an_id_is_that_of_the_next_call() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": "{}"}} for name in ("add", "sub")]
    talk = [*user("x"), {"role": "assistant", "tool_calls": calls}, *({"role": "tool", "content": c} for c in "12")]
    messages = of_chat(read({"messages": talk}, ChatRequest).body).messages
    assert [each["name"] for each in messages[2:]] == ["add", "sub"]


def test_a_call_that_is_told_twice_is_one() -> None:
    call = {"id": "a", "function": {"name": "add", "arguments": '{"a": 1}'}}
    used = [{"type": "tool_use", "id": id_, "name": "add", "input": {"a": 1}} for id_ in ("a", "b")]
    said = {"role": "assistant", "content": used, "tool_calls": [call]}
    results = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": id_} for id_ in "ab"]}
    messages = of_chat(read({"messages": [*user("x"), said, results]}, ChatRequest).body).messages
    assert [each["id"] for each in messages[1]["tool_calls"]] == ["a", "b"]
    assert [(each["role"], each.get("name"), each["content"]) for each in messages[2:]] == [
        ("tool", "add", "a"),
        ("tool", "add", "b"),
    ]


@pytest.fixture(scope="module")
def plain(chat: Path) -> Iterator[At]:
    """Without drafts: what is tested is what goes in, and what is said of it."""
    with serving([chat, "zoo:target-b"], None, {"draft_length": 0}, lanes=2, max_tokens=8) as at:
        yield at


def ignored(answer: httpx.Response) -> list[str]:
    """What an answer, whole or streamed, says that it ignored."""
    assert answer.status_code == 200, answer.text
    found = [body.get("response", body) for body in events(answer)]
    (own,) = [body.get("omnidraft", {}) for body in found if "timings" in body]
    names: list[str] = own.get("ignored", [])
    return names


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "change", "names"), TAKEN, ids=lambda value: str(value)[:50])
def test_it_is_taken_and_what_has_no_effect_is_named(
    plain: At, path: str, change: dict[str, Any], names: list[str], stream: bool
) -> None:
    found = ignored(plain.post(path, BODIES[path] | change | {"stream": stream}))
    assert sorted(found) == sorted(name for name in names if not (stream and name == "stream_options"))


# ---------------------------------------------------------------- lengths and sampling


@pytest.mark.medium
@pytest.mark.parametrize(
    "asked", [{"max_tokens": -1}, {"max_tokens": 8192}, {"max_tokens": 2**53}, {"n_predict": -1}, {}], ids=str
)
def test_lengths_go_to_the_servers_own_bound(plain: At, asked: dict[str, Any]) -> None:
    found = plain.post(CHATS, {"messages": user(QUESTION), "temperature": 0, **asked}).json()
    assert found["usage"]["completion_tokens"] == 8
    assert found["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("asked", [{"max_tokens": 3, "max_completion_tokens": 3}, {"n_predict": 3}], ids=str)
def test_one_length_by_several_names(plain: At, asked: dict[str, Any]) -> None:
    found = plain.post(CHATS, {"messages": user(QUESTION), **asked}).json()
    assert found["usage"]["completion_tokens"] == 3


@pytest.mark.medium
@pytest.mark.parametrize("asked", [{"temperature": 1e-6}, {"top_p": 0, "temperature": 2}, {"top_k": 1}], ids=str)
def test_what_leaves_one_token_is_greedy(plain: At, asked: dict[str, Any]) -> None:
    greedy = plain.chat(temperature=0, max_tokens=8).json()["choices"][0]["message"]["content"]
    found = {plain.chat(**{"temperature": 1, **asked}, max_tokens=8, seed=seed).text for seed in range(3)}
    assert {json.loads(text)["choices"][0]["message"]["content"] for text in found} == {greedy}


@pytest.mark.slow
def test_a_seed_of_minus_one_is_any_seed(plain: At) -> None:
    asked = {"temperature": 3.0, "max_tokens": 8}
    for seed, same in (({"seed": -1}, False), ({}, False), ({"seed": -2}, True), ({"seed": 1}, True)):
        found = {plain.chat(**asked, **seed).json()["choices"][0]["message"]["content"] for _ in range(3)}
        assert (len(found) == 1) == same


# ---------------------------------------------------------------- what the template reads


READING = "{% for m in messages %}{{ m.name }}{{ m.reasoning_content }}{% endfor %}"
READING += "{{ reasoning_effort }}{{ colour }}{{ enable_thinking }}"


@pytest.mark.medium
def test_what_the_template_has_a_place_for_is_given_to_it(tmp_path: Path, model: OmniDraft) -> None:
    folder = with_tools(tmp_path / "reads")
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE + READING, encoding="utf-8")
    talk = [{"role": "user", "content": "x", "name": "Al"}, {"role": "assistant", "content": "y", "reasoning": "hm"}]
    body = {"messages": talk, "reasoning_effort": "low", "chat_template_kwargs": {"colour": "red"}, "max_tokens": 1}
    body |= {"thinking": {"type": "disabled"}}
    with serving([folder], None, {"draft_length": 0}, log_prompts=True) as at:
        assert ignored(at.post(CHATS, body)) == []
        (line,) = [line for line in at.lines if line.startswith("prompt: ")]
        assert "Al" in line
        assert line.endswith("hmlowredFalse")
    assert model.target.name  # the same tokenizer, which has no such place


ALTERNATING = "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('no') }}"
ALTERNATING += "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.mark.medium
@pytest.mark.parametrize("tools", [[], [ADD]], ids=["without tools", "with tools"])
def test_roles_that_the_template_refuses_are_the_users_words(tmp_path: Path, tools: list[dict[str, Any]]) -> None:
    """Calls and results that come back, too: the first turn, in which there are none, was taken."""
    folder = with_tools(tmp_path / "alternates")
    (folder / "chat_template.jinja").write_text(ALTERNATING, encoding="utf-8")
    talk = [{"role": "system", "content": "Be brief."}, *user("x"), SAID, RESULT, *user("y")]
    with serving([folder], None, {"draft_length": 0}, log_prompts=True) as at:
        named = ignored(at.post(CHATS, {"messages": talk, "tools": tools, "max_tokens": 1}))
        assert named == ["messages[2].tool_calls[0].index", "messages[2].annotations"]
        (line,) = [line for line in at.lines if line.startswith("prompt: ")]
        assert ("You may call functions" in line) == bool(tools)
        call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
        assert line.endswith(f"Be brief.\nx<assistant>{call}<user><tool_response>5</tool_response>\ny")
        refused = at.post(CHATS, {"messages": [{"role": "assistant", "content": "x"}]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")


@pytest.mark.medium
def test_no_effort_is_no_thinking(tmp_path: Path) -> None:
    folder = with_tools(tmp_path / "thinks")
    thinks = TOOL_TEMPLATE + "{% if enable_thinking is false %}<think></think>{% endif %}"
    (folder / "chat_template.jinja").write_text(thinks, encoding="utf-8")
    with serving([folder], None, {"draft_length": 0}, log_prompts=True) as at:
        for path, asked in ((CHATS, {"reasoning_effort": "none"}), (RESPONSES, {"reasoning": {"effort": "none"}})):
            assert ignored(at.post(path, BODIES[path] | asked)) == []
        kept = {"reasoning_effort": "none", "enable_thinking": True}
        assert "reasoning_effort" in ignored(at.post(CHATS, CHAT | kept))
        ends = [line.endswith("<think></think>") for line in at.lines if line.startswith("prompt: ")]
        assert ends == [True, True, False]


@pytest.mark.medium
def test_reasoning_is_switched_where_the_template_calls_it_thinking(tmp_path: Path) -> None:
    """As Granite's does, for which Ollama's clients send a message of the role control."""
    folder = with_tools(tmp_path / "granite")
    (folder / "chat_template.jinja").write_text(TOOL_TEMPLATE + "{% if thinking %}<think>{% endif %}", encoding="utf-8")
    talk = [{"role": "control", "content": "thinking"}, *user("x")]
    asked: list[tuple[str, dict[str, Any], bool]] = [
        (CHATS, {"messages": talk}, True),
        (CHATS, {"enable_thinking": True}, True),
        (CHATS, {"reasoning_effort": "none"}, False),
        ("/api/chat", {"messages": talk, "stream": False}, True),
        ("/api/chat", {"messages": user("x"), "stream": False, "think": True}, True),
        ("/api/chat", {"messages": user("x"), "stream": False, "think": False}, False),
    ]
    with serving([folder], None, {"draft_length": 0}, log_prompts=True, max_tokens=1) as at:
        for path, body, _ in asked:
            found = at.post(path, {"model": "granite", **(CHAT if path == CHATS else {}), **body})
            assert found.status_code == 200
            assert not found.json().get("omnidraft", {}).get("ignored")
        lines = [line for line in at.lines if line.startswith("prompt: ")]
        assert [line.endswith("<think>") for line in lines] == [thinks for _, _, thinks in asked]
        assert not any("control" in line for line in lines)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (CHATS, lambda parts: {"messages": [{"role": "user", "content": parts}]}),
        (CHATS, lambda parts: {"messages": [{"role": "system", "content": parts}, *user("x")]}),
        (CHATS, lambda parts: {"messages": [*user("x"), SAID, {**RESULT, "content": parts}]}),
        (RESPONSES, lambda parts: {"input": [{"role": "user", "content": parts}]}),
        ("/v1/messages", lambda parts: {"messages": [{"role": "user", "content": parts}]}),
    ],
)
def test_parts_of_a_text_are_lines(plain: At, path: str, asked: Callable[[Any], dict[str, Any]]) -> None:
    parts = [{"type": "text", "text": text} for text in ("Two pens.", "Six boxes.")]
    read = []
    for content in (parts, "Two pens.\nSix boxes.", "Two pens.Six boxes."):
        usage = plain.post(path, asked(content)).json()["usage"]
        read.append(usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))
    assert read[0] == read[1] != read[2]


# ---------------------------------------------------------------- tools without a place


def functions(count: int, characters: int) -> list[dict[str, Any]]:
    """So many functions, of about so many characters of JSON."""
    filler = "Says what there is to say of it. " * (characters // count // 45)
    made = []
    for place in range(count):
        inner = {"id": {"type": "string", "description": filler}, "count": {"type": "integer", "default": 5}}
        parameters = {"type": "object", "properties": inner, "required": ["id"]}
        made.append({"name": f"do_{place}", "description": filler[:90], "parameters": parameters})
    return [{"type": "function", "function": each} for each in made]


@pytest.mark.medium
@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_window_with_tools_is_answered_without_a_place_for_them(plain: At, stream: bool) -> None:
    tools = functions(36, 26_000)
    assert 20_000 < len(json.dumps(tools)) < 32_000
    body = {"stream": stream, "model": "zoo:target-b", "messages": user(QUESTION), "tools": tools}
    assert ignored(plain.post(CHATS, body)) == ["tools"]
    bare = plain.post(CHATS, body | {"tools": [], "stream": False, "temperature": 0}).json()["choices"]
    assert plain.post(CHATS, body | {"stream": False, "temperature": 0}).json()["choices"] == bare


@pytest.mark.medium
def test_tools_without_a_place_are_told_of_in_words_beside_the_form_of_the_answer(plain: At) -> None:
    tools = [{"type": "function", "function": STRICT}]
    body = {"model": "zoo:target-b", "messages": user("x"), "tools": tools, "response_format": {"type": "json_object"}}
    answer = plain.post(CHATS, body)
    assert ignored(answer) == []
    message = answer.json()["choices"][0]["message"]
    assert message.get("tool_calls") or message["content"].startswith("{")
    bare = plain.post(CHATS, body | {"tools": []})
    assert answer.json()["usage"]["prompt_tokens"] > bare.json()["usage"]["prompt_tokens"] + 50


@pytest.mark.medium
def test_a_call_that_must_be_needs_a_place_for_its_tools(plain: At) -> None:
    """In the template, or in the context, for what is told of them in words."""
    body = {"model": "zoo:target-b", "messages": user("x"), "tools": functions(36, 26_000)}
    refused = plain.post(CHATS, body | {"tool_choice": "required"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tool_choice"
    assert "template" in refused.json()["error"]["message"]
    one = {"type": "function", "function": {"name": "do_1"}}  # which alone is told of
    assert plain.post(CHATS, body | {"tool_choice": one, "max_tokens": 8}).status_code == 200


@pytest.mark.medium
def test_the_client_reads_such_answers(plain: At) -> None:
    asked: dict[str, Any] = {**CHAT, "model": "zoo:target-b", "tools": functions(2, 500), "store": True}
    whole = plain.client.chat.completions.create(**asked)
    chunks = list(plain.client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].model_extra["omnidraft"]["ignored"] == ["store"]
    response = plain.client.responses.create(**RESPONSE, model="chat", truncation="auto")
    assert response.model_extra["omnidraft"]["ignored"] == ["truncation"]


# ---------------------------------------------------------------- prompts that are too long, and variables


@pytest.mark.parametrize(("path", "name"), [(CHATS, "messages"), (TEXTS, "prompt"), (RESPONSES, "input")])
def test_a_prompt_that_is_too_long_is_named(plain: At, path: str, name: str) -> None:
    long = "pens " * 3000
    refused = plain.post(path, BODIES[path] | {name: user(long) if name == "messages" else long})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (name, "context_length_exceeded")
    known = r"prompt is too long: \d+ tokens > (\d+) maximum.* maximum context length is \1 tokens"  # to clients
    assert re.search(known, error["message"])


@pytest.mark.medium
def test_a_prompt_is_made_tokens_of_once(plain: At, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Counter[str] = Counter()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            made[name] += name == "text" or isinstance(given[1][0], dict)  # a lane is given the ids
            return function(*given, **options)

        return call

    monkeypatch.setattr(OmniDraft, "encode", counted("ids", OmniDraft.encode))
    applied: Any = PreTrainedTokenizerBase.apply_chat_template
    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", counted("text", applied))
    colours = {"chat_template_kwargs": {f"colour_{place}": "red" for place in range(20)}, "tools": [ADD]}
    assert plain.chat(tools=[ADD]).status_code == 200  # whether the template takes tools is tried once
    made.clear()
    assert len(ignored(plain.post(CHATS, CHAT | colours))) == 20
    assert made == {"ids": 1, "text": 1}
    assert plain.post(CHATS, CHAT | colours | {"messages": user("pens " * 3000)}).status_code == 400
    assert made == {"ids": 2, "text": 2}


# ---------------------------------------------------------------- tools beside the form of an answer


WANTED = {"type": "object", "properties": {"pens": {"$ref": "#/$defs/n"}}, "required": ["pens"]}
WANTED |= {"$defs": {"n": {"type": "integer"}}}
WORDS = {"type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}, "required": ["a"]}
WORDS |= {"$defs": {"n": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"pens": 24}', True),
        ('{"name": "add", "arguments": {"a": "x"}}', True),
        ('{"name": "add", "arguments": {"a": 5}}', False),
        ('{"pens": "x"}', False),
        ("24 pens", False),
    ],
)
def test_an_answer_is_of_the_form_or_a_call(tool_tokens: Any, text: str, allowed: bool) -> None:
    tokens, ids_of = tool_tokens
    form = ResponseFormat("json", followed(tokens, WANTED)[0], "")
    made = answer_grammar(tokens, form, [{"name": "add", "parameters": followed(tokens, WORDS)[0]}], None)
    matcher = LLMatcher(tokens, made)
    assert (matcher.consume_tokens(ids_of(text)) and matcher.is_accepting()) is allowed


@pytest.fixture(scope="module")
def tool_tokens(model: OmniDraft) -> tuple[Any, Callable[[str], list[int]]]:
    return tokens_of(model), lambda text: list(model.target.tokenizer(text, add_special_tokens=False)["input_ids"])
