"""Bodies of requests in the form of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, Tag

from omnidraft.server import protocol as p
from omnidraft.server import protocol_base as base


class CalledFunction(base.Body):
    """A function and its arguments."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolCall(base.Body):
    """A call that the model made before."""

    function: CalledFunction


class Message(base.Body):
    """A message."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Options(BaseModel, extra="allow"):
    """Sampling and length; what says how Ollama runs a model has no effect here."""

    num_predict: int | None = None
    stop: str | list[str] | None = None


Format = Annotated[
    Annotated[Literal["", "json"], Tag("~string")] | Annotated[base.Schema, Tag("~object")],
    base.of_kind('"json" or a schema'),
]
Think = Annotated[Annotated[bool, Tag("~boolean")] | Annotated[str, Tag("~string")], base.of_kind("true or false")]


class Asked(base.Body):
    """What all requests have; `stream` is true without it."""

    model: str
    stream: bool | None = None
    format: Format | None = None
    options: Options | None = None
    think: Think | None = None
    omnidraft: base.Extension | None = None


class OllamaChat(Asked):
    """Body of `/api/chat`."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[Annotated[Annotated[p.Tool, Tag("~object")] | p.Other, p.TOOL]] | None = None


class OllamaGenerate(Asked):
    """Body of `/api/generate`; `raw`: the prompt is no user's words, but the text to go on with."""

    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None


class OllamaShow(base.Body):
    """Body of `/api/show`; `name` is its older name for the model."""

    model: str | None = None
    name: str | None = None
