"""Bodies that are no good are refused with the place of what is wrong, in plain words; packed ones are read."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import Any

import httpx
import pytest

from omnidraft.server.apis.anthropic_bodies import CountRequest, MessagesRequest
from omnidraft.server.apis.llama_server_bodies import LlamaCompletion, LlamaInfill
from omnidraft.server.apis.ollama_bodies import OllamaChat, OllamaGenerate, OllamaPull, OllamaShow
from omnidraft.server.errors import ApiError
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests.bodies import MEMBERS, VALUES, read
from omnidraft.server.requests.fields import Body, ChatSchemaFormat
from omnidraft.server.requests.response_bodies import ResponseRequest
from omnidraft.server.requests.unsupported_parameters import OFF, SAME
from support.serving import PATIENT, At, user

CHATS = "/v1/chat/completions"
TEXT = {"model": "zoo:target-a", "prompt": "x", "max_tokens": 1}
LIMIT = 32 * 2**20  # of the server under test
Chat, Text, Answered = p.ChatRequest, p.CompletionRequest, ResponseRequest


def said(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [*user("x"), {"role": "user", "content": content, **more}]}


WRONG: list[tuple[type[Body], Any, str, str]] = [  # a kind, a body of it, the path, and what is said
    (Chat, {}, "messages", "is missing"),
    (Chat, {"mesages": user("x")}, "messages", "is missing"),
    (Chat, said("x", **{"\ud800": 1}), "messages[1]", "holds a name that no encoding has"),
    (Chat, {"messages": "x"}, "messages", 'is "x"; it must be a valid list'),
    (Chat, {"messages": ["x"]}, "messages[0]", 'is "x"; it must be an object'),
    (Chat, {"messages": [{"content": "x"}]}, "messages[0].role", "is missing"),
    (Chat, said(5), "messages[1].content", "is 5; it must be a string or a list of parts"),
    (Chat, said([{"type": "text", "text": 5}]), "messages[1].content[0].text", "is 5; it must be a valid string"),
    (Chat, said([{"text": "x"}]), "messages[1].content[0].type", "is missing"),
    (Chat, said(["x"]), "messages[1].content[0]", 'is "x"; it must be an object'),
    (
        Chat,
        said([{"type": "image_url", "image_url": {"url": "x"}}]),
        "messages[1].content[0].type",
        "only text is supported",
    ),
    (Chat, said([{"type": "input_audio", "input_audio": {}}]), "messages[1].content[0].type", "only text is supported"),
    (Chat, said([{"type": "file", "file": {}}]), "messages[1].content[0].type", "only text is supported"),
    (Chat, said("x", images=["abc"]), "messages[1].images", "only text is supported"),
    (Chat, {"messages": user("x"), "stop": ["a"] * 1025}, "stop", "holds 1025; it must hold at most 1024"),
    (Chat, {"messages": user("x"), "stop": 5}, "stop", "is 5; it must be a string or a list of strings"),
    (Chat, {"messages": user("x"), "tool_choice": 5}, "tool_choice", "is 5; it must be none, auto"),
    (Chat, {"messages": user("x"), "tools": [5]}, "tools[0]", "is 5; it must be an object"),
    (Chat, {"messages": user("x"), "logit_bias": {"a": 1}}, "logit_bias", "its keys must be ids of tokens"),
    (Text, {"prompt": [-1]}, "prompt[0]", "is -1; it must be greater than or equal to 0"),
    (Text, {"prompt": [1, True]}, "prompt[1]", "is true; it must be a valid integer"),
    (Text, {"prompt": ["a", 5]}, "prompt[1]", "is 5; it must be a valid string"),
    (Text, {"prompt": [[1], [2.5]]}, "prompt[1][0]", "is 2.5; it must be a valid integer"),
    (Text, {"prompt": {}}, "prompt", "is an object; it must be a string or a list"),
    (Answered, {"input": 5}, "input", "is 5; it must be a string or a list of items"),
    (Answered, {"input": [5]}, "input[0]", "is 5; it must be an object"),
    (Answered, {"input": [*user("x"), {"type": 5}]}, "input[1].type", "is 5; it must be message, function_call"),
    (
        Answered,
        {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        "input[0].content[0].type",
        "only text is supported",
    ),
    (Answered, {"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id", "is missing"),
    (Answered, {"input": "x", "metadata": {"a": 5}}, "metadata.a", "is 5; it must be a valid string"),
]


@pytest.mark.parametrize(("kind", "body", "path", "words"), WRONG, ids=[f"{each[2]} {each[3]}" for each in WRONG])
def test_what_is_wrong_is_named_with_its_place(kind: type[Body], body: Any, path: str, words: str) -> None:
    with pytest.raises(ApiError) as raised:
        read(body, kind)
    assert (raised.value.status, raised.value.param) == (400, path)
    assert str(raised.value).startswith(f"{path} ")
    assert words in str(raised.value)
    assert not re.search(r"Input should|\.str\b|~|Discriminator|named_by|of_kind", str(raised.value))


GOOD: dict[type[Body], dict[str, Any]] = {
    **{kind: {"messages": user("x")} for kind in (p.ChatRequest, MessagesRequest, CountRequest)},
    p.CompletionRequest: {"prompt": "x"},
    ResponseRequest: {"input": "x"},
    **{kind: {"model": "x"} for kind in (OllamaChat, OllamaGenerate, OllamaShow, OllamaPull)},
    **{kind: {"prompt": "x"} for kind in (LlamaCompletion, LlamaInfill)},
    p.TokenizeRequest: {"content": "x"},
    p.DetokenizeRequest: {"tokens": [1]},
}


def holding(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The body with a value at a path of the table."""
    holder, _, name = path.rpartition(".")
    if holder.endswith("[]"):
        return body | {holder[:-2]: [*body[holder[:-2]], body[holder[:-2]][0] | {name: value}]}
    return body | ({holder: {name: value}} if holder else {name: value})


def test_what_would_change_an_answers_meaning_is_refused_with_a_fix() -> None:
    assert sum(len(kind.refused) for kind in GOOD) > 40
    for kind, good in GOOD.items():
        for path, fix in kind.refused.items():
            for value in (None, *SAME.get(path, (*OFF, 0))):
                read(holding(good, path, value), kind)
            with pytest.raises(ApiError) as raised:
                read(holding(good, path, False if path == "parse_special" else ["other"]), kind)
            where = path.replace("[]", "[1]")
            assert (raised.value.param, raised.value.code) == (where, "unsupported_value")
            assert str(raised.value) == f"{where} is not supported: {fix}"
    assert read(GOOD[p.ChatRequest] | {"modalities": ["text"]}, p.ChatRequest).ignored == ["modalities"]


def test_a_screenshot_in_a_history_is_read_but_not_kept() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "a" * 99}
    shown = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    received = read({"messages": [*user("x"), {"role": "user", "content": [shown]}]}, MessagesRequest)
    assert received.ignored == []
    assert "[image: not shown" in received.body.messages[1].content[0].content[0].text  # type: ignore[union-attr]
    assert "aaa" not in f"{received}"


def test_whatever_else_is_unknown_is_ignored_and_named() -> None:
    for kind, body in GOOD.items():
        assert read(body | {"colour": {"a": 1}, "none": None, "~": 0}, kind).ignored[-2:] == ["colour", "~"], kind


def test_no_parameter_is_both_in_a_body_and_in_the_table() -> None:
    for kind in GOOD:
        assert not set(kind.refused) & set(kind.model_fields), kind


def test_a_null_is_not_given_but_in_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [None, 1], "default": None}}}
    form = {"type": "json_schema", "json_schema": {"name": None, "schema": schema, "strict": None}}
    body = {"messages": user("x"), "n": None, "temperature": None, "response_format": form, "whatever": None}
    found = read(body, p.ChatRequest).body.response_format
    assert isinstance(found, ChatSchemaFormat)
    assert found.json_schema is not None
    assert found.json_schema.schema_ == schema


# ---------------------------------------------------------------- bytes


def send(at: At, content: bytes, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    given = {"Content-Type": "application/json"} | {key.replace("_", "-"): value for key, value in headers.items()}
    return httpx.post(at.url + path, content=content, headers=given, timeout=60)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"prompt":\n  [1,,2]}', "line 2, column 6, character 16"),
        (b'{"prompt": "x"', "line 1, column 15"),
        (b'{"prompt": "x"} more', "line 1, column 17"),
        (b"", "line 1, column 1"),
        (b"\n" + b"[" * 100_000, "nested too deeply"),  # some versions of Python read some thousand levels
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"prompt": NaN}', "NaN"),
        (b'{"prompt": ' + b"1" * 5000 + b"}", "too long an integer"),
        (b'{"prompt": "x", "tools": [{"default": -1e400}]}', "-1e400"),
        (b'{"prompt": "\xff"}', "byte 12"),
        (b"[1]", "is a list"),
        (b"null", "is null"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_where_a_body_stops_being_json_is_said(server: At, content: bytes, words: str) -> None:
    refused = send(server, content)
    assert refused.status_code == 400, refused.text
    assert words in refused.json()["error"]["message"]


def test_a_body_of_too_many_values_is_refused_before_it_is_read(server: At) -> None:
    """A thread that reads it would hold up all others, as it would not one long text."""
    refused = send(server, b'{"prompt": [' + b"1," * (VALUES + 1) + b"1]}")
    assert refused.status_code == 413, refused.text
    assert refused.json()["error"]["message"] == f"the body may hold more than {VALUES} values: send fewer"


@pytest.mark.medium
def test_packed_bodies_are_read(server: At) -> None:
    body = json.dumps(TEXT).encode()
    plain = send(server, body).json()["choices"]
    assert send(server, gzip.compress(body), Content_Encoding="gzip").json()["choices"] == plain
    assert send(server, gzip.compress(body[:9]) + gzip.compress(body[9:]), Content_Encoding="gzip").status_code == 200
    assert send(server, zlib.compress(body), Content_Encoding="deflate").json()["choices"] == plain
    assert send(server, body, Content_Encoding="identity").status_code == 200


@pytest.mark.medium
def test_a_conversation_with_screenshots_is_taken(server: At) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "a" * 9 * 2**20}
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    shown = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": source}]}
    turns = [*user("x"), {"role": "assistant", "content": [call]}, {"role": "user", "content": [shown]}]
    counted = server.post("/v1/messages/count_tokens", {"model": "chat", "messages": turns})
    assert counted.status_code == 200, counted.text
    assert counted.json()["input_tokens"] < 100


@pytest.mark.parametrize(
    ("content", "encoding", "status"),
    [
        (gzip.compress(b" " * (LIMIT + 1)), "gzip", 413),
        (gzip.compress(json.dumps(TEXT).encode())[:-4], "gzip", 400),
        (json.dumps(TEXT).encode(), "gzip", 400),
        (json.dumps(TEXT).encode(), "br", 415),
        (gzip.compress(b"") * MEMBERS + gzip.compress(json.dumps(TEXT).encode()), "gzip", 400),
        (gzip.compress(b"") * (MEMBERS - 1) + gzip.compress(json.dumps(TEXT).encode()), "gzip", 200),
    ],
    ids=["large", "cut", "plain", "br", "members", "as many as can be"],
)
def test_packed_bodies_are_held_to_what_can_be_read(server: At, content: bytes, encoding: str, status: int) -> None:
    refused = send(server, content, Content_Encoding=encoding)
    assert refused.status_code == status, refused.text
    assert status == 200 or refused.json()["error"]["message"]


TYPES = ("", "application/json; charset=utf-8", "text/plain", "application/octet-stream", "multipart/form-data")
FORM = ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x")  # that a page may post
ANSWERING: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", TEXT),
    ("/v1/messages", {"model": "chat", "max_tokens": 1, "messages": user("x")}),
    ("/api/generate", {"model": "chat", "prompt": "x", "stream": False, "options": {"num_predict": 1}}),
    ("/completion", {"prompt": "x", "n_predict": 1}),
]


@pytest.mark.medium
@pytest.mark.parametrize(("path", "body"), ANSWERING, ids=lambda each: each if isinstance(each, str) else "")
def test_json_is_read_by_whatever_name_clients_give_it(server: At, path: str, body: dict[str, Any]) -> None:
    for kind in TYPES:
        found = httpx.post(server.url + path, content=json.dumps(body), headers={"Content-Type": kind}, **PATIENT)
        assert found.status_code == 200, (kind, found.text)


@pytest.mark.medium
@pytest.mark.parametrize("kind", FORM)
def test_forms_of_other_pages_are_refused_whatever_their_type(server: At, kind: str) -> None:
    headers: list[dict[str, str]] = [{"Origin": "http://evil.example"}, {"Origin": "null"}]
    headers += [{"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"} for site in ("cross-site", "same-site")]
    for path, body in (*ANSWERING, ("/api/pull", {"model": "chat"}), ("/tokenize", {"content": "x"})):
        for each in headers:
            refused = httpx.post(
                server.url + path, content=json.dumps(body), headers={"Content-Type": kind, **each}, **PATIENT
            )
            assert refused.status_code == 403, (path, each)


def test_a_long_name_is_named_in_part() -> None:
    assert read({"messages": user("x"), "k" * 5000: 1}, Chat).ignored == ["k" * 60]


def test_keys_that_no_template_is_handed_are_named() -> None:
    message = {"role": "assistant", "content": "x", "parsed": {"a": 1}, "createdAt": 5, "~": {}}
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}", "parsed_arguments": {}}}
    tool = {"type": "function", "function": {"name": "f", "return": {"type": "string"}}, "display": "F"}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    received = read({"messages": [*user("x"), message, called], "tools": [tool]}, Chat)
    assert set(received.ignored) == {
        *("messages[1].parsed", "messages[1].createdAt", "messages[1].~"),
        *("messages[2].tool_calls[0].function.parsed_arguments", "tools[0].function.return", "tools[0].display"),
    }
    assert "createdAt" not in str(received.body)  # nor handed on
    with pytest.raises(ApiError) as raised:
        read({"messages": [message | {"~": 1}, {"role": "user", "content": 5}]}, Chat)
    assert raised.value.param == "messages[1].content"


def test_whole_numbers_may_be_written_as_floats() -> None:
    body = read({"messages": user("x"), "max_tokens": 10.0, "top_k": 40.0, "seed": 1.0}, Chat).body
    assert (body.max_tokens, body.top_k, body.seed) == (10, 40, 1)
    with pytest.raises(ApiError):
        read({"messages": user("x"), "max_tokens": 10.5}, Chat)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"input": "x", "guided_json": {}}, Answered, "use text.format"),
        ({"prompt": "x", "max_completion_tokens": 5}, Text, "use max_tokens"),
        ({"input": "x", "grammar": "root"}, Answered, "use text.format"),
        ({"input": "x", "max_tokens": 5}, Answered, "use max_output_tokens"),
        ({"input": "x", "metadata": {f"k{i}": "v" for i in range(17)}}, Answered, "metadata holds 17; it must"),
    ],
)
def test_remedies_lead_somewhere(body: dict[str, Any], kind: Any, words: str) -> None:
    with pytest.raises(ApiError) as raised:
        read(body, kind)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 200
