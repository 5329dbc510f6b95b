"""Schemas as grammars take them: references are followed, and objects hold no keys but those that they list.

Keys come in the order of the schemas, those of a reference and of `allOf` first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from llguidance import LLMatcher

from omnidraft.api import OmniDraft
from omnidraft.errors import ConfigError
from omnidraft.server.grammars.grammar import ResponseFormat, Thought, answer_grammar, followed, tokens_of
from omnidraft.server.grammars.json_schemas import MAX_LISTED, MAX_PARTS, closed
from support.serving import QUESTION, At, user

INTEGER: dict[str, Any] = {"type": "integer"}
BASE: dict[str, Any] = {"type": "object", "properties": {"a": INTEGER}, "required": ["a"]}
MORE: dict[str, Any] = {"type": "object", "properties": {"b": INTEGER}, "required": ["b"]}
NODE: dict[str, Any] = {"type": "object", "properties": {"v": INTEGER, "next": {"$ref": "#/$defs/n"}}}

TAKES_X = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
UNKNOWN = ["path", "password", "binary", "byte", "uri-reference", "url", "regex", "decimal", "iri", "of my own"]
CLOSES = {"unevaluatedProperties": False}
NAMES = [
    ("注文", "#/$defs/注文"),
    ("注文", "#/$defs/%E6%B3%A8%E6%96%87"),
    ("a b", "#/$defs/a b"),
    ("a b", "#/$defs/a%20b"),
    ("Page[Item]", "#/$defs/Page[Item]"),
    ("Page<Item>", "#/$defs/Page<Item>"),
    ("50%", "#/$defs/50%"),
    ("50%", "#/$defs/50%25"),
    ("50%25", "#/$defs/50%25"),
    ("x#y", "#/$defs/x#y"),
    ('"^`{|}\\', '#/$defs/"^`{|}\\'),
    ("a/b~c", "#/$defs/a~1b~0c"),
    ("%2F", "#/$defs/%252F"),
]
NULLS = [
    *("enum", "additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "minProperties"),
    *("anyOf", "allOf", "oneOf", "$ref", "prefixItems", "items", "contains", "not", "format", "pattern", "minimum"),
]


@pytest.fixture(scope="module")
def tokens(model: OmniDraft) -> Any:
    return tokens_of(model)


def accepts(tokens: Any, model: OmniDraft, grammar: str, value: Any) -> bool:
    """Whether a grammar lets a value through, written as answers are."""
    matcher = LLMatcher(tokens, grammar)
    ids = model.target.tokenizer(json.dumps(value, ensure_ascii=False), add_special_tokens=False)["input_ids"]
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())


def strict(tokens: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that is followed in every word."""
    made, left_out = followed(tokens, schema, strict=True)
    assert not left_out
    return made


def _named(name: str, ref: str) -> tuple[dict[str, Any], Sequence[Any], Sequence[Any]]:
    """A schema with a definition of a name, to which it refers, what fits and what does not."""
    schema = {"$defs": {name: BASE}, "type": "object", "properties": {"q": {"$ref": ref}}}
    return schema, [{"q": {"a": 1}}], [{"q": {"a": "x"}}, {"q": {"a": 1, "z": 2}}]


FOLLOWED: dict[str, tuple[dict[str, Any], Sequence[Any], Sequence[Any]]] = {  # schema, what fits, what does not
    "no more keys": (BASE, [{"a": 1}], [{"a": 1, "z": 2}, {"z": 1}]),
    "nested": (
        {"type": "object", "properties": {"l": {"type": "array", "items": BASE}}},
        [{"l": [{"a": 1}]}],
        [{"l": [{"a": 1, "z": 1}]}],
    ),
    "more keys, said": (BASE | {"additionalProperties": True}, [{"a": 1, "z": 2}], []),
    "more keys of a kind": (BASE | {"additionalProperties": INTEGER}, [{"a": 1, "z": 2}], [{"a": 1, "z": "x"}]),
    "any object": ({"type": "object", "additionalProperties": True}, [{"z": 1}], []),
    "keys by pattern": (
        BASE | {"patternProperties": {"^x": INTEGER}},
        [{"a": 1, "x1": 2}],
        [{"a": 1, "z": 2}],
    ),
    "a key that is needed and not listed": (
        {"type": "object", "properties": {"a": INTEGER}, "required": ["b"]},
        [{"b": 3}],
        [{"b": 3, "z": 1}],
    ),
    "all of two": ({"allOf": [BASE, MORE]}, [{"a": 1, "b": 2}], [{"a": 1, "b": 2, "z": 3}, {"a": 1, "b": "x"}]),
    "all of two, one of them open": (
        {"allOf": [BASE, {"type": "object", "additionalProperties": INTEGER}]},
        [{"a": 1, "z": 2}],
        [],
    ),
    "a base and more": (
        {"$defs": {"Base": BASE}, "allOf": [{"$ref": "#/$defs/Base"}], **MORE},
        [{"a": 2, "b": 1}],
        [{"a": 2, "b": 1, "z": 3}],
    ),
    "a base beside its use alone": (
        {
            "$defs": {"Base": BASE},
            "allOf": [{"$ref": "#/$defs/Base"}],
            "type": "object",
            "properties": {"b": {"$ref": "#/$defs/Base"}},
            "required": ["b"],
        },
        [{"a": 2, "b": {"a": 1}}],
        [{"a": 2, "b": {"a": 1, "b": 2}}],
    ),
    "keys beside a reference": (
        {"$defs": {"Base": BASE}, "$ref": "#/$defs/Base", "properties": {"b": INTEGER}},
        [{"a": 1, "b": 2}, {"a": 1}],
        [{"a": 1, "z": 3}],
    ),
    "one of two beside keys": (
        BASE | {"anyOf": [MORE, {"properties": {"c": INTEGER}, "required": ["c"]}]},
        [{"a": 1, "b": 2}, {"a": 1, "c": 2}],
        [{"a": 1}, {"a": 1, "b": 2, "z": 3}],
    ),
    "one of two alone": ({"anyOf": [BASE, MORE]}, [{"a": 1}, {"b": 1}], [{"a": 1, "b": 1}, {"z": 1}]),
    "alternatives of needed keys": (
        {
            "type": "object",
            "properties": {"a": INTEGER, "b": INTEGER},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "z": 1}],
    ),
    "told apart by a key": (
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": "c"}, "x": INTEGER}, "required": ["k"]},
                {"type": "object", "properties": {"k": {"const": "d"}}, "required": ["k"]},
            ]
        },
        [{"k": "c", "x": 1}, {"k": "d"}],
        [{"k": "d", "x": 1}],
    ),
    "$defs": (
        {"$defs": {"n": INTEGER, "l": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/l"},
        [[1, 2]],
        [["x"]],
    ),
    "definitions": (
        {"definitions": {"n": INTEGER}, "type": "object", "properties": {"q": {"$ref": "#/definitions/n"}}},
        [{"q": 1}],
        [{"q": "x"}],
    ),
    "recursive": ({"$defs": {"n": NODE}, "$ref": "#/$defs/n"}, [{"v": 1, "next": {"v": 2}}], [{"next": {"z": 1}}]),
    "the whole again": (
        {"type": "object", "properties": {"v": INTEGER, "k": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}},
        [{"v": 1, "k": {"v": 2, "k": None}}],
        [{"v": 1, "k": {"z": 2}}],
    ),
    "of an address": (
        {
            "$id": "https://example.com/s.json",
            "$defs": {
                "x": {"$id": "x.json", "$ref": "#/$defs/z", "$defs": {"z": INTEGER}},
                "y": {"$anchor": "why", "type": "string"},
            },
            "type": "object",
            "properties": {
                "q": {"$ref": "x.json"},
                "r": {"$ref": "https://example.com/s.json#/$defs/y"},
                "s": {"$ref": "#why"},
            },
        },
        [{"q": 1, "r": "x", "s": "y"}],
        [{"q": "x"}, {"r": 1}, {"s": 1}],
    ),
    "a place in it": (
        {"type": "object", "properties": {"x/y": INTEGER, "z": {"$ref": "#/properties/x~1y"}}},
        [{"z": 1}],
        [{"z": "x"}],
    ),
    "keys called like keywords": (
        {"type": "object", "properties": {"$ref": {"type": "string"}, "properties": BASE, "$defs": INTEGER}},
        [{"$ref": "x", "properties": {"a": 1}, "$defs": 1}],
        [{"$ref": 1}],
    ),
    "keys by pattern alone": (
        {"type": "object", "patternProperties": {"^x": INTEGER}},
        [{"x1": 2}, {}],
        [{"z": 2}, {"x1": "y"}],
    ),
    "keys by pattern, others said": (
        {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": True},
        [{"x1": 2, "z": "y"}],
        [{"x1": "y"}],
    ),
    "keys by pattern in one of all": (
        {"allOf": [BASE, {"type": "object", "patternProperties": {"^x": INTEGER}}]},
        [{"a": 1, "x1": 2}],
        [{"a": 1, "z": 2}, {"a": 1, "x1": "y"}, {"x1": 2}],
    ),
    "names of any text": (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": INTEGER},
        [{"z": 1, "y": 2}],
        [{"z": "x"}],
    ),
    "names of a list": (
        {
            "type": "object",
            "propertyNames": {"type": "string", "enum": ["m", "n"]},
            "additionalProperties": INTEGER,
            "required": ["n"],
        },
        [{"m": 1, "n": 2}, {"n": 2}],
        [{"m": 1}, {"n": "x"}, {"n": 1, "z": 1}],
    ),
    "names of a list that is referred to": (
        {
            "$defs": {"Kind": {"enum": ["m", "n"], "title": "Kind", "type": "string"}},
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/Kind"},
        },
        [{"m": 1, "n": "x"}, {}],
        [{"z": 1}],
    ),
    "names of a list, fewer than the properties": (
        BASE | {"propertyNames": {"enum": ["a"]}, "properties": {"a": INTEGER, "b": INTEGER}},
        [{"a": 1}],
        [{"a": 1, "b": 1}, {"a": "x"}],
    ),
    "no unevaluated keys": (BASE | CLOSES, [{"a": 1}], [{"a": 1, "z": 2}]),
    "no unevaluated keys, and none listed": ({"type": "object"} | CLOSES, [{}], [{"z": 1}]),
    "no unevaluated keys within": (
        {"type": "object", "properties": {"l": {"type": "array", "items": BASE | CLOSES}}},
        [{"l": [{"a": 1}]}],
        [{"l": [{"a": 1, "z": 2}]}],
    ),
    "unevaluated keys of a kind": (
        BASE | {"unevaluatedProperties": INTEGER},
        [{"a": 1, "z": 2}],
        [{"a": 1, "z": "x"}],
    ),
    "unevaluated keys, said": (BASE | {"unevaluatedProperties": True}, [{"a": 1, "z": "x"}], [{"a": "x"}]),
    "unevaluated keys that additional ones leave none of": (
        BASE | {"additionalProperties": INTEGER} | CLOSES,
        [{"a": 1, "z": 2}],
        [{"a": 1, "z": "x"}],
    ),
    "no unevaluated keys beside patterns": (
        BASE | {"patternProperties": {"^x": INTEGER}} | CLOSES,
        [{"a": 1, "x1": 2}],
        [{"a": 1, "z": 2}],
    ),
    "no unevaluated keys, of names of a list": (
        BASE | {"propertyNames": {"enum": ["a", "b"]}} | CLOSES,
        [{"a": 1}],
        [{"a": 1, "b": 2}],
    ),
    "no unevaluated items": (
        {"type": "array", "prefixItems": [INTEGER], "unevaluatedItems": False},
        [[], [1]],
        [["x"], [1, 2]],
    ),
    "unevaluated items of a kind": ({"type": "array", "unevaluatedItems": INTEGER}, [[], [1, 2]], [["x"]]),
    "no unevaluated items beside those of a kind": (
        {"type": "array", "items": INTEGER, "unevaluatedItems": False},
        [[], [1, 2]],
        [["x"]],
    ),
    "all of two, and no unevaluated keys": (
        {"allOf": [BASE, MORE]} | CLOSES,
        [{"a": 1, "b": 2}],
        [{"a": 1, "b": 2, "z": 3}, {"a": 1}],
    ),
    "all of two, and unevaluated keys of a kind": (
        {"allOf": [BASE, MORE], "unevaluatedProperties": INTEGER},
        [{"a": 1, "b": 2, "z": 3}],
        [{"a": 1, "b": 2, "z": "x"}, {"a": 1, "b": "x"}],
    ),
    "all of two, and unevaluated keys said": (
        {"allOf": [BASE, MORE], "unevaluatedProperties": True},
        [{"a": 1, "b": 2, "z": "x"}],
        [{"a": 1}],
    ),
    "all of two, one without unevaluated keys": (
        {"allOf": [BASE | CLOSES, {"type": "object", "properties": {"b": INTEGER}}]},
        [{"a": 1}],
        [{"a": 1, "b": 2}],
    ),
    "one of two beside keys, and no unevaluated ones": (
        BASE | {"anyOf": [MORE, {"properties": {"c": INTEGER}, "required": ["c"]}]} | CLOSES,
        [{"a": 1, "b": 2}, {"a": 1, "c": 2}],
        [{"a": 1}, {"a": 1, "b": 2, "z": 3}],
    ),
    "a reference, and no unevaluated keys": (
        {"$defs": {"Base": BASE}, "$ref": "#/$defs/Base", "properties": {"b": INTEGER}} | CLOSES,
        [{"a": 1, "b": 2}],
        [{"a": 1, "z": 3}],
    ),
    "a reference to any object, and no unevaluated keys": (
        {"$defs": {"Any": {"type": "object"}}, "$ref": "#/$defs/Any", "properties": {"b": INTEGER}} | CLOSES,
        [{"b": 2}],
        [{"z": 3}],
    ),
    "a reference, and additional keys beside it": (
        {"$defs": {"Base": BASE}, "$ref": "#/$defs/Base", "additionalProperties": INTEGER} | CLOSES,
        [{"a": 1, "z": 2}],
        [{"a": 1, "z": "x"}],
    ),
    **{f"a definition called {name}, as {ref}": _named(name, ref) for name, ref in NAMES},
    "a name beyond ASCII on the way": (
        {"type": "object", "properties": {"注文": INTEGER, "q": {"$ref": "#/properties/注文"}}},
        [{"注文": 1, "q": 2}],
        [{"q": "x"}],
    ),
    "a base called beyond ASCII": (
        {"definitions": {"Größe": BASE}, "allOf": [{"$ref": "#/definitions/Größe"}], **MORE},
        [{"a": 2, "b": 1}],
        [{"a": 2, "b": 1, "z": 3}],
    ),
    "called beyond ASCII, and recursive": (
        {
            "$defs": {"木": {"type": "object", "properties": {"v": INTEGER, "次": {"$ref": "#/$defs/木"}}}},
            "$ref": "#/$defs/木",
        },
        [{"v": 1, "次": {"v": 2}}],
        [{"次": {"z": 1}}],
    ),
    "an address beyond ASCII": (
        {"$id": "https://example.com/s", "$defs": {"x": {"$id": "型.json", **INTEGER}}, "items": {"$ref": "型.json"}}
        | {"type": "array"},
        [[1]],
        [["x"]],
    ),
    "formats that only annotate": (
        {"type": "array", "items": {"anyOf": [{"type": "string", "format": form} for form in UNKNOWN]}},
        [["x"]],
        [[1]],
    ),
    "null for what is not given": (
        BASE | {"properties": {"a": INTEGER | dict.fromkeys(NULLS), "b": {"const": None}}, **dict.fromkeys(NULLS)},
        [{"a": 1}, {"a": 1, "b": None}],
        [{"a": 1, "z": 2}, {"a": "x"}, {"a": 1, "b": 2}],
    ),
    "null properties": (
        {"type": "object", "properties": {"o": {"type": "object", "properties": None, "required": None}}},
        [{"o": {"z": 1}}],
        [{"o": 1}],
    ),
    "an address that is none": (BASE | {"$id": "my schema", "$defs": {}}, [{"a": 1}], [{"a": "b"}]),
    "a name as an address": (
        {"$id": "#root", "$defs": {"x": INTEGER}, **TAKES_X},
        [{"a": 1}],
        [{"a": "b"}],
    ),
    "a list that may end": (
        {"anyOf": [{"type": "null"}, {"type": "array", "minItems": 1, "items": {"$ref": "#"}}]},
        [None, [None], [[None], None]],
        [[]],
    ),
    "values that look like schemas": (
        {"enum": [{"properties": {"a": 1}, "$ref": "#/no"}]},
        [{"properties": {"a": 1}, "$ref": "#/no"}],
        [{}],
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
@pytest.mark.parametrize("call", [False, True], ids=["answer", "call"])
def test_a_schema_is_followed(tokens: Any, model: OmniDraft, name: str, call: bool) -> None:
    schema, fits, fails = FOLLOWED[name]
    if call:
        other = {"name": "other", "parameters": {"$defs": {"n": {"type": "null"}, "Base": {}}, "$ref": "#/$defs/n"}}
        grammar = answer_grammar(tokens, None, [other, {"name": "this", "parameters": strict(tokens, schema)}], None)
    else:
        grammar = answer_grammar(tokens, ResponseFormat("json", strict(tokens, schema), ""), [], None)
    for value in (*fits, *fails):
        whole = {"name": "this", "arguments": value} if call else value
        assert accepts(tokens, model, grammar, whole) == (value in fits), value


@pytest.mark.parametrize(
    "parameters",
    [
        *(None, {}, {"type": "object"}, {"type": "object", "properties": {}}, {"type": "object", "required": []}),
        {"type": "object", "properties": None, "required": None},
    ],
)
def test_a_function_without_parameters_gets_none(tokens: Any, model: OmniDraft, parameters: Any) -> None:
    function = {"name": "now"} | ({} if parameters is None else {"parameters": strict(tokens, parameters)})
    grammar = answer_grammar(tokens, None, [function], None)
    assert accepts(tokens, model, grammar, {"name": "now", "arguments": {}})
    assert not accepts(tokens, model, grammar, {"name": "now", "arguments": {"a": 1}})


LOOP = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#"}, r"\$ref '#' has no end"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, r"\$ref '#/\$defs/a' has no end"),
    (LOOP, "has no end"),
    ({"type": "object", "properties": {"x": LOOP}, "$defs": LOOP["$defs"]}, "has no end"),
    ({"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, INTEGER]}}, "$ref": "#/$defs/a"}, "has no end"),
    ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}, "has no end|leads back"),
    ({"$defs": {"n": NODE | {"required": ["next"]}}, "$ref": "#/$defs/n"}, r"'#/\$defs/n' has no end"),
    ({"properties": {"x": {"$ref": "#/$defs/n"}}, "$defs": {"n": NODE | {"required": ["next"]}}}, "has no end"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "'#' has no end"),
    ({"$ref": "#/$defs/none"}, r"a reference names nothing in the schema \(/\$defs/none\)"),
    ({"$ref": "https://example.com/x.json#/a"}, "leads out of the schema"),
    ({"$ref": 5}, r"\$ref must be a string"),
    ({"$ref": "#/type", "type": "object"}, "schema must be an object"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "string"}}, "not"),
    ({"type": "object", "propertyNames": {"pattern": "^x"}}, "propertyNames"),
    ({"type": "object", "propertyNames": {"$ref": "#/propertyNames"}}, "propertyNames"),
    ({"type": "object", "propertyNames": {"$ref": "#/$defs/none"}}, "propertyNames"),
    ({"patternProperties": {"^x": {}}, "properties": 5, "required": ["a"]}, "properties"),
    ({"if": {}, "then": {}}, "if"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "no"}, "no"),
    ({"properties": 5, "allOf": 3, "required": "x", "$defs": [1], "items": {"properties": []}}, "properties"),
]


@pytest.mark.parametrize(("schema", "words"), UNFIT, ids=[each[1] for each in UNFIT])
def test_what_cannot_be_followed_is_named(tokens: Any, schema: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        strict(tokens, schema)
    assert "<state>" not in str(raised.value)


def test_names_that_are_too_many_to_list_are_refused(tokens: Any) -> None:
    names = [f"k{place}" for place in range(MAX_LISTED + 1)]
    with pytest.raises(ConfigError, match="propertyNames"):
        strict(tokens, {"type": "object", "propertyNames": {"enum": names}})


HARD = {"type": "string", "pattern": "^(a|b)*a(a|b){20}$", "minLength": 500, "maxLength": 600}
WORD = {"type": "string", "pattern": r"\bfoo\b"}
DEEP = {"type": "object", "properties": {"o": {"type": "array", "items": {"type": "object", "properties": {"x": 5}}}}}
AT_FAULT: list[tuple[dict[str, Any], str, str]] = [  # schema, what is wrong with it, and what a reader looks for in it
    (HARD, "a pattern is too much to follow", "(^(a|b)*a(a|b){20}$)"),
    ({"type": "array", "items": {"anyOf": [INTEGER, WORD]}}, "look-around, which word", r"(\bfoo\b)"),
    ({"properties": {"x": {"type": "string", "pattern": "(a"}}}, "unclosed group", "((a)"),
    ({"properties": {"x": {"type": "string", "pattern": "(?=a)b/"}}}, "look-ahead", "((?=a)b/)"),
    ({"properties": {"x": {"type": "number", "maximum": 1e300}}}, "bounds of a number", "(1e300)"),
    ({"format": "uri", "pattern": "^(([a-z]{2,9}){3,9}x)+$", "maxLength": 60}, "a pattern", "(([a-z]{2,9}){3,9}x)+"),
    ({"properties": {"x": {"type": "array", "uniqueItems": True}}}, "not supported", "properties.x.uniqueItems: "),
    ({"properties": {"x": {"type": "no"}}}, "Invalid type", "no"),
    ({"properties": {"x": {"minimum": "one"}}}, "Expected f64", "'minimum', got \"one\""),
    ({"properties": {"x": {"patternProperties": {"^a": {}, "a$": {}}}}}, "several of the patterns", "(^a)"),
    ({"properties": {"x": {"$ref": "#/$defs/none"}}}, "a reference names nothing", "(/$defs/none)"),
    ({"properties": {"x": {"$ref": "other.json"}}}, "leads out of the schema", "other.json"),
    ({"properties": {"x": "string"}}, "is no schema", "properties.x "),
    (DEEP, "is no schema", "properties.o.items.properties.x "),
]
INTERNALS = re.compile(r"\(And|\(Or|Regex|regex|Some\(|Unimplemented|while processing|json-schema:|\n")


@pytest.mark.parametrize(("schema", "words", "value"), AT_FAULT, ids=[each[2] for each in AT_FAULT])
def test_what_is_at_fault_is_said_as_it_is_in_the_schema(
    tokens: Any, schema: dict[str, Any], words: str, value: str
) -> None:
    """In a large schema, it is what to search for."""
    large = {"type": "object", "properties": {f"k{place}": INTEGER for place in range(200)} | {"last": schema}}
    for each in (schema, large):
        with pytest.raises(ConfigError) as raised:
            strict(tokens, each)
        assert words in str(raised.value)
        assert value in str(raised.value)
        assert not INTERNALS.search(str(raised.value))


def test_patterns_that_look_around_are_left_out_where_a_schema_is_not_strict(tokens: Any) -> None:
    mail = {"type": "string", "pattern": r"^(?!\.)[a-z.]+@[a-z.]+$"}
    kept = {"type": "string", "pattern": "^x$"}
    schema: dict[str, Any] = {"properties": {"a": WORD, "b": mail, "c": kept}, "required": ["b"]}
    made, places = followed(tokens, schema)
    assert places == ["properties.a.pattern", "properties.b.pattern"]
    assert made["properties"] == {"a": {"type": "string"}, "b": {"type": "string"}, "c": kept}
    with pytest.raises(ConfigError, match="Invalid type: no"):
        followed(tokens, {"properties": {"a": WORD, "x": {"type": "no"}}})


def test_the_size_of_what_is_made_is_bounded() -> None:
    parts = [{"properties": {f"k{place}": {"$ref": "#/$defs/a"}}} for place in range(2000)]
    with pytest.raises(ConfigError, match=f"more than {MAX_PARTS} parts"):
        closed({"$defs": {"a": BASE}, "allOf": parts})


def test_functions_with_one_address_keep_their_own_definitions(tokens: Any, model: OmniDraft) -> None:
    functions = [
        {"name": name, "parameters": strict(tokens, {"$id": "https://e.com/s", "$defs": {"x": kind}, **TAKES_X})}
        for name, kind in (("one", INTEGER), ("two", {"type": "boolean"}))
    ]
    grammar = answer_grammar(tokens, None, functions, None)
    for name, value in (("one", 1), ("two", True)):
        assert accepts(tokens, model, grammar, {"name": name, "arguments": {"a": value}})
        assert not accepts(tokens, model, grammar, {"name": name, "arguments": {"a": "b"}})
    assert not accepts(tokens, model, grammar, {"name": "one", "arguments": {"a": True}})
    assert not accepts(tokens, model, grammar, {"name": "two", "arguments": {"a": 1}})


@pytest.mark.parametrize("thought", [None, Thought("</think>", special=False)])
def test_a_grammar_may_refer_to_its_beginning(tokens: Any, model: OmniDraft, thought: Thought | None) -> None:
    form = ResponseFormat("grammar", 'root ::= "a" root | "b start"', "")
    matcher = LLMatcher(tokens, answer_grammar(tokens, form, [], thought))
    text = ("" if thought is None else "x</think>") + "aab start"
    ids = model.target.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert matcher.try_consume_tokens(ids) == len(ids)
    assert matcher.is_accepting()


# ---------------------------------------------------------------- on the server


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": BASE}}]
)
def test_each_of_several_answers_has_a_grammar_of_its_own(server: At, form: dict[str, Any]) -> None:
    for seed in range(3):
        asked = {"messages": user(QUESTION), "temperature": 1, "seed": seed, "n": 3, "max_tokens": 48}
        found = server.post("/v1/chat/completions", asked | {"response_format": form})
        assert found.status_code == 200, found.text
        for choice in found.json()["choices"]:
            text = choice["message"]["content"]
            assert text.lstrip().startswith("{")
            assert choice["finish_reason"] == "length" or isinstance(json.loads(text), dict)


TREE = {
    "type": "object",
    "properties": {"kind": {"$ref": "#/$defs/Kind"}, "left": {"$ref": "#/$defs/Leaf"}},
    "required": ["kind", "left"],
    "$defs": {
        "Kind": {"enum": ["oak", "elm"]},
        "Leaf": {
            "type": "object",
            "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}},
            "required": ["n"],
        },
    },
}
HOUSE = {"type": "object", "properties": {"kind": {"$ref": "#/$defs/Kind"}}, "required": ["kind"]}
HOUSE |= {"$defs": {"Kind": {"enum": ["flat", "hut"]}}}


@pytest.mark.medium
@pytest.mark.parametrize("choice", ["required", "plant", "build"])
def test_calls_follow_the_definitions_of_their_own_function(server: At, choice: str) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
        for name, schema in (("plant", TREE), ("build", HOUSE))
    ]
    named = {"type": "function", "function": {"name": choice}}
    asked = {"tools": tools, "tool_choice": choice if choice == "required" else named, "max_tokens": 96}
    found = server.post("/v1/chat/completions", {"messages": user(QUESTION), "temperature": 1, "seed": 5, **asked})
    assert found.status_code == 200, found.text
    (call,) = found.json()["choices"][0]["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "plant":
        assert arguments["kind"] in ("oak", "elm")
        assert set(arguments) == {"kind", "left"}
        assert set(arguments["left"]) == {"n"}
    else:
        assert set(arguments) == {"kind"}
        assert arguments["kind"] in ("flat", "hut")
    others = {"required": [], "plant": ["tools[1]"], "build": ["tools[0]"]}[choice]  # strict is kept
    assert found.json().get("omnidraft", {}).get("ignored", []) == others


def test_the_function_at_fault_is_named(server: At) -> None:
    bad = {"type": "object", "properties": {"x": LOOP}, "$defs": LOOP["$defs"]}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in (("a", TREE), ("b", bad))
    ]
    refused = server.post("/v1/chat/completions", {"messages": user("x"), "tools": tools, "tool_choice": "required"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[1].function.parameters"
    assert "$ref '#/$defs/" in refused.json()["error"]["message"]
