"""Answers that follow a schema or call a function: grammars of llguidance, and one as a logits processor."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, StructTag

from omnidraft.errors import ConfigError
from omnidraft.server.grammars.gbnf import is_gbnf, rules_of
from omnidraft.server.grammars.gbnf_to_lark import to_lark
from omnidraft.server.grammars.json_schemas import ANNOTATIONS, closed, places, walk

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

# one way to write a value: a weak model would else fill its answer with spaces; keywords that it lacks are warnings
STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}
REASONS = (  # what llguidance says in terms of its own, and what it means
    ("regex is empty: ", "a pattern is too much to follow beside what else is said of the text"),
    ("Regex is empty", "no text is as its patterns and formats say together"),
    ("Failed to generate regex for", "bounds of a number are too large or too far apart"),
    ("are not disjoint", "a key could be of several of the patterns"),
    ("lookarounds not supported", "look-around, which word boundaries are too, is not supported"),
    ("Pointer '", "a reference names nothing in the schema"),
    ("is not present in a registry", "a reference leads out of the schema"),
    ("circular references", "a reference leads back to what it is a part of"),
)
# in llguidance's errors: a value of the schema
VALUE = re.compile(r"/((?:\\.|[^/\\])+)/|parse error:\n *(.*)\n|Some\(([^()]*)\)|'(?:json-schema:///)?([^']*)'")
INTERNAL = re.compile(r"\((And|Or|Not|Regex|SearchRegex)\b|\bSome\(|<state>|fuel|json-schema:")
LOOK_AROUND = re.compile(r"\(\?<?[=!]|\\[bB]")  # in patterns for decimals and addresses, as Pydantic and Zod write them
SLASH = re.compile(r"(\\.)|/", re.DOTALL)  # not behind a backslash
CLOSED: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
OPEN, CLOSE = "<tool_call>", "</tool_call>"
Kind = Literal["json", "regex", "choice", "grammar"]
Function = Mapping[str, Any]
"""A function with a name, and parameters: a schema that `followed` made, or none."""


@dataclass(frozen=True)
class ResponseFormat:
    """A kind of form with what it is made of, and its path in the body; `strict` forms are followed in every word."""

    kind: Kind
    value: Any
    path: str
    strict: bool = False

    @property
    def said(self) -> str:
        """What two forms that say the same have in common."""
        return json.dumps([self.kind, self.value], sort_keys=True)

    @property
    def parameter(self) -> str:
        """The parameter that asks for it."""
        return self.path.partition(".json_schema.")[0].removesuffix(".schema").removesuffix(".value")


class Grammar:
    """The logits processor of one answer: it allows what the grammar does, in step with the tokens that stay.

    Raises ConfigError for a grammar that has no answer, or none that can be found.
    """

    def __init__(self, tokens: LLTokenizer, grammar: str, prompt: int) -> None:
        self._made = tokens, grammar, prompt
        self._matcher = LLMatcher(tokens, grammar)
        self._length = prompt
        self._matcher.compute_logit_bias()
        if self._matcher.is_error() or self._matcher.is_stopped():  # before its first token
            raise ConfigError("the schema allows no output: check its enum, minLength and required")

    def afresh(self) -> Grammar:
        """Return the same grammar at its beginning, for another answer to the prompt."""
        return Grammar(*self._made)

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
        backend = copy.copy(tokenizer.backend_tokenizer)
        backend.no_padding()
        backend.no_truncation()
        return LLTokenizer(backend.to_str(), n_vocab=model.target.lm.vocab_size, eos_token=ends)
    except Exception as error:  # whatever a tokenizer's own code raises
        kind = type(error).__name__
        raise ConfigError(f"the target's tokenizer cannot follow a schema ({kind}): use another target") from error


# ---------------------------------------------------------------- schemas


def followed(tokens: LLTokenizer, schema: dict[str, Any], *, strict: bool = False) -> tuple[dict[str, Any], list[str]]:
    """The schema as a grammar takes it, and the places of keywords that no grammar follows.

    Raises ConfigError, with what is at fault, for what cannot be enforced, such keywords of a `strict` schema too.
    """
    compiled = closed(schema)
    problem, warnings = _judged(tokens, compiled)
    if problem and not strict and (around := [f"{path}.pattern".lstrip(".") for path, _ in _looking_around(schema)]):
        simpler = copy.deepcopy(schema)
        for _, nested in _looking_around(simpler):
            del nested["pattern"]
        compiled, left_out = followed(tokens, simpler)
        return compiled, [*around, *left_out]
    if problem:
        wrong = [path for path, each in places(schema) if not isinstance(each, dict | bool | None)]
        reason = f"{wrong[0][-100:]} is no schema" if wrong else _reason(problem)
        raise ConfigError(f"{reason}: leave it out or change it")
    lacking = {keyword for each in warnings for keyword in _lacking(each)}
    left_out = [f"{path}.{key}".lstrip(".") for path, nested in walk(schema) for key in nested if key in lacking]
    if strict and left_out:
        keyword = left_out[0].rpartition(".")[2]
        raise ConfigError(f"{left_out[0][-100:]}: {keyword} not supported: leave it out or change it")
    return compiled, left_out


def _looking_around(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The schemas with a pattern that no grammar follows, with their paths."""
    return [(path, nested) for path, nested in walk(schema) if LOOK_AROUND.search(str(nested.get("pattern")))]


def _judged(tokens: LLTokenizer, schema: Mapping[str, Any]) -> tuple[str, list[str]]:
    """llguidance's error for a schema, and its warnings."""
    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=STYLE)
        wrong, said = LLMatcher.validate_grammar_with_warnings(grammar, tokens)
    except ValueError as error:
        wrong, said = True, [str(error) or type(error).__name__]
    # behind the problem comes the definition that it is in
    return ("\n".join(said).partition("\n  while processing ")[0], []) if wrong else ("", said)


def _lacking(warning: str) -> list[str]:
    """The keywords that a warning says are left out; of a `format` that only annotates, none."""
    if warning.startswith("min/maxProperties"):
        return ["minProperties", "maxProperties"]
    return ["oneOf"] if warning.startswith("oneOf ") else re.findall(r'"([^"]+)"', warning)


def _reason(problem: str) -> str:
    """llguidance's error in terms of the schema, with the value in the schema at which it is."""
    value = VALUE.search(problem)
    at_fault = f" ({shorten(value[value.lastindex or 0].replace(chr(92) + '/', '/'), 100)})" if value else ""
    for mark, meaning in REASONS:
        if mark in problem:
            return f"{meaning}{at_fault}"
    if "regex parse error" in problem:
        return f"a pattern cannot be read{at_fault}: {' '.join(problem.rpartition('error: ')[2].split())[:200]}"
    return f"it is too much for a grammar{at_fault}" if INTERNAL.search(problem) else " ".join(problem.split())[:200]


# ---------------------------------------------------------------- grammars of answers, in Lark


@dataclass(frozen=True)
class Thought:
    """The mark that ends the reasoning in which an answer begins; `special`: a token of its own."""

    mark: str
    special: bool


def answer_grammar(
    tokens: LLTokenizer, form: ResponseFormat | None, functions: Sequence[Function], thought: Thought | None
) -> str:
    """The grammar of an answer of a form, or of a call of one of the functions, behind reasoning.

    Raises ConfigError for a form that cannot be enforced.
    """
    calls = [_call(each, at) for at, each in enumerate(functions)]
    answer = "a_form" if form is not None else "call"
    if form is not None and form.kind == "json":  # with a call in the same schema: both begin with a brace
        rules = f"a_form: {_json([_own(form.value, 'form'), *calls] if calls else [form.value])}\n"
    else:
        rules = ("" if form is None else _form(tokens, form)) + (f"call: {_json(calls)}\n" if calls else "")
        answer = "a_form | call" if form is not None and calls else answer
    if thought is None:
        return _checked(tokens, f"%llguidance {{}}\nstart: {answer}\n{rules}")
    end = thought.mark if thought.special else json.dumps(thought.mark)
    lazy = "" if thought.special else "[lazy]"
    answer_rules = f"answer: {answer}\nthought{lazy}: THOUGHT {end}\nTHOUGHT: /(.|\\n)*/\nSPACE: /\\n{{0,4}}/\n"
    return _checked(tokens, f"%llguidance {{}}\nstart: thought SPACE answer\n{answer_rules}{rules}")


def text_grammar(tokens: LLTokenizer, functions: Sequence[Function], *, special: bool) -> str:
    """The grammar of text with calls in it, between marks, each a token of its own where they are `special`."""
    calls = _json([_call(each, at) for at, each in enumerate(functions)])
    rules = f"start: SPACE call SPACE\ncall: {calls}\nSPACE: /\\n?/\n"
    tag = StructTag(trigger=OPEN, begin=OPEN, grammar=rules, end=CLOSE)
    return _checked(tokens, StructTag.to_grammar([tag], assume_special=special))


def _form(tokens: LLTokenizer, form: ResponseFormat) -> str:
    """The rule `a_form`, unless it is JSON; raises ConfigError for an unreadable grammar."""
    if form.kind == "regex":
        return f"a_form: /{SLASH.sub(lambda match: match[1] or chr(92) + '/', str(form.value))}/\n"
    if form.kind == "choice":
        return f"a_form: {' | '.join(json.dumps(each, ensure_ascii=False) for each in form.value)}\n"
    text = str(form.value)
    try:
        if gbnf := is_gbnf(text):
            text = to_lark(rules_of(text, tokens.tokenize_str))
    except RecursionError as error:
        raise ConfigError("the grammar is nested too deeply: make it flatter") from error
    except ValueError as error:
        raise ConfigError(f"the grammar cannot be read ({shorten(str(error), 200)}): change it") from error
    if not gbnf:
        _checked(tokens, text)  # by itself, for the lines in errors
    return f"a_form: %lark {{\n{text}\n}}\n"  # where its names are its own


def _call(function: Function, at: int) -> dict[str, Any]:
    """The schema of a call of a function."""
    parameters = function.get("parameters") or {}
    nothing = not parameters.get("required") and {*parameters} - ANNOTATIONS <= {"type", "required", "strict"}
    empty = nothing and parameters.get("type", "object") == "object"
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": CLOSED if empty else _own(parameters, str(at)),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _own(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A schema with an address of its own within another, so that its references keep their meaning."""
    return {"$id": f"https://omnidraft.invalid/{name}", **schema}


def _json(schemas: Sequence[Mapping[str, Any]]) -> str:
    """Return a grammar in Lark whose texts follow one of the schemas."""
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return f"%json {json.dumps({**schema, 'x-guidance': STYLE})}"


def _checked(tokens: LLTokenizer, lark: str) -> str:
    """A grammar; raises ConfigError for one that cannot be enforced."""
    try:
        compiled = str(lark if lark.lstrip().startswith("{") else LLMatcher.grammar_from_lark(lark))
        problem = LLMatcher.validate_grammar(compiled, tokens)
    except ValueError as error:
        problem, compiled = str(error) or type(error).__name__, ""
    if problem:
        raise ConfigError(f"the form cannot be enforced ({' '.join(problem.split())[:200]}): change it")
    return compiled
