"""Fields of the bodies of all endpoints: kinds of values, sampling options, and forms of the answer."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from omnidraft.server.grammars.json_schemas import plain, whole
from omnidraft.server.requests.unsupported_parameters import Fixes

OF_KIND, NAMED = "of_kind", {"role": "named_by_role", "type": "named_by_type"}  # errors; their message: what may be
KINDS: dict[type, str] = {str: "string", list: "list", dict: "object", bool: "boolean", int: "number", float: "number"}
MAX_STOPS = 1024
MIN_BIAS = -1e4  # in place of the infinity that bars a token
Schema = Annotated[dict[str, Any], AfterValidator(plain)]


def of_kind(allowed: str) -> Discriminator:
    """The choice among several types by JSON's own types; the tags begin with ~, which no path shows."""
    return Discriminator(lambda value: f"~{KINDS.get(type(value))}", OF_KIND, allowed)


def named(key: str, allowed: str, default: str = "", **same: str) -> Discriminator:
    """The choice among several kinds of objects by the value of `key`; `same` are other words for a kind."""

    def tag(value: Any) -> str | None:
        kind = value_of(value, key, default)
        return f"~{same.get(kind, kind)}" if isinstance(kind, str) else None

    return Discriminator(tag, NAMED[key], allowed)


def value_of(value: Any, key: str, default: str) -> Any:
    """What an object has under a key, null being as nothing; None for what is no object."""
    if not isinstance(value, dict):
        return None
    entry = value.get(key)
    return default if entry is None else entry


class Body(BaseModel):
    """Base of all bodies and their parts: nothing is converted, and null is as not given.

    What there is no field for is kept beside the fields, for `bodies.read` to name and to take away.
    """

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())
    refused: ClassVar[Fixes] = {}  # parameters of a whole body that it has no field for, and must not lose

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, body: Any) -> Any:
        """The fields that are not null."""
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class Media(BaseModel):
    """An image or a file in the result of a call: the model is told of it, as an error would end an agent's work.

    What is in it is not kept.
    """

    type: str

    @property
    def text(self) -> str:
        """What the model is told."""
        return f"[{self.type}: not shown, as this model reads text alone]"


MEDIA = dict.fromkeys(
    ("image", "image_url", "input_image", "document", "file", "input_file", "input_audio", "audio"), "media"
)
# empty ones, as of a form with a comma at its end, stop nothing
Stops = Annotated[
    list[str], Field(max_length=MAX_STOPS), AfterValidator(lambda words: [word for word in words if word])
]
Stop = Annotated[
    Annotated[str, Tag("~string")] | Annotated[Stops, Tag("~list")],
    of_kind("a string or a list of strings"),
]
Token = Annotated[int, Field(ge=0, le=2**31)]
Length = Annotated[int, BeforeValidator(whole), Field(ge=-2, le=2**63)]  # -1 and -2: to the end of the context
Variables = dict[str, Any]
TopLogprobs = Annotated[int, BeforeValidator(whole), Field(ge=0, le=20)]


class Extension(Body):
    """Parameters of drafting: `trace` says of each token where it comes from; the others, how it is drafted."""

    trace: bool | None = None
    draft_length: Annotated[int, BeforeValidator(whole), Field(ge=0, le=16)] | None = None  # at most
    sources: Annotated[list[Literal["drafter", "counts"]], Field(min_length=1)] | None = None


class StreamOptions(Body):
    """`include_usage`: a last chunk with the counts of tokens."""

    include_usage: bool | None = None


class Reasoning(Body):
    """`effort` goes to the chat template, if it has a place for it."""

    effort: str | None = None


class ThinkingChoice(Body):
    """Reasoning, on or, where it is "disabled" or false, off: as `enable_thinking` for the chat template."""

    type: str

    @model_validator(mode="before")
    @classmethod
    def in_an_object(cls, value: Any) -> Any:
        """The choice as Anthropic has it."""
        return {"type": "enabled" if value else "disabled"} if isinstance(value, bool) else value


Penalty = Annotated[float, Field(ge=-100, le=100)]
Repetition = Annotated[float, Field(gt=0, le=100)]
Answers = Annotated[int, BeforeValidator(whole), Field(ge=1, le=16)]


def _biases(value: Any) -> Any:
    """Biases by token id; llama.cpp's list of pairs, where false bars a token, as the object that says the same."""
    if isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value):
        value = {token: MIN_BIAS if bias is False else bias for token, bias in value}
    if isinstance(value, dict) and all(str(token).isdecimal() and len(str(token)) < 10 for token in value):
        return {int(token): bias for token, bias in value.items()}
    raise ValueError("its keys must be ids of tokens: use those of /tokenize")


Biases = Annotated[
    dict[int, Annotated[float, Field(ge=MIN_BIAS, le=-MIN_BIAS)]], BeforeValidator(_biases), Field(max_length=1024)
]


JsonOrText = Annotated[
    Annotated[Schema, Tag("~object")] | Annotated[str, Tag("~string")], of_kind("a schema, or JSON of one")
]


class StructuredOutputs(Body):
    """The form of the answer, as vLLM has it: one of these."""

    json_: Annotated[JsonOrText | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Options(Body):
    """Parameters of all answers; `top_k`, `min_p` and `repetition_penalty` are as in `omnidraft.generate`."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1e30)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, BeforeValidator(whole), Field(ge=-1, le=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None  # llama.cpp's name for it
    repeat_last_n: Annotated[int, BeforeValidator(whole), Field(ge=-1, le=2**31)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    min_tokens: Annotated[int, BeforeValidator(whole), Field(ge=0, le=2**31)] | None = None
    ignore_eos: bool | None = None
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
    strict: Annotated[bool | None, BeforeValidator(lambda value: value == "true" or value)] = None  # LM Studio's text


class TextFormat(Body):
    """Free text."""

    type: Literal["text"]


class ObjectFormat(Body):
    """Any JSON object, or one of a schema: llama.cpp calls that `schema`, and Hugging Face's servers `value`."""

    type: Literal["json_object", "json"]
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    value: JsonOrText | None = None


class RegexFormat(Body):
    """Text of a regular expression, as Hugging Face's servers have it."""

    type: Literal["regex"]
    value: str


class ChatSchemaFormat(Body):
    """JSON of a schema: within `json_schema` or `value`, or, as llama.cpp has it, beside the type."""

    type: Literal["json_schema"]
    json_schema: JsonSchema | None = None
    value: JsonSchema | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None


AnswerFormat = Annotated[
    Annotated[TextFormat, Tag("~text")]
    | Annotated[ObjectFormat, Tag("~json_object")]
    | Annotated[RegexFormat, Tag("~regex")]
    | Annotated[ChatSchemaFormat, Tag("~json_schema")],
    named("type", "text, json_object, json_schema or regex", json="json_object"),
]


class Formed(Options):
    """Options of answers that have several names for their form, of which one may be given, and a number."""

    response_format: AnswerFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonOrText | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = None
    guided_grammar: str | None = None
    json_schema: JsonOrText | None = None  # llama.cpp's names of two of them
    grammar: str | None = None
    return_progress: bool | None = None  # llama-server's: streams tell how much of the prompt is read
    n: Answers | None = None
    best_of: Answers | None = None
