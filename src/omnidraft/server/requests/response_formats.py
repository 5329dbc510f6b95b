"""The form that a body asks its answer to have, under any of its names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from omnidraft.server.errors import ApiError
from omnidraft.server.grammars.grammar import Kind, ResponseFormat
from omnidraft.server.grammars.schemas import plain
from omnidraft.server.requests import fields as base

ANY_OBJECT: dict[str, Any] = {"type": "object"}
KINDS: tuple[Kind, ...] = ("json", "regex", "choice", "grammar")
GUIDED: tuple[tuple[str, Kind], ...] = (
    ("guided_json", "json"),
    ("json_schema", "json"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
    ("grammar", "grammar"),
)


def form_of(body: base.Formed) -> ResponseFormat | None:
    """The form that a body asks for; None for free text.  Raises ApiError where it asks for two that differ."""
    first = form_of_format(body.response_format, "response_format")
    found = [] if first is None else [first]
    for name, kind in GUIDED:
        if (value := getattr(body, name)) is not None and value != "":
            found.append(_form(kind, value, name))
    if (given := body.structured_outputs) is not None:
        own = {kind: getattr(given, "json_" if kind == "json" else kind) for kind in KINDS}
        found += [_form(kind, own[kind], f"structured_outputs.{kind}") for kind in KINDS if own[kind] is not None]
        if given.json_object:
            found.append(ResponseFormat("json", ANY_OBJECT, "structured_outputs.json_object"))
    if other := next((each for each in found if each.said != found[0].said), None):
        message = f"{found[0].parameter} and {other.parameter} give the answer different forms: leave one out"
        raise ApiError(400, message, param=other.path, code="invalid_value")
    return max(found, key=lambda each: each.strict, default=None)


def form_of_format(given: Any, path: str) -> ResponseFormat | None:
    """The form that a `response_format` or a response's `text.format` asks for; None for free text."""
    if isinstance(given, base.ChatSchemaFormat) and given.schema_ is None:
        name = "json_schema" if given.value is None else "value"
        given, path = getattr(given, name), f"{path}.{name}"
        if given is None:
            raise ApiError(400, f"{path} is missing: give it", param=path, code="missing_required_parameter")
    if isinstance(given, base.RegexFormat):
        return ResponseFormat("regex", given.value, f"{path}.value")
    if isinstance(given, base.ObjectFormat) and given.value is not None:
        return _form("json", given.value, f"{path}.value")
    if isinstance(given, base.ObjectFormat | base.ChatSchemaFormat):
        return ResponseFormat("json", given.schema_ or ANY_OBJECT, f"{path}.schema")
    if isinstance(given, base.JsonSchema):
        return ResponseFormat("json", given.schema_, f"{path}.schema", bool(given.strict))
    return None


def _form(kind: Kind, value: Any, path: str) -> ResponseFormat:
    """A form by the name of its kind, with a schema that may come as JSON; raises ApiError."""
    if kind != "json" or not isinstance(value, str):
        return ResponseFormat(kind, value, path)
    try:
        schema = json.loads(value)
        if not isinstance(schema, Mapping):
            raise ValueError("it is no object: give a schema")
        return ResponseFormat(kind, plain(dict(schema)), path)
    except (ValueError, RecursionError) as error:
        why = "it is no JSON" if isinstance(error, json.JSONDecodeError) else shorten(str(error), 200)
        raise ApiError(400, f"{path} is not usable: {why}", param=path, code="invalid_value") from error
