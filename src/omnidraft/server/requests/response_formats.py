"""The form that a body asks its answer to have, under any of its names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from omnidraft.server.errors import ApiError
from omnidraft.server.grammars.grammar import Kind, ResponseFormat
from omnidraft.server.grammars.json_schemas import plain
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
    forms = [] if first is None else [first]
    for name, kind in GUIDED:
        if (value := getattr(body, name)) is not None and value != "":
            forms.append(_form(kind, value, name))
    if (outputs := body.structured_outputs) is not None:
        constraints = {kind: getattr(outputs, "json_" if kind == "json" else kind) for kind in KINDS}
        stated = {kind: value for kind, value in constraints.items() if value is not None}
        forms += [_form(kind, value, f"structured_outputs.{kind}") for kind, value in stated.items()]
        if outputs.json_object:
            forms.append(ResponseFormat("json", ANY_OBJECT, "structured_outputs.json_object"))
    if other := next((each for each in forms if each.said != forms[0].said), None):
        message = f"{forms[0].parameter} and {other.parameter} give the answer different forms: leave one out"
        raise ApiError(400, message, param=other.path, code="invalid_value")
    return max(forms, key=lambda each: each.strict, default=None)


def form_of_format(form: Any, path: str) -> ResponseFormat | None:
    """The form that a `response_format` or a response's `text.format` asks for; None for free text."""
    if isinstance(form, base.ChatSchemaFormat) and form.schema_ is None:
        name = "json_schema" if form.value is None else "value"
        form, path = getattr(form, name), f"{path}.{name}"
        if form is None:
            raise ApiError(400, f"{path} is missing: give it", param=path, code="missing_required_parameter")
    if isinstance(form, base.RegexFormat):
        return ResponseFormat("regex", form.value, f"{path}.value")
    if isinstance(form, base.ObjectFormat) and form.value is not None:
        return _form("json", form.value, f"{path}.value")
    if isinstance(form, base.ObjectFormat | base.ChatSchemaFormat):
        return ResponseFormat("json", form.schema_ or ANY_OBJECT, f"{path}.schema")
    if isinstance(form, base.JsonSchema):
        return ResponseFormat("json", form.schema_, f"{path}.schema", bool(form.strict))
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
