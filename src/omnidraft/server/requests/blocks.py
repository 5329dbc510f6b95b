"""Blocks of content in Anthropic's form, of which messages of other APIs may have some, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

from pydantic import Discriminator, Field, Tag

from omnidraft.server.requests import fields as base


class ToolUse(base.Body):
    """A call that the model made before."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)


class Thinking(base.Body):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str = ""


class HasText(Protocol):
    """Whatever has a text to tell."""

    @property
    def text(self) -> str:
        """The text."""


class TextBlock(base.Body):
    """Text."""

    type: Literal["text"]
    text: str


def joined(content: str | Sequence[HasText]) -> str:
    """The text of some blocks, a line for each."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


Text = Annotated[TextBlock, Tag("~text")]
Texts = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[Annotated[Text, base.named("type", "text")]], Tag("~list")],
    base.of_kind("a string or a list of blocks"),
]


class ToolReference(base.Body):
    """A tool that a search for tools found; it is among those of the request."""

    type: Literal["tool_reference"]
    tool_name: str

    @property
    def text(self) -> str:
        """What the model is told of it."""
        return f"The tool {self.tool_name} can be called."


class SearchResult(base.Body):
    """What a search has found."""

    type: Literal["search_result"]
    title: str = ""
    source: str = ""
    content: Texts = ""

    @property
    def text(self) -> str:
        """What the model is told of it."""
        return "\n".join(each for each in (self.title, self.source, joined(self.content)) if each)


class PlainSource(base.Body):
    """The text of a document."""

    type: Literal["text"]
    data: str

    @property
    def text(self) -> str:
        """The text."""
        return self.data


class BlockSource(base.Body):
    """A document in blocks."""

    type: Literal["content"]
    content: Texts

    @property
    def text(self) -> str:
        """The text of all blocks."""
        return joined(self.content)


class Document(base.Body):
    """A document of text; the model is told its title and what its sender says of it, too."""

    type: Literal["document"]
    title: str | None = None
    context: str | None = None
    source: Annotated[
        Annotated[PlainSource, Tag("~text")] | Annotated[BlockSource, Tag("~content")],
        base.named("type", "text or content, as the model reads text alone"),
    ]

    @property
    def text(self) -> str:
        """What the model is told of it."""
        return "\n".join(each for each in (self.title, self.context, self.source.text) if each)


SHOWN = Annotated[SearchResult, Tag("~search_result")] | Annotated[Document, Tag("~document")]


def _result(value: Any) -> str | None:
    kind = base.value_of(value, "type", "")
    if kind == "document":  # of text, or else a file
        source = base.value_of(value.get("source"), "type", "")
        return "~media" if isinstance(source, str) and source not in ("text", "content", "") else "~document"
    return f"~{base.MEDIA.get(kind, kind)}" if isinstance(kind, str) else None


Found = Annotated[
    Text | Annotated[ToolReference, Tag("~tool_reference")] | SHOWN | Annotated[base.Media, Tag("~media")],
    Discriminator(_result, base.NAMED["type"], "text, search_result, document or tool_reference"),
]


class Result(base.Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[Found], Tag("~list")],
        base.of_kind("a string or a list of blocks"),
    ] = ""
    is_error: bool | None = None

    @property
    def text(self) -> str:
        """What the model is told of it."""
        return ("Error: " if self.is_error else "") + joined(self.content)
