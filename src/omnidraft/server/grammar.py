"""JSON that follows a schema: a grammar of llguidance as a logits processor over the target's tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer

from omnidraft.errors import ConfigError
from omnidraft.server.schemas import CLOSED, LISTS, MAPS, SINGLE, Schemas, nothing_asked

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from omnidraft.api import OmniDraft

# one way to write a value: a weak model would else fill its answer with spaces
COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

SIMPLER = ("pattern", "format")  # what can be left out for an easier schema, most often at fault
REASONS = (  # what llguidance says in terms of its own, and what it means
    ("regex is empty: ", "a pattern is too much to follow beside what else is said of the text"),
    ("Regex is empty", "no text is as its patterns and formats say together"),
    ("Failed to generate regex for", "bounds of a number are too large or too far apart"),
    ("are not disjoint", "a key could be of several of the patterns"),
    ("lookarounds not supported", "look-around, which word boundaries are too, is not supported"),
)
INTERNAL = re.compile(r"\((And|Or|Not|Regex|SearchRegex)\b|\bSome\(|<state>|fuel")
UNKNOWN, COUNTS = "Unimplemented keys: [", "min/maxProperties only supported"
EFFORT = 2_000_000  # characters of schemas that are tried in search of what is at fault
TRIAL = 4_000  # of them, what a schema costs at least


class Grammar:
    """The logits processor of one answer: it allows what the grammar does, in step with the tokens that stay.

    Raises ConfigError for a grammar that has no answer, or none that can be found.
    """

    def __init__(self, tokens: LLTokenizer, grammar: str, prompt: int) -> None:
        self._matcher = LLMatcher(tokens, grammar)
        self._length = prompt
        self._matcher.compute_logit_bias()
        if self._matcher.is_error() or self._matcher.is_stopped():  # before its first token
            raise ConfigError("the schema allows no output: check its enum, minLength and required")

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._matcher.consume_tokens(input_ids[0, self._length :].tolist()):
            raise ConfigError("the schema is too complex to follow: make it simpler")
        self._length = input_ids.shape[1]
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        return scores.masked_fill(torch.from_numpy(allowed == 0).to(scores.device), -torch.inf)


def tokens_of(model: OmniDraft) -> LLTokenizer:
    """The target's tokens as llguidance reads them; raises ConfigError where it cannot."""
    ends = sorted(model.vocab.eos)
    if not ends:
        raise ConfigError("the target has no end-of-text token, so an answer of a schema could not end: use another")
    tokenizer: Any = model.target.tokenizer
    try:
        return from_tokenizer(tokenizer, n_vocab=model.target.lm.vocab_size, eos_token=ends)
    except Exception as error:  # whatever a tokenizer's own code raises
        kind = type(error).__name__
        raise ConfigError(f"the target's tokenizer cannot follow a schema ({kind}): use another target") from error


def grammar_of(tokens: LLTokenizer, schema: Mapping[str, Any]) -> str:
    """The grammar of a JSON schema; raises ConfigError for one that cannot be followed, with the keyword at fault."""
    try:
        schemas = Schemas()
        made = schemas.add(schema)
        return _grammar_of(tokens, schemas, made, made)
    except ConfigError as error:
        raise ConfigError(f"the schema cannot be followed: {error}") from error


def call_grammar(tokens: LLTokenizer, functions: Sequence[Mapping[str, Any]]) -> str:
    """The grammar of a call of one of these functions: its name and its arguments.

    Raises ConfigError, with the name of the function whose parameters cannot be followed as its `option`.
    """
    schemas, calls = Schemas(), []
    for each in functions:
        try:
            calls.append(call_schema(each, schemas))
        except ConfigError as error:
            raise ConfigError(f"the parameters cannot be followed: {error}", option=each["name"]) from error
    try:
        return _grammar_of(tokens, schemas, calls[0] if len(calls) == 1 else {"anyOf": calls}, {})
    except ConfigError:
        for each in functions:
            alone = Schemas()
            try:
                call = call_schema(each, alone)
                _grammar_of(tokens, alone, call, call["properties"]["arguments"])
            except ConfigError as error:
                raise ConfigError(f"the parameters cannot be followed: {error}", option=each["name"]) from error
        raise


def call_schema(function: Mapping[str, Any], schemas: Schemas) -> dict[str, Any]:
    """The schema of a call of a function, whose parameters are added to `schemas`."""
    given = function.get("parameters")
    arguments = CLOSED if nothing_asked(given) else schemas.add(given)
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _grammar_of(tokens: LLTokenizer, schemas: Schemas, made: Any, part: Any) -> str:
    """The grammar of what was made; raises ConfigError, which names what is at fault within `part`."""
    grammar, problem = compiled(tokens, schemas.whole(made))
    if problem:
        path = _Search(tokens, problem).path([("", part), *schemas.definitions()])
        place, keyword = " ".join(".".join(path).split())[-100:], path[-1] if path else ""
        remedy = f"leave the {keyword} out or simplify it" if keyword in SIMPLER else "leave it out or change it"
        raise ConfigError(f"{place}: {reason(problem)}: {remedy}" if place else f"{reason(problem)}: change it")
    return grammar


def compiled(tokens: LLTokenizer, schema: Mapping[str, Any]) -> tuple[str, str]:
    """The grammar of a schema, and what llguidance says against it."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=COMPACT)
        problem = LLMatcher.validate_grammar(grammar, tokens)
    except ValueError as error:
        grammar, problem = "", str(error) or type(error).__name__
    return grammar, problem.partition("\n  while processing ")[0]  # then come names of definitions, made up here


def lacking(problem: str) -> list[str]:
    """The keywords that llguidance lacks, where that is what it says against a schema."""
    if problem.startswith(COUNTS):
        return ["minProperties", "maxProperties"]
    return re.findall(r'"([^"]+)"', problem) if problem.startswith(UNKNOWN) else []


def reason(problem: str) -> str:
    """What llguidance says against a schema, without what it alone knows."""
    for mark, reason in REASONS:
        if mark in problem:
            return reason
    if "regex parse error" in problem:
        return f"a pattern cannot be read ({' '.join(problem.rpartition('error: ')[2].split())[:200]})"
    if problem.startswith(UNKNOWN):
        keywords = re.sub(r'[]"]', "", problem.removeprefix(UNKNOWN))
        return f"{keywords[:200]} not supported"
    return "it is too much for a grammar" if INTERNAL.search(problem) else " ".join(problem.split())[:200]


class _Search:
    """Looks for the smallest part of a schema against which llguidance says the same, with bounded effort."""

    def __init__(self, tokens: LLTokenizer, problem: str) -> None:
        self._tokens, self._problem = tokens, problem
        self._left = EFFORT

    def path(self, schemas: Iterable[tuple[str, Any]]) -> list[str]:
        """The keys that lead to the keyword at fault, in one of these schemas; none where it is not found."""
        places = (([place] if place else [], _cut(schema)) for place, schema in schemas)
        found = self._first(places)
        path: list[str] = []
        while found:
            path, part = found
            found = self._first(_within(path, part))
            for key in [] if found else sorted(part, key=lambda key: (key == "type", key not in SIMPLER)):
                if self._is_same({name: each for name, each in part.items() if name != key}) is False:
                    return [*path, key]
        return path

    def _first(self, parts: Iterable[tuple[list[str], Any]]) -> tuple[list[str], dict[str, Any]] | None:
        return next(((path, part) for path, part in parts if isinstance(part, dict) and self._is_same(part)), None)

    def _is_same(self, part: dict[str, Any]) -> bool | None:
        """Whether the same is said against a part alone; None where that takes too much effort."""
        self._left -= max(len(json.dumps(part)), TRIAL)
        return None if self._left < 0 else compiled(self._tokens, part)[1] == self._problem


def _cut(value: Any) -> Any:
    """A schema without what it refers to, as that is searched by itself."""
    if isinstance(value, list):
        return [_cut(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _cut(each) for key, each in value.items() if key != "$ref" or not isinstance(each, str)}


def _within(path: list[str], part: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """The schemas right within one, with the keys that lead there."""
    for key, value in part.items():
        if key in MAPS and isinstance(value, dict):
            yield from (([*path, key, name], each) for name, each in value.items())
        elif key in LISTS and isinstance(value, list):
            yield from (([*path, f"{key}[{number}]"], each) for number, each in enumerate(value))
        elif key in SINGLE:
            yield [*path, key], value
