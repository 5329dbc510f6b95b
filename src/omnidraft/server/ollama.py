"""Ollama's API: a request as that of a chat or completion, and its answer in lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from omnidraft.server import protocol as p
from omnidraft.server.answers import Answer, Delta, Item
from omnidraft.server.bodies import Received
from omnidraft.server.errors import ApiError, to_json
from omnidraft.server.ollama_bodies import Asked, OllamaChat, OllamaGenerate
from omnidraft.server.request_answers import Reply, RequestAnswers
from omnidraft.server.scheduler import Task
from omnidraft.server.served_model import ServedModel
from omnidraft.server.server_settings import Serving
from omnidraft.server.tasks import tasks_of

VERSION = "0.13.0"  # of Ollama, whose API this is: clients refuse what is too old for them
OPTIONS = {  # by what a chat calls them
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "seed", "stop", "repeat_last_n")},
    **{name: name for name in ("frequency_penalty", "presence_penalty")},
    "repetition_penalty": "repeat_penalty",
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
    made = _asked(body)
    made["messages"] = [_message(each) for each in body.messages]
    if body.tools:
        made["tools"] = [each.model_dump(exclude_none=True) for each in body.tools]
    return tasks_of(made, p.ChatRequest, PATHS, served, settings, _unused(body))


def generate_of(body: OllamaGenerate, served: ServedModel, settings: Serving) -> list[Task]:
    """The task of a prompt; raises ApiError."""
    made = _asked(body)
    if body.raw or body.suffix:
        taken = {"prompt": body.prompt, **({"suffix": body.suffix} if body.suffix else {})}
        wrong = next((name for name in ("response_format", "enable_thinking") if name in made), None)
        if wrong is not None:
            name = {"response_format": "format"}.get(wrong, "think")
            raise ApiError(400, f"{name} needs a chat template: leave out raw and suffix", param=name)
        made.setdefault("max_tokens", -1)
        return tasks_of(made | taken, p.CompletionRequest, PATHS, served, settings, _unused(body))
    system = [{"role": "system", "content": body.system}] if body.system else []
    made["messages"] = [*system, {"role": "user", "content": body.prompt}]
    return tasks_of(made, p.ChatRequest, PATHS, served, settings, _unused(body))


def _unused(body: Asked) -> list[str]:
    """The options that say how Ollama runs a model."""
    return [f"options.{name}" for name in body.options or {} if name not in OPTIONS.values()]


def _asked(body: Asked) -> dict[str, Any]:
    """The fields that the bodies of a chat and of a completion share."""
    given = body.options or {}
    made = {name: given[own] for name, own in OPTIONS.items() if given.get(own) not in (None, "", [])}
    if body.format:
        form: dict[str, Any] = {"type": "json_object"}
        made["response_format"] = form if isinstance(body.format, str) else form | {"schema": body.format}
    if body.think is not None:
        made["enable_thinking"] = body.think is not False
        if isinstance(body.think, str):
            made["reasoning_effort"] = body.think
    if body.omnidraft is not None:
        made["omnidraft"] = body.omnidraft.model_dump(exclude_none=True)
    return made


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message of a chat; what is wrong in it is found there."""
    made = {"content": "", **message}
    thoughts, name = made.pop("thinking", None), made.pop("tool_name", None)
    if made.get("role") == "tool":
        made = {"tool_call_id": name or "", **made} | ({"name": name} if name else {})
    return made | ({"reasoning_content": thoughts} if thoughts is not None and made.get("role") == "assistant" else {})


# ---------------------------------------------------------------- what is answered


class Lines(Reply):
    """The form of one answer, by the name that the request calls the model."""

    media_type = "application/x-ndjson"

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        self.model = asked.body.model

    def whole(self) -> dict[str, Any]:
        answer = self.answer
        return self._line(answer.content, answer.reasoning, answer.calls) | self._end()

    def add(self, answer: Answer, delta: Delta) -> Iterator[bytes]:  # noqa: ARG002
        for change in delta.changes:
            item = change.item
            if item.kind == "call":
                line = self._line("", "", [item]) if change.ends else None  # whole, as Ollama's clients take them
            else:
                said = (change.text, "") if item.kind == "text" else ("", change.text)
                line = self._line(*said) if change.text else None
            if line is not None:
                yield to_json(line | {"done": False}) + b"\n"

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
                {"function": {"index": call.number, "name": call.name, "arguments": call.values}} for call in calls
            ]
        return head | {"message": message}

    def _end(self) -> dict[str, Any]:
        answer, beside = self.answer, self.answer.beside
        read, made = (round(1e6 * beside["timings"][f"{name}_ms"]) for name in ("prompt", "predicted"))
        return {
            "done": True,
            "done_reason": "length" if answer.finish == "length" else "stop",
            "total_duration": read + made,
            "load_duration": 0,
            "prompt_eval_count": answer.usage["prompt"],
            "prompt_eval_duration": read,
            "eval_count": answer.usage["completion"],
            "eval_duration": made,
        } | beside


def loaded(body: OllamaChat | OllamaGenerate) -> dict[str, Any] | None:
    """The answer to a request without anything to answer, by which clients have a model loaded; None to any other."""
    if body.messages if isinstance(body, OllamaChat) else body.prompt:
        return None
    said = {"message": {"role": "assistant", "content": ""}} if isinstance(body, OllamaChat) else {"response": ""}
    return {"model": body.model, "created_at": now(), **said, "done": True, "done_reason": "load"}


def listed(served: ServedModel, *, running: bool = False) -> dict[str, Any]:
    """A target as `/api/tags` and `/api/ps` show it."""
    size = _size(served)
    made = {
        "name": served.name,
        "model": served.name,
        "modified_at": now(),
        "size": size,
        "digest": sha256(served.name.encode()).hexdigest(),  # whose beginning Ollama's own client shows
        "details": _details(served),
    }
    lm = served.model.target.lm
    more = {"expires_at": "2100-01-01T00:00:00Z", "size_vram": 0, "context_length": lm.context}
    return made | (more if running else {})


def shown(served: ServedModel) -> dict[str, Any]:
    """A target as `/api/show` has it."""
    target = served.model.target
    config: Any = target.lm.model.config
    template = str(target.tokenizer.chat_template or "")
    abilities = {"tools": "tools", "thinking": "think"}  # and a word of templates that have a place for them
    return {
        "modelfile": "",
        "parameters": "",
        "template": template,
        "details": _details(served),
        "model_info": {
            "general.architecture": config.model_type,
            "general.basename": served.name,
            "general.parameter_count": target.lm.model.num_parameters(),
            f"{config.model_type}.context_length": target.lm.context,
        },
        "capabilities": ["completion", *(name for name, word in abilities.items() if word in template)],
        "modified_at": now(),
    }


def now() -> str:
    """The time of day, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _details(served: ServedModel) -> dict[str, Any]:
    lm: Any = served.model.target.lm
    family, size = lm.model.config.model_type, lm.model.num_parameters()
    return {
        "parent_model": "",
        "format": "gguf" if served.source.endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": f"{size / 1e9:.1f}B" if size >= 1e9 else f"{size / 1e6:.1f}M",
        "quantization_level": lm.precision,
    }


def _size(served: ServedModel) -> int:
    path = Path(served.source).expanduser()
    files = [path] if path.is_file() else path.glob("*.safetensors") if path.is_dir() else []
    return sum(each.stat().st_size for each in files)
