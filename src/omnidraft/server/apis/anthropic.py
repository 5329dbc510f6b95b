"""Anthropic's Messages: a request as that of a chat, and its answer as messages and events."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from omnidraft.errors import CONTEXT_LENGTH
from omnidraft.server.answers.answer import Answer, Delta, Item
from omnidraft.server.answers.request_answers import Reply, RequestAnswers, event
from omnidraft.server.apis.anthropic_bodies import (
    Block,
    CountRequest,
    Message,
    MessagesRequest,
    OutputConfig,
    Tool,
    ToolChoice,
)
from omnidraft.server.apis.chat import as_llama_server
from omnidraft.server.errors import ApiError, of_anthropic
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests.blocks import Document, Result, SearchResult, TextBlock, Thinking, ToolUse, joined
from omnidraft.server.requests.bodies import Received, read
from omnidraft.server.requests.replays import Replay, answered
from omnidraft.server.requests.tasks import chat_length, tasks_of
from omnidraft.server.running.request_queue import Progress, Task
from omnidraft.server.running.served_model import ServedModel
from omnidraft.server.server_settings import Serving

SAME = ("model", "stream", "temperature", "top_p", "top_k", "max_tokens")  # as in a chat
TEXT: dict[str, Any] = {"type": "text", "text": ""}
# Claude Code's first line of the system text: it changes with each request, and nothing after it would be found again
BILLING = re.compile(r"^x-anthropic-billing-header:.*\n*")
DELTAS = {  # their types, and what is in them
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
PATHS = (  # of what a chat calls otherwise
    ("reasoning_effort", "output_config.effort"),
    ("stop", "stop_sequences"),
    ("user", "metadata.user_id"),
    (r"response_format\.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
)


def messages_tasks(body: MessagesRequest | CountRequest, served: ServedModel, settings: Serving) -> list[Task]:
    """The task of a request; raises ApiError."""
    return tasks_of(as_chat(body), p.ChatRequest, PATHS, served, settings, [*_untold(body)])


def count(body: CountRequest, served: ServedModel, settings: Serving) -> int:
    """Tokens of a request's prompt, also of one that is too long; raises ApiError."""
    try:
        (task,) = messages_tasks(body, served, settings)
    except ApiError as error:
        if error.code != CONTEXT_LENGTH:
            raise
        return chat_length(read(as_chat(body), p.ChatRequest).body, served)
    return len(task.ids)


def as_chat(body: MessagesRequest | CountRequest) -> dict[str, Any]:
    """The body of the chat that asks for the same."""
    system = BILLING.sub("", joined(body.system)) if body.system else ""
    messages = [{"role": "system", "content": system}] if system else []
    for each in body.messages:
        messages += _as_messages(each)
    if not messages:
        raise ApiError(400, "messages holds nothing to answer: add a text", param="messages")
    chat: dict[str, Any] = {name: value for name in SAME if (value := getattr(body, name, None)) is not None}
    chat["messages"] = messages
    if messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls"):  # the answer goes on from there
        chat |= {"continue_final_message": True, "add_generation_prompt": False}
    if body.tools:
        chat["tools"] = [_as_tool(each) for each in body.tools]
    if body.tool_choice is not None:
        chat |= _as_choice(body.tool_choice)
    if body.thinking is not None:
        chat["thinking"] = {"type": body.thinking.type}
    if isinstance(body, MessagesRequest):
        chat |= _as_options(body)
    return chat


def _as_options(body: MessagesRequest) -> dict[str, Any]:
    """The fields that do not change the prompt."""
    options: dict[str, Any] = {}
    if body.stream:
        options["return_progress"] = True
    config = body.output_config or OutputConfig()
    if config.effort is not None:
        options["reasoning_effort"] = config.effort
    if (form := config.format or body.output_format) is not None:
        options["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.schema_}}
    if body.stop_sequences:
        options["stop"] = body.stop_sequences
    if body.metadata is not None and body.metadata.user_id is not None:
        options["user"] = body.metadata.user_id
    if body.omnidraft is not None:
        options["omnidraft"] = body.omnidraft.model_dump(exclude_none=True)
    return options


def _as_messages(message: Message) -> list[dict[str, Any]]:
    """The messages of a chat that a turn stands for: the result of each tool is one of its own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    if message.role == "assistant":
        return _as_answer(message.content)
    results = [
        {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.text}
        for block in message.content
        if isinstance(block, Result)
    ]
    told = [block for block in message.content if isinstance(block, TextBlock | SearchResult | Document | Replay)]
    texts = [block.text for block in told if block.text or not isinstance(block, Replay)]
    return [*results, {"role": message.role, "content": "\n".join(texts)}] if texts else results


def _as_answer(content: Sequence[Block]) -> list[dict[str, Any]]:
    """The messages that an answer stands for: of several, where a server ran tools of its own in between."""
    results = answered(block for block in content if isinstance(block, Replay))
    messages: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for block in content:
        if isinstance(block, Replay) and block.replies:
            if block.text:
                messages.append({"role": "tool", "tool_call_id": block.id, "content": block.text})
            continue
        if messages[-1]["role"] == "tool":
            messages.append({"role": "assistant", "content": ""})
        _say(messages[-1], block, results)
    return messages


def _say(said: dict[str, Any], block: Block, results: Collection[str]) -> None:
    """Add a block to an answer; of a call that a server ran, only where its result is there."""
    if isinstance(block, ToolUse):
        _add_call(said, block.id, block.name, block.input)
    elif isinstance(block, Thinking):
        said["reasoning_content"] = said.get("reasoning_content", "") + block.thinking
    elif isinstance(block, Replay) and block.calls:
        if block.id in results:
            _add_call(said, block.id, block.name, block.arguments)
    elif not isinstance(block, Result):
        said["content"] += f"{block.text}\n" if isinstance(block, Replay) and block.text else block.text


def _add_call(said: dict[str, Any], id_: str, name: str, arguments: str | Mapping[str, Any]) -> None:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    call = {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}
    said.setdefault("tool_calls", []).append(call)


def _untold(body: CountRequest) -> Iterator[str]:
    """The paths of blocks that nothing is told of: those of other servers that have no text, or no result."""
    for at, message in enumerate(body.messages):
        blocks = () if isinstance(message.content, str) else message.content
        results = answered(block for block in blocks if isinstance(block, Replay))
        for place, block in enumerate(blocks):
            if isinstance(block, Replay) and not (block.id in results if block.calls else block.text):
                yield f"messages[{at}].content[{place}]"


def _as_tool(tool: Tool | p.OtherTool) -> dict[str, Any]:
    if isinstance(tool, p.OtherTool):
        return {"type": tool.type}
    details = {"description": tool.description, "strict": tool.strict}
    function = {"name": tool.name, "parameters": tool.input_schema}
    return {"type": "function", "function": function | {key: v for key, v in details.items() if v is not None}}


def _as_choice(choice: ToolChoice) -> dict[str, Any]:
    named = {"type": "function", "function": {"name": choice.name or ""}}
    options: dict[str, Any] = {"tool_choice": {"any": "required", "tool": named}.get(choice.type, choice.type)}
    if choice.disable_parallel_tool_use is not None:
        options["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return options


class Messages(Reply):
    """The form of one answer."""

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        fields = {"type": "message", "role": "assistant", "model": self.model}
        self._head = {"id": f"msg_{secrets.token_hex(12)}", **fields}

    def whole(self) -> dict[str, Any]:
        content = [_block(item) | _filled(item) for item in self.answer.items]
        return self._head | {"content": content} | self._end() | {"usage": self._usage()} | self.answer.beside

    def begin(self) -> Iterator[bytes]:
        begun = {"input_tokens": len(self.answer.task.ids), "output_tokens": 0}
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": begun}
        yield _event("message_start", message=self._head | nothing)
        yield self.alive()

    def alive(self) -> bytes:
        return _event("ping")

    def progress(self, progress: Progress) -> Iterator[bytes]:
        yield _event("ping", prompt_progress=as_llama_server(progress))

    def end(self) -> Iterator[bytes]:
        yield _event("message_delta", delta=self._end(), usage=self._usage(), **self.answer.beside)
        yield _event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        return _event("error", error=of_anthropic(error))

    def add(self, answer: Answer, delta: Delta) -> Iterator[bytes]:  # noqa: ARG002
        for change in delta.changes:
            item, place = change.item, {"index": change.item.place}
            if change.begins:
                yield _event("content_block_start", **place, content_block=_block(item))
            if change.text:
                kind, name = DELTAS[item.kind]
                yield _event("content_block_delta", **place, delta={"type": kind, name: change.text})
            if change.ends:
                if item.kind == "reasoning":  # is signed when it is complete
                    yield _event("content_block_delta", **place, delta={"type": "signature_delta"} | _signed(item))
                yield _event("content_block_stop", **place)

    def _end(self) -> dict[str, Any]:
        answer = self.answer
        reasons = {"tool_calls": "tool_use", "length": "max_tokens"}
        stop = self._stop_string() if answer.finish == "stop" else None
        return {
            "stop_reason": reasons.get(answer.finish, "end_turn" if stop is None else "stop_sequence"),
            "stop_sequence": stop,
        }

    def _stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        done, task = self.answer.done, self.answer.task
        if done is None or done.result.finish_reason != "stop":
            return None
        text = str(task.served.model.target.tokenizer.decode(list(done.result.token_ids)))
        places = {text.find(each): each for each in task.options["stop"] if each in text}
        return places[min(places)] if places else next(iter(task.options["stop"]), None)

    def _usage(self) -> dict[str, Any]:
        used = self.answer.usage
        return {
            "input_tokens": used["prompt"] - used["cached"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": used["cached"],
            "output_tokens": used["completion"],
            "output_tokens_details": {"thinking_tokens": self.answer.reasoned},
        }


def _block(item: Item) -> dict[str, Any]:
    """A block of content as it begins."""
    if item.kind == "call":
        return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": {}}
    return TEXT if item.kind == "text" else {"type": "thinking", "thinking": "", "signature": ""}


def _filled(item: Item) -> dict[str, Any]:
    """What a block of content comes to."""
    if item.kind == "call":
        return {"input": item.values}
    return {DELTAS[item.kind][1]: item.text} | (_signed(item) if item.kind == "reasoning" else {})


def _signed(item: Item) -> dict[str, str]:
    """The signature of reasoning: clients send back what has one; here it says nothing, and is not read."""
    return {"signature": item.id}


def _event(kind: str, **rest: Any) -> bytes:
    return event({"type": kind, **rest}, kind)
