"""Bodies of chats and completions, as OpenAI's clients send them; `unsupported_parameters` has what else is taken.

Which of several types a value is of is decided by its own type, `type` or `role`: an error names the item at fault.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    FailFast,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from omnidraft.server.grammars.json_schemas import encodable
from omnidraft.server.requests import blocks
from omnidraft.server.requests.fields import (
    KINDS,
    MEDIA,
    OF_KIND,
    Body,
    Formed,
    Length,
    Media,
    Reasoning,
    Schema,
    ThinkingChoice,
    Token,
    TopLogprobs,
    Variables,
    named,
    of_kind,
    value_of,
)
from omnidraft.server.requests.replays import text_in
from omnidraft.server.requests.unsupported_parameters import MESSAGES, OUT, SAMPLED, Fixes, each

# ---------------------------------------------------------------- chat


class TextPart(Body):
    """Text of a message, the only kind of content there is."""

    type: Literal["text", "input_text", "output_text"]
    text: str


class RefusalPart(Body):
    """Text of an answer that refused."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[
    Annotated[TextPart, Tag("~text")] | Annotated[RefusalPart, Tag("~refusal")],
    named("type", "text", input_text="text", output_text="text"),
]
Content = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[Part], Tag("~list")], of_kind("a string or a list of parts")
]
Result = Annotated[
    Annotated[TextPart, Tag("~text")] | Annotated[RefusalPart, Tag("~refusal")] | Annotated[Media, Tag("~media")],
    named("type", "text", input_text="text", output_text="text", **MEDIA),
]
Results = Annotated[
    Annotated[str, Tag("~string")] | Annotated[list[Result], Tag("~list")], of_kind("a string or a list of parts")
]
Arguments = Annotated[
    Annotated[str, Tag("~string")] | Annotated[dict[str, Any], Tag("~object")], of_kind("JSON in a string")
]


class CalledFunction(Body):
    """A function and its arguments in JSON."""

    name: str
    arguments: Arguments = "{}"


class ToolCall(Body):
    """A call that the model made before."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    @property
    def called(self) -> tuple[str, str | dict[str, Any]]:
        """The name of what is called, and its arguments."""
        return self.function.name, self.function.arguments


class CalledCustom(Body):
    """A tool that is no function, and the text that it is given."""

    name: str
    input: str = ""


class CustomCall(Body):
    """A call of a tool that is no function, which was made elsewhere."""

    id: str | None = None
    type: Literal["custom"]
    custom: CalledCustom

    @property
    def called(self) -> tuple[str, str | dict[str, Any]]:
        """The name of what is called, and its arguments."""
        return self.custom.name, {"input": self.custom.input}


AnyCall = Annotated[
    Annotated[ToolCall, Tag("~function")] | Annotated[CustomCall, Tag("~custom")],
    named("type", "function or custom", "function"),
]


class Thought(BaseModel, extra="allow"):
    """Reasoning of an earlier answer among the parts of its content, as other APIs and libraries have it."""

    type: Literal["thinking", "reasoning", "redacted_thinking"]

    @property
    def text(self) -> str:
        """What of it is text."""
        held = self.model_extra or {}
        return text_in([held.get(name) for name in ("thinking", "reasoning", "text", "summary")])


SaidPart = Annotated[
    Annotated[TextPart, Tag("~text")]
    | Annotated[RefusalPart, Tag("~refusal")]
    | Annotated[blocks.Result, Tag("~tool_result")],
    named("type", "text or tool_result", input_text="text", output_text="text"),
]
AnswerPart = Annotated[
    Annotated[TextPart, Tag("~text")]
    | Annotated[RefusalPart, Tag("~refusal")]
    | Annotated[Thought, Tag("~thinking")]
    | Annotated[blocks.ToolUse, Tag("~tool_use")],
    named(
        *("type", "text, thinking or tool_use"),
        input_text="text",
        output_text="text",
        reasoning="thinking",
        redacted_thinking="thinking",
    ),
]


class Said(Body):
    """A message of rules or of a user; `name` goes to the chat template, if it has a place for it.

    Results of tools among its parts, as Anthropic has them, are messages of their own.
    """

    role: Literal["system", "developer", "user"]
    content: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[SaidPart], Tag("~list")], of_kind("a string or a list of parts")
    ]
    name: str | None = None


class AssistantMessage(Body):
    """An earlier answer of the model; its reasoning goes to the chat template, if it has a place for it."""

    role: Literal["assistant"]
    content: (
        Annotated[
            Annotated[str, Tag("~string")] | Annotated[list[AnswerPart], Tag("~list")],
            of_kind("a string or a list of parts"),
        ]
        | None
    ) = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # another name for it
    refusal: str | None = None  # in place of content
    tool_calls: list[AnyCall] | None = None


class ToolResult(Body):
    """The result of a function call."""

    role: Literal["tool"]
    content: Results = ""
    name: str | None = None
    tool_call_id: str = ""  # without one, it is the next call's


class Control(Body):
    """A switch of Granite's among the messages, as Ollama takes it: "thinking" turns reasoning on."""

    role: Literal["control"]
    content: Content


Message = Annotated[
    Annotated[Said, Tag("~user")]
    | Annotated[AssistantMessage, Tag("~assistant")]
    | Annotated[ToolResult, Tag("~tool")]
    | Annotated[Control, Tag("~control")],
    named("role", "system, developer, user, assistant or tool", system="user", developer="user"),
]


FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,128}$")]  # as long as Anthropic's and MCP's may be


class FunctionSchema(Body):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool, which is a function; also as responses have it, or Anthropic: without an object of its own."""

    type: Literal["function"] = "function"
    function: FunctionSchema

    @model_validator(mode="before")
    @classmethod
    def in_its_own_object(cls, tool: Any) -> Any:
        """The tool as chats have it."""
        if not isinstance(tool, dict) or "function" in tool or "name" not in tool:
            return tool
        named = {"parameters" if key == "input_schema" else key: value for key, value in tool.items() if key != "type"}
        return {"function": named}


class OtherTool(BaseModel, extra="allow"):
    """A tool that is no function, of which nothing but its type is read: none is run here."""

    type: Annotated[str, Field(json_schema_extra={"not": {"const": "function"}})]


def kind_of_tool(value: Any) -> str:
    """The tag of a tool: that of functions, or of others, which are ignored."""
    kind = value_of(value, "type", "function")
    return "~other" if isinstance(kind, str) and kind != "function" else f"~{KINDS.get(type(value))}"


class NamedFunction(Body):
    """A function by its name."""

    name: str


class NamedTool(Body):
    """A function by its name: in an object of its own in chats, beside the type in responses and as Anthropic has it.

    Anthropic calls it a tool.
    """

    type: Literal["function", "tool"] = "function"
    name: str | None = None
    function: NamedFunction | None = None

    @property
    def called(self) -> str:
        """Its name; empty where it has none."""
        return self.name or (self.function.name if self.function else "")


Other = Annotated[OtherTool, Tag("~other")]
TOOL = Discriminator(kind_of_tool, OF_KIND, "an object")
AllowedTool = Annotated[Annotated[NamedTool, Tag("~object")] | Other, TOOL]


class AllowedList(Body):
    """Functions, of which one may be called, or must."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[AllowedTool]


class AllowedTools(Body):
    """The functions that may be called: in an object of their own in chats, beside the type in responses."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedList | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None

    @property
    def required(self) -> bool:
        """True where one must be called."""
        return (self.allowed_tools.mode if self.allowed_tools else self.mode) == "required"

    @property
    def names(self) -> frozenset[str]:
        """The names of those that may be called."""
        tools = self.allowed_tools.tools if self.allowed_tools else self.tools or []
        return frozenset(each.called for each in tools if isinstance(each, NamedTool))


class ChoiceInObject(Body):
    """A word in an object, as Anthropic has it."""

    type: Literal["none", "auto", "required", "any"]


CHOICES = {
    "allowed_tools": "~allowed",
    "tool": "~object",
    **dict.fromkeys(("none", "auto", "required", "any"), "~word"),
}


def _choice(value: Any) -> str:
    kind = value_of(value, "type", "function")
    return CHOICES.get(kind if isinstance(kind, str) else "", "") or kind_of_tool(value)


Allowed = Annotated[AllowedTools, Tag("~allowed")]
Word = Annotated[Literal["none", "auto", "required", "any"], Tag("~string")]  # any: Mistral's word for required
ToolChoice = Annotated[
    Word | Annotated[ChoiceInObject, Tag("~word")] | Annotated[NamedTool, Tag("~object")] | Allowed | Other,
    Discriminator(_choice, OF_KIND, "none, auto, required, or an object that names a function"),
]


class ChatRequest(Formed):
    """Body of `/v1/chat/completions`."""

    refused: ClassVar[Fixes] = {
        **SAMPLED,
        **MESSAGES,
        **each("use tools", "functions"),
        **each(OUT, "chat_template"),
        **each("give their text in messages", "documents"),
        **each("only text can be generated: use ['text']", "modalities"),
    }

    messages: Annotated[list[Message], Field(min_length=1), FailFast()]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    n_predict: Length | None = None  # llama.cpp's name for it
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Annotated[Annotated[Tool, Tag("~object")] | Other, TOOL]] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingChoice | None = None
    chat_template_kwargs: Variables | None = None
    reasoning_format: str | None = None  # "none": reasoning is in the content
    include_reasoning: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


def _prompt(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else None
    listed = "~texts" if isinstance(first, str) else "~lists" if isinstance(first, list) else "~tokens"
    return listed if isinstance(value, list) else f"~{KINDS.get(type(value))}"


class CompletionRequest(Formed):
    """Body of `/v1/completions`."""

    refused: ClassVar[Fixes] = {**SAMPLED, **each("use max_tokens", "max_completion_tokens")}

    prompt: Annotated[
        Annotated[str, Tag("~string")]
        | Annotated[list[str], Tag("~texts")]
        | Annotated[list[Token], Tag("~tokens")]
        | Annotated[list[list[Token]], Tag("~lists")],
        Discriminator(_prompt, OF_KIND, "a string or a list of token ids"),
    ]
    max_tokens: Length | None = None
    n_predict: Length | None = None
    logprobs: TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None

    @field_validator("logprobs", mode="before")
    @classmethod
    def of_chats(cls, value: Any) -> Any:
        """As chats say it: those of the token itself, or none."""
        return {True: 0, False: None}[value] if isinstance(value, bool) else value


Encodable = Annotated[str, AfterValidator(encodable)]


class TokenizeRequest(Body):
    """Body of `/tokenize` as in llama-server, with `content`, or vLLM, with `prompt` or a conversation.

    `add_special` and `add_special_tokens`, which is true by default: with the token that begins a text; `with_pieces`
    and `return_token_strs`: each with its text.
    """

    refused: ClassVar[Fixes] = each(OUT, "parse_special")

    model: str | None = None
    content: Encodable | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None
    prompt: Encodable | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Variables | None = None


class DetokenizeRequest(Body):
    """Body of `/detokenize`."""

    tokens: list[Token]
    model: str | None = None
