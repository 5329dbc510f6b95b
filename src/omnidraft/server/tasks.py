"""From the body of a request to what a lane is asked: token ids, sampling, grammar, and what to make of the answer."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from omnidraft.config import GenerationLimits, Sampling, settings_of, stop_strings
from omnidraft.errors import ConfigError, InputError, PromptError
from omnidraft.server import protocol as p
from omnidraft.server.errors import ApiError, of_input
from omnidraft.server.served import Served
from omnidraft.server.settings import Serving

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
COMPLETION_TOKENS = 16  # as OpenAI's completions have it
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked of a target; `options` are those of `Lane.stream`."""

    served: Served
    ids: Sequence[int]
    options: Mapping[str, Any]
    functions: frozenset[str] = frozenset()  # that may be called
    one_call: bool = False
    trace: bool = False
    user: str | None = None


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Functions, each with name, description and parameters, and which of them are to be called."""

    functions: Sequence[p.FunctionSchema] = ()
    choice: str | p.ChosenTool | p.ResponseChosenTool | None = None
    one_call: bool = False

    def chosen(self) -> tuple[list[dict[str, Any]], bool]:
        """The functions that may be called, and whether one must be; raises ApiError for a choice there is not."""
        functions = [each.model_dump(exclude={"strict", "type"}, exclude_none=True) for each in self.functions]
        if self.choice is not None and self.choice not in ("auto", "none") and not functions:
            raise ApiError(400, "tool_choice needs tools: give some, or leave it out", param="tool_choice")
        if self.choice == "none":
            return [], False
        forced = self.choice not in (None, "auto")
        if isinstance(self.choice, p.ChosenTool | p.ResponseChosenTool):
            name = self.choice.name if isinstance(self.choice, p.ResponseChosenTool) else self.choice.function.name
            functions = [each for each in functions if each["name"] == name]
            if not functions:
                raise ApiError(400, "tool_choice names a function that tools have not: add it", param="tool_choice")
        if not forced and any(each.strict for each in self.functions):
            fix = "use tool_choice 'required', or strict false"
            raise ApiError(400, f"tools: strict is kept where a function must be called: {fix}", param="tools")
        return functions, forced


def chat_task(body: p.ChatRequest, served: Served, settings: Serving) -> Task:
    """The task of a chat; raises ApiError."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    tools = Tools(
        functions=[tool.function for tool in body.tools or ()],
        choice=body.tool_choice,
        one_call=body.parallel_tool_calls is False,
    )
    given = body.response_format
    schema = given.json_schema.schema_ if isinstance(given, p.ChatSchemaFormat) else None
    if isinstance(given, p.ObjectFormat):
        schema = ANY_OBJECT
    asked = _sampling(body, settings, settings.max_tokens, "max_tokens", "max_completion_tokens")
    asked["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    user = body.prompt_cache_key or body.user
    return _conversation(served, settings, [_message(m) for m in body.messages], body, asked, tools, schema, user)


def completion_task(body: p.CompletionRequest, served: Served, settings: Serving) -> Task:
    """The task of a text to go on with; raises ApiError."""
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(400, "prompt holds several prompts: send them one by one", param="prompt")
        prompt = prompt[0]
    asked = _sampling(body, settings, COMPLETION_TOKENS, "max_tokens")
    asked["logprobs"] = body.logprobs
    with served.lock:
        ids = _encoded(served, prompt, None, "prompt")
    return _task(served, settings, ids, asked, trace=_trace(body), user=body.user)


def response_task(body: p.ResponseRequest, served: Served, settings: Serving) -> Task:
    """The task of a response; raises ApiError."""
    wanted = "message.output_text.logprobs" in (body.include or ())
    if body.top_logprobs is not None and not wanted:
        raise ApiError(400, "top_logprobs needs include with message.output_text.logprobs", param="top_logprobs")
    tools = Tools(functions=body.tools or (), choice=body.tool_choice, one_call=body.parallel_tool_calls is False)
    given = body.text and body.text.format
    schema = given.schema_ if isinstance(given, p.ResponseSchemaFormat) else None
    if isinstance(given, p.ObjectFormat):
        schema = ANY_OBJECT
    asked = _sampling(body, settings, settings.max_tokens, "max_output_tokens")
    asked["logprobs"] = (body.top_logprobs or 0) if wanted else None
    user = body.prompt_cache_key or body.user
    return _conversation(served, settings, _items(body), body, asked, tools, schema, user)


def _conversation(
    served: Served,
    settings: Serving,
    messages: Sequence[Mapping[str, Any]],
    body: p.Options,
    asked: dict[str, Any],
    tools: Tools,
    schema: Mapping[str, Any] | None,
    user: str | None,
) -> Task:
    functions, forced = tools.chosen()
    if functions and schema is not None:
        raise ApiError(400, "a form of the answer and tools exclude each other: leave one out", param="tools")
    named: dict[str, Any] | None = None
    if functions:
        named = {"tools": [{"type": "function", "function": each} for each in functions]}
    where, form = ("input", "text") if isinstance(body, p.ResponseRequest) else ("messages", "response_format")
    with served.lock:
        ids = _encoded(served, messages, named, where)
        if named and ids == _encoded(served, messages, None, where):
            raise ApiError(
                400, "tools: the target's chat template has no place for them: leave them out", param="tools"
            )
    if forced or schema is not None:
        asked |= _following(_grammar(served, functions, schema, len(ids), form), asked, served)
    names = frozenset(each["name"] for each in functions)
    task = _task(served, settings, ids, asked, trace=_trace(body), user=user)
    return Task(**{**vars(task), "functions": names, "one_call": tools.one_call or forced})


def _grammar(
    served: Served, functions: Sequence[Mapping[str, Any]], schema: Mapping[str, Any] | None, at: int, form: str
) -> Any:
    """The logits processor that makes a call of one of the functions, or what follows the schema; raises ApiError."""
    param = "tools" if schema is None else form
    try:
        with served.lock:
            tokens = served.tokens
        from omnidraft.server.grammar import Grammar, call_schema, grammar_of

        return Grammar(tokens, grammar_of(tokens, call_schema(functions) if schema is None else schema), at)
    except ConfigError as error:
        raise ApiError(400, f"{param}: {error}", param=param) from error


def _following(grammar: Any, asked: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """Options of an answer that follows a grammar: it comes before top-k and the like, which would leave it nothing."""
    from omnidraft.verification.sampling import target_processors

    whole = settings_of(Sampling, asdict(served.model.sampling) | {n: asked[n] for n in SAMPLING if n in asked})
    cuts = [] if whole.greedy else target_processors(replace(whole, temperature=1.0, repetition_penalty=1.0))
    return {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "logits_processor": [grammar, *cuts]}


def _task(
    served: Served, settings: Serving, ids: list[int], asked: Mapping[str, Any], *, trace: bool, user: str | None
) -> Task:
    if len(ids) > (settings.max_prompt_tokens or len(ids)):
        message = f"the prompt has {len(ids)} tokens; at most {settings.max_prompt_tokens} are taken: shorten it"
        raise ApiError(400, message, code="context_length_exceeded")
    try:
        served.model.engine.check(ids)
    except InputError as error:
        raise of_input(error) from error
    return Task(served=served, ids=ids, options=asked, trace=trace, user=user)


def _sampling(body: p.Options, settings: Serving, default: int, *counts: str) -> dict[str, Any]:
    """Sampling, length, seed and stop strings as `Lane.stream` takes them; raises ApiError.

    `counts` are the names of one parameter, the length.
    """
    asked = {name: value for name in SAMPLING if (value := getattr(body, name, None)) is not None}
    lengths = {name: value for name in counts if (value := getattr(body, name)) is not None}
    if len(lengths) > 1:
        raise ApiError(400, f"{' and '.join(lengths)} are one: leave one out", param=counts[0])
    name, count = next(iter(lengths.items()), (counts[0], min(default, settings.max_tokens)))
    if count > settings.max_tokens:
        raise ApiError(400, f"{name} is {count}; at most {settings.max_tokens} are made: ask for fewer", param=name)
    if getattr(body, "stream_options", None) is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", param="stream_options")
    seed = getattr(body, "seed", None)
    try:
        settings_of(Sampling, asdict(Sampling()) | asked)
        ends = stop_strings(getattr(body, "stop", None))
        limits = GenerationLimits(max_new_tokens=count, seed=secrets.randbits(63) if seed is None else seed % 2**64)
    except ConfigError as error:
        raise of_input(error, str(error).partition(" is ")[0]) from error
    return {**asked, "max_new_tokens": limits.max_new_tokens, "seed": limits.seed, "stop": ends}


def _encoded(served: Served, prompt: Any, template: Mapping[str, Any] | None, where: str) -> list[int]:
    try:
        return served.model.encode(prompt, template)
    except PromptError as error:
        raise of_input(error, where) from error


def _trace(body: p.Options) -> bool:
    return body.omnidraft is not None and body.omnidraft.trace


# ---------------------------------------------------------------- messages for the chat template


def _message(message: p.Instruction | p.Question | p.Answer | p.ToolResult) -> dict[str, Any]:
    content = message.content
    role = "system" if message.role == "developer" else message.role
    text = content if isinstance(content, str) else "".join(part.text for part in content or ())
    made: dict[str, Any] = {"role": role, "content": text}
    if isinstance(message, p.ToolResult):
        made["tool_call_id"] = message.tool_call_id
    if isinstance(message, p.Answer) and message.tool_calls:
        made["tool_calls"] = [
            _call(call.id, call.function.name, call.function.arguments) for call in message.tool_calls
        ]
    return made


def _call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as templates take it: with arguments that are no text, where they are JSON."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        value = arguments
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": value}}


def _items(body: p.ResponseRequest) -> list[dict[str, Any]]:
    """The messages of a response's input; calls that follow each other are of one message."""
    made: list[dict[str, Any]] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    if isinstance(body.input, str):
        return [*made, {"role": "user", "content": body.input}]
    for item in body.input:
        if isinstance(item, p.MessageItem):
            role = "system" if item.role == "developer" else item.role
            content = item.content
            text = content if isinstance(content, str) else "".join(part.text for part in content)
            made.append({"role": role, "content": text})
        elif isinstance(item, p.CallItem):
            call = _call(item.call_id, item.name, item.arguments)
            if made and made[-1]["role"] == "assistant":
                made[-1].setdefault("tool_calls", []).append(call)
            else:
                made.append({"role": "assistant", "content": "", "tool_calls": [call]})
        else:
            output = item.output if isinstance(item.output, str) else "".join(part.text for part in item.output)
            made.append({"role": "tool", "content": output, "tool_call_id": item.call_id})
    return made
