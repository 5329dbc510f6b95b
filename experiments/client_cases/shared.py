"""What the cases share: a table of libraries, a function with nested types, and what is to come back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MODEL, KEY = "echo", "none"
PLACE = {"city": "Paris", "days": [1, 2]}
ARGUMENTS = {"place": PLACE, "unit": "celsius"}
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
SAY = f"SAY Let me see.\n{CALL}"
RESULT = "21 degrees"
SAID = f"The function says {RESULT}"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "Place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
            "required": ["city", "days"],
            "additionalProperties": False,
        }
    },
    "properties": {"place": {"$ref": "#/$defs/Place"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["place", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a place", "parameters": SCHEMA}
Case = Callable[[str], None]


@dataclass(frozen=True)
class Client:
    """A library: its package, how it is set up in two lines, and what is tried with it."""

    package: str
    setup: str
    cases: dict[str, Case] = field(default_factory=dict)

    def case(self, name: str) -> Callable[[Case], Case]:
        """Add a case."""

        def add(case: Case) -> Case:
            self.cases[name] = case
            return case

        return add


CHAT, STREAM, TOOLS = "chat", "stream", "tools"
NESTED, STRICT, FORM, BACK = "nested types", "strict", "a form", "whole message back"
COLUMNS = (CHAT, STREAM, TOOLS, NESTED, STRICT, FORM, BACK)


def same(found: Any, expected: Any) -> None:
    """Raise ValueError where two things differ."""
    if found != expected:
        raise ValueError(f"{found!r} is not {expected!r}")


def models() -> tuple[Any, Any]:
    """Types with another type in them, made where they are used, as each library has a pydantic of its own."""
    from typing import Literal

    from pydantic import BaseModel, create_model

    place = create_model("Place", city=(str, ...), days=(list[int], ...), __base__=BaseModel)
    kinds: Any = Literal["celsius", "fahrenheit"]
    return place, create_model("Weather", place=(place, ...), unit=(kinds, ...), __base__=BaseModel)


def told(text: str) -> list[dict[str, str]]:
    """A conversation of one message."""
    return [{"role": "user", "content": text}]


def tools(*, strict: bool) -> list[dict[str, Any]]:
    """The function as a tool of a chat."""
    return [{"type": "function", "function": {**FUNCTION, "strict": strict}}]


def openai_client(url: str) -> Any:
    """OpenAI's own client."""
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)
