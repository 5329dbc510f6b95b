"""From the body of a request to what lanes are asked: token ids, sampling, grammar, and what to make of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from omnidraft.decoding.request import Extras
from omnidraft.errors import CONTEXT_LENGTH, InputError
from omnidraft.server.errors import ApiError, Paths, of_input, renamed
from omnidraft.server.grammars.grammar import ResponseFormat
from omnidraft.server.reading.choice import reading_of
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import fields as base
from omnidraft.server.requests import response_bodies as r
from omnidraft.server.requests.bodies import read
from omnidraft.server.requests.fill_in_middle import filling
from omnidraft.server.requests.grammar_options import grammar_options
from omnidraft.server.requests.messages import Prompt, encoded, of_chat, of_response
from omnidraft.server.requests.response_formats import form_of, form_of_format
from omnidraft.server.requests.sampling_options import one_of, sampling_of, unstreamed
from omnidraft.server.requests.tool_instructions import alternatives, instructed
from omnidraft.server.requests.tools import tools_of
from omnidraft.server.running.request_queue import Task
from omnidraft.server.running.served_model import ServedModel
from omnidraft.server.running.user_memories import User, digest
from omnidraft.server.server_settings import Serving

COMPLETION_TOKENS = 16  # as OpenAI's completions have it
LENGTH_FIELDS = ("max_completion_tokens", "max_tokens", "n_predict")
LOGPROBS = "message.output_text.logprobs"


def chat_tasks(body: p.ChatRequest, served: ServedModel, settings: Serving, before: Sequence[int] = ()) -> list[Task]:
    """The task of a chat, which goes on after the token ids `before`; raises ApiError."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true: set it", param="top_logprobs")
    check_ids(before, served.model.target.lm.vocab_size, "context")
    prompt, form = replace(of_chat(body), before=before), form_of(body)
    asked = sampling_of(body, settings, settings.max_tokens, *LENGTH_FIELDS)
    asked["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    _check_count(served, settings, body, asked, 1)
    reasons = body.reasoning_format != "none"
    task = _conversation(served, settings, prompt, body, asked, form, reasons=reasons)
    reading = replace(task.reading, tells_reasoning=body.include_reasoning is not False)
    return [_several(replace(task, reading=reading, tells_logprobs=bool(body.logprobs)), body)]


def completion_tasks(body: p.CompletionRequest, served: ServedModel, settings: Serving) -> list[Task]:
    """The tasks of texts to go on with; raises ApiError."""
    whole: Any = body.prompt
    several = isinstance(whole, list) and bool(whole) and not isinstance(whole[0], int)
    prompts = {f"prompt[{at}]": each for at, each in enumerate(whole)} if several else {"prompt": whole}
    asked = sampling_of(body, settings, COMPLETION_TOKENS, "max_tokens", "n_predict")
    asked["logprobs"] = body.logprobs
    form = form_of(body)
    _check_count(served, settings, body, asked, len(prompts))

    def task_of(where: str, prompt: Any) -> Task:
        if body.suffix and not isinstance(prompt, str):
            raise ApiError(400, f"suffix needs text before it, and {where} is token ids: give text", param="suffix")
        ids = filling(served, prompt, body.suffix) if body.suffix else encoded(served, prompt, None, where)
        if not isinstance(prompt, str):
            check_ids(ids, served.model.target.lm.vocab_size, where)
        _check(served, settings, ids, where)
        processors, more = ({}, []) if form is None else grammar_options(served, form, {}, asked, len(ids), None)
        ignored, scores = [*unstreamed(body), *more], bool(body.echo) and body.logprobs is not None
        task = _task(served, ids, asked | processors, body, ignored=ignored, scores=scores)
        if body.echo:
            with served.lock:
                task.echo = prompt if isinstance(prompt, str) else str(served.model.target.tokenizer.decode(ids))
        task.prompt_alone = one_of(body, ("max_tokens", "n_predict")) == 0
        task.tells_logprobs = body.logprobs is not None
        return _several(task, body)

    return [task_of(where, prompt) for where, prompt in prompts.items()]


def response_tasks(body: r.ResponseRequest, served: ServedModel, settings: Serving) -> list[Task]:
    """The task of a response; raises ApiError."""
    wanted = LOGPROBS in (body.include or ())
    if body.top_logprobs and not wanted:
        raise ApiError(400, f"top_logprobs needs include with {LOGPROBS}: add it", param="top_logprobs")
    form = form_of_format(body.text and body.text.format, "text.format")
    asked = sampling_of(body, settings, settings.max_tokens, "max_output_tokens")
    asked["logprobs"] = (body.top_logprobs or 0) if wanted else None
    task = _conversation(served, settings, of_response(body), body, asked, form, reasons=True)
    absent = [f"include[{place}]" for place, each in enumerate(body.include or ()) if each != LOGPROBS]
    return [replace(task, ignored=[*task.ignored, *absent], tells_logprobs=wanted)]


def _check_count(
    served: ServedModel, settings: Serving, body: base.Formed, asked: Mapping[str, Any], prompts: int
) -> None:
    """Raise ApiError for more answers than lanes and the queue hold together."""
    greedy = asked.get("temperature", served.model.sampling.temperature) == 0
    answers = prompts * (1 if greedy else body.best_of or body.n or 1)
    if answers > (most := settings.lanes + settings.max_queue):
        name = "prompt" if prompts > 1 else "n" if body.best_of is None else "best_of"
        message = f"{name} asks for {answers} answers; at most {most} are made at once: ask for fewer"
        raise ApiError(400, message, param=name)


def check_ids(ids: Sequence[int], size: int, where: str) -> None:
    """Raise ApiError for the first id that the target has not."""
    for place, token in enumerate(ids):
        if token >= size:
            fix = f"the target has ids below {size}: use those of /tokenize"
            raise ApiError(400, f"{where}[{place}] is {token}; {fix}", param=f"{where}[{place}]")


def _several(task: Task, body: base.Formed) -> Task:
    """The task with the numbers of answers that are sent, and made; raises ApiError."""
    n, best_of = body.n or 1, body.best_of or body.n or 1
    if best_of < n:
        raise ApiError(400, f"best_of is {best_of}, fewer than n, {n}: use as many or more", param="best_of")
    if best_of > n and body.stream:
        message = "best_of is more than n, and which are the likeliest shows at the end: leave stream out"
        raise ApiError(400, message, param="best_of", code="unsupported_value")
    if best_of > n and task.options["logprobs"] is None:
        task = replace(task, options={**task.options, "logprobs": 0})
    return replace(task, n=n, best_of=best_of, tells_progress=bool(body.stream and body.return_progress))


def tasks_of(
    sent: dict[str, Any],
    kind: type[p.ChatRequest | p.CompletionRequest],
    paths: Paths,
    served: ServedModel,
    settings: Serving,
    ignored: Sequence[str] = (),
    before: Sequence[int] = (),
) -> list[Task]:
    """The tasks of a body that another API's was made into; raises ApiError, with the names of that API.

    A chat goes on after the token ids `before`.
    """
    try:
        received = read(sent, kind)
        body = received.body
        if isinstance(body, p.ChatRequest):
            tasks = chat_tasks(body, served, settings, before)
        else:
            tasks = completion_tasks(body, served, settings)
    except ApiError as error:
        raise error.at(paths) from error
    for task in tasks:
        renamed_paths = [renamed(path, paths) for path in (*received.ignored, *task.ignored)]
        task.ignored = [*dict.fromkeys([*ignored, *renamed_paths])]
    return tasks


# ---------------------------------------------------------------- conversations


def _conversation(
    served: ServedModel,
    settings: Serving,
    prompt: Prompt,
    body: p.ChatRequest | r.ResponseRequest,
    asked: dict[str, Any],
    form: ResponseFormat | None,
    *,
    reasons: bool,
) -> Task:
    tools = tools_of(body)
    functions = tools.chosen()
    prompt, ids = _encoded(served, prompt, functions)
    _check(served, settings, ids, prompt.where)  # before anything else is done with a prompt that is too long
    wraps = served.marks.wraps
    if functions and not served.takes_tools:
        if (told := _told_in_words(served, settings, prompt, functions)) is not None:
            (prompt, ids), wraps = told, True
        elif tools.forced:
            why = "asks for a call, and neither the target's chat template nor its context has a place for these tools"
            raise ApiError(400, f"tool_choice {why}: give fewer, or use another target", param="tool_choice")
        else:
            functions = {}
    parameters = {each["name"]: each.get("parameters") or {} for each in functions.values()}
    said = str(prompt.messages[-1]["content"] or "") if prompt.controls.get("continue_final_message") else ""
    with served.lock:
        read = partial(reading_of, served.model.target.tokenizer, ids, served.marks, parameters)
        reading = read(reasons=reasons, forced=tools.forced, said=said)
    strictly = form is None and not tools.forced and tools.strict and bool(functions) and wraps
    followed = tools.forced or form is not None
    compiled: tuple[dict[str, Any], list[str]] = ({}, [])
    if followed or strictly:  # a call that must be comes before the form of other answers
        wanted, calls = None if tools.forced else form, tools.told(functions)
        compiled = grammar_options(served, wanted, calls, asked, len(ids), reading.thinking, text=strictly)
        compiled[1].extend([form.parameter] if form is not None and tools.forced else [])
    unused = tools.without_effect(functions, followed=followed)
    asked |= compiled[0]
    without = dict.fromkeys([*prompt.dropped, *prompt.unread(served.words), *compiled[1], *unused, *unstreamed(body)])
    task = _task(served, ids, asked, body, ignored=[*without], marks=reading.marks(served.marks))
    return replace(task, reading=replace(reading, one=tools.parallel is False or tools.forced))


def chat_length(body: p.ChatRequest, served: ServedModel) -> int:
    """Tokens of a chat's prompt, which may be too long; raises ApiError."""
    return len(_encoded(served, of_chat(body), tools_of(body).chosen())[1])


def _encoded(
    served: ServedModel, prompt: Prompt, functions: Mapping[str, Mapping[str, Any]]
) -> tuple[Prompt, list[int]]:
    """The prompt with functions, if the template takes any, and its token ids; raises ApiError.

    Where the template refuses it, it has short ids of calls, or fewer roles.
    """
    if functions and served.takes_tools:
        prompt.variables["tools"] = [{"type": "function", "function": each} for each in functions.values()]
    try:
        return prompt, prompt.encode(served)
    except ApiError:
        for other in alternatives(prompt):
            with suppress(ApiError):
                return other, other.encode(served)
        raise


def _told_in_words(
    served: ServedModel, settings: Serving, prompt: Prompt, functions: Mapping[str, Mapping[str, Any]]
) -> tuple[Prompt, list[int]] | None:
    """The prompt with functions told of in words, and its token ids; None where it does not fit.

    The template may refuse a system message.
    """
    for system in (True, False):
        told = instructed(prompt, functions.values(), system=system)
        try:
            ids = told.encode(served)
            _check(served, settings, ids, prompt.where)
        except ApiError:
            continue
        return told, ids
    return None


def _check(served: ServedModel, settings: Serving, ids: Sequence[int], where: str) -> None:
    """Raise ApiError for a prompt that the target cannot read, with the parameter it is of."""
    if len(ids) > (settings.max_prompt_tokens or len(ids)):
        most = settings.max_prompt_tokens
        message = f"the prompt is too long: {len(ids)} tokens > {most} maximum, as max_prompt_tokens says: shorten it"
        raise ApiError(400, message, param=where, code=CONTEXT_LENGTH)
    try:
        served.model.lane.check(ids)
    except InputError as error:
        raise of_input(error, where) from error


def _task(
    served: ServedModel,
    ids: list[int],
    asked: Mapping[str, Any],
    body: base.Options,
    *,
    ignored: Sequence[str],
    **extras: Any,
) -> Task:
    """The task of a prompt; `extras` are of `Extras`.  Raises ApiError for a bias of a token that the target lacks."""
    size = served.model.target.lm.vocab_size
    if wrong := [token for token in asked.get("logit_bias", ()) if token >= size]:
        message = f"logit_bias names token {wrong[0]}; the target has ids below {size}: leave it out"
        raise ApiError(400, message, param="logit_bias", code="invalid_value")
    extension = body.omnidraft or base.Extension()
    extras["least"] = min(body.min_tokens or 0, asked.get("min_new_tokens", 0))  # 0 where a grammar decides
    if extension.sources is not None:
        extras |= {source: source in extension.sources for source in ("drafter", "counts")}
    return Task(
        served=served,
        ids=ids,
        options={
            **asked,
            "extras": Extras(longest=extension.draft_length, circle=(body.cache_salt or "").encode(), **extras),
        },
        greedy=asked.get("temperature", served.model.sampling.temperature) == 0,
        trace=bool(extension.trace),
        user=User(names=digest(body.user, body.prompt_cache_key, body.safety_identifier, body.cache_salt)),
        ignored=ignored,
    )
