"""Answers in the form of OpenAI's responses, whole and as events; nothing is kept of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from omnidraft.server.answers import Answer, TokenInfo
from omnidraft.server.bodies import Received
from omnidraft.server.errors import ApiError, to_json
from omnidraft.server.protocol import ResponseRequest


class Response:
    """The form of one response."""

    def __init__(self, answer: Answer, model: str, asked: Received[ResponseRequest]) -> None:
        self.answer = answer
        self._model, self._body, self._raw = model, asked.body, asked.raw
        self._id, self._created = f"resp_{secrets.token_hex(12)}", int(time.time())
        self._message = f"msg_{secrets.token_hex(12)}"
        self._calls: list[dict[str, Any]] | None = None
        self._number = -1

    def whole(self) -> dict[str, Any]:
        """The body for a complete answer."""
        done = self.answer.finish != "length"
        return self._body_of("completed" if done else "incomplete", self._output())

    async def events(self) -> AsyncIterator[bytes]:
        """The response as server-sent events."""
        try:
            for name in ("created", "in_progress"):
                yield self._event(f"response.{name}", response=self._body_of("in_progress", []))
            begun = False
            async for delta in self.answer.deltas():
                if delta.content and not begun:
                    begun = True
                    for each in self._opening():
                        yield each
                if delta.content:
                    yield self._text_event("delta", delta=delta.content, logprobs=_logprobs(delta.logprobs))
            for each in self._ending(begun=begun):
                yield each
            whole = self.whole()
            yield self._event(f"response.{whole['status']}", response=whole)
        except ApiError as error:
            failed = self._body_of("failed", []) | {"error": {"code": "server_error", "message": str(error)}}
            yield self._event("response.failed", response=failed)

    def _opening(self) -> list[bytes]:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item = self._message_item("in_progress") | {"content": []}
        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **place, part=part),
        ]

    def _ending(self, *, begun: bool) -> list[bytes]:
        """The events of a message that is complete, and those of the calls."""
        made, output = [] if begun or self._calls_of() else self._opening(), self._output()
        for index, item in enumerate(output):
            if item["type"] == "message":
                part = item["content"][0]
                place = {"item_id": self._message, "output_index": 0, "content_index": 0}
                made.append(self._text_event("done", text=part["text"], logprobs=part["logprobs"]))
                made.append(self._event("response.content_part.done", **place, part=part))
            else:
                place = {"item_id": item["id"], "output_index": index}
                opened = item | {"status": "in_progress", "arguments": ""}
                name, arguments = "response.function_call_arguments", item["arguments"]
                made.append(self._event("response.output_item.added", output_index=index, item=opened))
                made.append(self._event(f"{name}.delta", **place, delta=arguments))
                made.append(self._event(f"{name}.done", **place, name=item["name"], arguments=arguments))
            made.append(self._event("response.output_item.done", output_index=index, item=item))
        return made

    def _text_event(self, name: str, **rest: Any) -> bytes:
        place = {"item_id": self._message, "output_index": 0, "content_index": 0}
        return self._event(f"response.output_text.{name}", **place, **rest)

    def _event(self, event: str, /, **rest: Any) -> bytes:
        self._number += 1
        data = {"type": event, "sequence_number": self._number, **rest}
        return b"event: " + event.encode() + b"\ndata: " + to_json(data) + b"\n\n"

    def _output(self) -> list[dict[str, Any]]:
        calls = self._calls_of()
        if not (self.answer.content or not calls):
            return calls
        status = "incomplete" if self.answer.finish == "length" else "completed"
        return [self._message_item(status), *calls]

    def _calls_of(self) -> list[dict[str, Any]]:
        if self._calls is None:
            self._calls = [
                {
                    "type": "function_call",
                    "id": f"fc_{secrets.token_hex(12)}",
                    "call_id": f"call_{secrets.token_hex(12)}",
                    "name": call.name,
                    "arguments": call.arguments,
                    "status": "incomplete" if call.cut else "completed",
                }
                for call in self.answer.calls
            ]
        return self._calls

    def _message_item(self, status: str) -> dict[str, Any]:
        logprobs = _logprobs(self.answer.logprobs)
        part = {"type": "output_text", "text": self.answer.content, "annotations": [], "logprobs": logprobs}
        return {"type": "message", "id": self._message, "role": "assistant", "status": status, "content": [part]}

    def _body_of(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The response object: what was asked for, and what has come of it."""
        body, raw, done = self._body, self._raw, self.answer.done
        form = {key: value for key, value in (raw.get("text") or {}).items() if value is not None}
        made = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": output,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "metadata": body.metadata or {},
            "max_output_tokens": body.max_output_tokens,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "store": False,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "text": {"format": {"type": "text"}} | form,
            "tool_choice": raw.get("tool_choice") or "auto",
            "tools": raw.get("tools") or [],
            "truncation": "disabled",
        }
        if done is not None:
            used = self.answer.usage
            made["usage"] = {
                "input_tokens": used["prompt"],
                "input_tokens_details": {"cached_tokens": used["cached"]},
                "output_tokens": used["completion"],
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": used["prompt"] + used["completion"],
            }
            made |= self.answer.beside
        return made


def _logprobs(infos: Sequence[TokenInfo]) -> list[dict[str, Any]]:
    return [info.as_dict() | {"top_logprobs": [each.as_dict() for each in info.top]} for info in infos]
