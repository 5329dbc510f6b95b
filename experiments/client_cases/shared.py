"""What the cases share: a table of libraries, a function with nested types, and what is to come back."""

from __future__ import annotations

import json
from typing import Any

MODEL, KEY = "echo", "none"
UNITS = ("celsius", "fahrenheit")
ARGUMENTS = {"place": {"city": "Paris", "days": [1, 2]}, "unit": "celsius"}
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
SAY = f"SAY Let me see.\n{CALL}"
THINK = SAY.replace("SAY ", "SAY <think>Hm.</think>")
FORM = f"SAY {json.dumps(ARGUMENTS)}"
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
    "properties": {"place": {"$ref": "#/$defs/Place"}, "unit": {"enum": list(UNITS)}},
    "required": ["place", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a place", "parameters": SCHEMA}
COLUMNS = {  # and the method that tries it
    "chat": "chat", "stream": "stream", "tools": "tools", "nested types": "nested", "strict": "strict",
    "a form": "form", "whole message back": "back",
}  # fmt: skip


class Client:
    """A library: its package, and for each case that it has a form for a method."""

    package: str

    def __init__(self, url: str) -> None:
        self.url = url

    @classmethod
    def cases(cls) -> list[str]:
        """The columns that can be tried with it."""
        return [name for name, method in COLUMNS.items() if hasattr(cls, method)]

    def run(self, case: str) -> None:
        """Try a case, by its column."""
        getattr(self, COLUMNS[case])()


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
