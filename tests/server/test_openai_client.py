"""The official `openai` client, unchanged, against a server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from omnidraft.api import OmniDraft
from support.serving import QUESTION, At, events, user

pytestmark = pytest.mark.medium

ASKED: Any = user(QUESTION)
GREEDY: dict[str, Any] = {"model": "chat", "temperature": 0, "max_tokens": 40}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"pens": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
    "required": ["pens", "sure"],
    "additionalProperties": False,
}
TOOL = {"name": "count", "description": "count things", "parameters": SCHEMA}


def test_a_greedy_chat_is_what_generate_answers(server: At, model: OmniDraft) -> None:
    alone = model.generate(user(QUESTION), max_new_tokens=40, temperature=0)
    answer = server.client.chat.completions.create(messages=ASKED, **GREEDY)
    assert answer.choices[0].message.content == alone.text
    assert answer.choices[0].finish_reason == {"length": "length", "eos": "stop"}[alone.finish_reason]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(alone.token_ids)
    assert answer.usage.prompt_tokens == len(model.encode(user(QUESTION)))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("options", [{}, {"stop": ["pen", "box"]}, {"max_tokens": 1}])
def test_streamed_chats_are_the_same_text(server: At, options: dict[str, Any]) -> None:
    asked = {**GREEDY, "messages": user(QUESTION), **options}
    whole = server.client.chat.completions.create(**asked)
    stream = server.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_completions_continue_a_text(server: At) -> None:
    client = server.client
    first = client.completions.create(model="zoo:target-a", prompt="def mean(values):", max_tokens=12, temperature=0)
    ids = server.post(
        "/tokenize", {"model": "zoo:target-a", "content": "def mean(values):", "add_special": True}
    ).json()
    again = client.completions.create(model="zoo:target-a", prompt=ids["tokens"], max_tokens=12, temperature=0)
    assert first.choices[0].text
    assert again.choices[0].text == first.choices[0].text
    chunks = client.completions.create(
        model="zoo:target-a", prompt="def mean(values):", max_tokens=12, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == first.choices[0].text
    short = client.completions.create(model="zoo:target-a", prompt="def mean(values):", temperature=0)
    assert short.usage is not None
    assert short.usage.completion_tokens <= 16


def test_the_models_are_listed(server: At) -> None:
    assert [each.id for each in server.client.models.list()] == ["chat", "zoo:target-a"]
    assert server.client.models.retrieve("zoo:target-a").id == "zoo:target-a"
    with pytest.raises(openai.NotFoundError, match="use one of chat"):
        server.client.chat.completions.create(messages=user("x"), model="gpt-9")  # type: ignore[arg-type]


def test_logprobs_are_the_targets_own(server: At, model: OmniDraft) -> None:
    import torch

    asked: dict[str, Any] = {"messages": user(QUESTION), **GREEDY, "logprobs": True, "top_logprobs": 3}
    choice = server.client.chat.completions.create(**asked, stop=["zzz"]).choices[0]
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content
    assert "".join(each.token for each in content) == choice.message.content
    assert b"".join(bytes(each.bytes or []) for each in content).decode() == choice.message.content
    ids = model.encode(user(QUESTION))
    expected = torch.log_softmax(model.target.lm.new_sequence().forward(ids, 1)[0].float(), -1)
    assert content[0].logprob == pytest.approx(float(expected.max()), abs=1e-4)
    assert [each.logprob for each in content[0].top_logprobs] == pytest.approx(
        expected.topk(3).values.tolist(), abs=1e-4
    )
    streamed = [c.choices[0].logprobs for c in server.client.chat.completions.create(**asked, stream=True)]
    tokens = [each.token for one in streamed if one is not None for each in one.content or ()]
    assert tokens == [each.token for each in content]


def test_an_answer_follows_a_schema(server: At) -> None:
    given: Any = {"type": "json_schema", "json_schema": {"name": "pens", "schema": SCHEMA, "strict": True}}
    found = set()
    for seed in range(3):
        asked: dict[str, Any] = {"temperature": 1.2, "seed": seed, "max_tokens": 64, "response_format": given}
        answer = server.client.chat.completions.create(model="chat", messages=ASKED, **asked)
        value = json.loads(answer.choices[0].message.content or "")
        assert list(value) == ["pens", "sure"]
        assert type(value["pens"]) is int
        assert 0 <= value["pens"] <= 99
        assert type(value["sure"]) is bool
        assert answer.choices[0].finish_reason == "stop"
        found.add(answer.choices[0].message.content)
    assert len(found) > 1
    response = server.client.responses.create(
        model="chat", input=QUESTION, text={"format": {"type": "json_schema", "name": "pens", "schema": SCHEMA}}
    )
    assert set(json.loads(response.output_text)) == {"pens", "sure"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_where_it_must_be(server: At, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": TOOL}]
    choice: Any = {"type": "function", "function": {"name": "count"}}
    asked: dict[str, Any] = {
        "messages": user(QUESTION),
        **GREEDY,
        "max_tokens": 100,
        "tools": tools,
        "tool_choice": choice,
    }
    create: Any = server.client.chat.completions.create
    if stream:
        chunks = list(create(**asked, stream=True))
        call, *others = (each for c in chunks for each in c.choices[0].delta.tool_calls or ())
        call.function.arguments += "".join(each.function.arguments for each in others)
        assert not any(c.choices[0].delta.content for c in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        answer = create(**asked)
        (call,) = answer.choices[0].message.tool_calls
        finish = answer.choices[0].finish_reason
        assert answer.choices[0].message.content is None
        said = [{"role": "assistant", "content": None, "tool_calls": [call.model_dump(exclude_none=True)]}]
        result = [{"role": "tool", "tool_call_id": call.id, "content": "24"}]
        assert create(**{**GREEDY, "messages": [*user(QUESTION), *said, *result], "tools": tools}).choices
    assert finish == "tool_calls"
    assert call.function.name == "count"
    assert set(json.loads(call.function.arguments)) == {"pens", "sure"}


@pytest.mark.slow
def test_responses_whole_and_streamed(server: At, model: OmniDraft) -> None:
    asked: dict[str, Any] = {"model": "chat", "input": QUESTION, "temperature": 0, "max_output_tokens": 40}
    whole = server.client.responses.create(**asked)
    assert whole.output_text == model.generate(user(QUESTION), max_new_tokens=40, temperature=0).text
    assert whole.usage is not None
    assert whole.usage.output_tokens <= 40
    events = list(server.client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == ("response.incomplete" if whole.status == "incomplete" else "response.completed")
    assert last.response.output_text == whole.output_text
    again = [*user(QUESTION), *[item.model_dump(exclude_none=True) for item in whole.output], *user("And more?")]
    more = server.client.responses.create(**asked | {"input": again}, instructions="Be brief.")
    assert more.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_responses_call_tools(server: At, stream: bool) -> None:
    tools: Any = [{"type": "function", "strict": True, **TOOL}]
    create: Any = server.client.responses.create
    asked = {"model": "chat", "input": QUESTION, "temperature": 0, "tools": tools, "tool_choice": "required"}
    if stream:
        *_, last = create(**asked, stream=True)
        answer = last.response
    else:
        answer = create(**asked)
    (call,) = answer.output
    assert call.type == "function_call"
    assert set(json.loads(call.arguments)) == {"pens", "sure"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "24"}
    again = create(**asked | {"input": [*user(QUESTION), call.model_dump(exclude_none=True), result]})
    assert again.output


def test_errors_are_those_of_the_client(server: At) -> None:
    client = server.client
    with pytest.raises(openai.BadRequestError, match="logit_bias") as error:
        client.chat.completions.create(messages=user("x"), model="chat", logit_bias={"a": 1})  # type: ignore[arg-type]
    assert error.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError, match="maximum context length") as error:
        client.completions.create(model="zoo:target-a", prompt="pens and boxes " * 9000)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(messages=user("x"), model="zoo:target-a")  # type: ignore[arg-type]


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call_that_is_cut_by_the_length_is_no_content(server: At, stream: bool) -> None:
    word = {"type": "object", "properties": {"a": {"type": "string", "minLength": 200}}, "required": ["a"]}
    function = {"name": "add", "parameters": word}
    asked: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "tool_choice": "required", "stream": stream}
    chat: Any = {"messages": user(QUESTION), "tools": [{"type": "function", "function": function}], **asked}
    found = server.post("/v1/chat/completions", chat)
    choices = [each["choices"][0] for each in events(found)]
    said = [each.get("message") or each["delta"] for each in choices]
    assert not any(each.get("content") for each in said)
    calls = [each for one in said for each in one.get("tool_calls", ())]
    assert [each["function"]["name"] for each in calls if "id" in each] == ["add"]
    assert (len(calls) > 1) == stream  # arguments come as they are made
    assert "".join(each["function"]["arguments"] for each in calls).startswith('{"a": "')
    assert choices[-1]["finish_reason"] == "length"
    asked["max_output_tokens"] = asked.pop("max_tokens")
    found = server.post("/v1/responses", {"input": QUESTION, "tools": [{"type": "function", **function}], **asked})
    last = events(found)[-1]
    last = last.get("response", last)
    (item,) = last["output"]
    assert (last["status"], item["type"], item["status"]) == ("incomplete", "function_call", "incomplete")
    assert item["arguments"].startswith('{"a": "')
