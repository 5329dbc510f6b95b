"""Token ids of texts and conversations, and their text, as llama-server and vLLM have them."""

from __future__ import annotations

from typing import Any

from omnidraft.server.errors import ApiError
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests.bodies import read
from omnidraft.server.requests.tasks import chat_tasks, check_ids
from omnidraft.server.running.served_model import ServedModel
from omnidraft.server.server_settings import Serving

CONVERSATION = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def tokenized(body: p.TokenizeRequest, served: ServedModel, settings: Serving) -> dict[str, Any]:
    """Token ids of a text or a conversation; raises ApiError."""
    ids = _ids(body, served, settings)
    told: list[Any] = ids
    if body.with_pieces:
        told = [{"id": token, "piece": _piece(*served.text_of(token))} for token in ids]
    result: dict[str, Any] = {"tokens": told, "count": len(ids), "max_model_len": served.model.target.lm.context}
    if body.return_token_strs:
        result["token_strs"] = served.model.target.tokenizer.convert_ids_to_tokens(ids)
    return result


def templated(body: p.ChatRequest, served: ServedModel, settings: Serving) -> dict[str, Any]:
    """The text that the chat template makes of a conversation; raises ApiError."""
    (task,) = chat_tasks(body, served, settings)
    return {"prompt": served.decoded(task.ids)}


def _piece(text: str, data: list[int] | None) -> str | list[int]:
    """The text of a token, or its bytes where they are only a piece of a character's."""
    return text if data is None or text.encode() == bytes(data) else data


def _ids(body: p.TokenizeRequest, served: ServedModel, settings: Serving) -> list[int]:
    if body.messages is not None:
        asked = {name: value for name in CONVERSATION if (value := getattr(body, name)) is not None}
        (task,) = chat_tasks(read(asked, p.ChatRequest).body, served, settings)
        return list(task.ids)
    text = body.prompt if body.content is None else body.content
    if text is None:
        raise ApiError(400, "content is missing: give it", param="content", code="missing_required_parameter")
    special = bool(body.add_special) if body.content is not None else body.add_special_tokens is not False
    with served.lock:
        return list(served.model.target.tokenizer(text, add_special_tokens=special)["input_ids"])


def detokenized(body: p.DetokenizeRequest, served: ServedModel) -> dict[str, str]:
    """The text of token ids; raises ApiError."""
    check_ids(body.tokens, len(served.model.vocab.tokens), "tokens")
    with served.lock:
        text = str(served.model.target.tokenizer.decode(body.tokens))
    return {"content": text, "prompt": text}


def tokenizer_info(served: ServedModel) -> dict[str, Any]:
    """What a client needs to write prompts itself: special tokens and the chat template."""
    tokenizer: Any = served.model.target.tokenizer
    return {
        "tokenizer_class": type(tokenizer).__name__,
        **{name: getattr(tokenizer, name, None) for name in SPECIAL},
        "chat_template": served.template or None,
        "model_max_length": served.model.target.lm.context,
    }
