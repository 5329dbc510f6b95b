"""Chat templates, rendered as `apply_chat_template` of transformers does: same variables, filters and limits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from inspect import isfunction, ismethod
from typing import Any, NoReturn

import jinja2
import jinja2.meta
import numpy as np
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls  # noqa: N812  it is a class
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

REASONING = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning, the first is the usual one
DEFAULT, TOOL_USE = "default", "tool_use"  # names of templates
TAG = "OMNIDRAFT_ENDS_HERE "  # put at the end of a message that is to be continued; templates may strip the space


class _Generation(Extension):
    """`{% generation %}` marks what the model writes, which is of use in training alone."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node | list[jinja2.nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Dicts:
    """`dict` for templates: a class would give them its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _PlainNamespace(Namespace):
    """`namespace` without names by which a template would reach the inside of Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace of a chat template cannot hold {name!r}")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja2's own escapes the characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def chosen(
    templates: str | Mapping[str, str] | None, name: str | None = None, tools: Sequence[Any] | None = None
) -> str:
    """The template for a chat, of one or several by their names; raises ValueError where there is none.

    `name` is that of a template, or itself one.  Without it, the one called tool_use is for chats with tools.
    """
    if name is not None:
        return templates.get(name, name) if isinstance(templates, Mapping) else name
    if templates is None:
        raise ValueError("the tokenizer has no chat template")
    if isinstance(templates, str):
        return templates
    wanted = TOOL_USE if tools is not None and TOOL_USE in templates else DEFAULT
    if wanted not in templates:
        raise ValueError(f"the tokenizer has the chat templates {sorted(templates)}, and none of them is the default")
    return templates[wanted]


@lru_cache(maxsize=16)
def variables_of(template: str) -> frozenset[str]:
    """The names of the variables that a template reads; raises jinja2.TemplateError for one that is none."""
    return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(template)))


@lru_cache(maxsize=16)
def compiled(template: str) -> jinja2.Template:
    """The template as a program; raises jinja2.TemplateError for one that is none."""
    return _environment().from_string(template)


def _environment() -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControls]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),  # noqa: DTZ005  the user's day is meant
        "dict": _Dicts(),
        "namespace": _PlainNamespace,
    }
    return environment


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
    continue_final_message: bool | str = False,
    **variables: Any,
) -> str:
    """The text of these messages; raises whatever the template does, ValueError or TypeError for messages of no use.

    With `continue_final_message`, True or the name of the field to continue, it ends where the last message does.
    """
    chat = [
        _with_reasoning({key: value for key, value in plain(each).items() if value is not None}) for each in messages
    ]
    if not chat:
        raise ValueError("there are no messages")
    if continue_final_message and variables.get("add_generation_prompt"):
        raise ValueError("continue_final_message and add_generation_prompt exclude each other")
    program, final = compiled(template), ""
    if continue_final_message:
        name = continue_final_message if isinstance(continue_final_message, str) else "content"
        final = _tag(chat[-1], name, template)
    schemas = None if tools is None else [plain(_schema(tool)) for tool in tools]
    options = {
        "documents": None,
        "add_generation_prompt": False,
        **{name: plain(each) for name, each in variables.items()},
    }
    text = program.render(messages=chat, tools=schemas, **options)
    if not continue_final_message:
        return text
    place = text.rfind(TAG.strip())
    if place < 0 or final.strip() not in text:
        raise ValueError("the template leaves out the end of the final message, which so cannot be continued")
    return text[:place] if text.startswith(TAG, place) else text[:place].rstrip()


def _schema(tool: Mapping[str, Any] | Callable[..., Any]) -> Mapping[str, Any]:
    if isinstance(tool, Mapping):
        return tool
    if isfunction(tool) or ismethod(tool):
        from transformers.utils.chat_template_utils import get_json_schema

        schema: Mapping[str, Any] = get_json_schema(tool)
        return schema
    raise ValueError("a tool is a JSON schema, or a function with type hints and a docstring")


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under all names that templates read."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _tag(message: dict[str, Any], name: str, template: str) -> str:
    """Mark the end of a field of a message, and return its text."""
    value = message.get(name)
    if value is None:
        raise ValueError(f"the final message has no {name!r} to continue")
    names = [name]
    if name in REASONING:
        names = [each for each in REASONING if message.get(each) == value]
    if not any(each in template for each in names):
        raise ValueError(f"the template does not read {name!r} of the final message, which is to be continued")
    if isinstance(value, list | tuple):
        last = next((block for block in reversed(value) if "text" in block), None)
        if last is None:
            raise ValueError("the final message has no text to continue")
        text = str(last["text"])
        last["text"] = text + TAG
        return text
    for each in names:
        message[each] = value + TAG
    return str(value)


def plain(value: Any) -> Any:
    """The value as plain JSON types: a template could call the methods of anything else."""
    if value is None or isinstance(value, bool):
        return value
    if (kind := next((each for each in (str, int, float) if isinstance(value, each)), None)) is not None:
        return kind.__str__(value) if kind is str else kind(value)  # of an enum, what it is equal to
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    return _plain_object(value)


def _plain_object(value: Any) -> Any:
    if isinstance(value, np.generic):
        return plain(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic
        return plain(dump())
    return f"<{type(value).__name__}>"
