"""Ollama's official client, unchanged, against a server: the same answers as a chat's, in its own form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import ollama
import pytest

from support.serving import PATIENT, QUESTION, At, user

OPTIONS: dict[str, Any] = {"temperature": 0, "num_predict": 40, "num_ctx": 4096, "num_thread": 2}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"pens": {"type": "integer"}}, "required": ["pens"]}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "count", "description": "", "parameters": SCHEMA}}


@pytest.fixture(scope="module")
def client(server: At) -> Iterator[ollama.Client]:
    with ollama.Client(host=server.url, **PATIENT) as made:
        yield made


def chat(server: At, **body: Any) -> Any:
    found = server.chat(**{"model": "chat", "max_tokens": 40, "temperature": 0} | body).json()
    return found["choices"][0]["message"]["content"]


@pytest.mark.parametrize("name", ["chat", "chat:latest"])
def test_a_greedy_chat_is_that_of_openais_api(server: At, client: ollama.Client, name: str) -> None:
    made = client.chat(model=name, messages=user(QUESTION), options=OPTIONS)
    assert made.message.content == chat(server, messages=user(QUESTION))
    assert made.done
    assert made.done_reason in ("stop", "length")
    assert made.eval_count
    assert made.prompt_eval_count
    pieces = list(client.chat(model=name, messages=user(QUESTION), options=OPTIONS, stream=True))
    assert "".join(each.message.content or "" for each in pieces) == made.message.content
    assert [each.done for each in pieces[-2:]] == [False, True]
    assert pieces[-1].eval_count == made.eval_count


@pytest.mark.slow
def test_a_prompt_is_a_users_words_unless_it_is_raw(server: At, client: ollama.Client) -> None:
    made = client.generate(model="chat", prompt=QUESTION, system="Be short.", options=OPTIONS)
    messages = [{"role": "system", "content": "Be short."}, *user(QUESTION)]
    assert made.response == chat(server, messages=messages)
    raw = client.generate(model="zoo:target-a", prompt="def mean(values):", raw=True, options=OPTIONS)
    asked = {"model": "zoo:target-a", "prompt": "def mean(values):", "max_tokens": 40, "temperature": 0}
    assert raw.response == server.post("/v1/completions", asked).json()["choices"][0]["text"]
    pieces = list(client.generate(model="chat", prompt=QUESTION, system="Be short.", options=OPTIONS, stream=True))
    assert "".join(each.response or "" for each in pieces) == made.response


@pytest.mark.slow
def test_answers_follow_a_format(client: ollama.Client) -> None:
    options = OPTIONS | {"num_predict": 100}
    for form in ("json", SCHEMA):
        made = client.chat(model="chat", messages=user(QUESTION), format=form, options=options)
        if made.done_reason == "stop":
            assert isinstance(json.loads(made.message.content or ""), dict)


def test_tools_are_shown_and_what_they_say_is_taken_back(client: ollama.Client) -> None:
    call = {"function": {"name": "count", "arguments": {"pens": 24}}}
    turns: Any = [
        *user(QUESTION),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "count", "content": "24"},
    ]
    made = client.chat(model="chat", messages=turns, tools=[TOOL], options=OPTIONS)
    assert made.message.content or made.message.tool_calls


def test_models_are_listed_shown_and_loaded(client: ollama.Client, server: At) -> None:
    assert [each.model for each in client.list().models] == ["chat", "zoo:target-a"]
    assert [each.model for each in client.ps().models] == ["chat", "zoo:target-a"]
    shown = client.show("chat")
    assert "completion" in (shown.capabilities or [])
    assert "tools" in (shown.capabilities or [])
    assert shown.modelinfo
    assert client.generate(model="chat", prompt="").done_reason == "load"
    assert client.chat(model="chat").done_reason == "load"
    assert tuple(map(int, server.get("/api/version").json()["version"].split("."))) >= (0, 6, 4)  # VS Code asks for it
    models: list[Any] = [*client.list().models, *client.ps().models]
    for each in models:
        assert re.fullmatch("[0-9a-f]{64}", each.digest or "")  # Ollama's own client cuts it without looking
        assert each.details
        assert re.fullmatch(r"[1-9][0-9.]*M", each.details.parameter_size or "")
    own = {"model": "chat", "system": "", "template": "", "verbose": False, "options": None, "name": ""}
    shown_to_go = server.post("/api/show", own).json()  # whose fields are there, empty or not
    assert shown_to_go["model_info"]["general.basename"] == "chat"
    assert server.post("/api/chat", {"model": "chat", "_debug_render_only": False}).status_code == 200


def test_errors_have_ollamas_form(client: ollama.Client, server: At) -> None:
    with pytest.raises(ollama.ResponseError, match="use one of chat") as error:
        client.chat(model="llama9", messages=user("Hi."))
    assert error.value.status_code == 404
    found = server.post("/api/chat", {"model": "chat", "messages": [{"role": "user", "content": 3}]})
    assert found.status_code == 400
    assert isinstance(found.json()["error"], str)
    images = {"model": "chat", "messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}
    assert "only text is supported" in server.post("/api/chat", images).json()["error"]


def test_llama_servers_own_routes(server: At) -> None:
    props = server.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] > 0
    assert "{%" in props["chat_template"]
    made = server.post("/apply-template", {"model": "chat", "messages": user("Hi.")}).json()["prompt"]
    assert made.endswith("<|im_start|>assistant\n")
    assert "Hi." in made
    assert server.get("/v1/health").json() == {"status": "ok"}


def test_openais_routes_are_there_without_v1_and_to_be_looked_at(server: At) -> None:
    import httpx

    body = {"model": "chat", "messages": user(QUESTION), "max_tokens": 8, "temperature": 0}
    paths = ("/chat/completions", "//chat//completions", "/v1/chat/completions/", "/v1/v1/chat/completions")
    found = [server.post(path, body).json()["choices"] for path in paths]
    assert found == found[:1] * len(paths)
    assert server.get("/models").json() == server.get("/v1/models").json() == server.get("/v1/models/").json()
    for path in ("/", "//", "/health", "/v1/models", "/v1/v1/models/", "/api/version"):
        assert httpx.head(server.url + path, **PATIENT).status_code == 200


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": "x"}, {"top_p": 2}, {"top_k": -5}, {"repeat_penalty": 0}, {"stop": ["", ""]},
     {"seed": 2**70}, {"frequency_penalty": True}, {"num_predict": 0}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_an_option_that_cannot_be_is_named(server: At, path: str, options: dict[str, Any]) -> None:
    asked = {"messages": user("x")} if path == "/api/chat" else {"prompt": "x"}
    found = server.post(path, {"model": "chat", "options": options, **asked})
    assert found.status_code == 400
    assert found.json()["error"].startswith(f"options.{next(iter(options))}")


def test_options_without_effect_are_named(server: At) -> None:
    asked = {"model": "chat", "messages": user("x"), "options": OPTIONS | {"num_predict": 1}, "stream": False}
    assert server.post("/api/chat", asked).json()["omnidraft"]["ignored"] == ["options.num_ctx", "options.num_thread"]


def test_a_model_is_shown_by_its_older_name(server: At) -> None:
    assert server.post("/api/show", {"name": "chat"}).json()["model_info"]
