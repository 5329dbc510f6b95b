"""From the body of a request to what a lane is asked: token ids, sampling, grammar, and what to make of the answer."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from omnidraft.config import COLDEST, GenerationLimits, Sampling, settings_of, stop_strings
from omnidraft.errors import CONTEXT_LENGTH, ConfigError, InputError
from omnidraft.server import protocol as p
from omnidraft.server.errors import ApiError, as_json, of_input
from omnidraft.server.memories import User, digest
from omnidraft.server.messages import Prompt, encoded, of_chat, of_response
from omnidraft.server.scheduler import Task
from omnidraft.server.schemas import Schemas
from omnidraft.server.served import Served
from omnidraft.server.settings import Serving

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
COMPLETION_TOKENS = 16  # as OpenAI's completions have it
LOGPROBS = "message.output_text.logprobs"
ANY_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Functions by their paths in the body, and which of them are to be called."""

    functions: Mapping[str, p.FunctionSchema]
    others: Mapping[str, str]  # the types of tools that are no functions, by their paths
    choice: str | p.ChosenTool | p.ResponseChosenTool | p.OtherTool | None = None
    parallel: bool | None = None

    @property
    def forced(self) -> bool:
        """Whether one must be called."""
        return self.choice not in (None, "auto", "none")

    @property
    def name(self) -> str | None:
        """The name of the only one that may be called."""
        if isinstance(self.choice, p.ChosenTool):
            return self.choice.function.name
        return self.choice.name if isinstance(self.choice, p.ResponseChosenTool) else None

    def chosen(self) -> dict[str, dict[str, Any]]:
        """The functions that may be called, by their paths; raises ApiError for a choice there is not."""
        if self.choice == "none":
            return {}
        if isinstance(self.choice, p.OtherTool):
            raise _no_function("tool_choice", self.choice.type)
        if self.choice == "required" and self.others:
            raise _no_function(*next(iter(self.others.items())))
        found = {
            path: each.model_dump(exclude={"strict", "type"}, exclude_none=True)
            for path, each in self.functions.items()
            if self.name in (None, each.name)
        }
        if self.forced and not self.functions:
            raise ApiError(400, "tool_choice needs tools: give some, or leave it out", param="tool_choice")
        if self.forced and not found:
            raise ApiError(400, "tool_choice names a function that tools have not: add it", param="tool_choice")
        return found

    def without_effect(self, chosen: Collection[str], *, shown: bool, followed: bool) -> list[str]:
        """The paths of what has no effect; `chosen` are those of functions that may be called.

        They are `shown` where the chat template has a place for them, and `followed` where the answer has a schema.
        """
        if not self.functions and not self.others:
            found = []
        elif self.choice == "none" or (chosen and not shown):
            found = ["tools"]
        else:
            found = [*self.others, *(path.removesuffix(".function") for path in self.functions if path not in chosen)]
        if shown:
            return found if followed or self.forced else [*found, *self._loose()]
        given = {"tool_choice": self.choice == "auto", "parallel_tool_calls": self.parallel is not None}
        return [*found, *(name for name, there in given.items() if there)]

    def _loose(self) -> list[str]:
        """The paths of `strict` where it is not kept, as calls are free."""
        return [f"{path}.strict" for path, each in self.functions.items() if each.strict]


def _no_function(path: str, kind: str) -> ApiError:
    """The 400 for a call of a tool that is no function."""
    why = f"{path}.type is {as_json(kind)}; functions alone can be called"
    fix = "leave it out, or give it as a function"
    return ApiError(400, f"{why}: {fix}", param=f"{path}.type", code="unsupported_value")


def _tools(body: p.ChatRequest | p.ResponseRequest) -> Tools:
    functions: dict[str, p.FunctionSchema] = {}
    others: dict[str, str] = {}
    for place, tool in enumerate(body.tools or ()):
        if isinstance(tool, p.OtherTool):
            others[f"tools[{place}]"] = tool.type
        elif isinstance(tool, p.Tool):
            functions[f"tools[{place}].function"] = tool.function
        else:
            functions[f"tools[{place}]"] = tool
    return Tools(functions=functions, others=others, choice=body.tool_choice, parallel=body.parallel_tool_calls)


def chat_task(body: p.ChatRequest, served: Served, settings: Serving) -> Task:
    """The task of a chat; raises ApiError."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true: set it", param="top_logprobs")
    given = body.response_format
    schema = given.json_schema.schema_ if isinstance(given, p.ChatSchemaFormat) else None
    path = "response_format.json_schema.schema"
    if isinstance(given, p.ObjectFormat):
        schema, path = given.schema_ or ANY_OBJECT, "response_format.schema"
    prompt = of_chat(body)
    asked = _sampling(body, settings, settings.max_tokens, "max_completion_tokens", "max_tokens", "n_predict")
    asked["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    return _conversation(served, settings, prompt, body, asked, schema, path)


def completion_task(body: p.CompletionRequest, served: Served, settings: Serving) -> Task:
    """The task of a text to go on with; raises ApiError."""
    prompt: Any = body.prompt
    where = "prompt"
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(
                400, "prompt[1] is a second prompt, and one is answered: send them one by one", param="prompt[1]"
            )
        prompt, where = prompt[0], "prompt[0]"
    asked = _sampling(body, settings, COMPLETION_TOKENS, "max_tokens", "n_predict")
    asked["logprobs"] = body.logprobs
    ids = encoded(served, prompt, None, "prompt")
    size = served.model.target.lm.vocab_size
    wrong = next((place for place, token in enumerate(ids) if token >= size), None)
    if wrong is not None and not isinstance(prompt, str):
        at = f"{where}[{wrong}]"
        fix = f"the target has ids below {size}: use those of /tokenize"
        raise ApiError(400, f"{at} is {ids[wrong]}; {fix}", param=at)
    _check(served, settings, ids, "prompt")
    return _task(served, ids, asked, body, ignored=_unstreamed(body))


def response_task(body: p.ResponseRequest, served: Served, settings: Serving) -> Task:
    """The task of a response; raises ApiError."""
    wanted = LOGPROBS in (body.include or ())
    if body.top_logprobs and not wanted:
        raise ApiError(400, f"top_logprobs needs include with {LOGPROBS}: add it", param="top_logprobs")
    given = body.text and body.text.format
    schema = given.schema_ if isinstance(given, p.ResponseSchemaFormat) else None
    if isinstance(given, p.ObjectFormat):
        schema = given.schema_ or ANY_OBJECT
    asked = _sampling(body, settings, settings.max_tokens, "max_output_tokens")
    asked["logprobs"] = (body.top_logprobs or 0) if wanted else None
    task = _conversation(served, settings, of_response(body), body, asked, schema, "text.format.schema")
    absent = [f"include[{place}]" for place, each in enumerate(body.include or ()) if each != LOGPROBS]
    task.ignored = [*task.ignored, *absent]
    return task


def _conversation(
    served: Served,
    settings: Serving,
    prompt: Prompt,
    body: p.ChatRequest | p.ResponseRequest,
    asked: dict[str, Any],
    schema: Mapping[str, Any] | None,
    form: str,
) -> Task:
    tools = _tools(body)
    functions = tools.chosen()
    if functions:
        prompt.variables["tools"] = [{"type": "function", "function": each} for each in functions.values()]
    ids = prompt.encode(served)
    _check(served, settings, ids, prompt.where)  # before anything else is done with a prompt that is too long
    ignored = prompt.without_effect(served)
    shown = bool(functions) and "tools" not in ignored
    if functions and not shown and tools.forced:
        why = "asks for a call, and the target's chat template has no place for tools"
        raise ApiError(400, f"tool_choice {why}: leave it out, or use another target", param="tool_choice")
    unused = tools.without_effect(functions, shown=shown, followed=schema is not None)
    functions = functions if shown else {}
    if tools.forced and schema is not None:  # the answer is a call, whatever form others are to have
        unused.append(form.partition(".json_schema")[0].removesuffix(".schema"))
        schema = None
    if tools.forced or schema is not None:
        asked |= _following(_grammar(served, functions, schema, len(ids), form), asked, served)
    without = dict.fromkeys([*prompt.dropped, *ignored, *unused, *_unstreamed(body)])
    task = _task(served, ids, asked, body, ignored=[*without])
    task.functions = frozenset(each["name"] for each in functions.values())
    task.forced, task.one_call = tools.forced, tools.parallel is False or tools.forced
    return task


def _grammar(
    served: Served, functions: Mapping[str, Mapping[str, Any]], schema: Mapping[str, Any] | None, at: int, form: str
) -> Any:
    """The logits processor that makes a call of one of the functions, or what follows the schema; raises ApiError."""
    param = form
    try:
        with served.lock:
            tokens = served.tokens
        from omnidraft.server import grammar

        made = "" if schema is None else grammar.grammar_of(tokens, schema)
        if functions:
            param = "tools"
            calls = grammar.call_grammar(tokens, list(functions.values()))
            made = calls if schema is None else grammar.grammar_of(tokens, either(schema, functions.values()))
        return grammar.Grammar(tokens, made, at)
    except ConfigError as error:
        named = [f"{path}.parameters" for path, each in functions.items() if error.option == each["name"]]
        param = named[0] if named else param
        raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value") from error


def either(schema: Mapping[str, Any], functions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of an answer that follows a schema, or is a call of one of the functions."""
    from omnidraft.server.grammar import call_schema

    schemas = Schemas()
    made = [schemas.add(schema), *(call_schema(each, schemas) for each in functions)]
    return schemas.whole({"anyOf": made})


def _following(grammar: Any, asked: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """Options of an answer that follows a grammar: it comes before top-k and the like, which would leave it nothing."""
    from omnidraft.verification.sampling import target_processors

    whole = settings_of(Sampling, asdict(served.model.sampling) | {n: asked[n] for n in SAMPLING if n in asked})
    cuts = [] if whole.greedy else target_processors(replace(whole, temperature=1.0, repetition_penalty=1.0))
    return {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "logits_processor": [grammar, *cuts]}


def _check(served: Served, settings: Serving, ids: Sequence[int], where: str) -> None:
    """Raise ApiError for a prompt that the target cannot read, with the parameter it is of."""
    if len(ids) > (settings.max_prompt_tokens or len(ids)):
        message = f"the prompt has {len(ids)} tokens; at most {settings.max_prompt_tokens} are taken: shorten it"
        raise ApiError(400, message, param=where, code=CONTEXT_LENGTH)
    try:
        served.model.engine.check(ids)
    except InputError as error:
        raise of_input(error, where) from error


def _task(served: Served, ids: list[int], asked: Mapping[str, Any], body: p.Options, *, ignored: Sequence[str]) -> Task:
    trace = bool(body.omnidraft and body.omnidraft.trace)
    names = digest(body.user, body.prompt_cache_key, body.safety_identifier, body.cache_salt)
    return Task(served=served, ids=ids, options=asked, trace=trace, user=User(names=names), ignored=ignored)


def _sampling(body: p.Options, settings: Serving, default: int, *counts: str) -> dict[str, Any]:
    """Sampling, length, seed and stop strings as `Lane.stream` takes them; raises ApiError.

    `counts` are the names of one parameter, the length.
    """
    asked = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    asked["top_k"] = max(0, asked["top_k"]) if "top_k" in asked else None
    if asked.get("temperature", 1) < COLDEST or asked.get("top_p") == 0:  # the most probable token alone
        asked |= {"temperature": 0.0, "top_p": 1.0}
    asked = {name: value for name, value in asked.items() if value is not None}
    seed = body.seed if body.seed not in (None, -1) else secrets.randbits(63)
    count = _length(body, settings, default, counts)
    try:
        settings_of(Sampling, asdict(Sampling()) | asked)
        ends = stop_strings(body.stop)
        limits = GenerationLimits(max_new_tokens=count, seed=(seed or 0) % 2**64)
    except ConfigError as error:
        raise of_input(error) from error
    return {**asked, "max_new_tokens": limits.max_new_tokens, "seed": limits.seed, "stop": ends}


def _length(body: p.Options, settings: Serving, default: int, names: Sequence[str]) -> int:
    """Tokens of an answer at most; raises ApiError where two names of it say different things."""
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    if len(set(given.values())) > 1:
        said = " and ".join(f"{name} {value}" for name, value in given.items())
        raise ApiError(400, f"{said} contradict each other: leave one out", param=[*given][-1], code="invalid_value")
    name, count = next(iter(given.items()), ("", default))
    if count == 0:
        fix = "use 1 or more, or -1 for as many as fit"
        raise ApiError(400, f"{name} is 0, which asks for no answer: {fix}", param=name, code="invalid_value")
    return settings.max_tokens if count < 0 else min(count, settings.max_tokens)


def _unstreamed(body: p.Options) -> list[str]:
    """What is said of a stream where there is none."""
    wanted = body.stream_options is not None and body.stream_options.include_usage
    return ["stream_options"] if wanted and not body.stream else []
