"""Bodies of requests in the form of llama-server's own API."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from omnidraft.server.grammars.json_schemas import encodable, whole
from omnidraft.server.requests import fields as base
from omnidraft.server.requests.unsupported_parameters import OUT, Fixes, each

Text = Annotated[str, AfterValidator(encodable)]


class LlamaCompletion(base.Formed):
    """Body of `/completion`; a prompt is text, token ids or both in a list, and there may be a list of prompts."""

    refused: ClassVar[Fixes] = each(OUT, "post_sampling_probs", "lora")

    prompt: Any = ""
    n_predict: base.Length | None = None
    max_tokens: base.Length | None = None
    n_probs: Annotated[int, BeforeValidator(whole), Field(ge=0, le=20)] | None = None
    logit_bias: Any = None  # as in a chat, and of texts, each of whose tokens has it
    return_tokens: bool | None = None
    response_fields: list[str] | None = None  # those of the answer that are told: paths with / between names


class ExtraText(base.Body):
    """Text of another file."""

    text: Text
    filename: Text | None = None


class LlamaInfill(LlamaCompletion):
    """Body of `/infill`; the prompt is text that follows the prefix."""

    prompt: Text = ""
    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: list[ExtraText] | None = None
