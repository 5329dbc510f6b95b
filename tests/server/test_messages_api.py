"""Anthropic's official client, unchanged, against a server: the same answers as a chat's, in its own form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic import Anthropic

from support.serving import PATIENT, QUESTION, At, user
from support.waiting import WAIT_S

ASKED: dict[str, Any] = {"model": "chat", "max_tokens": 40, "extra_body": {"temperature": 0}}
TOOL: dict[str, Any] = {
    "name": "count",
    "description": "count things",
    "input_schema": {"type": "object", "properties": {"pens": {"type": "integer"}}, "required": ["pens"]},
}

BAD = {"type": "no"}


@pytest.fixture(scope="module")
def client(server: At) -> Iterator[Any]:
    with httpx2.Client(**PATIENT) as http:
        options: Any = {"base_url": server.url, "api_key": "none", "max_retries": 0, "timeout": WAIT_S}
        yield Anthropic(http_client=http, **options)


def chat(server: At, **body: Any) -> dict[str, Any]:
    """The message of the chat that asks for the same."""
    found: dict[str, Any] = server.chat(**{"model": "chat", "max_tokens": 40, "temperature": 0} | body).json()
    return found["choices"][0] | {"usage": found["usage"]}  # type: ignore[no-any-return]


@pytest.mark.medium
def test_a_greedy_message_is_the_answer_of_the_chat(server: At, client: Any) -> None:
    alone = chat(server, messages=user(QUESTION))
    for content in (QUESTION, [{"type": "text", "text": QUESTION, "cache_control": {"type": "ephemeral"}}]):
        made = client.messages.create(messages=[{"role": "user", "content": content}], **ASKED)
        (block,) = made.content
        assert (made.type, made.role, block.type) == ("message", "assistant", "text")
        assert block.text == alone["message"]["content"]
        assert made.stop_reason == {"length": "max_tokens", "stop": "end_turn"}[alone["finish_reason"]]
        assert made.usage.output_tokens == alone["usage"]["completion_tokens"]
        read = made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)
        assert read == alone["usage"]["prompt_tokens"]


@pytest.mark.medium
def test_a_stream_has_the_same_text_and_anthropics_events(server: At, client: Any) -> None:
    alone = chat(server, messages=user(QUESTION))["message"]["content"]
    with client.messages.stream(messages=user(QUESTION), **ASKED) as stream:
        kinds = [event.type for event in stream if event.type not in ("text", "content_block_delta")]
        final = stream.get_final_message()
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert final.content[0].type == "text"
    assert final.content[0].text == alone
    assert final.usage.output_tokens > 0


@pytest.mark.medium
def test_the_system_text_and_earlier_turns_are_part_of_the_prompt(server: At, client: Any) -> None:
    turns: Any = [
        {"role": "user", "content": "Hi."},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "Hello."}],
        },
        {"role": "user", "content": QUESTION},
    ]
    system: Any = [{"type": "text", "text": "Be short."}, {"type": "text", "text": "Be kind."}]
    made = client.messages.create(messages=turns, system=system, **ASKED)
    messages = [
        {"role": "system", "content": "Be short.\nBe kind."},
        *user("Hi."),
        {"role": "assistant", "content": "Hello."},
        *user(QUESTION),
    ]
    assert made.content[0].type == "text"
    assert made.content[0].text == chat(server, messages=messages)["message"]["content"]
    counted = client.messages.count_tokens(model="chat", messages=turns, system=system)
    assert counted.input_tokens == made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)


@pytest.mark.medium
def test_the_line_of_claude_code_that_changes_is_no_part_of_the_prompt(server: At) -> None:
    said = {"model": "chat", "max_tokens": 4, "temperature": 0, "messages": user(QUESTION)}
    plain = server.post("/v1/messages", said | {"system": [{"type": "text", "text": "Be brief."}]}).json()
    usages = list[int]()
    for number in ("1", "22", "333"):
        line = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.{number}; cch={number};"}
        system = [line, {"type": "text", "text": "Be brief."}]
        answer = server.post("/v1/messages", said | {"system": system}).json()
        usages = [each["usage"]["input_tokens"] + each["usage"]["cache_read_input_tokens"] for each in (plain, answer)]
        assert usages[0] == usages[1]
        assert answer["content"] == plain["content"]
    other = [{"type": "text", "text": "Say: x-anthropic-billing-header: none"}]
    counted = server.post(
        "/v1/messages/count_tokens", {"model": "chat", "messages": user(QUESTION), "system": other}
    ).json()
    assert counted["input_tokens"] > usages[0], "a text that names it stays"


@pytest.mark.medium
def test_a_prompt_that_is_too_long_is_counted(client: Any) -> None:
    long = {"model": "chat", "messages": user("pens " * 3000), "tools": [TOOL]}
    assert client.messages.count_tokens(**long).input_tokens > client.models.list().data[0].max_model_len
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(**ASKED | long)


@pytest.mark.medium
def test_a_tool_is_called_beside_one_that_the_server_has_not(server: At) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    body = {"model": "chat", "max_tokens": 64, "messages": user(QUESTION), "tools": [search, TOOL | {"strict": True}]}
    answer = server.post("/v1/messages", body | {"tool_choice": {"type": "any"}}).json()
    assert (answer["stop_reason"], answer["content"][-1]["name"]) == ("tool_use", "count")
    assert answer["omnidraft"]["ignored"] == ["tools[0]"]
    answer = server.post("/v1/messages", body | {"max_tokens": 4}).json()
    assert answer["omnidraft"]["ignored"] == ["tools[0]", "tools[1].strict"]


@pytest.mark.medium
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "count"}])
def test_a_tool_is_called_and_its_result_taken_back(client: Any, choice: Any) -> None:
    asked: Any = {"tools": [TOOL], "tool_choice": choice, **ASKED}
    made = client.messages.create(messages=user(QUESTION), **asked)
    call = made.content[-1]
    assert (made.stop_reason, call.type) == ("tool_use", "tool_use")
    assert call.type == "tool_use"
    assert call.name == "count"
    assert isinstance(call.input["pens"], int)
    with client.messages.stream(messages=user(QUESTION), **asked) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[-1].type == "tool_use"
    assert streamed.content[-1].input == call.input
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "24"}]}
    turns: Any = [
        *user(QUESTION),
        {"role": "assistant", "content": [each.model_dump() for each in made.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    assert client.messages.create(messages=turns, tools=[TOOL], **ASKED).content


@pytest.mark.medium
@pytest.mark.parametrize("streamed", [False, True])
def test_the_clients_runner_of_tools_goes_on_without_a_thread(client: Any, streamed: bool) -> None:
    """Which it asks for in the first place, and with which it would send new messages alone."""

    def add(numbers: list[int]) -> str:
        """Add numbers."""
        return str(sum(numbers))

    asked: dict[str, Any] = {"model": "chat", "max_tokens": 20, "messages": user(QUESTION)}
    asked["tools"] = [anthropic.beta_tool(add)]
    turns = list(client.beta.messages.tool_runner(**asked, stream=streamed))
    assert (turns[0].get_final_message() if streamed else turns[0]).content


@pytest.mark.medium
def test_a_stop_string_is_named(server: At, client: Any) -> None:
    text = chat(server, messages=user(QUESTION))["message"]["content"]
    stop = text[5:8]
    made = client.messages.create(messages=user(QUESTION), stop_sequences=["@@@", stop], **ASKED)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", stop)
    assert made.content[0].type == "text"
    assert made.content[0].text == text[: text.index(stop)]


@pytest.mark.medium
def test_an_empty_text_is_a_block_whole_and_streamed(server: At, client: Any) -> None:
    first = chat(server, messages=user(QUESTION))["message"]["content"][0]
    asked: dict[str, Any] = {"messages": user(QUESTION), "stop_sequences": [first], **ASKED}
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message().content
    whole = client.messages.create(**asked).content
    assert [(each.type, each.text) for each in streamed] == [(each.type, each.text) for each in whole] == [("text", "")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "messages holds 0"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "only text is supported"),
        ({"messages": [{"role": "user", "content": 3}]}, "must be a string or a list of blocks"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"thread": {"id": "x"}}, "thread is not supported"),
        ({"stop_sequences": ["x"] * 1025}, "stop_sequences holds 1025"),
        ({"tools": [TOOL | {"name": "x" * 129}]}, "tools[0].name"),
        ({"tools": [TOOL | {"input_schema": BAD}], "tool_choice": {"type": "any"}}, "tools[0].input_schema cannot"),
        ({"output_format": {"type": "json_schema", "schema": BAD}}, "output_config.format.schema cannot"),
        ({"output_config": {"format": {"type": "json_schema", "schema": BAD}}}, "output_config.format.schema cannot"),
    ],
)
def test_errors_have_anthropics_form(server: At, change: dict[str, Any], message: str) -> None:
    body = {"model": "chat", "max_tokens": 4, "messages": user("Hi.")} | change
    found = server.post("/v1/messages", body)
    assert found.status_code == 400
    error = found.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    assert message in error["error"]["message"]


def test_the_models_are_listed_for_anthropics_client(client: Any) -> None:
    found = client.models.list().data[0]
    assert (found.id, found.type, found.display_name) == ("chat", "model", "chat")
    assert found.created_at.year > 2000


def test_an_unknown_model_is_a_not_found_error(client: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match="use one of chat"):
        client.messages.create(model="claude-9", max_tokens=4, messages=user("Hi."))


@pytest.mark.medium
def test_what_cannot_change_the_answer_is_named_with_its_own_path(server: At) -> None:
    body = {
        "model": "chat",
        "max_tokens": 4,
        "messages": user("Hi."),
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "fallbacks": "default",
        "service_tier": "auto",
        "metadata": {"user_id": "me"},
        "tools": [{"type": "web_search_20250305", "name": "web_search"}],
    }
    ignored = server.post("/v1/messages", body).json()["omnidraft"]["ignored"]
    assert {"thinking.budget_tokens", "thinking", "service_tier", "tools[0]", "fallbacks"} >= set(ignored)
    assert set(ignored) >= {"service_tier", "fallbacks"}
    assert "thinking" in ignored or "thinking.budget_tokens" in ignored


def test_a_tool_that_failed_is_told_of(server: At) -> None:
    call: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "count", "input": {}}
    sizes = []
    for failed in (False, True):
        result = {"type": "tool_result", "tool_use_id": "a", "content": "none", "is_error": failed}
        turns = [*user("x"), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        body = {"model": "chat", "messages": turns, "tools": [TOOL]}
        sizes.append(server.post("/v1/messages/count_tokens", body).json()["input_tokens"])
    assert sizes[1] > sizes[0]


@pytest.mark.parametrize(
    "blocks",
    [
        ({"type": "text", "text": "The tool count can be called."}, {"type": "tool_reference", "tool_name": "count"}),
        (
            {"type": "text", "text": "[image: not shown, as this model reads text alone]"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        ),
    ],
)
def test_blocks_of_results_that_are_no_text_are_told_of(blocks: tuple[dict[str, Any], ...], server: At) -> None:
    """Claude Code sends them with every later request: a 400 would end the conversation."""
    call: dict[str, Any] = {"type": "tool_use", "id": "a", "name": "count", "input": {}}
    sizes = []
    for block in blocks:
        result = {"type": "tool_result", "tool_use_id": "a", "content": [block]}
        turns = [*user("x"), {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
        body = {"model": "chat", "messages": turns, "tools": [TOOL]}
        sizes.append(server.post("/v1/messages/count_tokens", body).json()["input_tokens"])
    assert sizes[0] == sizes[1]
