"""Answers in the form of OpenAI's responses, whole and as events; nothing is kept of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

from omnidraft.server.answers import Answer, Delta
from omnidraft.server.bodies import Received
from omnidraft.server.errors import ApiError
from omnidraft.server.request_answers import Reply, RequestAnswers, event
from omnidraft.server.response_bodies import Namespace, ResponseRequest, ResponseTool, full_name

PARTS: dict[str, dict[str, Any]] = {
    "message": {"type": "output_text", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text"},
}


class Response(Reply):
    """The form of one response: its items are reasoning, a message, and calls, in the order in which they begin."""

    def __init__(self, batch: RequestAnswers, asked: Received[ResponseRequest]) -> None:
        super().__init__(batch, asked)
        self._id, self._created = f"resp_{secrets.token_hex(12)}", int(time.time())
        self._ids = {"message": f"msg_{secrets.token_hex(12)}", "reasoning": f"rs_{secrets.token_hex(12)}"}
        spaces = [tool for tool in asked.body.tools or () if isinstance(tool, Namespace)]
        self._spaces = {  # namespaces and names of functions by the names that the model knows
            full_name(space.name, tool.name): {"namespace": space.name, "name": tool.name}
            for space in spaces
            for tool in space.tools
            if isinstance(tool, ResponseTool)
        }
        self._order: list[str] = []  # of items, by kind and a call's number
        self._number = -1

    def whole(self) -> dict[str, Any]:
        answer = self.answer
        calls = [f"call {at}" for at in range(len(answer.calls))]
        message = ["message"] if answer.content or not calls else []
        for name in [*(["reasoning"] if answer.reasoning else []), *message, *calls]:
            if name not in self._order:
                self._order.append(name)
        done = self.answer.finish != "length"
        return self._body_of("completed" if done else "incomplete", [self._item(name) for name in self._order])

    def begin(self) -> Iterator[bytes]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._body_of("in_progress", []))

    def end(self) -> Iterator[bytes]:
        opened = list(self._order)
        whole = self.whole()
        for name in self._order:
            yield from [*([] if name in opened else self._opening(name)), *self._ending(name)]
        yield self._event(f"response.{whole['status']}", response=whole)

    def fail(self, error: ApiError) -> bytes:
        failed = self._body_of("failed", []) | {"error": {"code": "server_error", "message": str(error)}}
        return self._event("response.failed", response=failed)

    def add(self, answer: Answer, delta: Delta) -> list[bytes]:  # noqa: ARG002
        made: list[bytes] = []
        if delta.reasoning:
            made += self._begun("reasoning")
            made.append(self._event("response.reasoning_text.delta", **self._part("reasoning"), delta=delta.reasoning))
        if delta.content:
            made += self._begun("message")
            infos = [info.as_dict() for info in delta.logprobs]
            place = self._part("message")
            made.append(self._event("response.output_text.delta", **place, delta=delta.content, logprobs=infos))
        for piece in delta.calls:
            name = f"call {piece.index}"
            made += self._begun(name)
            if piece.arguments:
                place = self._place(name)
                made.append(self._event("response.function_call_arguments.delta", **place, delta=piece.arguments))
        return made

    def _begun(self, name: str) -> list[bytes]:
        """The events of an item that begins now, none where it is there."""
        if name in self._order:
            return []
        self._order.append(name)
        return self._opening(name)

    def _opening(self, name: str) -> list[bytes]:
        item = self._item(name) | {"status": "in_progress"}
        emptied: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
        item |= emptied
        made = [self._event("response.output_item.added", output_index=self._order.index(name), item=item)]
        if name in PARTS:
            made.append(self._event("response.content_part.added", **self._part(name), part=PARTS[name] | {"text": ""}))
        return made

    def _ending(self, name: str) -> list[bytes]:
        """The events of an item that is complete."""
        item = self._item(name)
        if name in PARTS:
            part, place = item["content"][0], self._part(name)
            rest = {"logprobs": part["logprobs"]} if name == "message" else {}
            kind = "output_text" if name == "message" else "reasoning_text"
            made = [self._event(f"response.{kind}.done", **place, text=part["text"], **rest)]
            made.append(self._event("response.content_part.done", **place, part=part))
        else:
            done = {"name": item["name"], "arguments": item["arguments"]}
            made = [self._event("response.function_call_arguments.done", **self._place(name), **done)]
        return [*made, self._event("response.output_item.done", output_index=self._order.index(name), item=item)]

    def _place(self, name: str) -> dict[str, Any]:
        return {"item_id": self._item(name)["id"], "output_index": self._order.index(name)}

    def _part(self, name: str) -> dict[str, Any]:
        return self._place(name) | {"content_index": 0}

    def _event(self, name: str, /, **rest: Any) -> bytes:
        self._number += 1
        return event({"type": name, "sequence_number": self._number, **rest}, name)

    def _item(self, name: str) -> dict[str, Any]:
        """An item of the output, as far as it is there."""
        answer = self.answer
        cut = answer.done is not None and answer.finish == "length"
        if name == "reasoning":
            part = PARTS[name] | {"text": answer.reasoning}
            status = "incomplete" if cut and not answer.content and not answer.calls else "completed"
            return {"type": name, "id": self._ids[name], "summary": [], "content": [part], "status": status}
        if name == "message":
            part = PARTS[name] | {"text": answer.content, "logprobs": [info.as_dict() for info in answer.logprobs]}
            own = {"id": self._ids[name], "role": "assistant", "status": "incomplete" if cut else "completed"}
            return {"type": name, **own, "content": [part]}
        index = int(name.removeprefix("call "))
        call, id_ = answer.calls[index], answer.call_ids[index]
        own = {"id": f"fc_{id_.removeprefix('call_')}", "call_id": id_, "name": call.name, "arguments": call.arguments}
        own |= self._spaces.get(call.name, {})
        return {"type": "function_call", **own, "status": "incomplete" if call.cut else "completed"}

    def _body_of(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The response object: what was asked for, and what has come of it."""
        body, raw, done = self.asked.body, self.asked.raw, self.answer.done
        form = {key: value for key, value in (raw.get("text") or {}).items() if value is not None}
        made = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self.model,
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
                "input_tokens_details": {"cached_tokens": used["cached"], "cache_write_tokens": 0},
                "output_tokens": used["completion"],
                "output_tokens_details": {"reasoning_tokens": self.answer.reasoned},
                "total_tokens": used["prompt"] + used["completion"],
            }
            made |= self.answer.beside
        return made
