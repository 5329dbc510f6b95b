"""Conversations that were begun on another server go on: what has text is told, and the rest is passed over by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic

from support.serving import PATIENT, At, serving, user
from support.waiting import WAIT_S


@pytest.fixture(scope="module")
def logged(chat: Path) -> Iterator[At]:
    with serving([chat], None, {"draft_length": 0}, max_tokens=1, log_prompts=True) as at:
        yield at


@pytest.fixture(scope="module")
def client(logged: At) -> Iterator[Any]:
    with httpx2.Client(**PATIENT) as http:
        options: Any = {"base_url": logged.url, "api_key": "none", "max_retries": 0, "timeout": WAIT_S}
        yield Anthropic(http_client=http, **options)


def prompt(at: At) -> list[str]:
    """The messages of the last prompt, without the beginning of the answer."""
    last = [line for line in at.lines if line.startswith("prompt: ")][-1].removeprefix("prompt: ")
    return [each.removesuffix("<|im_end|>\n") for each in last.split("<|im_start|>")[1:-1]]


def called(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


SHELL = {"type": "exec", "command": ["ls"], "env": {}}
SHELL_TOLD = '{"type": "exec", "command": ["ls"], "env": {}}'
DONE = {"status": "completed"}
ITEMS: list[tuple[list[dict[str, Any]], list[str], list[str]]] = [  # items, messages, and what is passed over
    (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "+ a"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "patched"},
        ],
        ["assistant\n" + called("patch", '{"input": "+ a"}'), "tool\npatched"],
        [],
    ),
    (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "+ a"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": ""},
        ],
        ["assistant\n" + called("patch", '{"input": "+ a"}'), "tool\n"],
        [],
    ),
    (
        [
            {"type": "local_shell_call", "id": "l", "call_id": "c", "action": SHELL, **DONE},
            {"type": "local_shell_call_output", "id": "c", "output": "pens.txt"},
        ],
        ["assistant\n" + called("local_shell", SHELL_TOLD), "tool\npens.txt"],
        [],
    ),
    (
        [
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "exit", "exit_code": 0}}],
            },
        ],
        ["assistant\n" + called("shell", '{"commands": ["ls"]}'), "tool\na\nb"],
        [],
    ),
    (
        [
            {
                "type": "mcp_call",
                "id": "m",
                "server_label": "s",
                "name": "find",
                "arguments": '{"a": 1}',
                "output": "found",
            }
        ],
        ["assistant\n" + called("find", '{"a": 1}'), "tool\nfound"],
        [],
    ),
    (
        [
            {"type": "code_interpreter_call", "id": "i", "code": "1+1", "container_id": "x", "outputs": [
                {"type": "logs", "logs": "2"}, {"type": "image", "url": "data:image/png;base64,aGk="}], **DONE},
        ],
        ["assistant\n" + called("code_interpreter", '{"code": "1+1"}'), "tool\n2"],
        [],
    ),
    ([{"type": "web_search_call", "id": "w", "action": {"type": "search", "query": "pens"}, **DONE}], [], ["input[1]"]),
    ([{"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []}], [], ["input[1]"]),
    ([{"type": "image_generation_call", "id": "g", "result": "aGk=", **DONE}], [], ["input[1]"]),
    ([{"type": "compaction", "encrypted_content": "gAAA"}], [], ["input[1]"]),
    ([{"type": "compaction", "id": "k", "summary": [{"text": "Pens."}]}], ["user\nPens."], []),
    ([{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "gAAA"}], [], ["input[1]"]),
    ([{"type": "some_day_item", "id": "n"}], [], ["input[1]"]),
]  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(("items", "told", "passed"), ITEMS, ids=[each[0][0]["type"] for each in ITEMS])
def test_a_response_goes_on(logged: At, items: list[dict[str, Any]], told: list[str], passed: list[str]) -> None:
    talk: Any = [*user("How many?"), *items, *user("So?")]
    for stream in (False, True):
        asked: dict[str, Any] = {"model": "chat", "input": talk, "stream": stream}
        found = logged.client.responses.create(**asked)
        answer: Any = [*found][-1].response if stream else found
        assert answer.model_extra.get("omnidraft", {}).get("ignored", []) == passed
        assert prompt(logged) == ["user\nHow many?", *told, "user\nSo?"]


@pytest.mark.medium
def test_a_chat_goes_on_behind_a_call_of_a_custom_tool(logged: At) -> None:
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "+ a"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    talk: Any = [*user("How many?"), said, {"role": "tool", "tool_call_id": "c", "content": "patched"}]
    logged.client.chat.completions.create(model="chat", messages=talk)
    assert prompt(logged)[1:] == ["assistant\n" + called("patch", '{"input": "+ a"}'), "tool\npatched"]


BLOCKS: list[dict[str, Any]] = [
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I need to look.", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c", "name": "look", "input": {"at": "pens"}},
            {"type": "tool_use", "id": "d", "name": "look", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c",
                "content": [{"type": "text", "text": "Six."}, {"type": "image"}],
            },
            {"type": "tool_result", "tool_use_id": "d", "content": "nothing", "is_error": True},
            {"type": "text", "text": "So?"},
        ],
    },
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_chat_goes_on_that_was_begun_in_anthropics_form(logged: At, path: str) -> None:
    told = []
    for asked in (path, "/v1/messages"):
        body = {"model": "chat", "max_tokens": 1, "messages": [*user("How many?"), *BLOCKS]}
        assert logged.post(asked, body).status_code == 200
        told.append(prompt(logged))
    assert told[0] == told[1]
    note = "[image: not shown, as this model reads text alone]"
    assert told[0][2:] == [f"tool\nSix.\n{note}", "tool\nError: nothing", "user\nSo?"]
    assert told[0][1] == "assistant\nI look." + called("look", '{"at": "pens"}') + called("look", "{}")


def test_what_is_null_is_as_not_there(logged: At) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": None}
    empty = {"type": "reasoning", "summary": [{"type": "summary_text", "text": None}]}
    items: Any = [*user("How many?"), empty, call, {"type": "function_call_output", "call_id": "c", "output": None}]
    assert logged.post("/v1/responses", {"input": items}).status_code == 200
    expected = ["user\nHow many?", "assistant\n" + called("look", "{}"), "tool\n"]
    assert prompt(logged) == expected
    blocks = [{"type": "thinking", "thinking": None}, {"type": "tool_use", "id": "c", "name": "look", "input": None}]
    held = {"type": "tool_result", "tool_use_id": "c", "content": None}
    talk = [*user("How many?"), {"role": "assistant", "content": blocks}, {"role": "user", "content": [held]}]
    assert logged.post("/v1/messages", {"max_tokens": 1, "messages": talk}).status_code == 200
    assert prompt(logged) == expected


def test_an_item_that_was_kept_elsewhere_is_refused(logged: At) -> None:
    refused = logged.post("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input[0].type")


USE = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "pens"}}
FOUND = {"type": "web_search_result", "title": "Pens", "url": "http://p", "encrypted_content": "x", "page_age": None}
PAGE = {"type": "document", "title": "P", "source": {"type": "text", "media_type": "text/plain", "data": "Six pens."}}
CALL = "assistant\nI look." + called("web_search", '{"query": "pens"}')


def result(kind: str, content: Any) -> dict[str, Any]:
    return {"type": f"{kind}_tool_result", "tool_use_id": "s", "content": content}


SAID: list[tuple[list[dict[str, Any]], list[str], list[int]]] = [  # blocks behind a text, messages, what is passed over
    ([USE, result("web_search", [FOUND, FOUND])], [CALL, "tool\nPens\nhttp://p\nPens\nhttp://p"], []),
    (
        [USE, result("web_fetch", {"type": "web_fetch_result", "url": "http://p", "content": PAGE})],
        [CALL, "tool\nhttp://p\nP\nSix pens."],
        [],
    ),
    (
        [USE, result("bash_code_execution", {"type": "bash_code_execution_result", "stdout": "4", "stderr": "!"})],
        [CALL, "tool\n4\n!"],
        [],
    ),
    (
        [
            {"type": "mcp_tool_use", "id": "s", "name": "web_search", "server_name": "x", "input": {"query": "pens"}},
            {"type": "mcp_tool_result", "tool_use_id": "s", "content": [{"type": "text", "text": "6"}]},
        ],
        [CALL, "tool\n6"],
        [],
    ),
    ([USE], ["assistant\nI look."], [1]),
    ([USE, result("tool_search", {"type": "tool_search_tool_search_result", "tool_references": []})],
     ["assistant\nI look."], [1, 2]),
    ([{"type": "redacted_thinking", "data": "x"}], ["assistant\nI look."], [1]),
    ([{"type": "compaction", "content": "Pens were counted."}], ["assistant\nI look.Pens were counted."], []),
    ([{"type": "compaction", "content": None, "encrypted_content": "x"}], ["assistant\nI look."], [1]),
    ([{"type": "container_upload", "file_id": "x"}], ["assistant\nI look."], [1]),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "told", "passed"), SAID, ids=[each[0][-1]["type"] for each in SAID])
def test_a_message_of_an_assistant_goes_on(
    logged: At, client: Any, blocks: list[dict[str, Any]], told: list[str], passed: list[int]
) -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "I look."}, *blocks]}
    found = client.messages.create(model="chat", max_tokens=1, messages=[*user("How many?"), said, *user("So?")])
    assert found.omnidraft.get("ignored", []) == [f"messages[1].content[{place}]" for place in passed]
    assert prompt(logged) == ["user\nHow many?", *told, "user\nSo?"]


def test_an_answer_goes_on_behind_a_tool_of_the_server(logged: At, client: Any) -> None:
    text: dict[str, Any] = {"type": "text", "text": "I look."}
    more: dict[str, Any] = {"type": "text", "text": "Six."}
    said = {"role": "assistant", "content": [text, USE, result("web_search", [FOUND]), more]}
    client.messages.create(model="chat", max_tokens=1, messages=[*user("How many?"), said, *user("So?")])
    assert prompt(logged) == ["user\nHow many?", CALL, "tool\nPens\nhttp://p", "assistant\nSix.", "user\nSo?"]


SEARCH = {"type": "search_result", "title": "Pens", "source": "http://p", "content": [{"type": "text", "text": "Six."}]}
PIECES = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "Six pens."}]}}
FILE = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="}}


@pytest.mark.medium
def test_search_results_and_documents_of_text_are_told(logged: At, client: Any) -> None:
    asked: dict[str, Any] = {"model": "chat", "max_tokens": 1}
    text = {"type": "text", "text": "How many?"}
    context = {**PAGE, "context": "of a shop", "citations": {"enabled": True}}
    client.messages.create(messages=[{"role": "user", "content": [SEARCH, context, PIECES, text]}], **asked)
    told = "Pens\nhttp://p\nSix.\nP\nof a shop\nSix pens.\nSix pens."
    assert prompt(logged) == [f"user\n{told}\nHow many?"]
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    held = {"type": "tool_result", "tool_use_id": "a", "content": [SEARCH, PAGE, FILE]}
    talk = [*user("x"), {"role": "assistant", "content": [use]}, {"role": "user", "content": [held]}]
    client.messages.create(messages=talk, **asked)
    note = "[document: not shown, as this model reads text alone]"
    assert prompt(logged)[-1] == f"tool\nPens\nhttp://p\nSix.\nP\nSix pens.\n{note}"
    refused = logged.post("/v1/messages", asked | {"messages": [{"role": "user", "content": [FILE]}]})
    assert refused.status_code == 400
    assert "messages[0].content[0].source.type" in refused.json()["error"]["message"]
    neither_text_nor_file: tuple[Any, ...] = ({}, "x", None)
    for source in neither_text_nor_file:
        held["content"] = [{"type": "document", "source": source}]
        refused = logged.post("/v1/messages", asked | {"messages": talk})
        assert refused.status_code == 400
        assert "messages[2].content[0].content[0].source" in refused.json()["error"]["message"]
