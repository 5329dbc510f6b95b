"""The official clients, unchanged, put the same together from a stream as they get in whole answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import ollama
import pytest
from anthropic import Anthropic
from openai import LengthFinishReasonError

from omnidraft.models.transformers_model import TransformersModel
from support.scripted_target import serving_script
from support.serving import PATIENT, At, serving, user, with_tools
from support.serving import events as events_of
from support.waiting import WAIT_S

pytestmark = pytest.mark.slow

SCHEMAS = {"get_weather": {"city": {"type": "string"}}, "note": {"text": {"type": "string"}}, "now": {}}
FUNCTIONS: list[dict[str, Any]] = [
    {"name": name, "description": name, "parameters": {"type": "object", "properties": properties}}
    for name, properties in SCHEMAS.items()
]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


PARIS, ROME = call("get_weather", city="Paris"), call("get_weather", city="Rome")
# with the kinds of their blocks
ANSWERS = {
    "It is 24.": "text",
    f"{PARIS}\nThat was it.": "call text",
    f"Well.\n{PARIS}\nThen\n{ROME}\nDone.": "text call text call text",
    f"<think>Paris, then {ROME}.</think>\n\nI look.\n{PARIS}{call('now')}": "reasoning text call call",
    f"<think>I look.\n{PARIS}": "reasoning call",
    call("note", text="one\n" * 30 + "</tool_call>"): "call",
    PARIS.replace("}}", "}"): "call",
    f"{PARIS.replace('}}', '}')}\nThat was it.": "call text",
    f"{PARIS}\n{PARIS.replace('Paris', 'Par' + chr(10) + 'is')}": "call call",
    f"{PARIS}\n{PARIS.replace(chr(34) + 'Paris' + chr(34), 'Paris')} So.": "call text",
    PARIS.replace('"Paris"', "NaN"): "text",
    PARIS.replace('"Paris"', "[1e400, Infinity]"): "text",
    f"{PARIS.replace('</tool_call>', '')}<tool_call>\n{{": "call text",
    '{"name": "get_weather", "arguments": {"city": "Oslo"}}': "call",
}
CUT = call("note", text="four words and more " * 40)


THOUGHT = "<think>\nOk, simple: 2+2 is 4.\n</think>\n\nFour."
REPEATED = "<think>\n4.It is 4.\n</think>\n\nIt is 4.🎉"


def script(prompt: str) -> str:
    return [*ANSWERS, CUT, THOUGHT, REPEATED][int(re.findall(r"user\n(\d+)", prompt)[-1])]


@pytest.fixture(scope="module", params=[16, 0], ids=["drafts", "no drafts"])
def at(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[At]:
    folder = with_tools(tmp_path_factory.mktemp("scripted") / "chat")
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8") + "{# <think> </think> #}", encoding="utf-8")
    with serving_script(folder, script, options={"draft_length": request.param}, max_tokens=400) as at:
        yield at


def test_no_stop_string_ends_an_answer_within_its_least_tokens(at: At) -> None:
    ids = at.post("/tokenize", {"content": CUT}).json()["tokens"]
    texts = [at.post("/detokenize", {"tokens": ids[:count]}).json()["content"] for count in range(len(ids))]
    asked = {"messages": user(str(len(ANSWERS))), "max_tokens": 400, "temperature": 0, "stop": "more"}
    for least, beside in ((0, {"ignore_eos": True}), (40, {}), (41, {}), (42, {}), (43, {"ignore_eos": True})):
        count, text = next(
            (count, text)
            for count, text in enumerate(texts)
            if count > least and text.count("more") > texts[least].count("more")
        )
        answer = at.chat(**asked, **beside, min_tokens=least).json()
        assert answer["choices"][0]["message"]["content"] == text[: text.rfind("more")]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == count
    form = {"response_format": {"type": "json_object"}, "stop": "{", "min_tokens": 9}
    answer = at.chat(**asked | form).json()
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["omnidraft"]["ignored"] == ["min_tokens"]


# ---------------------------------------------------------------- what each client has of an answer, whole or streamed


def by_chat(at: At, number: int, length: int, *, stream: bool) -> list[Any]:
    tools: Any = [{"type": "function", "function": each} for each in FUNCTIONS]
    asked: Any = {"model": "chat", "messages": user(str(number)), "tools": tools, "max_tokens": length}
    completions = at.client.chat.completions
    if stream:
        with completions.stream(**asked, temperature=0) as events:
            try:
                message: Any = events.get_final_completion().choices[0].message
            except LengthFinishReasonError as error:
                message = error.completion.choices[0].message
    else:
        message = completions.create(**asked, temperature=0).choices[0].message
    calls = [(each.function.name, each.function.arguments) for each in message.tool_calls or ()]
    return [getattr(message, "reasoning_content", None) or "", message.content or "", calls]


def by_responses(at: At, number: int, length: int, *, stream: bool) -> list[Any]:
    tools: Any = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]
    asked: Any = {"model": "chat", "input": str(number), "tools": tools, "max_output_tokens": length, "temperature": 0}
    if stream:
        with at.client.responses.stream(**asked) as stream_:
            events: Any = list(stream_)
        output = events[-1].response.output
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert [each.to_dict() for each in done] == [without_parsed(each.to_dict()) for each in output]
    else:
        output = at.client.responses.create(**asked).output
    made: list[Any] = []
    for item in output:
        if item.type == "function_call":
            made.append(("call", item.name, item.arguments))
        elif item.type in ("message", "reasoning"):
            content: Any = item.content
            made.append(("text" if item.type == "message" else "reasoning", content[0].text))
    return made


def without_parsed(item: Any) -> Any:
    """An item as it came: the client adds what it makes of it."""
    own = {key: value for key, value in item.items() if key != "parsed_arguments"}
    if "content" in own:
        own["content"] = [{key: value for key, value in each.items() if key != "parsed"} for each in own["content"]]
    return own


def by_messages(at: At, number: int, length: int, *, stream: bool) -> list[Any]:
    tools: Any = [{"name": each["name"], "input_schema": each["parameters"]} for each in FUNCTIONS]
    asked: Any = {"model": "chat", "messages": user(str(number)), "tools": tools, "max_tokens": length}
    with httpx2.Client(**PATIENT) as http:
        options: Any = {"base_url": at.url, "api_key": "none", "max_retries": 0, "timeout": WAIT_S}
        client = Anthropic(http_client=http, **options)
        if stream:
            with client.messages.stream(**asked, extra_body={"temperature": 0}) as events:
                content = events.get_final_message().content
        else:
            content = client.messages.create(**asked, extra_body={"temperature": 0}).content
    made: list[Any] = []
    for block in content:
        if block.type == "tool_use":
            made.append(("call", block.name, block.input))
        else:
            made.append(("text", block.text) if block.type == "text" else ("reasoning", getattr(block, "thinking", "")))
    return made


def by_ollama(at: At, number: int, length: int, *, stream: bool) -> list[Any]:
    tools: Any = [{"type": "function", "function": each} for each in FUNCTIONS]
    asked: Any = {"model": "chat", "messages": user(str(number)), "tools": tools}
    with ollama.Client(host=at.url, **PATIENT) as client:
        answer: Any = client.chat(**asked, stream=stream, options={"temperature": 0, "num_predict": length})
        messages = [each.message for each in answer] if stream else [answer.message]
    calls = [call.function for each in messages for call in each.tool_calls or ()]
    return [
        "".join(each.thinking or "" for each in messages),
        "".join(each.content or "" for each in messages),
        [(call.name, dict(call.arguments)) for call in calls],
    ]


CLIENTS: list[Callable[..., list[Any]]] = [by_chat, by_responses, by_messages, by_ollama]


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_streams_are_whole_answers(at: At, number: int, request: pytest.FixtureRequest) -> None:
    drafts = request.node.callspec.params["at"]
    kinds = [*ANSWERS.values()][number].split()
    for by in CLIENTS:
        whole = by(at, number, 400, stream=False)
        for _ in range(2 if drafts else 1):  # more is drafted of what was said before
            assert by(at, number, 400, stream=True) == whole
        if by in (by_messages, by_responses):
            assert [each[0] for each in whole] == kinds
        else:
            assert [bool(each) for each in whole[:2]] == ["reasoning" in kinds, "text" in kinds]
            assert len(whole[2]) == kinds.count("call")


@pytest.mark.parametrize("length", [4, 60])
def test_answers_that_are_cut_are_the_same(at: At, length: int) -> None:
    for by in CLIENTS:
        whole = by(at, len(ANSWERS), length, stream=False)
        assert by(at, len(ANSWERS), length, stream=True) == whole


@pytest.mark.parametrize(
    ("said", "reasoning", "text"),
    [
        ("<think>\nOk, simple: 2+2 is", " 4.", "Four."),
        ("<think>\nOk, simple: 2+2 is 4.\n</think>\n\nFour", "", "."),
    ],
)
def test_reasoning_that_the_last_message_has_begun_goes_on(at: At, said: str, reasoning: str, text: str) -> None:
    messages = [*user(str(len(ANSWERS) + 1)), {"role": "assistant", "content": said}]
    asked = {"messages": messages, "continue_final_message": True, "temperature": 0, "max_tokens": 40}
    message = at.chat(**asked).json()["choices"][0]["message"]
    assert (message.get("reasoning_content", ""), message["content"]) == (reasoning, text)
    deltas = [each["choices"][0]["delta"] for each in events_of(at.chat(**asked, stream=True))]
    told = ("".join(each.get(name, "") for each in deltas) for name in ("reasoning_content", "content"))
    assert tuple(told) == (reasoning, text)
    blocks = at.post("/v1/messages", {"messages": messages, "max_tokens": 40, "temperature": 0}).json()["content"]
    thoughts = [("thinking", reasoning)] if reasoning else []
    assert [(each["type"], each[each["type"]]) for each in blocks] == [*thoughts, ("text", text)]


@pytest.mark.parametrize("number", [2, 3, len(ANSWERS) + 1, len(ANSWERS) + 2])
def test_a_response_tells_the_logprobs_of_each_text_once(at: At, number: int) -> None:
    tools = [{"type": "function", **each} for each in FUNCTIONS]
    asked = {"input": user(str(number)), "tools": tools, "top_logprobs": 1, "temperature": 0}
    asked |= {"include": ["message.output_text.logprobs"], "stream": True}
    deltas: dict[int, list[Any]] = {}
    for event in events_of(at.post("/v1/responses", asked)):
        if event["type"] == "response.output_text.delta":
            deltas.setdefault(event["output_index"], []).extend(event["logprobs"])
        elif event["type"] == "response.output_text.done":
            assert deltas[event["output_index"]] == event["logprobs"]
            text = b"".join(bytes(each["bytes"]) for each in event["logprobs"]).decode()
            assert text.strip(">\n ") == event["text"].strip()  # a token may begin before it
    assert deltas


# ------------------------------------------------------------ while a prompt is read


@pytest.fixture
def read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are read a few ids at a time, and each time is told."""
    monkeypatch.setattr("omnidraft.server.running.request_queue.PROGRESS_S", 0.0)
    monkeypatch.setattr(TransformersModel, "chunk", 16)


@pytest.mark.usefixtures("read_in_chunks")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": user("moon " * 60), "return_progress": True}),
        ("/v1/completions", {"prompt": "moon " * 60, "return_progress": True}),
        ("/completion", {"prompt": "moon " * 60, "n_predict": 4, "return_progress": True}),
        ("/v1/messages", {"messages": user("moon " * 60)}),
    ],
)
def test_a_stream_tells_how_much_of_a_prompt_is_read(chat: Path, path: str, body: dict[str, Any]) -> None:
    with serving([chat], options={"draft_length": 0}) as at:
        found = events_of(at.post(path, {"max_tokens": 4, "temperature": 0, "stream": True} | body))
        told = [each["prompt_progress"] for each in found if "prompt_progress" in each]
        assert len(told) > 3
        total = told[0]["total"]
        assert [each["processed"] for each in told] == sorted({each["processed"] for each in told})
        assert all(0 < each["processed"] < total and each["total"] == total and each["cache"] == 0 for each in told)
        quiet = {name: value for name, value in body.items() if name != "return_progress"}
        if "return_progress" in body:
            found = events_of(at.post(path, {"max_tokens": 4, "temperature": 0, "stream": True} | quiet))
            assert not any("prompt_progress" in each for each in found)
        whole = at.post(path, {"max_tokens": 4, "temperature": 0} | body).json()
        assert "prompt_progress" not in whole
