"""Bodies of requests, as OpenAI's clients send them; `parameters` has what is taken beside these fields.

Which of several types a value is of is decided by its own type, `type` or `role`: an error names the item at fault.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from omnidraft.server.schemas import encodable, plain, whole

OF_KIND, NAMED = "of_kind", {"role": "named_by_role", "type": "named_by_type"}  # errors; their message: what may be
KINDS: dict[type, str] = {str: "string", list: "list", dict: "object", bool: "boolean", int: "number", float: "number"}
NO_MORE: Any = {"additionalProperties": {"type": "null"}}
Schema = Annotated[dict[str, Any], AfterValidator(plain)]


def of_kind(allowed: str) -> Discriminator:
    """Which of several types a value is of, by JSON's own types; the tags begin with ~, which no path shows."""
    return Discriminator(lambda value: f"~{KINDS.get(type(value))}", OF_KIND, allowed)


def named(key: str, allowed: str, default: str = "", **same: str) -> Discriminator:
    """Which of several kinds of objects a value is, by what it says in `key`; `same` are other words for a kind."""

    def tag(value: Any) -> str | None:
        found = value.get(key, default) if isinstance(value, dict) else None
        return f"~{same.get(found, found)}" if isinstance(found, str) else None

    return Discriminator(tag, NAMED[key], allowed)


class Body(BaseModel):
    """Base of all bodies and their parts: nothing is converted, and nothing unknown is taken that is not null."""

    model_config = ConfigDict(
        extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=(), json_schema_extra=NO_MORE
    )


# ---------------------------------------------------------------- what the endpoints share

Stop = Annotated[
    Annotated[str, Tag("~string")]
    | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=16), Tag("~list")],
    of_kind("a string or a list of strings"),
]
Token = Annotated[int, Field(ge=0, le=2**31)]
Length = Annotated[int, BeforeValidator(whole), Field(ge=-2, le=2**63)]  # -1 and -2: to the end of the context
Variables = Annotated[dict[str, Any], Field(max_length=16)]  # each is tried without
TopLogprobs = Annotated[int, BeforeValidator(whole), Field(ge=0, le=20)]


class Extension(Body):
    """What only this server has: `trace` says of each token where it comes from."""

    trace: bool | None = None


class StreamOptions(Body):
    """`include_usage`: a last chunk with the counts of tokens."""

    include_usage: bool | None = None


class Reasoning(Body):
    """`effort` goes to the chat template, if it has a place for it."""

    effort: str | None = None


class Options(Body):
    """What all endpoints that answer take; `top_k`, `min_p` and `repetition_penalty` are as in `omnidraft.generate`."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1e30)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, BeforeValidator(whole), Field(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, BeforeValidator(whole), Field(ge=-(2**63), le=2**64 - 1)] | None = None
    stop: Stop | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # as the next: tells users apart, who share no lane's state and no memory
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    cache_salt: str | None = None
    omnidraft: Extension | None = None


class JsonSchema(Body):
    """A schema that the answer follows; it always does, whatever `strict` is."""

    name: str | None = None
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object, or, as llama.cpp has it, one of a schema."""

    type: Literal["json_object"]
    schema_: Annotated[Schema | None, Field(alias="schema")] = None


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


class Said(Body):
    """A message of rules or of a user; `name` goes to the chat template, if it has a place for it."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: str | None = None


class Answer(Body):
    """An earlier answer of the model; its reasoning goes to the chat template, if it has a place for it."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # another name for it
    refusal: str | None = None  # in place of content
    tool_calls: list[ToolCall] | None = None


class ToolResult(Body):
    """What a called function returned."""

    role: Literal["tool"]
    content: Content
    name: str | None = None
    tool_call_id: str


Message = Annotated[
    Annotated[Said, Tag("~user")] | Annotated[Answer, Tag("~assistant")] | Annotated[ToolResult, Tag("~tool")],
    named("role", "system, developer, user, assistant or tool", system="user", developer="user"),
]


class FunctionSchema(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool, which is a function."""

    type: Literal["function"] = "function"
    function: FunctionSchema


class OtherTool(BaseModel, extra="allow"):
    """A tool that is no function, of which nothing but its type is read: none is run here."""

    type: Annotated[str, Field(json_schema_extra={"not": {"const": "function"}})]


def _tool(value: Any) -> str:
    kind = value.get("type", "function") if isinstance(value, dict) else None
    return "~other" if isinstance(kind, str) and kind != "function" else f"~{KINDS.get(type(value))}"


class ResponseChosenTool(Body):
    """The function that is to be called."""

    type: Literal["function"] = "function"
    name: str


class ChosenTool(Body):
    """The function that is to be called."""

    type: Literal["function"]
    function: ResponseChosenTool


Word = Annotated[Literal["none", "auto", "required"], Tag("~string")]
Other = Annotated[OtherTool, Tag("~other")]
TOOL = Discriminator(_tool, OF_KIND, "an object")
CHOICE = Discriminator(_tool, OF_KIND, "none, auto, required, or an object that names a function")


class ChatSchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(Options):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Length | None = None
    max_completion_tokens: Length | None = None
    n_predict: Length | None = None  # llama.cpp's name for it
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: (
        Annotated[
            Annotated[TextFormat, Tag("~text")]
            | Annotated[ObjectFormat, Tag("~json_object")]
            | Annotated[ChatSchemaFormat, Tag("~json_schema")],
            named("type", "text, json_object or json_schema"),
        ]
        | None
    ) = None
    tools: list[Annotated[Annotated[Tool, Tag("~object")] | Other, TOOL]] | None = None
    tool_choice: Annotated[Word | Annotated[ChosenTool, Tag("~object")] | Other, CHOICE] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: Variables | None = None


def _prompt(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else None
    listed = "~texts" if isinstance(first, str) else "~lists" if isinstance(first, list) else "~tokens"
    return listed if isinstance(value, list) else f"~{KINDS.get(type(value))}"


class CompletionRequest(Options):
    """Body of `/v1/completions`."""

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


# ---------------------------------------------------------------- responses


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
    arguments: Arguments


class OutputItem(Body):
    """What a called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(BaseModel, extra="allow"):
    """Another model's reasoning, of which nothing is read."""

    type: Literal["reasoning"]


Item = Annotated[
    Annotated[MessageItem, Tag("~message")]
    | Annotated[CallItem, Tag("~function_call")]
    | Annotated[OutputItem, Tag("~function_call_output")]
    | Annotated[ReasoningItem, Tag("~reasoning")],
    named("type", "message, function_call, function_call_output or reasoning: send its text as a message", "message"),
]


class ResponseTool(FunctionSchema):
    """A function that the model may call."""

    type: Literal["function"]


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

    input: Annotated[
        Annotated[str, Tag("~string")] | Annotated[list[Item], Field(min_length=1), Tag("~list")],
        of_kind("a string or a list of items"),
    ]
    instructions: str | None = None
    max_output_tokens: Length | None = None
    tools: list[Annotated[Annotated[ResponseTool, Tag("~object")] | Other, TOOL]] | None = None
    tool_choice: Annotated[Word | Annotated[ResponseChosenTool, Tag("~object")] | Other, CHOICE] | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    include: list[str] | None = None  # all but log-probabilities are of what is never there
    top_logprobs: TopLogprobs | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None  # comes back as it is
    reasoning: Reasoning | None = None
    chat_template_kwargs: Variables | None = None


class TokenizeRequest(Body):
    """Body of `/tokenize`; `add_special`: with the token that begins a text, `with_pieces`: each with its text."""

    content: Annotated[str, AfterValidator(encodable)]
    model: str | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Body):
    """Body of `/detokenize`."""

    tokens: list[Token]
    model: str | None = None
