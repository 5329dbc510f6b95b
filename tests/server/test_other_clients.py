"""`llm`, LangChain's and Hugging Face's clients, unchanged, against a server."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import InferenceClient

from omnidraft.api import OmniDraft
from support.serving import PATIENT, QUESTION, At, user
from support.waiting import WAIT_S

pytestmark = pytest.mark.medium

TOKENS = 24
MORE = "And how many are two of them?"


@pytest.fixture(autouse=True)
def _this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both could report to somebody; what connects to another machine fails."""
    connect = socket.socket.connect

    def local(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or ipaddress.ip_address(address[0]).is_loopback, address
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


def answers(model: OmniDraft) -> tuple[str, str]:
    """What the library answers to the question, and then to the second one."""
    first = model.generate(user(QUESTION), max_new_tokens=TOKENS, temperature=0).text
    talk = [*user(QUESTION), {"role": "assistant", "content": first}, *user(MORE)]
    return first, model.generate(talk, max_new_tokens=TOKENS, temperature=0).text


@pytest.mark.slow
def test_llm_holds_a_conversation(
    server: At, model: OmniDraft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm: Any = pytest.importorskip("llm")
    declared = f"- model_id: mine\n  model_name: chat\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(declared, encoding="utf-8")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    conversation = llm.get_model("mine").conversation()
    found = []
    for question in (QUESTION, MORE):
        pieces = list(conversation.prompt(question, temperature=0, max_tokens=TOKENS))
        assert len(pieces) > 1  # streamed
        found.append("".join(pieces))
    assert tuple(found) == answers(model)


@pytest.mark.slow
def test_langchain_holds_a_conversation(server: At, model: OmniDraft) -> None:
    langchain: Any = pytest.importorskip("langchain_openai")
    options = {"model": "chat", "temperature": 0, "max_tokens": TOKENS, "max_retries": 0, "api_key": "none"}
    talk: list[Any] = []
    found = []
    with httpx.Client(**PATIENT) as http:  # its own stays open
        client = langchain.ChatOpenAI(base_url=f"{server.url}/v1", http_client=http, stream_usage=True, **options)
        for question in (QUESTION, MORE):
            talk.append(("human", question))
            chunks = list(client.stream(talk))
            whole = sum(chunks[1:], chunks[0])
            assert len(chunks) > 2  # streamed
            assert 0 < whole.usage_metadata["output_tokens"] <= TOKENS
            assert whole.response_metadata["finish_reason"] in ("stop", "length")
            talk.append(whole)
            found.append(whole.content)
    assert tuple(found) == answers(model)


PENS: dict[str, Any] = {
    "type": "object",
    "properties": {"pens": {"type": "integer", "maximum": 99}},
    "required": ["pens"],
}
PENS |= {"additionalProperties": False}


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (None, ""),
        ({"type": "json_object", "value": PENS}, r'\{"pens": ?-?\d+\}'),
        ({"type": "json", "value": json.dumps(PENS)}, r'\{"pens": ?-?\d+\}'),
        ({"type": "json_schema", "json_schema": {"name": "pens", "schema": PENS}}, r'\{"pens": ?-?\d+\}'),
        ({"type": "regex", "value": "[0-9]{2}"}, "[0-9]{2}"),
    ],
    ids=str,
)
def test_hugging_faces_client_needs_no_name_of_a_model(plain: At, form: Any, pattern: str) -> None:
    client = InferenceClient(base_url=plain.url, timeout=WAIT_S)
    asked: dict[str, Any] = {"messages": user(QUESTION), "max_tokens": 40, "temperature": 0, "response_format": form}
    whole = client.chat_completion(**asked)
    assert re.match(pattern, whole.choices[0].message.content or "")
    assert whole.model == "chat"
    assert whole["omnidraft"]["ignored"] == ["model"]
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat_completion(**asked, stream=True)]
    assert "".join(pieces) == whole.choices[0].message.content


def test_a_schema_may_be_a_value_as_in_their_servers(plain: At) -> None:
    form = {"type": "json_schema", "value": {"name": "pens", "schema": PENS}}
    answer = plain.chat(response_format=form, max_tokens=40, temperature=0).json()
    assert re.match(r'\{"pens": ?-?\d+\}', answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_object", "value": 5}, "response_format.value"),
        ({"type": "json", "value": "{"}, "response_format.value"),
        ({"type": "json_schema", "value": {"name": "x", "schema": {"type": "no"}}}, "response_format.value.schema"),
        ({"type": "regex", "value": "("}, "response_format.value"),
        ({"type": "regex"}, "response_format.value"),
    ],
    ids=str,
)
def test_a_form_of_its_that_cannot_be_is_named(plain: At, form: Any, param: str) -> None:
    refused = plain.chat(response_format=form)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def webui_tools(count: int) -> list[dict[str, Any]]:
    """Tools as Open WebUI sends its own with each chat: many, with nested and optional parameters."""
    item = {"type": "object", "properties": {"title": {"type": "string"}, "tags": {"type": ["array", "null"]}}}
    properties = {
        "query": {"type": "string", "description": "what is looked for"},
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "items": {"type": "array", "items": item},
    }
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    names = [f"search_notes_{number}" for number in range(count)]
    return [
        {"type": "function", "function": {"name": name, "description": "searches notes", "parameters": schema}}
        for name in names
    ]


def test_the_first_message_of_open_webui_is_answered(server: At) -> None:
    """By its connection for OpenAI's API and by that for Ollama's: a stream, with tools of nested types."""
    first = {"model": "chat", "messages": user("hi"), "stream": True, "tools": webui_tools(2)}
    asked = first | {"stream_options": {"include_usage": True}, "max_tokens": 8, "metadata": {"chat_id": "x"}}
    told = server.post("/v1/chat/completions", asked)
    assert told.status_code == 200
    assert told.text.rstrip().endswith("data: [DONE]")
    lines = server.post("/api/chat", first | {"options": {"num_predict": 8}, "keep_alive": "5m"}).text.splitlines()
    assert json.loads(lines[-1])["done"]


def test_lm_studios_paths(server: At) -> None:
    models = server.get("/api/v0/models").json()
    assert (models["object"], [each["id"] for each in models["data"]]) == ("list", ["chat", "zoo:target-a"])
    assert server.get("/api/v0/models/zoo:target-a").json() == models["data"][1]
    assert {name: models["data"][0][name] for name in ("object", "type", "arch", "compatibility_type", "state")} == {
        "object": "model",
        "type": "llm",
        "arch": "qwen2",
        "compatibility_type": "safetensors",
        "state": "loaded",
    }
    assert models["data"][0]["max_context_length"] == server.get("/v1/models/chat").json()["max_model_len"]
    asked = {"model": "chat", "max_tokens": 4, "temperature": 0}
    for path, body, said in (
        ("chat/completions", {"messages": user(QUESTION)}, "message"),
        ("completions", {"prompt": QUESTION}, "text"),
    ):
        found, own = (server.post(f"{start}/{path}", asked | body).json() for start in ("/api/v0", "/v1"))
        assert found["choices"][0][said] == own["choices"][0][said]
        assert server.post(f"/api/v0/{path}", asked).json()["error"]["param"] in ("messages", "prompt")
