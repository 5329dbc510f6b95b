"""The options of answers that follow a grammar: of a form, of a call, or of text with calls in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from omnidraft.config import Sampling, settings_of
from omnidraft.errors import ConfigError
from omnidraft.server.errors import ApiError
from omnidraft.server.forms import Form
from omnidraft.server.options import SAMPLING
from omnidraft.server.served import Served

Functions = Mapping[str, Mapping[str, Any]]
"""Functions by their paths in the body: a name, parameters, and whether they are strict."""


def form_options(
    served: Served, form: Form, functions: Functions, asked: Mapping[str, Any], at: int, thinking: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The options of an answer of a form, or of a call of one of the functions, and paths of what is left out of it.

    The answer begins after `at` ids; `thinking` ends the reasoning that it begins with.  Keywords of schemas that no
    grammar follows are left out, where they are not strict.  Raises ApiError for what cannot be followed.
    """
    functions, left_out = _lenient(served, functions)
    value, keywords = form.value, list[str]()
    if form.kind == "json" and not form.strict:
        value, keywords = _leniently(served, form.value, form.path)
    own = replace(form, value=value)
    try:
        grammar = _grammar(served, own, functions, thinking)
    except ConfigError as error:
        raise _refused(error, functions, form.path) from error
    return _options(served, grammar, asked, at, form.path), [*keywords, *left_out, *_shortened(asked)]


def call_options(
    served: Served, functions: Functions, asked: Mapping[str, Any], at: int, thinking: str | None
) -> tuple[dict[str, Any], list[str]]:
    """The options of an answer that is a call of one of the functions, as for `form_options`."""
    from omnidraft.server.composed import behind_thought
    from omnidraft.server.grammar import call_grammar

    functions, left_out = _lenient(served, functions)
    try:
        tokens = _tokens(served)
        grammar = call_grammar(tokens, list(functions.values()))
        if thinking is not None:
            grammar = behind_thought(tokens, list(functions.values()), _thought(served, thinking))
    except ConfigError as error:
        raise _refused(error, functions, "tools") from error
    return _options(served, grammar, asked, at, "tools"), [*left_out, *_shortened(asked)]


def strict_options(
    served: Served, functions: Functions, asked: Mapping[str, Any], at: int
) -> tuple[dict[str, Any], list[str]]:
    """The options of text with calls in it whose arguments follow their schemas, where the function is strict."""
    from omnidraft.server.composed import OPEN, calls_grammar

    try:
        special = OPEN in served.model.vocab.special.values()
        grammar = calls_grammar(_tokens(served), list(functions.values()), special=special)
    except ConfigError as error:
        raise _refused(error, functions, "tools") from error
    return _options(served, grammar, asked, at, "tools"), _shortened(asked)


def _tokens(served: Served) -> Any:
    with served.lock:
        return served.tokens


def _thought(served: Served, thinking: str | None) -> Any:
    from omnidraft.server.composed import Thought

    return None if thinking is None else Thought(thinking, thinking in served.model.vocab.special.values())


def _grammar(served: Served, form: Form, functions: Functions, thinking: str | None) -> str:
    from omnidraft.server.composed import form_grammar

    return form_grammar(_tokens(served), form, list(functions.values()), _thought(served, thinking))


def _leniently(served: Served, schema: Mapping[str, Any], path: str) -> tuple[Mapping[str, Any], list[str]]:
    """A schema without keywords that no grammar follows, and their paths; raises ApiError."""
    from omnidraft.server.composed import lenient

    try:
        made, found = lenient(_tokens(served), schema)
    except ConfigError as error:
        message = f"{path}: the schema cannot be followed: {error}"
        raise ApiError(400, message, param=path, code="invalid_value") from error
    return made, [f"{path}.{each}" for each in found]


def _lenient(served: Served, functions: Functions) -> tuple[Functions, list[str]]:
    """The functions, those that are not strict without keywords that no grammar follows, and the paths of these."""
    made, left_out = {}, list[str]()
    for path, each in functions.items():
        made[path] = each
        if each.get("parameters") and not each.get("strict"):
            own, found = _leniently(served, each["parameters"], f"{path}.parameters")
            made[path] = {**each, "parameters": own}
            left_out += found
    return made, left_out


def _refused(error: ConfigError, functions: Functions, param: str) -> ApiError:
    """The 400 for a grammar that cannot be made, with the path of the function at fault, where one is."""
    named = [f"{path}.parameters" for path, each in functions.items() if error.option == each["name"]]
    param = named[0] if named else param
    return ApiError(400, f"{param}: {error}", param=param, code="invalid_value")


def _shortened(asked: Mapping[str, Any]) -> list[str]:
    """The least length, which gives way to the grammar's end."""
    return ["min_tokens"] if asked.get("min_new_tokens") else []


def _options(served: Served, grammar: str, asked: Mapping[str, Any], at: int, param: str) -> dict[str, Any]:
    """The grammar as a processor: it comes before top-k and the like, which would leave it nothing."""
    from omnidraft.server.grammar import Grammar
    from omnidraft.verification.sampling import target_processors

    try:
        processor = Grammar(_tokens(served), grammar, at)
    except ConfigError as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value") from error
    whole = settings_of(Sampling, asdict(served.model.sampling) | {n: asked[n] for n in SAMPLING if n in asked})
    cut = Sampling(temperature=1.0, top_k=whole.top_k, top_p=whole.top_p, min_p=whole.min_p)
    cuts = [] if whole.greedy else target_processors(cut)
    return {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "min_new_tokens": 0, "logits_processor": [processor, *cuts]}
