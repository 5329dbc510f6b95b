"""Bodies of requests in the form of Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag

from omnidraft.server.grammars.json_schemas import whole
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import fields as base
from omnidraft.server.requests.replays import Replay
from omnidraft.server.requests.unsupported_parameters import STATELESS, Fixes, each


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
        return "~document" if base.value_of(value.get("source"), "type", "") in ("text", "content") else "~media"
    return f"~{base.MEDIA.get(kind, kind)}" if isinstance(kind, str) else None


Found = Annotated[
    Text | Annotated[ToolReference, Tag("~tool_reference")] | SHOWN | Annotated[base.Media, Tag("~media")],
    Discriminator(_result, base.NAMED["type"], "text, search_result, document or tool_reference"),
]


class ToolResult(base.Body):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[Found], Tag("~list")],
        base.of_kind("a string or a list of blocks"),
    ] = ""
    is_error: bool | None = None


BLOCKS = ("text", "tool_use", "tool_result", "thinking", "search_result", "document")


def _block(value: Any) -> str | None:
    kind = base.value_of(value, "type", "")
    return None if not isinstance(kind, str) else f"~{kind}" if kind in (*BLOCKS, *base.MEDIA, "") else "~replay"


Block = Annotated[
    Text
    | Annotated[ToolUse, Tag("~tool_use")]
    | Annotated[ToolResult, Tag("~tool_result")]
    | Annotated[Thinking, Tag("~thinking")]
    | SHOWN
    | Annotated[Replay, Tag("~replay")],
    Discriminator(_block, base.NAMED["type"], "text, tool_use, tool_result, thinking, search_result or document"),
]


class Message(base.Body):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[Block], Tag("~list")],
        base.of_kind("a string or a list of blocks"),
    ]


class Tool(base.Body):
    """A tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: p.FunctionName
    description: str | None = None
    input_schema: base.Schema
    strict: bool | None = None


def _tool(value: Any) -> str:
    kind = base.value_of(value, "type", "custom")
    return "~other" if isinstance(kind, str) and kind != "custom" else "~object"


class ToolChoice(base.Body):
    """The choice of tools to call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(base.Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[base.Schema, Field(alias="schema")]


class OutputConfig(base.Body):
    """Effort and form of the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(base.Body):
    """Whose request it is."""

    user_id: str | None = None


class CountRequest(base.Body):
    """Body of `/v1/messages/count_tokens`."""

    refused: ClassVar[Fixes] = each(STATELESS, "thread")

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1), FailFast()]
    system: Texts | None = None
    tools: list[Annotated[Annotated[Tool, Tag("~object")] | p.Other, Discriminator(_tool)]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: base.ThinkingChoice | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    """Body of `/v1/messages`."""

    output_format: OutputFormat | None = None  # as older clients call `output_config.format`
    max_tokens: base.Length | None = None
    stop_sequences: base.Stops | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1e30)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, BeforeValidator(whole), Field(ge=-1, le=2**31)] | None = None
    metadata: Metadata | None = None
    omnidraft: base.Extension | None = None
