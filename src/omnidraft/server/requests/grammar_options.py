"""The options of answers that follow a grammar: of a form, of a call, or of text with calls in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from omnidraft.config import Sampling, settings_of
from omnidraft.errors import ConfigError
from omnidraft.server.errors import ApiError
from omnidraft.server.grammars.grammar import (
    OPEN,
    Grammar,
    ResponseFormat,
    Thought,
    answer_grammar,
    followed,
    text_grammar,
)
from omnidraft.server.requests.sampling_options import SAMPLING
from omnidraft.server.running.served_model import ServedModel
from omnidraft.verification.sampling import target_processors

ANY = {"type": "object", "additionalProperties": True}
Functions = Mapping[str, Mapping[str, Any]]
"""Functions by their paths in the body: a name, parameters, and whether they are strict."""


def grammar_options(
    served: ServedModel,
    form: ResponseFormat | None,
    functions: Functions,
    asked: Mapping[str, Any],
    at: int,
    thinking: str | None,
    *,
    text: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """The options of an answer of a form, or of a call of one of the functions, and paths of what is left out of it.

    The answer begins after `at` ids; `thinking` ends the reasoning that it begins with.  With `text`, it is text with
    calls in it, of which those of strict functions follow their schemas.  Keywords of schemas that no grammar follows
    are left out, where they are not strict.  Raises ApiError for what cannot be enforced.
    """
    left_out: list[str] = []
    calls = []
    for path, each in functions.items():
        if text and not each.get("strict"):
            own = ANY
        elif own := each.get("parameters") or {}:
            own = _followed(served, own, f"{path}.parameters", left_out, strict=bool(each.get("strict")))
        calls.append({"name": each["name"], "parameters": own})
    if form is not None and form.kind == "json":
        form = replace(form, value=_followed(served, form.value, form.path, left_out, strict=form.strict))
    param = "tools" if form is None else form.path
    special = served.model.vocab.special.values()
    thought = None if thinking is None else Thought(thinking, thinking in special)
    try:
        with served.lock:
            tokens = served.tokens
        made = (
            text_grammar(tokens, calls, special=OPEN in special)
            if text
            else answer_grammar(tokens, form, calls, thought)
        )
        processor = Grammar(tokens, made, at)
    except ConfigError as error:
        raise ApiError(400, f"{param}: {error}", param=param, code="invalid_value") from error
    # the grammar comes before top-k and the like, which would leave it nothing
    whole = settings_of(Sampling, asdict(served.model.sampling) | {n: asked[n] for n in SAMPLING if n in asked})
    cut = Sampling(temperature=1.0, top_k=whole.top_k, top_p=whole.top_p, min_p=whole.min_p)
    cuts = [] if whole.greedy else target_processors(cut)
    options = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "min_new_tokens": 0, "logits_processor": [processor, *cuts]}
    return options, [*left_out, *(["min_tokens"] if asked.get("min_new_tokens") else [])]


def _followed(
    served: ServedModel, schema: dict[str, Any], path: str, left_out: list[str], *, strict: bool
) -> dict[str, Any]:
    """A schema as a grammar takes it; paths of keywords without effect go to `left_out`.  Raises ApiError."""
    try:
        with served.lock:
            tokens = served.tokens
        compiled, places = followed(tokens, schema, strict=strict)
    except ConfigError as error:
        raise ApiError(400, f"{path} cannot be enforced: {error}", param=path, code="invalid_value") from error
    left_out += [f"{path}.{each}" for each in places]
    return compiled
