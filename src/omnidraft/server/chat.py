"""Answers in the form of OpenAI's chat completions and completions, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

from omnidraft.server.answers import Answer, Delta, TokenInfo
from omnidraft.server.batch import Batch
from omnidraft.server.errors import ApiError, to_json

END = b"data: [DONE]\n\n"


class Choice(ABC):
    """The form of one answer among those of a request, of which `ChatChoice` and `TextChoice` are two."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """A complete answer."""

    @abstractmethod
    def first(self) -> list[dict[str, Any]]:
        """What comes before any delta."""

    @abstractmethod
    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        """What comes with a delta."""

    @abstractmethod
    def last(self) -> dict[str, Any]:
        """The end, with its reason."""


class Form(ABC):
    """The form of the answers to a request, of which `Chat` and `Completion` are two."""

    prefix: str
    choice: type[Choice]

    def __init__(self, batch: Batch, model: str, *, usage: bool = False) -> None:
        self.batch = batch
        self._usage = usage  # a chunk of its own at the end
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    @abstractmethod
    def kind(self, *, stream: bool) -> str:
        """The `object` of a body, or of a chunk."""

    def whole(self) -> dict[str, Any]:
        """The body for complete answers."""
        choices = [{"index": at, **self.choice(answer).whole()} for at, answer in enumerate(self.batch.choices)]
        return self.head(stream=False) | {"choices": choices, "usage": self.usage()} | self._beside()

    async def events(self) -> AsyncIterator[bytes]:
        """The answers as server-sent events."""
        told = [self.choice(answer) for answer in self.batch.choices]
        try:
            for at, choice in enumerate(told):
                for each in choice.first():
                    yield self._event(at, each)
            async for answer, delta in self.batch.deltas():
                for at, choice in enumerate(told):
                    if choice.answer is answer:
                        for each in choice.chunks(delta):
                            yield self._event(at, each, delta.trace)
            for at, choice in enumerate(told):
                beside = self._beside() if at == len(told) - 1 else {}
                yield self._event(at, choice.last(), **beside)
            if self._usage:
                yield event(self.head(stream=True) | {"choices": [], "usage": self.usage()})
            yield END
        except ApiError as error:
            yield event(error.body)

    def usage(self) -> dict[str, Any]:
        """Counts of tokens: of each prompt once, and of all answers that were made."""
        prompts = [answer.usage for answer in self.batch.prompts]
        told = self.batch.choices if len(self.batch.choices) > len(self.batch.answers) else self.batch.answers
        read, made = sum(each["prompt"] for each in prompts), sum(answer.usage["completion"] for answer in told)
        return {
            "prompt_tokens": read,
            "completion_tokens": made,
            "total_tokens": read + made,
            "prompt_tokens_details": {"cached_tokens": sum(each["cached"] for each in prompts)},
        }

    def head(self, *, stream: bool) -> dict[str, Any]:
        """What every body and every chunk begins with."""
        return {**self._head, "object": self.kind(stream=stream)}

    def _beside(self) -> dict[str, Any]:
        """What complete answers have of this server's own; of several, counts and times are added up."""
        first, *others = self.batch.answers
        beside = first.beside
        if others:
            total: Counter[str] = Counter()
            for answer in self.batch.answers:
                total.update(answer.timings)
            for name, count in (("prompt", "prompt_n"), ("predicted", "predicted_n")):
                spent = total[f"{name}_ms"]
                total[f"{name}_per_token_ms"] = spent / max(total[count], 1)  # type: ignore[assignment]
                total[f"{name}_per_second"] = 1e3 * total[count] / spent if spent else 0  # type: ignore[assignment]
            beside["timings"] = dict(total)
            if total["draft_n"] and "drafting" in beside.get("omnidraft", {}):
                del beside["omnidraft"]["drafting"]
        return beside

    def _event(self, at: int, choice: dict[str, Any], trace: dict[str, Any] | None = None, **beside: Any) -> bytes:
        chunk = self.head(stream=True) | {"choices": [{"index": at, "finish_reason": None, **choice}]} | beside
        if self._usage:
            chunk["usage"] = None
        return event(chunk if trace is None else chunk | {"omnidraft": trace})


class ChatChoice(Choice):
    """A chat completion's message."""

    def whole(self) -> dict[str, Any]:
        answer = self.answer
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            calls = zip(answer.call_ids, answer.calls, strict=True)
            made = [_call(id_, {"name": call.name, "arguments": call.arguments}) for id_, call in calls]
            message |= {"content": answer.content or None, "tool_calls": made}
        logprobs = self._logprobs(answer.logprobs) if answer.task.tells_logprobs else None
        return {"message": message, "logprobs": logprobs, "finish_reason": answer.finish}

    def first(self) -> list[dict[str, Any]]:
        return [{"delta": {"role": "assistant", "content": ""}}]

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        if delta.reasoning:
            made.append({"delta": {"reasoning_content": delta.reasoning}})
        logprobs = delta.logprobs if self.answer.task.tells_logprobs else ()
        if delta.content or logprobs or (delta.trace is not None and not delta.reasoning):
            choice: dict[str, Any] = {"delta": {"content": delta.content}}
            if logprobs:
                choice["logprobs"] = self._logprobs(logprobs)
            made.append(choice)
        for piece in delta.calls:
            function: dict[str, Any] = {"arguments": piece.arguments}
            if piece.name is None:
                call: dict[str, Any] = {"function": function}
            else:
                call = _call(self.answer.call_ids[piece.index], {"name": piece.name, **function})
            made.append({"delta": {"tool_calls": [{"index": piece.index, **call}]}})
        return made

    def last(self) -> dict[str, Any]:
        return {"delta": {}, "finish_reason": self.answer.finish}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        content = [info.as_dict() | {"top_logprobs": [each.as_dict() for each in info.top]} for info in infos]
        return {"content": content, "refusal": None}


class Chat(Form):
    """Chat completions."""

    prefix, choice = "chatcmpl", ChatChoice

    def kind(self, *, stream: bool) -> str:
        return "chat.completion.chunk" if stream else "chat.completion"


class TextChoice(Choice):
    """A completion's text, behind its prompt where that is to be repeated."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._offset = 0  # characters of the tokens whose log-probabilities were given
        self._echo = answer.task.echo  # what is left to repeat

    def whole(self) -> dict[str, Any]:
        return self._choice(self.answer.content, self.answer.logprobs, self.answer.finish)

    def first(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, delta: Delta) -> list[dict[str, Any]]:
        if not (delta.content or delta.logprobs or delta.trace is not None or self._echo):
            return []
        return [self._choice(delta.content, delta.logprobs, None)]

    def last(self) -> dict[str, Any]:
        return self._choice("", (), self.answer.finish)

    def _choice(self, text: str, infos: Sequence[TokenInfo], finish: str | None) -> dict[str, Any]:
        logprobs = self._logprobs(infos) if self.answer.task.tells_logprobs else None
        echo, self._echo = self._echo, ""
        return {"text": echo + text, "logprobs": logprobs, "finish_reason": finish}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        offsets = []
        for info in infos:
            offsets.append(self._offset)
            self._offset += len(info.text)
        return {
            "tokens": [info.text for info in infos],
            "token_logprobs": [info.logprob for info in infos],
            "top_logprobs": [
                # of tokens with the same text, the likeliest
                None if info.logprob is None else {each.text: each.logprob for each in reversed(info.top)}
                for info in infos
            ],
            "text_offset": offsets,
        }


class Completion(Form):
    """Completions of texts."""

    prefix, choice = "cmpl", TextChoice

    def kind(self, *, stream: bool) -> str:  # noqa: ARG002  the same for both
        return "text_completion"


def event(body: dict[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + to_json(body) + b"\n\n"


def _call(id_: str, function: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": function}
