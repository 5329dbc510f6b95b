"""Bodies of requests in the form of Anthropic's Messages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from omnidraft.server import protocol as p
from omnidraft.server.schemas import whole


class ToolUse(p.Body):
    """A call that the model made before."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class Thinking(p.Body):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str


class Redacted(p.OtherTool):
    """Reasoning that only Anthropic can read."""


class TextBlock(p.Body):
    """Text."""

    type: Literal["text"]
    text: str


Text = Annotated[TextBlock, Tag("~text")]
Texts = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[Annotated[Text, p.named("type", "text")]], Tag("~list")],
    p.of_kind("a string or a list of blocks"),
]


class ToolResult(p.Body):
    """What a called tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts = ""
    is_error: bool | None = None


Block = Annotated[
    Text
    | Annotated[ToolUse, Tag("~tool_use")]
    | Annotated[ToolResult, Tag("~tool_result")]
    | Annotated[Thinking, Tag("~thinking")]
    | Annotated[Redacted, Tag("~redacted_thinking")],
    p.named("type", "text, tool_use, tool_result or thinking"),
]


class Message(p.Body):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[Block], Tag("~list")], p.of_kind("a string or a list of blocks")
    ]


class Tool(p.Body):
    """A tool that the client runs."""

    type: Literal["custom"] = "custom"
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]
    description: str | None = None
    input_schema: p.Schema
    strict: bool | None = None


def _tool(value: Any) -> str:
    kind = value.get("type", "custom") if isinstance(value, dict) else None
    return "~other" if isinstance(kind, str) and kind != "custom" else "~object"


class ToolChoice(p.Body):
    """Whether tools are to be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingChoice(p.Body):
    """Whether the model is to reason first, where its chat template has a place for that."""

    type: str


class OutputFormat(p.Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    schema_: Annotated[p.Schema, Field(alias="schema")]


class OutputConfig(p.Body):
    """Effort and form of the answer."""

    effort: str | None = None
    format: OutputFormat | None = None


class Metadata(p.Body):
    """Whose request it is."""

    user_id: str | None = None


class CountRequest(p.Body):
    """Body of `/v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)]
    system: Texts | None = None
    tools: list[Annotated[Annotated[Tool, Tag("~object")] | p.Other, Discriminator(_tool)]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingChoice | None = None
    output_config: OutputConfig | None = None


class MessagesRequest(CountRequest):
    """Body of `/v1/messages`."""

    max_tokens: p.Length | None = None
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1e30)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, BeforeValidator(whole), Field(ge=-1, le=2**31)] | None = None
    metadata: Metadata | None = None
    omnidraft: p.Extension | None = None
