"""Answers in the form of OpenAI's responses, whole and as events; nothing is kept of them."""

from __future__ import annotations

import secrets
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from omnidraft.server.answers.answer import Answer, Delta, Item, TokenInfo
from omnidraft.server.answers.request_answers import Reply, RequestAnswers, event
from omnidraft.server.errors import ApiError
from omnidraft.server.requests.bodies import Received
from omnidraft.server.requests.response_bodies import Namespace, ResponseRequest, ResponseTool, full_name

CONTENTS: dict[str, dict[str, Any]] = {
    "text": {"type": "output_text", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text"},
}
IDS = {"text": "msg", "reasoning": "rs", "call": "fc"}


class Response(Reply):
    """The form of one response: its items are reasoning, messages, and calls, each whole before the next begins."""

    def __init__(self, batch: RequestAnswers, asked: Received[ResponseRequest]) -> None:
        super().__init__(batch, asked)
        self._id, self._created = f"resp_{secrets.token_hex(12)}", int(time.time())
        spaces = [tool for tool in asked.body.tools or () if isinstance(tool, Namespace)]
        self._spaces = {  # namespaces and names of functions by the names that the model knows
            full_name(space.name, tool.name): {"namespace": space.name, "name": tool.name}
            for space in spaces
            for tool in space.tools
            if isinstance(tool, ResponseTool)
        }
        self._number = -1  # of the last event
        self._informed: Counter[int] = Counter()  # tokens whose log-probabilities were told, by the places of items

    def whole(self) -> dict[str, Any]:
        done = self.answer.finish != "length"
        return self._body_of("completed" if done else "incomplete", [self._item(each) for each in self.answer.items])

    def begin(self) -> Iterator[bytes]:
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._body_of("in_progress", []))

    def end(self) -> Iterator[bytes]:
        whole = self.whole()
        yield self._event(f"response.{whole['status']}", response=whole)

    def fail(self, error: ApiError) -> bytes:
        failed = self._body_of("failed", []) | {"error": {"code": "server_error", "message": str(error)}}
        return self._event("response.failed", response=failed)

    def add(self, answer: Answer, delta: Delta) -> Iterator[bytes]:  # noqa: ARG002
        for change in delta.changes:
            if change.begins:
                yield from self._opening(change.item)
            if change.text:
                kind = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}
                rest = {"logprobs": self._more_infos(change.item)} if change.item.kind == "text" else {}
                name = f"response.{kind[change.item.kind]}.delta"
                yield self._event(name, **_place(change.item), delta=change.text, **rest)
            if change.ends:
                yield from self._ending(change.item)

    def _opening(self, item: Item) -> Iterator[bytes]:
        emptied: dict[str, Any] = {"arguments": ""} if item.kind == "call" else {"content": []}
        shown = self._item(item) | {"status": "in_progress"} | emptied
        yield self._event("response.output_item.added", output_index=item.place, item=shown)
        if item.kind in CONTENTS:
            content = CONTENTS[item.kind] | {"text": ""}
            yield self._event("response.content_part.added", **_place(item), part=content)

    def _ending(self, item: Item) -> Iterator[bytes]:
        """The events of an item that is complete."""
        shown = self._item(item)
        if item.kind in CONTENTS:
            content = shown["content"][0]
            rest = {"logprobs": content["logprobs"]} if item.kind == "text" else {}
            yield self._event(f"response.{content['type']}.done", **_place(item), text=content["text"], **rest)
            yield self._event("response.content_part.done", **_place(item), part=content)
        else:
            done = {"name": shown["name"], "arguments": shown["arguments"]}
            yield self._event("response.function_call_arguments.done", **_place(item), **done)
        yield self._event("response.output_item.done", output_index=item.place, item=shown)

    def _event(self, name: str, /, **rest: Any) -> bytes:
        self._number += 1
        return event({"type": name, "sequence_number": self._number, **rest}, name)

    def _item(self, item: Item) -> dict[str, Any]:
        """An item of the output, as far as it is there."""
        fields: dict[str, Any] = {"id": _id(item), "status": "incomplete" if item.cut else "completed"}
        if item.kind == "call":
            called = {"call_id": item.call_id, "name": item.name, "arguments": item.text}
            return {"type": "function_call", **fields, **called} | self._spaces.get(item.name, {})
        content = CONTENTS[item.kind] | {"text": item.text}
        if item.kind == "reasoning":
            return {"type": "reasoning", **fields, "summary": [], "content": [content]}
        content |= {"logprobs": [info.as_dict() for info in self._infos(item)]}
        return {"type": "message", **fields, "role": "assistant", "content": [content]}

    def _more_infos(self, item: Item) -> list[dict[str, Any]]:
        """The log-probabilities of the tokens of a text that no event has told."""
        more = [info.as_dict() for info in self._infos(item)[self._informed[item.place] :]]
        self._informed[item.place] += len(more)
        return more

    def _infos(self, item: Item) -> Sequence[TokenInfo]:
        """The log-probabilities of the tokens of a text, where they are asked for."""
        infos = self.answer.logprobs if self.answer.task.tells_logprobs else ()
        data = [bytes(info.data or b"") for info in infos]
        whole, end = b"".join(data), 0
        for each in self.answer.items[: item.place]:
            end = max(whole.find(each.text.encode(), end) + len(each.text.encode()), end)
        last = item.place == len(self.answer.items) - 1  # at the end of the text, which may hold the same words before
        begin = max((whole.rfind if last else whole.find)(item.text.encode(), end), end)
        end = begin + len(item.text.encode())
        ends = [*accumulate(map(len, data))]
        return infos[bisect_right(ends, begin) : bisect_left(ends, end) + 1] if item.text else ()

    def _body_of(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """The response object: what was asked for, and what has come of it."""
        body, raw, done = self.asked.body, self.asked.raw, self.answer.done
        form = {key: value for key, value in (raw.get("text") or {}).items() if value is not None}
        response = {
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
            response["usage"] = {
                "input_tokens": used["prompt"],
                "input_tokens_details": {"cached_tokens": used["cached"], "cache_write_tokens": 0},
                "output_tokens": used["completion"],
                "output_tokens_details": {"reasoning_tokens": self.answer.reasoned},
                "total_tokens": used["prompt"] + used["completion"],
            }
            response |= self.answer.beside
        return response


def _id(item: Item) -> str:
    return f"{IDS[item.kind]}_{item.id}"


def _place(item: Item) -> dict[str, Any]:
    """Where in the output a change is."""
    index = {"content_index": 0} if item.kind in CONTENTS else {}
    return {"item_id": _id(item), "output_index": item.place, **index}
