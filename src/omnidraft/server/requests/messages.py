"""The messages of a request as a chat template takes them, and what the template does not read."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from omnidraft.decoding.lane import too_long
from omnidraft.errors import PromptError
from omnidraft.server.errors import ApiError, of_input
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import response_bodies as r
from omnidraft.server.requests.blocks import Result, ToolUse
from omnidraft.server.requests.fields import Media
from omnidraft.server.requests.replays import Replay, answered
from omnidraft.server.requests.sampling_options import agreed
from omnidraft.server.requests.tool_results import name_results
from omnidraft.server.running.served_model import ServedModel

EFFORT, THINKING = "reasoning_effort", "enable_thinking"


@dataclass
class Prompt:
    """Messages and variables for a chat template, with the paths in the body that they are of."""

    where: str  # the parameter that holds the messages
    messages: list[dict[str, Any]]
    variables: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, list[str]] = field(default_factory=dict)  # of a variable that the body has
    optional: dict[str, list[str]] = field(default_factory=dict)  # of a message's optional key
    dropped: list[str] = field(default_factory=list)  # paths of what is not given to the template at all
    controls: dict[str, Any] = field(default_factory=dict)  # how the template ends
    before: Sequence[int] = ()  # token ids of the conversation so far

    def encode(self, served: ServedModel) -> list[int]:
        """Token ids; raises ApiError."""
        ids = encoded(served, self.messages, self.variables | self.controls, self.where)
        first = served.model.vocab.first
        if self.before and ids[: len(first)] == [*first]:  # they begin a text, and this goes on
            ids = ids[len(first) :]
        return [*self.before, *ids]

    def unread(self, words: Collection[str]) -> list[str]:
        """The paths of what a template that is made of these words does not read."""
        read = {path for name in self.variables if name in words for path in self._paths(name)}
        ignored = [path for name in self.variables for path in self._paths(name) if path not in read]
        return [*ignored, *(path for name, paths in self.optional.items() if name not in words for path in paths)]

    def _paths(self, name: str) -> list[str]:
        return self.paths.get(name, [])


def encoded(served: ServedModel, prompt: Any, template: Mapping[str, Any] | None, where: str) -> list[int]:
    """Token ids of a prompt; raises ApiError that names the parameter it is of."""
    texts = [prompt] if isinstance(prompt, str) else [each.get("content") for each in prompt if isinstance(each, dict)]
    least = sum(len(each) for each in texts if isinstance(each, str)) // served.longest_token
    if least > (most := served.model.target.lm.context):  # nobody waits while megabytes are read for nothing
        raise of_input(too_long(least, most), where)
    try:
        with served.lock:
            return served.model.encode(prompt, template or None)
    except PromptError as error:
        raise of_input(error, where) from error


def of_chat(body: p.ChatRequest) -> Prompt:
    """The prompt of a chat; raises ApiError for a variable of the template that is none."""
    prompt = Prompt("messages", [])
    switches: dict[str, Any] = {}  # of reasoning, by path
    for place, message in enumerate(body.messages):
        path = f"messages[{place}]"
        if isinstance(message, p.Control):
            if _text(message.content) == "thinking":
                switches[path] = True
            else:
                prompt.dropped.append(path)
            continue
        results, texts = _apart(message)
        prompt.messages += results
        if results and not texts:
            continue
        entry: dict[str, Any] = {"role": _role(message.role), "content": _text(texts)}
        if isinstance(message, p.ToolResult):
            entry["tool_call_id"] = message.tool_call_id
        if isinstance(message, p.AssistantMessage):
            _complete(entry, message, path, prompt)
        _optional(entry, "name", message.name, f"{path}.name", prompt)
        prompt.messages.append(entry)
    if not prompt.messages:
        raise ApiError(400, "messages holds nothing to answer: add a text", param="messages")
    name_results(prompt.messages)
    _add_variables(body, prompt, switches)
    _check_end(body, prompt)
    if body.continue_final_message or body.add_generation_prompt is False:
        name = "continue_final_message" if body.continue_final_message else "add_generation_prompt"
        prompt.controls[name] = bool(body.continue_final_message)
    return prompt


def _apart(
    message: p.Said | p.AssistantMessage | p.ToolResult,
) -> tuple[list[dict[str, Any]], str | list[p.TextPart | p.RefusalPart | Media]]:
    """Results of tools that a user's message holds, as messages of their own, and what a message has of text."""
    if message.content is None or isinstance(message.content, str):
        return [], message.content or ""
    results = [
        {"role": "tool", "tool_call_id": part.tool_use_id, "content": part.text}
        for part in message.content
        if isinstance(part, Result)
    ]
    return results, [part for part in message.content if isinstance(part, p.TextPart | p.RefusalPart | Media)]


def _check_end(body: p.ChatRequest, prompt: Prompt) -> None:
    """Raise ApiError where the prompt cannot end as the body says."""
    if body.continue_final_message and body.add_generation_prompt:
        why = "continue_final_message and add_generation_prompt contradict each other: leave one out"
        raise ApiError(400, why, param="add_generation_prompt", code="invalid_value")
    if body.continue_final_message and prompt.messages[-1]["role"] != "assistant":
        why = "continue_final_message goes on with an answer, and the last message is none: add it"
        raise ApiError(400, why, param="continue_final_message", code="invalid_value")


def of_response(body: r.ResponseRequest) -> Prompt:
    """The prompt of a response; calls that follow each other are of one message.  Raises as `of_chat` does."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    prompt = Prompt("input", messages)
    thoughts: dict[str, str] = {}  # that wait for the answer which they are of, by path
    for path, item in _items(body.input):
        before = len(messages)
        if item is None:
            prompt.dropped.append(path)
        elif isinstance(item, r.MessageItem):
            messages.append({"role": _role(item.role), "content": _text(item.content)})
            _optional(messages[-1], "name", item.name, f"{path}.name", prompt)
        elif isinstance(item, r.CallItem):
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1].setdefault("tool_calls", []).append(
                _call(item.call_id, r.full_name(item.namespace, item.name), item.arguments)
            )
            prompt.optional.setdefault("tool_calls", []).append(path)
        elif isinstance(item, r.OutputItem):
            messages.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif item.told:
            thoughts[path] = item.told
        else:
            prompt.dropped.append(path)
        if thoughts and len(messages) > before:
            _reason(messages[-1], thoughts, prompt)
            thoughts = {}
    prompt.dropped += thoughts
    name_results(messages)
    if not messages:
        raise ApiError(400, "input holds no message: add one", param="input")
    _add_variables(body, prompt)
    return prompt


def _items(items: str | Sequence[r.Item]) -> Iterator[tuple[str, r.Known | None]]:
    """Items with their paths; calls that were run elsewhere as those of functions, and None for what has no text."""
    if isinstance(items, str):
        yield "input", r.MessageItem(role="user", content=items)
        return
    results = answered(each for each in items if isinstance(each, Replay))
    for place, item in enumerate(items):
        path = f"input[{place}]"
        if not isinstance(item, Replay):
            yield path, item
            continue
        if item.calls and item.id in results:
            call: dict[str, Any] = {"call_id": item.id, "name": item.name, "arguments": item.arguments}
            yield path, r.CallItem(type="function_call", **call)
        if item.id in results and (item.replies or (item.calls and item.text)):
            yield path, r.OutputItem(type="function_call_output", call_id=item.id, output=item.text)
        elif item.text:
            yield path, r.MessageItem(role="user", content=item.text)
        elif not item.calls or item.id not in results:
            yield path, None


def _reason(entry: dict[str, Any], thoughts: Mapping[str, str], prompt: Prompt) -> None:
    """Give an answer the reasoning that comes before it; of another message it has no place."""
    if entry["role"] != "assistant":
        prompt.dropped += thoughts
        return
    entry["reasoning_content"] = "\n".join(thoughts.values())
    prompt.optional.setdefault("reasoning_content", []).extend(thoughts)


def _complete(entry: dict[str, Any], message: p.AssistantMessage, path: str, prompt: Prompt) -> None:
    """Add what an earlier answer has beside its text."""
    parts = () if isinstance(message.content, str) else message.content or ()
    calls = [_call(call.id, *call.called) for call in message.tool_calls or ()]
    known = {call.get("id") for call in calls}  # some libraries tell of a call twice
    uses = [part for part in parts if isinstance(part, ToolUse) and part.id not in known]
    if calls := [*calls, *(_call(part.id, part.name, part.input) for part in uses)]:
        _optional(entry, "tool_calls", calls, f"{path}.{'content' if uses else 'tool_calls'}", prompt)
    if message.refusal and entry["content"]:
        prompt.dropped.append(f"{path}.refusal")
    elif message.refusal:
        entry["content"] = message.refusal
    thoughts = {f"{path}.content[{at}]": part.text for at, part in enumerate(parts) if isinstance(part, p.Thought)}
    own = {name: getattr(message, name) for name in ("reasoning_content", "reasoning")}
    told = [{f"{path}.{name}": text} for name, text in own.items() if text is not None]
    told += [{where: text for where, text in thoughts.items() if text}] if any(thoughts.values()) else []
    prompt.dropped += [
        *(path for path, text in thoughts.items() if not text),
        *(path for each in told[1:] for path in each),
    ]
    if told:
        entry["reasoning_content"] = "\n".join(told[0].values())
        prompt.optional.setdefault("reasoning_content", []).extend(told[0])


def _optional(entry: dict[str, Any], key: str, value: Any, path: str, prompt: Prompt) -> None:
    if value is not None:
        entry[key] = value
        prompt.optional.setdefault(key, []).append(path)


def _role(role: str) -> str:
    return "system" if role == "developer" else role


def _text(content: str | Iterable[p.TextPart | p.RefusalPart | Media] | None) -> str:
    return (
        content
        if isinstance(content, str)
        else "\n".join(each.refusal if isinstance(each, p.RefusalPart) else each.text for each in content or ())
    )


def _call(id_: str | None, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """A call as templates take it: with arguments that are no text, where they are JSON."""
    value: Any = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = arguments
    named = {"type": "function", "function": {"name": name, "arguments": value}}
    return named if id_ is None else {"id": id_, **named}


def _add_variables(
    body: p.ChatRequest | r.ResponseRequest, prompt: Prompt, switches: Mapping[str, Any] | None = None
) -> None:
    """Variables of the template that the body gives; raises ApiError for one that is no variable of a template.

    `switches` turn reasoning on, by their paths.
    """
    path = "chat_template_kwargs"
    for name, value in (body.chat_template_kwargs or {}).items():
        if name in _reserved():
            where = f"{path}.{name}"
            message = f"{where} is no variable of the target's chat template: leave it out"
            raise ApiError(400, message, param=where, code="unsupported_parameter")
        prompt.variables[name] = value
        prompt.paths[name] = [f"{path}.{name}"]
    effort = body.reasoning.effort if body.reasoning is not None else None
    _add_named(prompt, EFFORT, {"reasoning.effort": effort, EFFORT: getattr(body, EFFORT, None)})
    if isinstance(body, p.ChatRequest):
        thinks = None if body.thinking is None else body.thinking.type != "disabled"
        _add_named(prompt, THINKING, {THINKING: body.enable_thinking, "thinking": thinks, **(switches or {})})
    if prompt.variables.get(EFFORT) == "none" and THINKING not in prompt.variables:
        prompt.variables[THINKING], prompt.paths[THINKING] = False, prompt.paths[EFFORT]
    if THINKING in prompt.variables:  # Granite's and DeepSeek's templates call it so
        prompt.variables.setdefault("thinking", prompt.variables[THINKING])
        prompt.paths.setdefault("thinking", prompt.paths[THINKING])


def _add_named(prompt: Prompt, name: str, choices: dict[str, Any]) -> None:
    """A variable under whichever of its names; raises ApiError where they say different things."""
    choices[f"chat_template_kwargs.{name}"] = prompt.variables.get(name)
    if (choice := agreed(choices)) is not None:
        prompt.variables[name] = choice
        prompt.paths[name] = [where for where, value in choices.items() if value is not None]


@cache
def _reserved() -> frozenset[str]:
    """The parameters that `apply_chat_template` has itself: the template it applies, among others."""
    from transformers import PreTrainedTokenizerBase

    return frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {"messages"}
