"""Calls and results whose ids and names a chat template insists on, from clients that have others, or none."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from omnidraft.server.requests.tool_results import name_results, with_short_ids
from support.serving import At, serving, user, with_tools

# as Mistral's templates take ids, and as FunctionGemma's takes names
SHORT = """\
{% for m in messages %}{% if m.role in ('user', 'assistant') and not m.tool_calls %}\
{% if not loop.first and m.role == messages[loop.index0 - 1].role %}\
{{ raise_exception('roles must alternate') }}{% endif %}\
[{{ m.role }}]{{ m.content }}\
{% elif m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}\
{% if c.id is not defined or c.id | length != 9 %}{{ raise_exception('an id of another length') }}{% endif %}\
{{ c.function.name }}={{ c.id }};{% endfor %}\
{% elif m.role == 'tool' %}\
{% if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}\
{{ raise_exception('an id of another length') }}{% endif %}\
[TOOL_RESULTS]{{ m.tool_call_id }}={{ m.content }};\
{% else %}{{ raise_exception('a role of another kind') }}{% endif %}{% endfor %}[end]"""
NAMED = """\
{% for m in messages %}{% if m.role == 'tool' %}\
{% if not m.name %}{{ raise_exception('a result needs a name') }}{% endif %}[result]{{ m.name }}={{ m.content }};\
{% else %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}<{{ c.function.name }}>{% endfor %}{% endif %}\
{% endfor %}[end]"""


def call(id_: str | None, name: str) -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": "{}"}}
    return made if id_ is None else {"id": id_, **made}


def calls(*made: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(made)}


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


SUN, RAIN = call("toolu_01AbC", "sun"), call("call_0123456789abcdef01234567", "rain")
TURNS = [*user("x"), calls(SUN, RAIN), result("r", tool_call_id=RAIN["id"]), result("s", tool_call_id=SUN["id"])]
PLAIN = [*user("x"), calls(call(None, "sun"), call(None, "rain"))]  # as Ollama's clients send them
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("sun", "rain")]
ANTHROPIC = [
    *user("x"),
    {"role": "assistant", "content": [{"type": "tool_use", "id": SUN["id"], "name": "sun", "input": {}},
                                      {"type": "tool_use", "id": RAIN["id"], "name": "rain", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": RAIN["id"], "content": "r"},
                                 {"type": "tool_result", "tool_use_id": SUN["id"], "content": "s"}]},
]  # fmt: skip
RESPONSES = [
    *user("x"),
    *({"type": "function_call", "call_id": each["id"], **each["function"]} for each in (SUN, RAIN)),
    {"type": "function_call_output", "call_id": RAIN["id"], "output": "r"},
    {"type": "function_call_output", "call_id": SUN["id"], "output": "s"},
]
OLLAMA = [
    *user("x"),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": n, "arguments": {}}} for n in ("sun", "rain")],
    },
    {"role": "tool", "tool_name": "rain", "content": "r"},
    {"role": "tool", "tool_name": "sun", "content": "s"},
]
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 1}),
    ("/v1/messages", {"messages": ANTHROPIC, "max_tokens": 1}),
    ("/v1/responses", {"input": RESPONSES, "max_output_tokens": 1}),
    ("/api/chat", {"messages": OLLAMA, "stream": False, "options": {"num_predict": 1}}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    folder = tmp_path_factory.mktemp("results")
    for name, template in (("short", SHORT), ("named", NAMED)):
        with_tools(folder / name)
        (folder / name / "chat_template.jinja").write_text(template, encoding="utf-8")
    with serving([folder / "short", folder / "named"], None, {"draft_length": 0}, log_prompts=True) as at:
        yield at


def prompt(server: At, model: str, path: str, body: dict[str, Any]) -> str:
    """The prompt that a request comes to, of which nothing is ignored."""
    server.lines.clear()
    answered = server.post(path, {"model": model, **body})
    assert answered.status_code == 200, answered.text
    assert not answered.json().get("omnidraft", {}).get("ignored")
    (line,) = (each for each in server.lines if each.startswith("prompt: "))
    return line.removeprefix("prompt: ")


@pytest.mark.medium
@pytest.mark.parametrize(("path", "body"), ASKED)
def test_ids_are_short_where_the_template_wants_them_so(server: At, path: str, body: dict[str, Any]) -> None:
    told = re.fullmatch(
        r"\[user\]x\[TOOL_CALLS\]sun=(\w{9});rain=(\w{9});\[TOOL_RESULTS\](\w{9})=r;\[TOOL_RESULTS\](\w{9})=s;\[end\]",
        prompt(server, "short", path, body),
    )
    assert told is not None
    sun, rain, first, second = told.groups()
    assert (first, second) == (rain, sun)
    assert sun != rain


@pytest.mark.medium
def test_ids_are_short_where_roles_are_refused_too(server: At) -> None:
    told = prompt(server, "short", "/v1/chat/completions", {"messages": [*user("w"), *TURNS], "max_tokens": 1})
    assert told.startswith("[user]w\nx[TOOL_CALLS]sun=")
    assert "[TOOL_RESULTS]" in told


@pytest.mark.medium
@pytest.mark.parametrize(("path", "body"), ASKED)
def test_results_have_the_names_of_their_calls(server: At, path: str, body: dict[str, Any]) -> None:
    told = prompt(server, "named", path, body)
    assert told == "[user]x[assistant]<sun><rain>[result]rain=r;[result]sun=s;[end]"


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        (TURNS, ["rain", "sun"]),
        ([*TURNS, calls(call(SUN["id"], "wind")), result("w", tool_call_id=SUN["id"])], ["rain", "sun", "wind"]),
        ([*PLAIN, result("s"), result("r")], ["sun", "rain"]),
        ([*PLAIN, result("s", tool_call_id="")], ["sun"]),
        ([*PLAIN, *user("y"), result("s")], [None]),
        ([*TURNS[:2], result("o", tool_call_id="other")], [None]),
        ([*TURNS[:2], result("o", tool_call_id=SUN["id"], name="mine")], ["mine"]),
        ([result("o", tool_call_id="other")], [None]),
    ],
)
def test_a_result_is_of_the_call_with_its_id_or_else_of_the_next(messages: Any, names: list[str | None]) -> None:
    told = json.loads(json.dumps(messages))
    name_results(told)
    assert [each.get("name") for each in told if each["role"] == "tool"] == names


def test_short_ids_are_alike_in_every_turn_and_stay_where_they_are_short() -> None:
    first, second = with_short_ids(TURNS[:3]), with_short_ids([*TURNS, calls(call("abcDEF123", "wind"))])
    assert second[:3] == first
    assert second[-1]["tool_calls"][0]["id"] == "abcDEF123"
    (alone,) = with_short_ids([result("o", tool_call_id="\ud800")])
    assert re.fullmatch("[0-9a-f]{9}", alone["tool_call_id"])
    assert TURNS[1]["tool_calls"] == [SUN, RAIN]  # as before
