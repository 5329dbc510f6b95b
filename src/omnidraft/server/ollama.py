"""Ollama's API: a request as that of a chat or completion, and its answer in lines of JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omnidraft.server import protocol as p
from omnidraft.server.answers import Answer
from omnidraft.server.bodies import read
from omnidraft.server.errors import ApiError, to_json
from omnidraft.server.ollama_bodies import Asked, Message, OllamaChat, OllamaGenerate
from omnidraft.server.reading.pieces import Call
from omnidraft.server.scheduler import Task
from omnidraft.server.served import Served
from omnidraft.server.settings import Serving
from omnidraft.server.tasks import chat_tasks, completion_tasks

LATEST = ":latest"
SAME = ("temperature", "top_p", "top_k", "min_p", "seed", "stop")
PATHS = {
    "chat_template_kwargs.enable_thinking": "think",
    "reasoning_effort": "think",
    "response_format": "format",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "repeat_last_n": "options.repeat_last_n",
    **{name: f"options.{name}" for name in (*SAME, "frequency_penalty", "presence_penalty")},
}
PENALTIES = ("frequency_penalty", "presence_penalty")


def chat_of(body: OllamaChat, served: Served, settings: Serving) -> list[Task]:
    """The task of a chat; raises ApiError."""
    made = _asked(body)
    made["messages"] = [_message(each) for each in body.messages]
    if body.tools:
        made["tools"] = [each.model_dump(exclude_none=True) for each in body.tools]
    return _tasks(made, p.ChatRequest, chat_tasks, served, settings)


def generate_of(body: OllamaGenerate, served: Served, settings: Serving) -> list[Task]:
    """The task of a prompt; raises ApiError."""
    made = _asked(body)
    if body.raw or body.suffix:
        taken = {"prompt": body.prompt, **({"suffix": body.suffix} if body.suffix else {})}
        wrong = next((name for name in ("response_format", "chat_template_kwargs") if name in made), None)
        if wrong is not None:
            name = {"response_format": "format"}.get(wrong, "think")
            raise ApiError(400, f"{name} needs a chat template: leave out raw and suffix", param=name)
        made["max_tokens"] = made.get("max_tokens", -1)
        return _tasks(made | taken, p.CompletionRequest, completion_tasks, served, settings)
    system = [{"role": "system", "content": body.system}] if body.system else []
    made["messages"] = [*system, {"role": "user", "content": body.prompt}]
    return _tasks(made, p.ChatRequest, chat_tasks, served, settings)


def _asked(body: Asked) -> dict[str, Any]:
    """What the bodies of a chat and of a completion share."""
    given = {} if body.options is None else body.options.model_dump(exclude_none=True)
    made = {name: given[name] for name in SAME if name in given}
    made |= {name: given[name] for name in PENALTIES if given.get(name)}
    if given.get("repeat_penalty") is not None:
        made["repetition_penalty"] = given["repeat_penalty"]
        made |= {"repeat_last_n": given["repeat_last_n"]} if given.get("repeat_last_n") is not None else {}
    if given.get("num_predict") is not None:
        made["max_tokens"] = given["num_predict"]
    if made.get("stop") in ("", []):
        del made["stop"]
    if body.format:
        form: dict[str, Any] = {"type": "json_object"}
        made["response_format"] = form if isinstance(body.format, str) else form | {"schema": body.format}
    if body.think is not None:
        made["chat_template_kwargs"] = {"enable_thinking": body.think is not False}
        if isinstance(body.think, str):
            made["reasoning_effort"] = body.think
    if body.omnidraft is not None:
        made["omnidraft"] = body.omnidraft.model_dump(exclude_none=True)
    return made


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id or message.tool_name or ""}
        return made | ({"name": message.tool_name} if message.tool_name else {})
    if message.thinking is not None and message.role == "assistant":
        made["reasoning_content"] = message.thinking
    if message.tool_calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": f.name, "arguments": f.arguments}}
            for f in (each.function for each in message.tool_calls)
        ]
    return made


def _tasks(asked: dict[str, Any], kind: Any, make: Any, served: Served, settings: Serving) -> list[Task]:
    """The tasks of a body of another API; raises ApiError, with the names that Ollama's has."""
    try:
        tasks: list[Task] = make(read(asked, kind).body, served, settings)
    except ApiError as error:
        raise error.at(PATHS) from error
    for task in tasks:
        task.ignored = [*dict.fromkeys(PATHS.get(path, path) for path in task.ignored)]
    return tasks


# ---------------------------------------------------------------- what is answered


class Lines:
    """The form of one answer: of a chat, or of a prompt."""

    def __init__(self, answer: Answer, model: str, *, chat: bool) -> None:
        self.answer = answer
        self._model, self._chat = model, chat

    def whole(self) -> dict[str, Any]:
        """The body for a complete answer."""
        answer = self.answer
        return self._line(answer.content, answer.reasoning, answer.calls) | self._end()

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as lines of JSON."""
        try:
            async for delta in self.answer.deltas():
                if delta.content or delta.reasoning:
                    yield to_json(self._line(delta.content, delta.reasoning) | {"done": False}) + b"\n"
            if self.answer.calls:  # whole, as Ollama's clients take them
                yield to_json(self._line("", "", self.answer.calls) | {"done": False}) + b"\n"
            yield to_json(self._line("", "") | self._end()) + b"\n"
        except ApiError as error:
            yield to_json({"error": str(error)}) + b"\n"

    def _line(self, content: str, reasoning: str, calls: Sequence[Call] = ()) -> dict[str, Any]:
        head = {"model": self._model, "created_at": now()}
        thinking = {"thinking": reasoning} if reasoning else {}
        if not self._chat:
            return head | {"response": content} | thinking
        message: dict[str, Any] = {"role": "assistant", "content": content} | thinking
        if calls:
            message["tool_calls"] = [
                {"function": {"index": place, "name": call.name, "arguments": _arguments(call)}}
                for place, call in enumerate(calls)
            ]
        return head | {"message": message}

    def _end(self) -> dict[str, Any]:
        answer, timings = self.answer, self.answer.timings
        read, made = (round(1e6 * timings[f"{name}_ms"]) for name in ("prompt", "predicted"))
        return {
            "done": True,
            "done_reason": "length" if answer.finish == "length" else "stop",
            "total_duration": read + made,
            "load_duration": 0,
            "prompt_eval_count": answer.usage["prompt"],
            "prompt_eval_duration": read,
            "eval_count": answer.usage["completion"],
            "eval_duration": made,
        } | answer.beside


def loaded(model: str, *, chat: bool) -> dict[str, Any]:
    """The answer to a request without anything to answer, by which clients have a model loaded."""
    said = {"message": {"role": "assistant", "content": ""}} if chat else {"response": ""}
    return {"model": model, "created_at": now(), **said, "done": True, "done_reason": "load"}


def listed(served: Served, *, running: bool = False) -> dict[str, Any]:
    """A target as `/api/tags` and `/api/ps` show it."""
    size = _size(served)
    made = {
        "name": served.name,
        "model": served.name,
        "modified_at": now(),
        "size": size,
        "digest": "",
        "details": _details(served),
    }
    lm = served.model.target.lm
    more = {"expires_at": "2100-01-01T00:00:00Z", "size_vram": 0, "context_length": lm.context}
    return made | (more if running else {})


def shown(served: Served) -> dict[str, Any]:
    """A target as `/api/show` has it."""
    target = served.model.target
    config: Any = target.lm.model.config
    template = target.tokenizer.chat_template
    abilities = ["completion"] + (["tools"] if "tools" in str(template) else [])
    return {
        "modelfile": "",
        "parameters": "",
        "template": str(template or ""),
        "details": _details(served),
        "model_info": {
            "general.architecture": config.model_type,
            "general.parameter_count": target.lm.model.num_parameters(),
            f"{config.model_type}.context_length": target.lm.context,
        },
        "capabilities": abilities,
        "modified_at": now(),
    }


def now() -> str:
    """The time of day, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def plain_name(name: str) -> str:
    """A model's name without Ollama's default tag."""
    return name.removesuffix(LATEST)


def _arguments(call: Call) -> Mapping[str, Any]:
    """The arguments of a call; of one that is cut there are none."""
    try:
        found = json.loads(call.arguments)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _details(served: Served) -> dict[str, Any]:
    lm: Any = served.model.target.lm
    family = lm.model.config.model_type
    return {
        "parent_model": "",
        "format": "gguf" if served.source.endswith(".gguf") else "safetensors",
        "family": family,
        "families": [family],
        "parameter_size": f"{lm.model.num_parameters() / 1e9:.1f}B",
        "quantization_level": lm.precision,
    }


def _size(served: Served) -> int:
    path = Path(served.source).expanduser()
    files = [path] if path.is_file() else path.glob("*.safetensors") if path.is_dir() else []
    return sum(each.stat().st_size for each in files)
