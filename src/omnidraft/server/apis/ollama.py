"""Ollama's API: a request as that of a chat or completion, and its answer in lines of JSON."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from omnidraft.server.answers.answer import Answer, Delta, Item, TokenInfo
from omnidraft.server.answers.request_answers import Reply, RequestAnswers
from omnidraft.server.apis.ollama_bodies import Asked, OllamaChat, OllamaGenerate
from omnidraft.server.errors import ApiError, to_json
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import fill_in_middle
from omnidraft.server.requests.bodies import Received
from omnidraft.server.requests.tasks import tasks_of
from omnidraft.server.running.request_queue import Task
from omnidraft.server.running.served_model import ServedModel
from omnidraft.server.server_settings import Serving

VERSION = "0.24.0"  # of Ollama, whose API this is: clients refuse what is too old for them
RUNNING = "Ollama is running"  # by which its clients know that it is there
LATEST = ":latest"  # a tag that a model may have beside its name
UNLOAD = (0, "0", "0s", "0m", "0h")  # times for which a model is kept
ABILITIES = {"tools": "tools", "thinking": "think"}  # and a word of templates that have a place for them
OPTIONS = {  # by what a chat calls them
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "repeat_last_n")},
    **{name: name for name in ("repeat_penalty", "frequency_penalty", "presence_penalty")},
    "max_tokens": "num_predict",
}
PATHS = (
    ("enable_thinking|reasoning_effort", "think"),
    (r"response_format(?:\.schema)?", "format"),
    (r"(messages\[\d+\])\.reasoning_content", r"\1.thinking"),
    *((name, f"options.{own}") for name, own in OPTIONS.items()),
)


def chat_of(body: OllamaChat, served: ServedModel, settings: Serving) -> list[Task]:
    """The task of a chat; raises ApiError."""
    chat = _asked(body)
    chat["messages"] = [_message(each) for each in body.messages]
    chat |= _end_of(chat["messages"])
    if body.tools:
        chat["tools"] = [each.model_dump(exclude_none=True) for each in body.tools]
    return tasks_of(chat, p.ChatRequest, PATHS, served, settings, _unused(body))


def generate_of(body: OllamaGenerate, served: ServedModel, settings: Serving) -> list[Task]:
    """The task of a prompt; raises ApiError."""
    completion = _asked(body)
    if body.plain:
        taken = {"prompt": body.prompt, **({"suffix": body.suffix} if body.suffix else {})}
        if (wrong := next((name for name in ("think", "context") if getattr(body, name)), None)) is not None:
            raise ApiError(400, f"{wrong} needs a chat template: leave out raw and suffix", param=wrong)
        completion.pop("enable_thinking", None)
        completion.setdefault("max_tokens", -1)
        if body.logprobs:
            completion["logprobs"] = completion.pop("top_logprobs")
        return tasks_of(completion | taken, p.CompletionRequest, PATHS, served, settings, _unused(body))
    system = [{"role": "system", "content": body.system}] if body.system else []
    completion["messages"] = [*system, {"role": "user", "content": body.prompt}]
    return tasks_of(completion, p.ChatRequest, PATHS, served, settings, _unused(body), body.context or ())


def _unused(body: Asked) -> list[str]:
    """The options that say how Ollama runs a model, and what has no effect without another field, or beside it."""
    unasked = ["top_logprobs"] if body.top_logprobs and not body.logprobs else []
    unasked += ["system"] if isinstance(body, OllamaGenerate) and body.plain and body.system else []
    return [*(f"options.{name}" for name in body.options or {} if name not in OPTIONS.values()), *unasked]


def _asked(body: Asked) -> dict[str, Any]:
    """The fields that the bodies of a chat and of a completion share."""
    options = body.options or {}
    fields = {name: options[option] for name, option in OPTIONS.items() if options.get(option) not in (None, "", [])}
    if body.format:
        form: dict[str, Any] = {"type": "json_object"}
        fields["response_format"] = form if isinstance(body.format, str) else form | {"schema": body.format}
    if body.think is not None:
        fields["enable_thinking"] = body.think is not False
        if isinstance(body.think, str):
            fields["reasoning_effort"] = body.think
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.omnidraft is not None:
        fields["omnidraft"] = body.omnidraft.model_dump(exclude_none=True)
    if fields.get("max_tokens") == 0 and fields["max_tokens"] is not False:
        fields["max_tokens"] = -1  # as in Ollama, where 0 is no limit
    return fields


def _end_of(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """How the prompt of a chat ends: an answer at the end goes on, and an empty one is left out, which is the same."""
    last = messages[-1] if messages else {}
    said = last.get("content")
    if last.get("role") != "assistant" or last.get("tool_calls") or not isinstance(said, str):
        return {}
    if said.strip():
        return {"continue_final_message": True, "add_generation_prompt": False}
    if len(messages) > 1 and not last.get("reasoning_content"):
        messages.pop()
    return {}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a chat; what is wrong in it is found there."""
    entry = {"content": "", **message}
    thoughts, name = entry.pop("thinking", None), entry.pop("tool_name", None)
    if entry.get("role") == "tool":
        entry = {"tool_call_id": name or "", **entry} | ({"name": name} if name else {})
    reasons = thoughts is not None and entry.get("role") == "assistant"
    return entry | ({"reasoning_content": thoughts} if reasons else {})


# ---------------------------------------------------------------- what is answered


class Lines(Reply):
    """The form of one answer, by the name that the request calls the model."""

    media_type = "application/x-ndjson"

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        self.model = asked.body.model

    def whole(self) -> dict[str, Any]:
        answer = self.answer
        line = self._line(answer.content, answer.reasoning, answer.calls)
        return line | self._logprobs(answer.logprobs) | self._end()

    def add(self, answer: Answer, delta: Delta) -> Iterator[bytes]:  # noqa: ARG002
        logprobs = self._logprobs(delta.logprobs)
        for change in delta.changes:
            item = change.item
            if item.kind == "call":
                line = self._line("", "", [item]) if change.ends else None  # whole, as Ollama's clients take them
            else:
                said = (change.text, "") if item.kind == "text" else ("", change.text)
                line = self._line(*said) if change.text else None
            if line is not None:
                yield to_json(line | logprobs | {"done": False}) + b"\n"
                logprobs = {}
        if logprobs:
            yield to_json(self._line("", "") | logprobs | {"done": False}) + b"\n"

    def end(self) -> Iterator[bytes]:
        yield to_json(self._line("", "") | self._end()) + b"\n"

    def alive(self) -> bytes:
        return to_json(self._line("", "") | {"done": False}) + b"\n"

    def fail(self, error: ApiError) -> bytes:
        return to_json({"error": str(error)}) + b"\n"

    def _line(self, content: str, reasoning: str, calls: Sequence[Item] = ()) -> dict[str, Any]:
        head = {"model": self.model, "created_at": now()}
        thinking = {"thinking": reasoning} if reasoning else {}
        if not isinstance(self.asked.body, OllamaChat):
            return head | {"response": content} | thinking
        message: dict[str, Any] = {"role": "assistant", "content": content} | thinking
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "function": {"index": call.number, "name": call.name, "arguments": call.values},
                }
                for call in calls
            ]
        return head | {"message": message}

    def _logprobs(self, infos: Sequence[TokenInfo]) -> dict[str, Any]:
        if not infos or not self.asked.body.logprobs:
            return {}
        told = [info.as_dict() for info in infos]
        if not self.asked.body.top_logprobs:
            for each in told:
                each.pop("top_logprobs")
        return {"logprobs": told}

    def _end(self) -> dict[str, Any]:
        answer, beside, body = self.answer, self.answer.beside, self.asked.body
        read, written = (round(1e6 * beside["timings"][f"{name}_ms"]) for name in ("prompt", "predicted"))
        waited = max(1, round(1e9 * answer.task.age) - read - written)  # for a lane, and for other requests' rounds
        context: dict[str, Any] = {}  # by which the next request goes on with the conversation
        if isinstance(body, OllamaGenerate) and not body.plain:
            context["context"] = [*answer.task.ids, *answer.finished.result.token_ids]
        return {
            "done": True,
            "done_reason": "length" if answer.finish == "length" else "stop",
            "total_duration": waited + read + written,
            "load_duration": waited,
            "prompt_eval_count": answer.usage["prompt"],
            "prompt_eval_duration": read,
            "eval_count": answer.usage["completion"],
            "eval_duration": written,
        } | (context | beside)


def loaded(asked: Received[OllamaChat | OllamaGenerate]) -> dict[str, Any] | None:
    """The answer to a request without anything to answer, by which clients have a model loaded; None to any other.

    Those that keep it for no time want it unloaded, and wait for the word.
    """
    body = asked.body
    if body.messages if isinstance(body, OllamaChat) else body.prompt:
        return None
    said = {"message": {"role": "assistant", "content": ""}} if isinstance(body, OllamaChat) else {"response": ""}
    reason = "unload" if asked.raw.get("keep_alive") in UNLOAD else "load"
    return {"model": body.model, "created_at": now(), **said, "done": True, "done_reason": reason}


def pulled(name: str, known: Sequence[str]) -> list[dict[str, str]]:
    """What is said of a model that is to be fetched: it is there already.  Raises ApiError for any other."""
    if name.removesuffix(LATEST) not in known:
        fix = f"use one of {', '.join(known)}, or start the server with it as --target"
        raise ApiError(404, f"model {name!r} is not here, and this server fetches none: {fix}", param="model")
    return [{"status": step} for step in ("pulling manifest", "verifying sha256 digest", "writing manifest", "success")]


def listed(served: ServedModel, *, running: bool = False) -> dict[str, Any]:
    """A target as `/api/tags` and `/api/ps` show it."""
    size = served.files.nbytes
    entry = {
        "name": served.name,
        "model": served.name,
        "modified_at": moment(served.files.written),
        "size": size,
        "digest": sha256(served.name.encode()).hexdigest(),  # whose beginning Ollama's own client shows
        "details": _details(served),
        "capabilities": capabilities(served),
    }
    lm: Any = served.model.target.lm
    vram = size if lm.device.type in ("cuda", "mps") else 0
    more = {"expires_at": "2100-01-01T00:00:00Z", "size_vram": vram, "context_length": lm.context}
    return entry | (more if running else {})


def shown(served: ServedModel) -> dict[str, Any]:
    """A target as `/api/show` has it."""
    target = served.model.target
    skeleton = target.lm.skeleton  # to ask for the model itself would load its class of transformers
    config: Any = skeleton.config
    return {
        "modelfile": "",
        "parameters": "",
        "template": served.template,
        "details": _details(served),
        "model_info": {
            "general.architecture": config.model_type,
            "general.basename": served.name,
            "general.parameter_count": skeleton.num_parameters(),
            f"{config.model_type}.context_length": target.lm.context,
        },
        "capabilities": capabilities(served),
        "modified_at": moment(served.files.written),
    }


def capabilities(served: ServedModel) -> list[str]:
    """What a target can do, in Ollama's words."""
    template = served.templates
    told = ["insert"] if fills_in(served) else []
    return ["completion", *told, *(name for name, word in ABILITIES.items() if word in template)]


def fills_in(served: ServedModel) -> bool:
    """True of a target that has the tokens of a family that fills in."""
    tokenizer: Any = served.model.target.tokenizer
    none = (None, tokenizer.unk_token_id)
    return any(
        all(tokenizer.convert_tokens_to_ids(mark) not in none for mark in marks[:3] if mark)
        for marks in fill_in_middle.FAMILIES
    )


def now() -> str:
    """The time of day, as Ollama writes it."""
    return moment(time.time())


def moment(seconds: float) -> str:
    """A time of day, as Ollama writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _details(served: ServedModel) -> dict[str, Any]:
    lm: Any = served.model.target.lm
    family, size = lm.skeleton.config.model_type, lm.skeleton.num_parameters()
    return {
        "parent_model": "",
        "format": served.files.format,
        "family": family,
        "families": [family],
        "parameter_size": f"{size / 1e9:.1f}B" if size >= 1e9 else f"{size / 1e6:.2f}M",
        "quantization_level": served.files.weights,
    }
