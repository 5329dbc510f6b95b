"""Bodies of requests in the form of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag

from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import fields as base
from omnidraft.server.requests.unsupported_parameters import TEXT_ALONE, Fixes, each

Format = Annotated[
    Annotated[Literal["", "json"], Tag("~string")] | Annotated[base.Schema, Tag("~object")],
    base.of_kind('"json" or a schema'),
]
Think = Annotated[Annotated[bool, Tag("~boolean")] | Annotated[str, Tag("~string")], base.of_kind("true or false")]


class Asked(base.Body):
    """Fields of all requests; `stream` is true by default, `top_logprobs` is for `logprobs` alone."""

    refused: ClassVar[Fixes] = each(TEXT_ALONE, "images")

    model: str
    stream: bool | None = None
    logprobs: bool | None = None
    top_logprobs: base.TopLogprobs | None = None
    format: Format | None = None
    options: dict[str, Any] | None = None
    think: Think | None = None
    omnidraft: base.Extension | None = None


class OllamaChat(Asked):
    """Body of `/api/chat`."""

    messages: list[dict[str, Any]] = Field(default_factory=list)  # as in a chat, but for names
    tools: list[Annotated[Annotated[p.Tool, Tag("~object")] | p.Other, p.TOOL]] | None = None


class OllamaGenerate(Asked):
    """Body of `/api/generate`; `raw`: the prompt is no user's words, but the text to go on with.

    `context`: the token ids of the conversation so far, as an answer before told them.
    """

    prompt: str = ""
    system: str | None = None
    suffix: str | None = None
    raw: bool | None = None
    context: list[base.Token] | None = None

    @property
    def plain(self) -> bool:
        """True of a prompt that no chat template is for."""
        return bool(self.raw or self.suffix)


class OllamaShow(base.Body):
    """Body of `/api/show`; `name` is its older name for the model, and the others are without effect."""

    model: str | None = None
    name: str | None = None
    system: str | None = None
    options: dict[str, Any] | None = None


class OllamaPull(base.Body):
    """Body of `/api/pull`; `name` is its older name for the model."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
