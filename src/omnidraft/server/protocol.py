"""Bodies of requests, as OpenAI's clients send them: what has no effect here is refused by name.

A parameter whose neutral value changes nothing is taken with that value alone.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[int, Field(ge=1, le=1)]
Count = Annotated[int, Field(ge=1, le=2**31)]
Token = Annotated[int, Field(ge=0, le=2**31)]
Stop = str | Annotated[list[str], Field(max_length=16)]
SURROGATE = re.compile(r"[\ud800-\udfff]")
DEEPEST = 64  # objects and lists of a schema in each other: who reads them goes down by recursion


def _encodable(text: str) -> str:
    """The text itself; raises ValueError where it cannot be encoded."""
    if SURROGATE.search(text):
        raise ValueError("it holds a lone surrogate, which no encoding has: leave it out")
    return text


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that is not too deep, all of whose text can be encoded; raises ValueError."""
    parts: list[Any] = [schema]
    depth = 0
    while parts:
        for part in parts:
            if isinstance(part, str):
                _encodable(part)
        holders = [part for part in parts if isinstance(part, dict | list)]
        parts = [each for one in holders for each in ([*one, *one.values()] if isinstance(one, dict) else one)]
        depth += bool(holders)
        if depth > DEEPEST:
            raise ValueError(f"it is deeper than {DEEPEST} levels: make it flatter")
    return schema


Schema = Annotated[dict[str, Any], AfterValidator(_plain)]


class Body(BaseModel):
    """Base of all bodies and their parts: nothing is converted, and nothing unknown is taken."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


# ---------------------------------------------------------------- what the endpoints share


class Extension(Body):
    """What only this server has: `trace` says of each token where it comes from."""

    trace: bool = False


class StreamOptions(Body):
    """`include_usage`: a last chunk with the counts of tokens."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Options(Body):
    """Sampling, and parameters that stand for nothing here."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    user: str | None = None  # of one user's lanes, those that answered them before are preferred
    omnidraft: Extension | None = None


class MoreSampling(Options):
    """Sampling of chats and completions; `top_k`, `min_p` and `repetition_penalty` are as in `omnidraft.generate`."""

    n: One | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | None = None
    stream_options: StreamOptions | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    frequency_penalty: Zero | None = None
    presence_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = None


class JsonSchema(Body):
    """A schema that the answer follows; it always does, whatever `strict` is."""

    name: Annotated[str, Field(min_length=1)]
    schema_: Annotated[Schema, Field(alias="schema")]
    strict: bool | None = None


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


# ---------------------------------------------------------------- chat


class TextPart(Body):
    """Text of a message, the only kind of content there is."""

    type: Literal["text"]
    text: str


Content = str | list[TextPart]


class CalledFunction(Body):
    """A function and its arguments in JSON."""

    name: str
    arguments: str


class ToolCall(Body):
    """A call that the model made before."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Instruction(Body):
    """What rules the conversation."""

    role: Literal["system", "developer"]
    content: Content


class Question(Body):
    """A user's message."""

    role: Literal["user"]
    content: Content


class Answer(Body):
    """An earlier answer of the model."""

    role: Literal["assistant"]
    content: Content | None = None
    refusal: None = None
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: None = None
    tool_calls: list[ToolCall] | None = None


class ToolResult(Body):
    """What a called function returned."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str


Message = Annotated[Instruction | Question | Answer | ToolResult, Field(discriminator="role")]


class FunctionSchema(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool, which is a function."""

    type: Literal["function"]
    function: FunctionSchema


class ChosenName(Body):
    """The name of a function."""

    name: str


class ChosenTool(Body):
    """The function that is to be called."""

    type: Literal["function"]
    function: ChosenName


ToolWord = Literal["none", "auto", "required"]


class ChatSchemaFormat(Body):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class ChatRequest(MoreSampling):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: TextFormat | ObjectFormat | ChatSchemaFormat | None = Field(default=None, discriminator="type")
    tools: list[Tool] | None = None
    tool_choice: ToolWord | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    store: Literal[False] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None


# ---------------------------------------------------------------- completions


class CompletionRequest(MoreSampling):
    """Body of `/v1/completions`."""

    prompt: str | list[str] | list[Token] | list[list[Token]]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: Literal[False] | None = None
    best_of: One | None = None
    suffix: None = None


# ---------------------------------------------------------------- responses


class InputText(Body):
    """Text that goes in."""

    type: Literal["input_text"]
    text: str


class OutputText(Body):
    """Text that came out before."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[Any] | None = None


class MessageItem(Body):
    """A message; `id` and `status` are those of an earlier response."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Annotated[InputText | OutputText, Field(discriminator="type")]]
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class CallItem(Body):
    """A function call of an earlier response."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class OutputItem(Body):
    """What a called function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class ResponseTool(FunctionSchema):
    """A function that the model may call."""

    type: Literal["function"]


class ResponseChosenTool(ChosenName):
    """The function that is to be called."""

    type: Literal["function"]


class ResponseSchemaFormat(JsonSchema):
    """JSON of a schema."""

    type: Literal["json_schema"]


class ResponseText(Body):
    """The form of the answer; how long it gets cannot be chosen by a word."""

    format: TextFormat | ObjectFormat | ResponseSchemaFormat | None = Field(default=None, discriminator="type")
    verbosity: Literal["medium"] | None = None


class Reasoning(Body):
    """There is none beside the answer, and so no summary of it."""

    effort: Literal["none"] | None = None
    summary: Literal["auto"] | None = None


class ResponseRequest(Options):
    """Body of `/v1/responses`: nothing is kept, so the whole conversation comes in `input`."""

    input: str | Annotated[list[MessageItem | CallItem | OutputItem], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ToolWord | ResponseChosenTool | None = None
    parallel_tool_calls: bool | None = None
    text: ResponseText | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None  # comes back as it is
    prompt_cache_key: str | None = None
    store: Literal[False] | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    previous_response_id: None = None
    client_metadata: dict[str, str] | None = None  # the client's own, to no effect
    reasoning: Reasoning | None = None
    service_tier: Literal["auto", "default"] | None = None
    stream_options: None = None


# ---------------------------------------------------------------- tokens


class TokenizeRequest(Body):
    """Body of `/tokenize`; `add_special`: with the token that begins a text, `with_pieces`: each with its text."""

    content: Annotated[str, AfterValidator(_encodable)]
    model: str | None = None
    add_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """Body of `/detokenize`."""

    tokens: list[Token]
    model: str | None = None
