"""Bodies of requests for responses, as OpenAI's clients send them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from omnidraft.server.requests.chat_bodies import (
    TOOL,
    Arguments,
    Content,
    FunctionName,
    FunctionSchema,
    Other,
    Results,
    ToolChoice,
    kind_of_tool,
)
from omnidraft.server.requests.fields import (
    NAMED,
    OF_KIND,
    Body,
    JsonSchema,
    Length,
    ObjectFormat,
    Options,
    Reasoning,
    TextFormat,
    TopLogprobs,
    Variables,
    named,
    of_kind,
    value_of,
)
from omnidraft.server.requests.replays import Replay
from omnidraft.server.requests.unsupported_parameters import STATELESS, Fixes, each


class MessageItem(Body):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None


class CallItem(Body):
    """A function call of an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Arguments = "{}"


class OutputItem(Body):
    """The result of a function call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Results = ""


class ReasoningPart(BaseModel, extra="allow"):
    """An entry of reasoning; what is no text is not read."""

    text: str | None = None


class ReasoningItem(BaseModel, extra="allow"):
    """The reasoning of the answer that follows: its text, or where there is none, its summary."""

    type: Literal["reasoning"]
    content: list[ReasoningPart] | None = None
    summary: list[ReasoningPart] | None = None

    @property
    def told(self) -> str:
        """Its text."""
        return "".join(each.text or "" for each in self.content or self.summary or ())


WHOLE = "nothing is kept here: send each item whole, as clients do with store false"
ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")


def _item(value: Any) -> str | None:
    kind = value_of(value, "type", "message")
    return None if not isinstance(kind, str) else f"~{kind}" if kind in ITEMS else "~replay"


Known = MessageItem | CallItem | OutputItem | ReasoningItem

Item = Annotated[
    Annotated[MessageItem, Tag("~message")]
    | Annotated[CallItem, Tag("~function_call")]
    | Annotated[OutputItem, Tag("~function_call_output")]
    | Annotated[ReasoningItem, Tag("~reasoning")]
    | Annotated[Replay, Tag("~replay")],
    Discriminator(_item, NAMED["type"], f"message, function_call, function_call_output or reasoning; {WHOLE}"),
]


class ResponseTool(FunctionSchema):
    """A function that the model may call; also as chats have it, in an object of its own."""

    type: Literal["function"]

    @model_validator(mode="before")
    @classmethod
    def without_an_object(cls, tool: Any) -> Any:
        """The tool as responses have it."""
        inner = tool.get("function") if isinstance(tool, dict) else None
        return {**inner, "type": "function"} if isinstance(inner, dict) and "name" not in tool else tool


class Namespace(Body):
    """Functions of one origin, as Codex gives those of an MCP server."""

    type: Literal["namespace"]
    name: FunctionName
    tools: list[Annotated[Annotated[ResponseTool, Tag("~object")] | Other, TOOL]]


def full_name(namespace: str | None, name: str) -> str:
    """The name by which the model knows a function."""
    return f"{namespace.rstrip('_')}__{name}" if namespace else name


def _response_tool(value: Any) -> str:
    held = isinstance(value, dict) and value.get("type") == "namespace"
    return "~namespace" if held else kind_of_tool(value)


ToolOfResponse = Annotated[
    Annotated[ResponseTool, Tag("~object")] | Annotated[Namespace, Tag("~namespace")] | Other,
    Discriminator(_response_tool, OF_KIND, "an object"),
]


class ResponseSchemaFormat(JsonSchema):
    """JSON of a schema."""

    type: Literal["json_schema"]


class ResponseText(Body):
    """The form of the answer."""

    format: (
        Annotated[
            Annotated[TextFormat, Tag("~text")]
            | Annotated[ObjectFormat, Tag("~json_object")]
            | Annotated[ResponseSchemaFormat, Tag("~json_schema")],
            named("type", "text, json_object or json_schema"),
        ]
        | None
    ) = None


class ResponseRequest(Options):
    """Body of `/v1/responses`: nothing is kept, so the whole conversation comes in `input`."""

    refused: ClassVar[Fixes] = {
        **each("use text.format", "response_format", "structured_outputs", "format", "json_schema", "grammar"),
        **each("use text.format", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        **each("use max_output_tokens", "max_tokens", "max_completion_tokens"),
        **each(STATELESS, "previous_response_id", "conversation"),
        **each("prompts are not kept here: send their text", "prompt"),
        **each("wait for the answer, or stream it", "background"),
    }

    input: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[Item], Field(min_length=1), Tag("~list")],
        of_kind("a string or a list of items"),
    ]
    instructions: str | None = None
    max_output_tokens: Length | None = None
    tools: list[ToolOfResponse] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    include: list[str] | None = None  # all but log-probabilities are of what is never there
    top_logprobs: TopLogprobs | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None  # comes back as it is
    reasoning: Reasoning | None = None
    chat_template_kwargs: Variables | None = None
