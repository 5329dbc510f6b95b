"""Answers in the form of OpenAI's chat completions and completions, whole and in chunks."""

from __future__ import annotations

import codecs
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from omnidraft.server.answers.answer import Answer, Change, Delta, Item, TokenInfo, timings
from omnidraft.server.answers.request_answers import Reply, RequestAnswers, event
from omnidraft.server.errors import ApiError
from omnidraft.server.requests.bodies import Received
from omnidraft.server.running.request_queue import Progress


class Choices(Reply):
    """The form of the answers to a request, each a choice with a number."""

    prefix: ClassVar[str]
    body: ClassVar[str]  # the `object` of a body, and of a chunk
    chunk: ClassVar[str]

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        options = asked.body.stream_options
        self._usage = bool(options and options.include_usage)  # a chunk of its own at the end
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": self.model}
        self._told = batch.choices  # of a stream

    @abstractmethod
    def choice(self, at: int, answer: Answer) -> dict[str, Any]:
        """A complete answer, with its number."""

    @abstractmethod
    def nothing(self) -> dict[str, Any]:
        """A chunk that adds nothing."""

    def opening(self, at: int) -> Sequence[dict[str, Any]]:  # noqa: ARG002
        """The chunks before the first one of the answer with this number, once."""
        return ()

    @abstractmethod
    def chunks(self, at: int, delta: Delta) -> list[dict[str, Any]]:
        """The chunks of a delta of the answer with this number."""

    @abstractmethod
    def last(self, at: int) -> dict[str, Any]:
        """The last chunk of the answer with this number."""

    def whole(self) -> dict[str, Any]:
        choices = [{"index": at, **self.choice(at, answer)} for at, answer in enumerate(self.batch.choices)]
        return self._head | {"object": self.body, "choices": choices, "usage": self.usage()} | self._beside()

    def add(self, answer: Answer, delta: Delta) -> Iterator[bytes]:
        for at, told in enumerate(self._told):
            if told is answer:
                chunks = self.chunks(at, delta)
                for each in self.opening(at) if chunks else ():
                    yield self._event(at, each)
                for number, each in enumerate(chunks):
                    yield self._event(at, each, delta.trace if number == 0 else None)

    def end(self) -> Iterator[bytes]:
        for at in range(len(self._told)):
            beside = self._beside() if at == len(self._told) - 1 else {}
            for each in self.opening(at):
                yield self._event(at, each)
            yield self._event(at, self.last(at), **beside)
        if self._usage:
            yield event(self._head | {"object": self.chunk, "choices": [], "usage": self.usage()})
        yield b"data: [DONE]\n\n"

    def progress(self, progress: Progress) -> Iterator[bytes]:
        yield self._event(0, self.nothing(), prompt_progress=as_llama_server(progress))

    def fail(self, error: ApiError) -> bytes:
        return event(error.body)

    def usage(self) -> dict[str, Any]:
        """Counts of tokens: of each prompt once, and of all answers that were made."""
        prompts = [answer.usage for answer in self.batch.prompts]
        told = self.batch.choices if len(self.batch.choices) > len(self.batch.answers) else self.batch.answers
        read, written = sum(each["prompt"] for each in prompts), sum(answer.usage["completion"] for answer in told)
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {
                "cached_tokens": sum(each["cached"] for each in prompts),
                "cache_write_tokens": 0,
            },
            "completion_tokens_details": {"reasoning_tokens": sum(answer.reasoned for answer in told)},
        }

    def _beside(self) -> dict[str, Any]:
        """Fields of complete answers that only this server has; of several, counts and times are added up."""
        beside, answers = self.answer.beside, self.batch.answers
        if len(answers) > 1:
            beside["timings"] = timings(answers)
            if beside["timings"]["draft_n"]:
                beside.get("omnidraft", {}).pop("drafting", None)
        return beside

    def _event(self, at: int, choice: dict[str, Any], trace: dict[str, Any] | None = None, **beside: Any) -> bytes:
        chunk = (
            self._head | {"object": self.chunk, "choices": [{"index": at, "finish_reason": None, **choice}]} | beside
        )
        if self._usage:
            chunk["usage"] = None
        return event(chunk if trace is None else chunk | {"omnidraft": trace})


def as_llama_server(progress: Progress) -> dict[str, int]:
    """The progress of a prompt as llama-server tells it; `processed` tokens include those of the cache."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.done,
        "time_ms": round(1000 * progress.seconds),
    }


class Chat(Choices):
    """Chat completions."""

    prefix, body, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        self._begun: set[int] = set()  # choices whose role was told

    def choice(self, at: int, answer: Answer) -> dict[str, Any]:  # noqa: ARG002
        message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls := answer.calls:
            tool_calls = [_call(call) | {"function": {"name": call.name, "arguments": call.text}} for call in calls]
            message |= {"content": answer.content or None, "tool_calls": tool_calls}
        logprobs = self._logprobs(answer.logprobs) if answer.task.tells_logprobs else None
        return {"message": message, "logprobs": logprobs, "finish_reason": answer.finish}

    def nothing(self) -> dict[str, Any]:
        return {"delta": {}}

    def opening(self, at: int) -> Sequence[dict[str, Any]]:
        # not before the prompt is read: clients take the time of a first chunk for that of the first token
        if at in self._begun:
            return ()
        self._begun.add(at)
        return ({"delta": {"role": "assistant", "content": ""}},)

    def chunks(self, at: int, delta: Delta) -> list[dict[str, Any]]:  # noqa: ARG002
        choices = [{"delta": told} for change in delta.changes if (told := _told(change))]
        logprobs = delta.logprobs if self.batch.task.tells_logprobs else ()
        if logprobs or (delta.trace is not None and not choices):
            chunk: dict[str, Any] | None = next((each for each in choices if "content" in each["delta"]), None)
            if chunk is None:
                choices.append(chunk := {"delta": {"content": ""}})
            if logprobs:
                chunk["logprobs"] = self._logprobs(logprobs)
        return choices

    def last(self, at: int) -> dict[str, Any]:
        return {"delta": {}, "finish_reason": self._told[at].finish}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        return {"content": [info.as_dict() for info in infos], "refusal": None}


class Completion(Choices):
    """Completions of texts, each behind its prompt where that is to be repeated."""

    prefix, body, chunk = "cmpl", "text_completion", "text_completion"

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        self._begun: set[int] = set()  # choices whose prompt was repeated
        self._places: dict[int, Places] = {}  # of the choices whose log-probabilities were begun

    def choice(self, at: int, answer: Answer) -> dict[str, Any]:
        return self._choice(at, answer.content, answer.logprobs, answer)

    def nothing(self) -> dict[str, Any]:
        return {"text": "", "logprobs": None}

    def chunks(self, at: int, delta: Delta) -> list[dict[str, Any]]:
        repeats = at not in self._begun and self._told[at].task.echo
        if not (delta.content or delta.logprobs or delta.trace is not None or repeats):
            return []
        return [self._choice(at, delta.content, delta.logprobs, self._told[at]) | {"finish_reason": None}]

    def last(self, at: int) -> dict[str, Any]:
        return self._choice(at, "", (), self._told[at])

    def _choice(self, at: int, text: str, infos: Sequence[TokenInfo], answer: Answer) -> dict[str, Any]:
        logprobs = (
            self._logprobs(self._places.setdefault(at, Places(answer)), infos) if answer.task.tells_logprobs else None
        )
        echo = "" if at in self._begun else answer.task.echo
        self._begun.add(at)
        return {"text": echo + text, "logprobs": logprobs, "finish_reason": answer.done and answer.finish}

    def _logprobs(self, places: Places, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        return {
            "tokens": [info.text for info in infos],
            "token_logprobs": [info.logprob for info in infos],
            "top_logprobs": [None if info.logprob is None else _likeliest(info) for info in infos],
            "text_offset": [places.of(info) for info in infos],
        }


class Places:
    """Where the tokens of a completion begin in its text; the tokens of a character all begin where it does.

    What the tokenizer puts before a repeated prompt, a special token or a space, has no length there.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer, self._echo = answer, answer.task.echo
        self._told = self._at = 0  # tokens, and characters of them
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def of(self, info: TokenInfo) -> int:
        """The place of the next token."""
        if self._told == self._answer.prompt_tokens:
            self._at = len(self._echo)
        self._told += 1
        place, text = self._at, info.text if info.data is None else self._decode(bytes(info.data))
        if not self._echo.startswith(text, place):
            text = "" if info.data is None else text.removeprefix("" if place or not self._echo else " ")
        self._at += len(text)
        return place


def _likeliest(info: TokenInfo) -> dict[str, float | None]:
    """The most probable tokens in a token's place, and the token itself; of those with the same text, the likeliest."""
    logprobs: dict[str, float | None] = {}
    for each in (*info.top, info):
        logprobs.setdefault(each.text, each.logprob)
    return logprobs


def _told(change: Change) -> dict[str, Any]:
    """The delta of a chunk that tells of a change, if anything is to be told."""
    item = change.item
    if item.kind != "call":
        name = "content" if item.kind == "text" else "reasoning_content"
        return {name: change.text} if change.text else {}
    if change.begins:
        return {"tool_calls": [{"index": item.number, **_call(item), "function": {"name": item.name, "arguments": ""}}]}
    arguments = {"index": item.number, "function": {"arguments": change.text}}
    return {"tool_calls": [arguments]} if change.text else {}


def _call(item: Item) -> dict[str, Any]:
    return {"id": item.call_id, "type": "function"}
