"""What requests may hold: everything else is refused by name, and nothing breaks the server."""

from __future__ import annotations

import json
import operator
import random
import re
import string
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection

import omnidraft.server.requests.grammar_options
import omnidraft.server.requests.tasks  # noqa: F401  both are looked for by their names
from omnidraft.errors import ConfigError
from support.serving import PATIENT, QUESTION, At, events, serving, user
from support.waiting import WAIT_S

pytestmark = pytest.mark.medium

CHAT: dict[str, Any] = {"messages": user(QUESTION)}
TEXT: dict[str, Any] = {"prompt": "x", "model": "zoo:target-a"}
RESPONSE: dict[str, Any] = {"input": "x"}
CHATS, TEXTS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOOLS = [{"type": "function", "function": {"name": "add"}}]
FORM: dict[str, Any] = {"type": "json_schema", "name": "x"}


def deep(levels: int) -> Any:
    return {"items": deep(levels - 1)} if levels > 1 else {}


def tools(schema: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "add", "parameters": schema}}]


def form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


CODES = {"invalid_type", "invalid_value", "missing_required_parameter", "unsupported_parameter", "unsupported_value"}
NOISE = re.compile(r"Input should|\.str\b|\blist\[|~|<state>|pydantic")  # of the parsers behind it
BAD: list[Any] = [deep(65), deep(300), {"\ud800": 1}, {"enum": [["\udfff"]]}]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHATS, {"n": 17}, "n"),
    (CHATS, {"n": 3, "best_of": 2}, "best_of"),
    (CHATS, {"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
    (CHATS, {"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
    (CHATS, {"guided_json": "{"}, "guided_json"),
    (CHATS, {"guided_regex": "("}, "guided_regex"),
    (CHATS, {"guided_grammar": "root ::= ("}, "guided_grammar"),
    (CHATS, {"omnidraft": {"draft_length": 17}}, "omnidraft.draft_length"),
    (CHATS, {"continue_final_message": True}, "continue_final_message"),
    (CHATS, {"n": "1"}, "n"),
    (CHATS, {"n": True}, "n"),
    (CHATS, {"frequency_penalty": "0.5"}, "frequency_penalty"),
    (CHATS, {"presence_penalty": -500}, "presence_penalty"),
    (CHATS, {"logit_bias": {"50256": -100}}, "logit_bias"),
    (CHATS, {"temperature": -1}, "temperature"),
    (CHATS, {"top_p": 1.5}, "top_p"),
    (CHATS, {"top_k": -2}, "top_k"),
    (CHATS, {"top_logprobs": 2}, "top_logprobs"),
    (CHATS, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHATS, {"max_tokens": 0}, "max_tokens"),
    (CHATS, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    (CHATS, {"stop": ["a", 5]}, "stop[1]"),
    (CHATS, {"messages": []}, "messages"),
    (CHATS, {"messages": [{"role": "control", "content": "thinking"}]}, "messages"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0].type"),
    (CHATS, {"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    (CHATS, {"messages": [*user("x"), {"role": "user", "content": [{"type": "text"}]}]}, "messages[1].content[0].text"),
    (CHATS, {"response_format": {"type": "xml"}}, "response_format.type"),
    (CHATS, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (CHATS, {"response_format": form({"type": "no"})}, "response_format.json_schema.schema"),
    (CHATS, {"response_format": form({"$ref": "#"})}, "response_format.json_schema.schema"),
    (RESPONSES, {"text": {"format": {**FORM, "schema": {"$ref": "#"}}}}, "text.format.schema"),
    (CHATS, {"tool_choice": "required"}, "tool_choice"),
    (CHATS, {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
    (CHATS, {"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
    (CHATS, {"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice"),
    (CHATS, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools[0].type"),
    (CHATS, {"tools": TOOLS, "tool_choice": {"type": "custom", "custom": {"name": "add"}}}, "tool_choice.type"),
    (CHATS, {"tools": [{"type": 5}]}, "tools[0].type"),
    (CHATS, {"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning_effort"),
    (CHATS, {"enable_thinking": True, "thinking": {"type": "disabled"}}, "thinking"),
    (
        CHATS,
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}},
        "chat_template_kwargs.reasoning_effort",
    ),
    *((CHATS, {"tools": tools(schema)}, "tools[0].function.parameters") for schema in BAD),
    *(
        (RESPONSES, {"tools": [{"type": "function", "name": "add", "parameters": schema}]}, "tools[0].parameters")
        for schema in BAD
    ),
    *((CHATS, {"response_format": form(schema)}, "response_format.json_schema.schema") for schema in BAD),
    *((RESPONSES, {"text": {"format": {**FORM, "schema": schema}}}, "text.format.schema") for schema in BAD),
    (CHATS, {"functions": [{"name": "add"}]}, "functions"),
    (CHATS, {"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
    (CHATS, {"ignore_eos": 1}, "ignore_eos"),
    (TEXTS, {"echo": "yes"}, "echo"),
    (TEXTS, {"best_of": 17}, "best_of"),
    (TEXTS, {"best_of": 2, "stream": True}, "best_of"),
    (TEXTS, {"prompt": ["x"] * 40, "n": 2, "temperature": 1}, "prompt"),
    (TEXTS, {"suffix": "x"}, "suffix"),
    (TEXTS, {"prompt": ["x", [1]]}, "prompt[1]"),
    (TEXTS, {"prompt": ""}, "prompt"),
    (TEXTS, {"prompt": "\ud800"}, "prompt"),
    (TEXTS, {"prompt": [5, 10**6]}, "prompt[1]"),
    (TEXTS, {"prompt": [[5, 10**6]]}, "prompt[0][1]"),
    ("/tokenize", {"content": "\ud800"}, "content"),
    ("/detokenize", {"tokens": [5, 10**6]}, "tokens[1]"),
    *(
        (RESPONSES, {"tools": [{"type": kind}], "tool_choice": "required"}, "tools[0].type")
        for kind in ("web_search", "local_shell", "custom")
    ),
    (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    (RESPONSES, {"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "r", "summary": []}]}, "input"),
    (RESPONSES, {"include": ["a", 5]}, "include[1]"),
    (RESPONSES, {"top_logprobs": 2}, "top_logprobs"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    (RESPONSES, {"input": []}, "input"),
]


@pytest.fixture(scope="module")
def brief(chat: Path) -> Iterator[At]:
    """Answers of a few tokens, of the only target, by whatever name."""
    with serving([chat], None, {"draft_length": 0}, lanes=2, max_tokens=3, max_prompt_tokens=400) as at:
        yield at


@pytest.mark.parametrize(("path", "change", "name"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_not_supported_is_named(server: At, path: str, change: dict[str, Any], name: str) -> None:
    good: dict[str, Any] = {CHATS: CHAT, TEXTS: TEXT, RESPONSES: RESPONSE}.get(path, {})
    content = json.dumps(good | change).encode()
    refused = httpx.post(server.url + path, content=content, headers={"Content-Type": "application/json"}, **PATIENT)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == name
    assert error["message"].startswith(name) or name in error["message"]
    assert error["code"] in CODES
    assert not NOISE.search(error["message"]), error["message"]


GOOD: dict[str, dict[str, Any]] = {
    CHATS: CHAT | {"max_tokens": 2},
    TEXTS: TEXT | {"max_tokens": 2},
    RESPONSES: RESPONSE | {"max_output_tokens": 2},
    "/v1/messages": CHAT | {"max_tokens": 2},
    "/v1/messages/count_tokens": CHAT,
    "/apply-template": CHAT,
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [5]},
    "/api/chat": CHAT | {"model": "chat", "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"model": "chat", "prompt": "x", "stream": False, "options": {"num_predict": 2}},
}


@pytest.mark.parametrize("path", GOOD)
def test_an_unknown_parameter_is_ignored_and_named_everywhere(server: At, path: str) -> None:
    plain = server.post(path, GOOD[path])
    assert plain.status_code == 200
    assert "ignored" not in plain.json().get("omnidraft", {})
    taken = server.post(path, GOOD[path] | {"colour": "red"})
    assert taken.status_code == 200
    assert taken.json()["omnidraft"]["ignored"] == ["colour"]


@pytest.mark.parametrize("path", GOOD)
def test_a_lone_target_answers_to_any_name_and_says_so(plain: At, path: str) -> None:
    for name in ("dummy", "gpt-5", "chat", "chat:latest", ""):
        answer = plain.post(path, GOOD[path] | {"model": name})
        assert answer.status_code == 200
        told = answer.json().get("omnidraft", {}).get("ignored", [])
        assert told == ([] if name.startswith("chat") or not name else ["model"])
    shown = plain.post("/api/show", {"name": "dummy"}).json()  # which some clients ask for before they chat
    assert shown["model_info"]["general.basename"] == "chat"
    assert plain.get("/v1/models/dummy").json()["id"] == "chat"


@pytest.mark.slow
def test_what_no_encoding_has_and_what_is_deep_breaks_nothing(server: At) -> None:
    bad = "\ud800"
    cases = [
        (TEXT | {bad: 1}, 400),
        (TEXT | {"model": bad}, 404),
        (TEXT | {"prompt": bad}, 400),
        (TEXT | {"user": bad}, 200),
    ]
    said = {"type": "output_text", "text": "x", "logprobs": [deep(300)]}
    again = {"metadata": {"a": bad, bad: "a"}, "input": [{"role": "assistant", "content": [said]}, *user("x")]}
    answers = [(TEXTS, *case) for case in cases] + [(RESPONSES, RESPONSE | again, 200)]
    for path, body, status in answers:
        headers = {"Content-Type": "application/json"}
        answer = httpx.post(server.url + path, content=json.dumps(body).encode(), headers=headers, **PATIENT)
        assert answer.status_code == status, answer.text
        assert answer.json()


def test_what_a_coding_agent_sends_is_answered(server: At) -> None:
    said = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}]
    said.append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]})
    shell: dict[str, Any] = {
        "type": "object",
        "properties": {"command": {"type": "array", "items": {"type": "string"}}},
    }
    called = {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"}
    body: dict[str, Any] = {
        "model": "chat",
        "instructions": "You are an agent.",
        "input": [*said, called, {"type": "function_call_output", "call_id": "call_1", "output": "pens.txt"}],
        "tools": [{"type": "function", "name": "shell", "description": "run", "strict": False, "parameters": shell}],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "none", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "a1",
        "client_metadata": {"installation": "x"},
        "text": {"verbosity": "medium"},
    }
    answer = server.post(RESPONSES, body | {"max_output_tokens": 8})
    assert answer.status_code == 200, answer.text
    last = events(answer)[-1]
    assert last["type"] in ("response.completed", "response.incomplete")
    assert last["response"]["usage"]["output_tokens"] > 0
    assert last["response"]["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


def test_prompts_are_held_to_their_limit(brief: At) -> None:
    refused = brief.post(TEXTS, {"prompt": [5] * 401})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert brief.post(TEXTS, {"prompt": [5] * 400}).status_code == 200


@pytest.mark.parametrize(("path", "where"), [(TEXTS, "prompt"), (CHATS, "messages"), (RESPONSES, "input")])
def test_a_text_that_no_context_holds_is_refused_before_it_is_read(
    server: At, path: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.api.OmniDraft.encode", lambda *_: pytest.fail("it was read"))
    text = "x" * 2**20
    refused = server.post(path, {where: [{"role": "user", "content": text}] if where == "messages" else text})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert refused.json()["error"]["param"] == where


@pytest.mark.parametrize(("path", "body"), [(CHATS, CHAT), (TEXTS, TEXT), (RESPONSES, RESPONSE)])
def test_an_empty_stop_string_is_as_good_as_none(brief: At, path: str, body: dict[str, Any]) -> None:
    for stop in ("", [""], ["", "no such text"]):
        answered = brief.post(path, {**body, "stop": stop})
        assert answered.status_code == 200, answered.text
        assert "stop" not in answered.json().get("omnidraft", {}).get("ignored", [])


def test_tokens_of_a_text_and_back(server: At) -> None:
    found = server.post("/tokenize", {"content": "Grüße, 12 pens"}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": found}).json()["content"] == "Grüße, 12 pens"
    pieces = server.post("/tokenize", {"content": "two pens", "with_pieces": True}).json()["tokens"]
    assert "".join(each["piece"] for each in pieces) == "two pens"


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        (
            "running.served_model.ServedModel.text_of",
            lambda at: at.post("/tokenize", {"content": "x", "with_pieces": True}),
        ),
        (
            "requests.grammar_options.followed",
            lambda at: at.chat(response_format={"type": "json_object"}, max_tokens=2),
        ),
        ("inspection.report.inspect_pair", lambda at: at.get("/report")),
        ("app.read", lambda at: at.post(TEXTS, TEXT)),
        ("requests.bodies._parsed", lambda at: at.post("/v1/messages/count_tokens", CHAT)),
    ],
)
def test_what_takes_long_holds_up_nobody(
    chat: Path, monkeypatch: pytest.MonkeyPatch, name: str, ask: Callable[[At], httpx.Response]
) -> None:
    begun, go = threading.Event(), threading.Event()
    path = f"omnidraft.{name}" if "inspection" in name else f"omnidraft.server.{name}"
    usual = resolve_name(path)

    def slow(*given: Any, **more: Any) -> Any:
        if begun.is_set():  # of another request
            return usual(*given, **more)
        begun.set()
        assert go.wait(2 * WAIT_S)
        raise ConfigError("planted")

    with serving([chat], options={"draft_length": 0}) as at, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(path, slow)
        waits = pool.submit(ask, at)
        try:
            assert begun.wait(WAIT_S)
            assert at.post("/tokenize", {"content": "x"}).status_code == 200
            assert not waits.done()
        finally:
            go.set()
        assert waits.result().status_code >= 400


def test_the_report_is_that_of_inspect(server: At) -> None:
    found = server.get("/report", params={"model": "zoo:target-a"}).json()
    assert found["works"] is True
    assert found["target"]["name"]
    assert server.get("/report", params={"model": "none"}).status_code == 404


def test_without_drafts_no_speedup_is_estimated(brief: At) -> None:
    for _ in range(2):
        found = brief.chat(max_tokens=3, omnidraft={"trace": True}).json()["omnidraft"]
        assert found["estimated_speedup"] is None


def test_prompts_are_logged_where_that_is_asked_for_alone(server: At, chat: Path) -> None:
    assert server.chat(messages=user("Marmalade?")).status_code == 200
    assert server.lines
    assert not any("Marmalade" in line for line in server.lines)
    with serving([chat], None, {"draft_length": 0}, log_prompts=True) as at:
        assert at.chat(messages=user("Marmalade?")).status_code == 200
        assert any("Marmalade" in line for line in at.lines)


# ---------------------------------------------------------------- whatever comes


ALLOWED = (GenerationMode.POSITIVE, (not_a_server_error,))
OTHERS = (GenerationMode.NEGATIVE, (not_a_server_error, negative_data_rejection))


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "checks"), [ALLOWED, OTHERS], ids=["allowed", "others"])
def test_the_servers_own_schema_finds_no_error(brief: At, mode: GenerationMode, checks: Sequence[Any]) -> None:
    """What the schema allows is no error of the server's, and what it does not allow is refused."""
    schema = schemathesis.openapi.from_url(f"{brief.url}/openapi.json")
    seen = set()

    def check(case: Any) -> None:
        seen.add((case.operation.path, case.call_and_validate(checks=checks, timeout=WAIT_S).status_code))

    limits = settings(max_examples=15, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    operations = {each.label: each for each in (cast(Any, result).ok() for result in schema.get_all_operations())}
    for operation in operations.values():
        twice = f"{operation.method.upper()} /v1{operation.path}" in operations  # the same endpoint by another path
        if not twice and (mode is GenerationMode.POSITIVE or operation.body):
            strategy = operation.as_strategy(generation_mode=mode)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                count = 60 if operation.path == TEXTS else limits.max_examples  # most prompts are empty, or no ids
                settings(limits, max_examples=count, suppress_health_check=list(HealthCheck))(
                    given(case=strategy)(check)
                )()
    if mode is GenerationMode.POSITIVE:
        assert {(path, 200) for path in ("/tokenize", "/v1/health")} <= seen
        assert {path for path, status in seen if status == 200} & {CHATS, TEXTS, RESPONSES, "/v1/messages"}
    else:
        assert {(path, 400) for path in (CHATS, TEXTS, RESPONSES, "/tokenize", "/detokenize")} <= seen


VALUES: list[Any] = [
    *(None, True, -1, 2**70, 1e308, float("nan"), "", "\ud800", "\x00", [], {}, [[]], {"a": {}}, "x" * 999),
    *({"type": "string", "pattern": "^("}, {"$ref": "#/a"}),
    *(False, 0, 1, 2, 0.5, 1.5, "a", "x\n", ["a"], {"type": "string"}),  # which may fit
]
SAID = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
TALK = [
    {"role": "system", "content": "Count."},
    *user("x"),
    {"role": "assistant", "content": None, "tool_calls": [SAID]},
    {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]},
]
SMALL_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}
BODIES: list[tuple[str, dict[str, Any]]] = [  # each of which is answered as it is: from the template to the grammar
    (CHATS, {"messages": TALK, "max_tokens": 2, "tools": tools(SMALL_SCHEMA), "stop": ["a"]}),
    (CHATS, CHAT | {"max_tokens": 2, "tools": tools(SMALL_SCHEMA), "tool_choice": "required"}),
    (CHATS, CHAT | {"max_tokens": 2, "response_format": form(SMALL_SCHEMA), "logprobs": True, "top_logprobs": 1}),
    (CHATS, CHAT | {"max_tokens": 2, "response_format": {"type": "json_object"}, "temperature": 1, "min_p": 0.1}),
    (TEXTS, TEXT | {"max_tokens": 2, "temperature": 1, "seed": 5, "logprobs": 1}),
    (RESPONSES, RESPONSE | {"max_output_tokens": 2, "text": {"format": {"type": "text"}}, "metadata": {"a": "b"}}),
    (RESPONSES, {"input": user("x"), "max_output_tokens": 2, "text": {"format": {**FORM, "schema": SMALL_SCHEMA}}}),
    ("/tokenize", {"content": "x", "add_special": True}),
    ("/detokenize", {"tokens": [1, 2]}),
]
NO_BODY = [b"[" * 5000, b'{"content":' * 2000, b"1" * 5000, b"null", b'"x"', b"NaN"]


def mangled(rng: random.Random, count: int) -> Iterator[tuple[str, bytes]]:
    """Requests with something wrong: bytes that are no JSON, values of other types, texts of any characters."""
    for _ in range(count):
        path, good = rng.choice(BODIES)
        body: Any = json.loads(json.dumps(good))
        kind = rng.randrange(9)
        if kind == 0:
            yield path, rng.choice([rng.randbytes(rng.randrange(40)), *NO_BODY])
            continue
        if kind == 1:
            whole = json.dumps(body)
            yield path, whole[: rng.randrange(len(whole))].encode()
            continue
        holder = body
        while True:
            key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
            if not isinstance(holder[key], dict | list) or not holder[key] or rng.random() < 0.2:
                break
            holder = holder[key]
        if kind < 6 or isinstance(holder, list):
            holder[key] = rng.choice(VALUES)
        elif kind == 6:
            del holder[key]
        else:
            holder["".join(rng.choices(string.printable + "é\ud800", k=rng.randrange(8)))] = rng.choice(VALUES)
        yield path, json.dumps(body).encode()


@pytest.mark.slow
def test_malformed_requests_are_no_error_of_the_server(brief: At, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: Counter[str] = Counter()  # what mangled requests came to, refused there or not

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            reached[name] += 1
            return function(*given, **options)

        return call

    for place in ("messages.encoded", "grammar_options.followed", "grammar_options.answer_grammar"):
        function = operator.attrgetter(place)(omnidraft.server.requests)
        monkeypatch.setattr(f"omnidraft.server.requests.{place}", counted(place, function))
    statuses: Counter[tuple[str, int]] = Counter()
    with httpx.Client(**PATIENT) as client:
        for path, content in dict.fromkeys(mangled(random.Random(7), 2000)):  # a third come up again
            answer = client.post(brief.url + path, content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code < 500, (path, content, answer.text)
            answer.json()
            statuses[path, answer.status_code] += 1
    assert all(statuses[path, status] > 10 for path, _ in BODIES for status in (200, 400)), statuses
    assert min(reached.values()) > 10, reached
    assert brief.chat(max_tokens=2).status_code == 200
