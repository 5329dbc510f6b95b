"""Grammars of whole answers: a form, or a call, behind reasoning; and calls within text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

from llguidance import LLMatcher, LLTokenizer, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from omnidraft.errors import ConfigError
from omnidraft.server import grammar
from omnidraft.server.forms import Form
from omnidraft.server.grammar import COMPACT, call_schema, compiled, lacking, reason
from omnidraft.server.schemas import LISTS, MAPS, SINGLE, Schemas

ANY = {"type": "object", "additionalProperties": True}
SLASH = re.compile(r"(\\.)|/", re.DOTALL)  # not behind a backslash
OPEN, CLOSE = "<tool_call>", "</tool_call>"
ROUNDS = 8  # in which keywords are left out, each time those that are named first
Function = Mapping[str, Any]


@dataclass(frozen=True)
class Thought:
    """The mark that ends the reasoning in which an answer begins; `special`: a token of its own."""

    mark: str
    special: bool


def form_grammar(tokens: LLTokenizer, form: Form, functions: Sequence[Function], thought: Thought | None) -> str:
    """The grammar of an answer of a form, or of a call of one of the functions.

    Raises ConfigError for a form that cannot be followed.
    """
    if form.kind == "json" and thought is None:
        return grammar.grammar_of(tokens, either(form.value, functions) if functions else form.value)
    if form.kind == "json":
        return _checked(tokens, _behind(thought, f"%json {_json(form.value, functions)}"))
    if form.kind == "grammar":
        return _checked(tokens, _with_calls(_lark(str(form.value)), functions, thought))
    if form.kind == "regex":
        rule = f"/{SLASH.sub(lambda found: found[1] or chr(92) + '/', str(form.value))}/"
    else:
        rule = " | ".join(json.dumps(each, ensure_ascii=False) for each in form.value)
    return _checked(tokens, _with_calls(f"form: {rule}\n", functions, thought))


def calls_grammar(tokens: LLTokenizer, functions: Sequence[Function], *, special: bool) -> str:
    """The grammar of text with calls in it whose arguments follow their schemas, where the function is strict.

    Raises ConfigError, with the name of the function at fault as its `option`.
    """
    schemas, calls = Schemas(), []
    for each in functions:
        if not each.get("strict"):
            calls.append(call_schema({"name": each["name"], "parameters": ANY}, schemas))
            continue
        own = Schemas()
        if problem := compiled(tokens, own.whole(call_schema(each, own)))[1]:
            raise ConfigError(f"the parameters cannot be followed: {reason(problem)}", option=each["name"])
        calls.append(call_schema(each, schemas))
    schema = json.dumps({**schemas.whole({"anyOf": calls}), "x-guidance": COMPACT})
    rules = f"start: SPACE call SPACE\ncall: %json {schema}\nSPACE: /\\n?/\n"
    tag = StructTag(trigger=OPEN, begin=OPEN, grammar=rules, end=CLOSE)
    return _checked(tokens, StructTag.to_grammar([tag], assume_special=special))


def behind_thought(tokens: LLTokenizer, functions: Sequence[Function], thought: Thought | None) -> str:
    """The grammar of a call of one of the functions, behind reasoning."""
    return _checked(tokens, _with_calls("", functions, thought))


def either(schema: Mapping[str, Any], functions: Sequence[Function]) -> dict[str, Any]:
    """The schema of an answer that follows a schema, or is a call of one of the functions."""
    schemas = Schemas()
    made = [schemas.add(schema), *(call_schema(each, schemas) for each in functions)]
    return schemas.whole({"anyOf": made})


def lenient(tokens: LLTokenizer, schema: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A schema without the keywords that a grammar lacks, and their places.  Raises ConfigError as `Schemas` does."""
    made, left_out = dict(schema), list[str]()
    for _ in range(ROUNDS):
        schemas = Schemas()
        whole = schemas.whole(schemas.add(made))
        found: list[str] = []
        if keywords := lacking(compiled(tokens, whole)[1]):
            made = _without(made, keywords, "", found)
        if not found:
            break
        left_out += found
    return made, left_out


def _without(schema: Any, keywords: Sequence[str], path: str, found: list[str]) -> Any:
    """A schema with all its parts without some keywords, whose places are added to `found`."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        where = f"{path}.{key}" if path else key
        if key in keywords:
            found.append(where)
        elif key in MAPS and isinstance(value, dict):
            made[key] = {name: _without(each, keywords, f"{where}.{name}", found) for name, each in value.items()}
        elif key in LISTS and isinstance(value, list):
            made[key] = [_without(each, keywords, f"{where}[{at}]", found) for at, each in enumerate(value)]
        else:
            made[key] = _without(value, keywords, where, found) if key in SINGLE else value
    return made


# ---------------------------------------------------------------- Lark, the language of grammars


def _json(schema: Mapping[str, Any], functions: Sequence[Function]) -> str:
    schemas = Schemas()
    made = either(schema, functions) if functions else schemas.whole(schemas.add(schema))
    return json.dumps({**made, "x-guidance": COMPACT})


def _with_calls(rules: str, functions: Sequence[Function], thought: Thought | None) -> str:
    """The grammar of a rule `form`, where there is one, or of a call."""
    if not functions:
        return _behind(thought, "form", rules)
    schemas = Schemas()
    calls = [call_schema(each, schemas) for each in functions]
    made = json.dumps({**schemas.whole({"anyOf": calls}), "x-guidance": COMPACT})
    return _behind(thought, "form | call" if rules else "call", f"{rules}call: %json {made}\n")


def _behind(thought: Thought | None, answer: str, rules: str = "") -> str:
    """The grammar of an answer, behind reasoning where it begins in it."""
    if thought is None:
        return f"%llguidance {{}}\nstart: {answer}\n{rules}"
    end = thought.mark if thought.special else json.dumps(thought.mark)
    lazy = "" if thought.special else "[lazy]"
    own = f"answer: {answer}\nthought{lazy}: THOUGHT {end}\nTHOUGHT: /(.|\\n)*/\nSPACE: /\\n{{0,4}}/\n"
    return f"%llguidance {{}}\nstart: thought SPACE answer\n{own}{rules}"


def _lark(text: str) -> str:
    """Rules of a grammar in GBNF or Lark, whose `start` is `form`; raises ConfigError."""
    try:
        rules = any_to_lark(text)
    except Exception as error:  # whatever the reader of grammars raises
        raise ConfigError(f"the grammar cannot be read ({shorten(str(error), 200)}): change it") from error
    lines = [line for line in rules.splitlines() if not line.startswith("%llguidance")]
    return "\n".join(f"form{line[5:]}" if line.startswith("start:") else line for line in lines) + "\n"


def _checked(tokens: LLTokenizer, lark: str) -> str:
    """A grammar; raises ConfigError for one that cannot be followed."""
    try:
        made = lark if lark.lstrip().startswith("{") else LLMatcher.grammar_from_lark(lark)
        problem = LLMatcher.validate_grammar(made, tokens)
    except ValueError as error:
        problem, made = str(error) or type(error).__name__, ""
    if problem:
        raise ConfigError(f"the form cannot be followed ({' '.join(problem.split())[:200]}): change it")
    return made
