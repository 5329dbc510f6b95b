"""Conversations that a chat template refuses as they come: clients send system messages and turns in any order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.serving import At, serving, user, with_tools

pytestmark = pytest.mark.medium

TURNS = """\
{% for m in messages %}{% if m['role'] == 'system' and (NO_SYSTEM or not loop.first) %}\
{{ raise_exception('a system message') }}{% endif %}\
{% if (NO_SYSTEM and m['role'] == 'tool') or (not loop.first and m['role'] == messages[loop.index0 - 1]['role']) %}\
{{ raise_exception('roles must alternate') }}{% endif %}\
{% if m['content'].endswith('no') %}{{ raise_exception('it at all') }}{% endif %}\
<|im_start|>{{ m['role'] }}
{{ m['content'] }}{% for c in m['tool_calls'] or [] %}{{ c['function']['name'] }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
DEAF = """\
{% for m in messages %}{% if m['role'] in ('user', 'assistant') %}<|im_start|>{{ m['role'] }}
{{ m['content'] }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
RULES = {"role": "system", "content": "Be short."}
HI = {"role": "assistant", "content": "Hi."}
CALL = {"id": "c", "type": "function", "function": {"name": "pens", "arguments": '{"n": 1}'}}
CALLED = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
RESULT = {"role": "tool", "tool_call_id": "c", "content": "6"}
IN_WORDS = '<tool_call>{"name": "pens", "arguments": {"n": 1}}</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "pens", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    """Targets whose templates take no system message (`none`), one at the beginning (`one`), or lose it (`deaf`)."""
    folder = tmp_path_factory.mktemp("roles")
    for name, none in (("none", "true"), ("one", "false")):
        with_tools(folder / name)
        template = TURNS.replace("NO_SYSTEM", none)
        (folder / name / "chat_template.jinja").write_text(template, encoding="utf-8")
    with_tools(folder / "deaf")
    (folder / "deaf" / "chat_template.jinja").write_text(DEAF, encoding="utf-8")
    with serving([folder / name for name in ("none", "one", "deaf")], None, {"draft_length": 0}) as at:
        yield at


def turns(*said: tuple[str, str]) -> str:
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said) + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("messages", "one", "none"),
    [
        ([RULES, *user("A")], [("system", "Be short."), ("user", "A")], [("user", "Be short.\nA")]),
        (user("A", "B"), [("user", "A\nB")], [("user", "A\nB")]),
        (
            [RULES, RULES, *user("A"), HI, RULES, *user("B")],
            [("system", "Be short.\nBe short."), ("user", "A"), ("assistant", "Hi."), ("user", "Be short.\nB")],
            [("user", "Be short.\nBe short.\nA"), ("assistant", "Hi."), ("user", "Be short.\nB")],
        ),
        ([*user("A"), HI, HI, *user("B")], *[[("user", "A"), ("assistant", "Hi.\nHi."), ("user", "B")]] * 2),
        (
            [RULES, RULES, *user("A"), *CALLED, RESULT],
            [("system", "Be short.\nBe short."), ("user", "A"), ("assistant", "pens"), ("tool", "6")],
            [
                *(("user", "Be short.\nBe short.\nA"), ("assistant", IN_WORDS)),
                ("user", "<tool_response>6</tool_response>"),
            ],
        ),
    ],
)
def test_messages_are_joined_where_the_template_refuses_them(
    server: At, messages: list[dict[str, Any]], one: list[tuple[str, str]], none: list[tuple[str, str]]
) -> None:
    for model, expected in (("one", one), ("none", none)):
        found = server.post("/apply-template", {"model": model, "messages": messages}).json()
        assert found == {"prompt": turns(*expected)}


def test_messages_that_a_template_would_lose_are_the_users(server: At) -> None:
    messages = [RULES, *user("A"), *CALLED, RESULT]
    found = server.post("/apply-template", {"model": "deaf", "messages": messages}).json()
    assert "Be short.\nA" in found["prompt"]
    assert "<tool_response>6</tool_response>" in found["prompt"]
    found = server.post("/apply-template", {"model": "deaf", "messages": user("A")}).json()
    assert found == {"prompt": turns(("user", "A"))}


@pytest.mark.parametrize("model", ["none", "one", "deaf"])
def test_tools_for_which_a_template_has_no_place_are_told_of_in_words(server: At, model: str) -> None:
    asked = {"model": model, "messages": user("A"), "tools": TOOLS}
    assert '{"name": "pens"' in server.post("/apply-template", asked).json()["prompt"]
    counted = {"model": model, "messages": user("A"), "tools": [{"name": "pens", "input_schema": {"type": "object"}}]}
    assert server.post("/v1/messages/count_tokens", counted).json()["input_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [RULES, *user("A", "B")], "tools": TOOLS, "max_tokens": 2}),
        (
            "/v1/responses",
            {"instructions": "x", "input": [{"role": "developer", "content": "y"}, *user("A")], "max_output_tokens": 2},
        ),
        ("/v1/messages", {"system": "x", "messages": user("A", "B"), "max_tokens": 2}),
        ("/api/chat", {"messages": [RULES, *user("A")], "stream": False, "options": {"num_predict": 2}}),
    ],
)
@pytest.mark.parametrize("model", ["none", "deaf"])
def test_every_api_answers_where_the_template_has_no_system_message(
    server: At, model: str, path: str, body: Any
) -> None:
    answered = server.post(path, {"model": model, **body})
    assert answered.status_code == 200
    assert not answered.json().get("omnidraft", {}).get("ignored")


@pytest.mark.parametrize("model", ["none", "one"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pens"}}])
def test_a_call_is_forced_where_the_template_has_no_place_for_tools(server: At, model: str, choice: Any) -> None:
    """As libraries that ask for structured output do, whatever the model."""
    schema = {"type": "object", "properties": {"n": {"enum": [3, 5]}}, "required": ["n"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "pens", "parameters": schema}}]
    asked = {"model": model, "messages": user("A"), "tools": tools, "tool_choice": choice, "max_tokens": 60}
    found = server.chat(**asked).json()
    (answer,) = found["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "pens"
    assert json.loads(call["function"]["arguments"]) in ({"n": 3}, {"n": 5})


def test_what_no_order_of_roles_mends_is_refused_in_the_words_of_the_template(server: At) -> None:
    error = server.chat(model="none", messages=[RULES, *user("no")]).json()["error"]
    assert error["param"] == "messages"
    assert "a system message" in error["message"]  # of the conversation as it came
