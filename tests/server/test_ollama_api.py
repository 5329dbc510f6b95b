"""Ollama's official client, unchanged, against a server: the same answers as a chat's, in its own form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from omnidraft.models.loading import load_model
from omnidraft.models.native.model import NativeModel
from support.gguf_models import small_file
from support.serving import PATIENT, QUESTION, At, serving, user

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


@pytest.mark.medium
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


@pytest.mark.medium
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
    assert tuple(map(int, server.get("/api/version").json()["version"].split("."))) >= (0, 13, 4)  # Codex asks for it
    models: list[Any] = [*client.list().models, *client.ps().models]
    for each in models:
        assert re.fullmatch("[0-9a-f]{64}", each.digest or "")  # Ollama's own client cuts it without looking
        assert each.details
        assert re.fullmatch(r"[1-9][0-9.]*M", each.details.parameter_size or "")
        assert each.details.quantization_level == "I8"
        assert each.size > 10**6
    for path in ("/api/tags", "/api/ps"):
        assert server.get(path).json()["models"][0]["capabilities"] == shown.capabilities
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


@pytest.mark.medium
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
    [{"temperature": -1}, {"temperature": "x"}, {"top_p": 2}, {"top_k": -5}, {"repeat_penalty": 0}, {"stop": 1},
     {"seed": 2**70}, {"frequency_penalty": True}, {"num_predict": -3},
     {"num_predict": False}],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_an_option_that_cannot_be_is_named(server: At, path: str, options: dict[str, Any]) -> None:
    asked = {"messages": user("x")} if path == "/api/chat" else {"prompt": "x"}
    found = server.post(path, {"model": "chat", "options": options, **asked})
    assert found.status_code == 400
    assert found.json()["error"].startswith(f"options.{next(iter(options))}")


@pytest.mark.medium
def test_no_limit_and_no_stop_string_may_be_said_as_in_ollama(server: At) -> None:
    asked = {"model": "chat", "messages": user("x"), "stream": False}
    said = [
        server.post("/api/chat", asked | {"options": {"temperature": 0} | options}).json()["message"]["content"]
        for options in ({"num_predict": -1}, {"num_predict": 0}, {"stop": ["", ""]})
    ]
    assert said[0]
    assert said == said[:1] * 3


@pytest.mark.medium
def test_a_list_of_models_loads_no_class_of_transformers(
    tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients ask for it first, and wait for some seconds at most."""
    path = small_file(tmp_path / "m.gguf")
    with serving([path], drafter, {"dtype": "auto"}) as at:
        monkeypatch.setattr(NativeModel, "model", property(lambda _: pytest.fail("it was loaded")))
        (entry,) = at.get("/api/tags").json()["models"]
        assert entry["details"]["family"] == "qwen2"
        assert at.get("/api/ps").json()["models"][0]["size_vram"] == 0
        shown = at.post("/api/show", {"model": entry["name"]}).json()
    assert shown["model_info"]["general.parameter_count"] == load_model(path, "float32").lm.model.num_parameters()


def test_options_without_effect_are_named(server: At) -> None:
    asked = {"model": "chat", "messages": user("x"), "options": OPTIONS | {"num_predict": 1}, "stream": False}
    assert server.post("/api/chat", asked).json()["omnidraft"]["ignored"] == ["options.num_ctx", "options.num_thread"]


def test_a_model_is_shown_by_its_older_name(server: At) -> None:
    assert server.post("/api/show", {"name": "chat"}).json()["model_info"]


# ---------------------------------------------------------------- where a conversation goes on


BEGUN = [*user(QUESTION), {"role": "assistant", "content": "He has 4"}]


@pytest.mark.medium
def test_an_answer_at_the_end_goes_on(server: At, client: ollama.Client) -> None:
    options = OPTIONS | {"num_predict": 12}
    made = client.chat(model="chat", messages=BEGUN, options=options)
    assert made.message.content == chat(server, messages=BEGUN, max_tokens=12, continue_final_message=True)
    assert made.message.content != chat(server, messages=BEGUN, max_tokens=12)
    pieces = list(client.chat(model="chat", messages=BEGUN, options=options, stream=True))
    assert "".join(each.message.content or "" for each in pieces) == made.message.content


@pytest.mark.medium
@pytest.mark.parametrize("said", ["", " \n"])
def test_an_empty_answer_at_the_end_is_begun(server: At, client: ollama.Client, said: str) -> None:
    turns = [*user(QUESTION), {"role": "assistant", "content": said}]
    made = client.chat(model="chat", messages=turns, options=OPTIONS | {"num_predict": 12})
    assert made.message.content == chat(server, messages=user(QUESTION), max_tokens=12)


@pytest.mark.medium
def test_a_call_at_the_end_is_complete(server: At) -> None:
    call = {"function": {"name": "count", "arguments": {"pens": 24}}}
    turns = [*user(QUESTION), {"role": "assistant", "content": "He has 4", "tool_calls": [call]}]
    found = server.post("/api/chat", {"model": "chat", "messages": turns, "stream": False, "options": OPTIONS}).json()
    assert found["done"]
    assert (
        found["prompt_eval_count"]
        > server.post("/api/chat", {"model": "chat", "messages": BEGUN, "stream": False, "options": OPTIONS}).json()[
            "prompt_eval_count"
        ]
    )


@pytest.mark.medium
def test_a_raw_prompt_goes_on_with_an_answer(server: At, client: ollama.Client) -> None:
    prompt = server.post("/apply-template", {"messages": BEGUN, "continue_final_message": True}).json()["prompt"]
    options = OPTIONS | {"num_predict": 12}
    raw = client.generate(model="chat", prompt=prompt, raw=True, options=options)
    assert raw.response == client.chat(model="chat", messages=BEGUN, options=options).message.content


# ---------------------------------------------------------------- prompts without messages


def generate(server: At, **body: Any) -> Any:
    asked = {"model": "chat", "prompt": QUESTION, "stream": False, "options": {"temperature": 0, "num_predict": 12}}
    answered = server.post("/api/generate", asked | body)
    assert answered.status_code == 200, answered.text
    return answered.json()


@pytest.mark.medium
@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_after_its_context(server: At, stream: bool) -> None:
    last = server.post("/api/generate", {"model": "chat", "prompt": "Hi.", "stream": stream, "options": OPTIONS})
    context = json.loads(last.text.splitlines()[-1])["context"]
    said = server.post("/detokenize", {"model": "chat", "tokens": context}).json()["content"]
    assert "Hi." in said
    made = generate(server, context=context)
    ids = server.post("/tokenize", {"model": "chat", "messages": user(QUESTION)}).json()["tokens"]
    asked = {"model": "chat", "prompt": [*context, *ids], "max_tokens": 12, "temperature": 0}
    assert made["response"] == server.post("/v1/completions", asked).json()["choices"][0]["text"]
    assert made["prompt_eval_count"] == len(context) + len(ids)
    assert made["context"][: len(context) + len(ids)] == [*context, *ids]
    assert len(made["context"]) == made["prompt_eval_count"] + made["eval_count"]
    assert "context" not in made.get("omnidraft", {}).get("ignored", [])
    assert generate(server, context=[])["response"] == generate(server)["response"]


def test_a_context_that_cannot_be_is_named(server: At) -> None:
    asked: dict[str, Any] = {"model": "chat", "prompt": "x", "stream": False}
    for change, words in (
        ({"context": [10**8]}, "context[0] is 100000000; the target has ids below"),
        ({"context": [5] * 5000}, "the prompt is too long"),
        ({"context": ["x"]}, 'context[0] is "x"'),
        ({"context": [5], "raw": True}, "context needs a chat template"),
    ):
        refused = server.post("/api/generate", asked | change)
        assert refused.status_code == 400, refused.text
        assert refused.json()["error"].startswith(words)


@pytest.mark.medium
def test_a_raw_prompt_takes_what_needs_no_template(server: At) -> None:
    plainly = generate(server, raw=True)
    assert "context" not in plainly
    assert generate(server, raw=True, think=False)["response"] == plainly["response"]
    for level in (True, "high"):
        refused = server.post("/api/generate", {"model": "chat", "prompt": "x", "raw": True, "think": level})
        assert refused.json()["error"] == "think needs a chat template: leave out raw and suffix"
    ruled = generate(server, raw=True, system="Be short.")
    assert (ruled["response"], ruled["omnidraft"]["ignored"]) == (plainly["response"], ["system"])
    form = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    made = generate(server, raw=True, format=form)["response"]
    asked = {"model": "chat", "prompt": QUESTION, "max_tokens": 12, "temperature": 0}
    asked["response_format"] = {"type": "json_object", "schema": form}
    assert made == server.post("/v1/completions", asked).json()["choices"][0]["text"]
    assert made.lstrip().startswith("{")


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
@pytest.mark.parametrize(
    ("kept", "reason"), [(0, "unload"), ("0s", "unload"), (300, "load"), (-1, "load"), ([], "load")]
)
def test_a_model_is_said_to_be_unloaded_where_that_is_asked_for(server: At, path: str, kept: Any, reason: str) -> None:
    told = server.post(path, {"model": "chat", "keep_alive": kept}).json()
    assert (told["done"], told["done_reason"]) == (True, reason)
    assert told["omnidraft"]["ignored"] == ["keep_alive"]


# ---------------------------------------------------------------- log-probabilities, times, downloads


@pytest.mark.medium
@pytest.mark.parametrize("raw", [False, True])
def test_log_probabilities_are_those_of_openais_api(server: At, client: ollama.Client, raw: bool) -> None:
    options = OPTIONS | {"num_predict": 6}
    asked: dict[str, Any] = {"model": "chat", "options": options, "logprobs": True, "top_logprobs": 2}
    if raw:
        text = {"prompt": QUESTION, "max_tokens": 6, "temperature": 0, "logprobs": 2, "ignore_eos": True}
        made: Any = client.generate(prompt="x", raw=True, **asked)
        text["prompt"] = "x"
        expected = server.post("/v1/completions", text).json()["choices"][0]["logprobs"]["tokens"]
        assert [each.token for each in made.logprobs] == expected[: len(made.logprobs)]
    else:
        made = client.chat(messages=user(QUESTION), **asked)
        found = server.chat(max_tokens=6, temperature=0, logprobs=True, top_logprobs=2).json()["choices"][0]
        expected = found["logprobs"]["content"]
        assert [each.token for each in made.logprobs] == [each["token"] for each in expected]
        assert [each.logprob for each in made.logprobs] == pytest.approx(
            [each["logprob"] for each in expected], abs=1e-3
        )
        pieces = list(client.chat(messages=user(QUESTION), stream=True, **asked))
        told = [each for piece in pieces for each in piece.logprobs or ()]
        assert [each.token for each in told] == [each.token for each in made.logprobs]
        generated = client.generate(prompt=QUESTION, **asked)
        assert [each.token for each in generated.logprobs or ()] == [each.token for each in made.logprobs]
    assert all(len(each.top_logprobs) == 2 for each in made.logprobs)


@pytest.mark.parametrize(
    ("asked", "tops", "ignored"),
    [({"logprobs": True}, 0, []), ({"top_logprobs": 3}, None, ["top_logprobs"]), ({"logprobs": False}, None, [])],
)
def test_log_probabilities_come_where_they_are_asked_for(
    server: At, asked: dict[str, Any], tops: int | None, ignored: list[str]
) -> None:
    body = {"model": "chat", "messages": user("x"), "stream": False, "options": {"num_predict": 2}, **asked}
    found = server.post("/api/chat", body).json()
    assert found.get("omnidraft", {}).get("ignored", []) == ignored
    assert ("logprobs" in found) == (tops is not None)
    assert all("top_logprobs" not in each for each in found.get("logprobs", ()))
    refused = server.post("/api/chat", body | {"top_logprobs": 21})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("top_logprobs")


@pytest.mark.medium
def test_times_add_up(client: ollama.Client) -> None:
    for made in (
        client.chat(model="chat", messages=user("x"), options=OPTIONS),
        client.generate(model="chat", prompt="x", options=OPTIONS),
    ):
        times = [made.load_duration or 0, made.prompt_eval_duration or 0, made.eval_duration or 0]
        assert all(each > 0 for each in times)
        assert made.total_duration == sum(times)


def test_a_model_that_is_there_is_pulled(client: ollama.Client, server: At) -> None:
    for name in ("chat", "chat:latest", "zoo:target-a"):
        assert client.pull(name).status == "success"
        assert [each.status for each in client.pull(name, stream=True)][-1] == "success"
    assert server.post("/api/pull", {"name": "chat", "insecure": True}).text.count("\n") > 1
    for name in ("llama9", "chat:7b", ""):
        found = server.post("/api/pull", {"model": name})
        assert found.status_code == 404
        assert "use one of chat, zoo:target-a" in found.json()["error"]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("accept", ["*/*", "application/json", None, "text/html,application/xhtml+xml,*/*;q=0.8"])
def test_the_root_says_that_ollama_runs_but_shows_browsers_the_page(
    server: At, method: str, accept: str | None
) -> None:
    with httpx.Client(**PATIENT) as client:
        client.headers.pop("accept")
        found = client.request(method, server.url + "/", headers={"Accept": accept} if accept else {})
    assert found.status_code == 200
    assert found.headers["vary"].split(", ")[0] == "accept"  # beside the origin, for browsers of other programs
    page = bool(accept and "html" in accept)
    assert found.headers["content-type"].startswith("text/html" if page else "text/plain")
    if method == "GET":
        assert (found.text == "Ollama is running") != page


@pytest.mark.parametrize(
    "path",
    [*("/v1/embeddings", "/embeddings", "/embedding", "/api/embed", "/api/embeddings", "/v1/rerank", "/rerank"),
     *("/v1/reranking", "/reranking", "/v2/rerank", "/v1/audio/speech", "/v1/images/generations", "/v1/moderations"),
     "/api/v0/embeddings"],
)  # fmt: skip
def test_other_kinds_of_models_are_said_to_be_elsewhere(server: At, path: str) -> None:
    found = server.post(path, {"model": "chat", "input": "x"})
    assert found.status_code == 404
    error = found.json()["error"]
    ollama = path.startswith("/api/") and "v0" not in path
    assert "this server's models write text" in (error if ollama else error["message"])
