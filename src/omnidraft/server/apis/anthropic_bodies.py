"""Bodies of requests in the form of Anthropic's Messages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag, model_validator

from omnidraft.server.grammars.json_schemas import whole
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import fields as base
from omnidraft.server.requests.blocks import SHOWN, Result, Text, Texts, Thinking, ToolUse
from omnidraft.server.requests.replays import Replay
from omnidraft.server.requests.unsupported_parameters import STATELESS, Fixes, each

BLOCKS = ("text", "tool_use", "tool_result", "thinking", "search_result", "document")


def _block(value: Any) -> str | None:
    kind = base.value_of(value, "type", "")
    return None if not isinstance(kind, str) else f"~{kind}" if kind in (*BLOCKS, *base.MEDIA, "") else "~replay"


Block = Annotated[
    Text
    | Annotated[ToolUse, Tag("~tool_use")]
    | Annotated[Result, Tag("~tool_result")]
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
    """A tool that the client runs; also as OpenAI's chats and responses have it."""

    type: Literal["custom", "function"] = "custom"
    name: p.FunctionName
    description: str | None = None
    input_schema: base.Schema
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def without_an_object(cls, tool: Any) -> Any:
        """The tool as Anthropic has it, whose functions may lack no schema."""
        if base.value_of(tool, "type", "") != "function":
            return tool
        inner = tool["function"] if isinstance(tool.get("function"), dict) else tool
        schema = inner.get("parameters") or {"type": "object"}
        return {"input_schema": schema, **{key: value for key, value in inner.items() if key != "parameters"}}


def _tool(value: Any) -> str:
    kind = base.value_of(value, "type", "custom")
    return "~other" if isinstance(kind, str) and kind not in ("custom", "function") else "~object"


class ToolChoice(base.Body):
    """The choice of tools to call; also in the words of OpenAI's chats and responses."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def in_an_object(cls, choice: Any) -> Any:
        """The choice as Anthropic has it."""
        if isinstance(choice, str):
            return {"type": "any" if choice == "required" else choice}
        if base.value_of(choice, "type", "") == "function":
            inner = choice["function"] if isinstance(choice.get("function"), dict) else choice
            return {"type": "tool", "name": inner.get("name")}
        return choice


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
