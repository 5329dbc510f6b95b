"""Answers in the form of OpenAI's chat completions and completions, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any

from omnidraft.server.answers import Answer, Delta, TokenInfo
from omnidraft.server.errors import ApiError, to_json
from omnidraft.server.tools import Call

END = b"data: [DONE]\n\n"


class Form(ABC):
    """The form of an answer, of which `Chat` and `Completion` are two."""

    def __init__(self, answer: Answer, model: str, *, usage: bool = False) -> None:
        self.answer = answer
        self._usage = usage  # a chunk of its own at the end
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    prefix: str

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The body for a complete answer."""

    @abstractmethod
    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """The choices of the chunks for a delta."""

    @abstractmethod
    def first(self) -> list[dict[str, Any]]:
        """The choices of the chunks before any delta."""

    @abstractmethod
    def last(self) -> dict[str, Any]:
        """The choice of the last chunk, with the reason for the end."""

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        try:
            for choice in self.first():
                yield self._event(choice)
            async for delta in self.answer.deltas():
                for choice in self.chunks(delta):
                    yield self._event(choice, delta.trace)
            yield self._event(self.last(), **self.answer.beside)
            if self._usage:
                yield event(self.head(stream=True) | {"choices": [], "usage": self.usage()})
            yield END
        except ApiError as error:
            yield event(error.body)

    def usage(self) -> dict[str, Any]:
        """Counts of tokens."""
        used = self.answer.usage
        return {
            "prompt_tokens": used["prompt"],
            "completion_tokens": used["completion"],
            "total_tokens": used["prompt"] + used["completion"],
            "prompt_tokens_details": {"cached_tokens": used["cached"]},
        }

    def head(self, *, stream: bool) -> dict[str, Any]:
        """What every body and every chunk begins with."""
        return {**self._head, "object": self.kind(stream=stream)}

    @abstractmethod
    def kind(self, *, stream: bool) -> str:
        """The `object` of a body, or of a chunk."""

    def body(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The body of a complete answer with this choice."""
        return self.head(stream=False) | {"choices": [choice], "usage": self.usage()} | self.answer.beside

    def _event(self, choice: dict[str, Any], trace: dict[str, Any] | None = None, **beside: Any) -> bytes:
        chunk = self.head(stream=True) | {"choices": [{"index": 0, "finish_reason": None, **choice}]} | beside
        if self._usage:
            chunk["usage"] = None
        return event(chunk if trace is None else chunk | {"omnidraft": trace})


class Chat(Form):
    """Chat completions."""

    prefix = "chatcmpl"

    def kind(self, *, stream: bool) -> str:
        return "chat.completion.chunk" if stream else "chat.completion"

    def whole(self) -> dict[str, Any]:
        answer = self.answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.calls:
            message |= {"content": answer.content or None, "tool_calls": _calls(answer.calls)}
        asked = answer.task.options["logprobs"] is not None
        logprobs = self._logprobs(answer.logprobs) if asked else None
        return self.body({"index": 0, "message": message, "logprobs": logprobs, "finish_reason": answer.finish})

    def first(self) -> list[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": ""}}]

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        if delta.content or delta.logprobs or delta.trace is not None:
            choice: dict[str, Any] = {"delta": {"content": delta.content}}
            if delta.logprobs:
                choice["logprobs"] = self._logprobs(delta.logprobs)
            made.append(choice)
        if delta.calls:
            calls = [{"index": place, **call} for place, call in enumerate(_calls(delta.calls))]
            made.append({"delta": {"tool_calls": calls}})
        return made

    def last(self) -> dict[str, Any]:
        return {"delta": {}, "finish_reason": self.answer.finish}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        content = [info.as_dict() | {"top_logprobs": [each.as_dict() for each in info.top]} for info in infos]
        return {"content": content, "refusal": None}


class Completion(Form):
    """Completions of a text."""

    prefix = "cmpl"
    _offset = 0  # characters of the tokens whose log-probabilities were given

    def kind(self, *, stream: bool) -> str:  # noqa: ARG002  the same for both
        return "text_completion"

    def whole(self) -> dict[str, Any]:
        return self.body({"index": 0, **self._choice(self.answer.content, self.answer.logprobs, self.answer.finish)})

    def first(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        if not (delta.content or delta.logprobs or delta.trace is not None):
            return []
        return [self._choice(delta.content, delta.logprobs, None)]

    def last(self) -> dict[str, Any]:
        return self._choice("", (), self.answer.finish)

    def _choice(self, text: str, infos: Sequence[TokenInfo], finish: str | None) -> dict[str, Any]:
        asked = self.answer.task.options["logprobs"] is not None
        logprobs = self._logprobs(infos) if asked else None
        return {"text": text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        offsets = []
        for info in infos:
            offsets.append(self._offset)
            self._offset += len(info.text)
        return {
            "tokens": [info.text for info in infos],
            "token_logprobs": [info.logprob for info in infos],
            "top_logprobs": [{each.text: each.logprob for each in info.top} for info in infos],
            "text_offset": offsets,
        }


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(body) + b"\n\n"


def _calls(calls: Sequence[Call]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
