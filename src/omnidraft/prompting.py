"""Prompts as token ids of the target: texts, token ids, and messages in the target's chat template."""

from __future__ import annotations

import operator
import reprlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from omnidraft.errors import ConfigError, PromptError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""A text to continue, the target's token ids, or messages such as {"role": "user", "content": "Hello"}."""


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, template: Mapping[str, Any] | None = None) -> list[int]:
    """A prompt as token ids, its first token included and never twice; the engine looks whether the target has them.

    `template` holds what the chat template is to be told beside the messages, such as tools.  Raises PromptError for
    what is no prompt, messages that the template refuses, or messages for a model without one; ConfigError for a
    template that is no mapping.
    """
    if template is not None and not isinstance(template, Mapping):
        raise ConfigError(f"template is of type {type(template).__name__}: give a dict of what the template is to know")
    if _are_messages(prompt):
        text = _chat(tokenizer, prompt, template or {})
        # the template writes the first token itself
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if template is not None:
        raise PromptError("template is for messages: give a list of them, or leave it out")
    if isinstance(prompt, str):
        return _once(tokenizer, prompt, list(tokenizer(usable(prompt))["input_ids"]))
    return _integers(prompt)


def has_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer comes with a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def usable(text: str) -> str:
    """The text, which tokenizers can read; raises PromptError where they cannot."""
    if not text:
        raise PromptError("the prompt is empty: give some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} is {text[error.start]!r}"
        raise PromptError(f"the prompt is no valid Unicode ({where}): give text in UTF-8") from error
    return text


def _are_messages(prompt: Prompt) -> TypeGuard[Sequence[Message]]:
    given: object = prompt
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        return False
    return any(isinstance(each, Mapping) for each in given)


def _chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
    if not has_template(tokenizer):
        raise PromptError("the target has no chat template: give a text instead of messages")
    for each in messages:
        message: object = each
        if not isinstance(message, Mapping) or "role" not in message:
            raise PromptError(f"{message!r} is no message: give each a role and its content")
        if isinstance(content := message.get("content"), str) and content:
            usable(content)
    end = not template.get("continue_final_message", False)
    try:
        text = tokenizer.apply_chat_template(
            [dict(message) for message in messages], tokenize=False, **{"add_generation_prompt": end, **template}
        )
    except Exception as error:  # a template is a program: it raises anything, of its own will too
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise PromptError(f"the chat template refuses these messages ({reason}): change them") from error
    return usable(str(text))


def _once(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[int]:
    """The ids without the first token that a tokenizer puts before a text which begins with it."""
    first, written = tokenizer.bos_token_id, tokenizer.bos_token
    twice = written and text.startswith(written) and ids[:2] == [first, first]
    return ids[1:] if twice and not text.startswith(written * 2) else ids


def _integers(prompt: Any) -> list[int]:
    """The ids of a sequence of integers of any library."""
    if isinstance(prompt, Mapping) and "role" in prompt:
        raise PromptError("the prompt is a single message: put the message into a list")
    try:
        if isinstance(prompt, bytes | bytearray | Mapping | set | frozenset):
            raise TypeError
        tokens = list(prompt)
    except TypeError:
        kind = type(prompt).__name__
        raise PromptError(f"the prompt is of type {kind}: give a str, messages, or a sequence of token ids") from None
    return [_integer(token, place) for place, token in enumerate(tokens)]


def _integer(token: Any, place: int) -> int:
    if isinstance(token, list | tuple) or getattr(token, "shape", None):
        kind = type(token).__name__
        raise PromptError(f"the prompt holds a {kind} at place {place}: give one text, a flat sequence of token ids")
    try:
        if isinstance(token.item() if hasattr(token, "item") else token, bool):
            raise TypeError
        return operator.index(token)
    except TypeError:
        found = f"{reprlib.repr(token)} at place {place}"
        raise PromptError(f"the prompt holds {found}, which is no token id: give integers, or a text") from None
