"""What the APIs say of an answer, whole and streamed, without a server: its text comes in pieces as a test cuts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from pydantic_core import from_json

from omnidraft.server.answers.answer import Answer
from omnidraft.server.answers.request_answers import Reply
from omnidraft.server.apis.anthropic import Messages
from omnidraft.server.apis.anthropic_bodies import MessagesRequest
from omnidraft.server.apis.chat import Chat
from omnidraft.server.apis.ollama import Lines
from omnidraft.server.apis.ollama_bodies import OllamaChat
from omnidraft.server.apis.responses import Response
from omnidraft.server.reading.choice import Reading
from omnidraft.server.reading.events import Event
from omnidraft.server.reading.marks import RegionMarks
from omnidraft.server.requests.bodies import Received, read
from omnidraft.server.requests.chat_bodies import ChatRequest
from omnidraft.server.requests.response_bodies import ResponseRequest
from omnidraft.server.running.request_queue import Done, Told

HELLO = [{"role": "user", "content": "Hi."}]
Said = list[tuple[Any, ...]]


class Replayed(NamedTuple):
    """A text on its way: how it is read, and whether it was cut by its length."""

    reading: Reading
    marks: RegionMarks
    cut: bool = False

    def feeds(self, pieces: Iterable[str]) -> tuple[tuple[Event, ...], ...]:
        """The events of each piece that has any, and of the end."""
        reader = self.reading.reader(self.marks)
        made = [tuple(reader.feed(piece)) for piece in pieces]
        return (*(each for each in made if each), tuple(reader.end(cut=self.cut)))

    def answers(self, pieces: Sequence[str]) -> Iterable[tuple[Answer, Any]]:
        """An answer with each of the events that make it."""
        text = SimpleNamespace(feed=lambda _: "".join(pieces))  # of one token
        model = SimpleNamespace(lane=SimpleNamespace(eos=()), text_after=lambda *_: text)
        served = SimpleNamespace(name="m", marks=self.marks, model=model, undrafted=lambda _: "off")
        own: dict[str, Any] = {"served": served, "reading": self.reading, "ids": [1], "ignored": []}
        own |= {"options": {"extras": SimpleNamespace(marks=())}, "age": 3.0}
        own |= {"trace": False, "echo": "", "prompt_alone": False, "tells_logprobs": False}
        answer = Answer(SimpleNamespace(**own))  # type: ignore[arg-type]
        for piece in pieces:
            yield answer, Told(text=piece, record=SimpleNamespace(emitted=[1], logprobs=()))  # type: ignore[arg-type]
        stats = SimpleNamespace(proposed=0, accepted=0, no_draft_reason=None)
        result: Any = SimpleNamespace(finish_reason="length" if self.cut else "eos", token_ids=[1], stats=stats)
        yield answer, Done(result=result, cached=0, prompt_s=1.0, predicted_s=1.0, speedup=None, learned={})


class Api(NamedTuple):
    """The form of an API, and what its bodies say: blocks in order, or fields where it has no order."""

    reply: Callable[[Any, Received[Any]], Reply]
    body: Any
    whole: Callable[[Mapping[str, Any]], Said]
    stream: Callable[[list[dict[str, Any]]], Said]

    def said(self, text: Replayed, pieces: Sequence[str]) -> tuple[Said, Said]:
        """What a whole answer says, and a stream."""
        stream, whole = self.sent(text, pieces)
        return self.whole(whole), self.stream(stream)

    def sent(self, text: Replayed, pieces: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """The bodies of a stream, and of a whole answer."""
        sent, reply = bytearray(), None
        for answer, event in text.answers(pieces):
            if reply is None:
                batch = SimpleNamespace(answers=[answer], choices=[answer], prompts=[answer], task=answer.task)
                reply = self.reply(batch, self.body)
                sent += b"".join(reply.begin())
            sent += b"".join(reply.add(answer, answer.take(event)))
        assert reply is not None
        sent += b"".join(reply.end())
        lines = [line.removeprefix("data: ") for line in sent.decode().splitlines()]
        return [json.loads(line) for line in lines if line.startswith("{")], reply.whole()


# ---------------------------------------------------------------- what bodies say


def _of_chat(body: Mapping[str, Any]) -> Said:
    (choice,) = body["choices"]
    return _fields(choice["message"], choice["finish_reason"])


def _of_chunks(chunks: list[dict[str, Any]]) -> Said:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for name, value in chunk["choices"][0]["delta"].items():
            if name in ("content", "reasoning_content"):
                message[name] += value
        for call in chunk["choices"][0]["delta"].get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                message["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": ""}})
            assert call["index"] == len(message["tool_calls"]) - 1
            message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
    return _fields(message, chunks[-1]["choices"][0]["finish_reason"])


def _fields(message: Mapping[str, Any], end: str) -> Said:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    thoughts = message.get("reasoning_content") or message.get("thinking") or ""
    return [("reasoning", thoughts), ("text", message["content"] or ""), *(("call", *call) for call in calls), (end,)]


def _of_message(body: Mapping[str, Any]) -> Said:
    return [*map(_block, body["content"]), (body["stop_reason"],)]


def _of_message_events(events: list[dict[str, Any]]) -> Said:
    blocks: list[dict[str, Any]] = []
    parts: list[str] = []
    is_open, end = False, None
    for event in events:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            is_open, parts = True, []
        elif kind == "content_block_delta":
            assert is_open
            assert event["index"] == len(blocks) - 1
            assert not blocks[-1].get("signature")  # which comes last
            if event["delta"]["type"] == "signature_delta":
                blocks[-1]["signature"] = event["delta"]["signature"]
            else:
                (parts,) = [[*parts, value] for name, value in event["delta"].items() if name != "type"]
        elif kind == "content_block_stop":
            assert is_open
            assert event["index"] == len(blocks) - 1
            is_open, text = False, "".join(parts)
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = from_json(text, allow_partial=True) if text else {}
            else:
                blocks[-1][blocks[-1]["type"]] += text
        elif kind == "message_delta":
            end = event["delta"]["stop_reason"]
    assert not is_open
    return [*map(_block, blocks), (end,)]


def _block(block: Mapping[str, Any]) -> tuple[Any, ...]:
    if block["type"] == "tool_use":
        return "call", block["name"], block["input"]
    if block["type"] == "thinking":
        assert block["signature"]
    return ("text", block["text"]) if block["type"] == "text" else ("reasoning", block["thinking"])


def _of_response(body: Mapping[str, Any]) -> Said:
    return [*map(_item, body["output"]), (body["status"],)]


def _of_response_events(events: list[dict[str, Any]]) -> Said:
    items: list[dict[str, Any]] = []
    text, is_open = "", False
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        kind = event["type"]
        if kind == "response.output_item.added":
            assert not is_open
            assert event["output_index"] == len(items)
            items.append(event["item"])
            text, is_open = "", True
        elif "output_index" in event:
            assert is_open
            assert event["output_index"] == len(items) - 1
            assert event.get("item_id", items[-1]["id"]) == items[-1]["id"]
            text += event["delta"] if kind.endswith(".delta") else ""
        if kind == "response.output_item.done":
            items[-1], is_open = event["item"], False
            assert text == _item(event["item"])[-2 if event["item"]["type"] == "function_call" else 1]
    assert not is_open
    last = events[-1]["response"]
    assert last["output"] == items
    return [*map(_item, items), (last["status"],)]


def _item(item: Mapping[str, Any]) -> tuple[Any, ...]:
    if item["type"] == "function_call":
        return "call", item["name"], item["arguments"], item["status"]
    (part,) = item["content"]
    return "text" if item["type"] == "message" else "reasoning", part["text"], item["status"]


def _of_lines(lines: list[dict[str, Any]]) -> Said:
    message: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for line in lines:
        for name, value in line["message"].items():
            if name != "role":
                message[name] += value
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    return _of_line({"message": message, "done_reason": lines[-1]["done_reason"]})


def _of_line(line: Mapping[str, Any]) -> Said:
    calls = line["message"].get("tool_calls") or ()
    assert [call["function"]["index"] for call in calls] == [*range(len(calls))]
    return _fields(line["message"], line["done_reason"])


def _body(kind: type[Any], **fields: Any) -> Received[Any]:
    return read({"model": "m", **fields}, kind)


APIS = {
    "chat": Api(Chat, _body(ChatRequest, messages=HELLO), _of_chat, _of_chunks),
    "messages": Api(Messages, _body(MessagesRequest, messages=HELLO, max_tokens=9), _of_message, _of_message_events),
    "responses": Api(Response, _body(ResponseRequest, input="Hi."), _of_response, _of_response_events),
    "ollama": Api(Lines, _body(OllamaChat, messages=HELLO), _of_line, _of_lines),
}
