"""Prompts to token ids of the target: text, messages in its chat template, or token ids."""

from __future__ import annotations

import operator
import reprlib
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeGuard

from omnidraft.errors import ConfigError, PromptError
from omnidraft.models.chat_template import DEFAULT, variables_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAY_BE_LOST = ("developer", "system", "tool")  # roles of which not every template knows
Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message] | Mapping[str, Any]
"""Text to continue, token ids of the target (T,) or (1, T), messages such as {"role": "user", "content": "Hello"},
or what the target's tokenizer returns, a mapping with `input_ids`."""


def encode(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, template: Mapping[str, Any] | None = None) -> list[int]:
    """Token ids of a prompt, the beginning-of-text token included once; the engine checks that the target has them.

    `template` holds variables of the chat template, such as tools.  Raises PromptError for an object that is no prompt,
    messages that the template refuses, or messages for a model without one; ConfigError for a template that is no
    mapping.
    """
    if template is not None and not isinstance(template, Mapping):
        raise ConfigError(f"template is of type {type(template).__name__}: give a dict of the template's variables")
    if _are_messages(prompt):
        text = _chat(tokenizer, prompt, template or {})
        # the template writes the first token itself
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if template is not None:
        raise PromptError("template is for messages: give a list of them, or leave it out")
    if isinstance(prompt, str):
        return _once(tokenizer, prompt, list(tokenizer(usable(prompt))["input_ids"]))
    return _integers(prompt)


def templates_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """The chat templates of a tokenizer by their names; one without a name is the default."""
    template: Any = getattr(tokenizer, "chat_template", None) or {}
    return {DEFAULT: template} if isinstance(template, str) else dict(template)


def has_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """True for a tokenizer with a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def usable(text: str) -> str:
    """The text itself; raises PromptError where it is empty or no valid Unicode."""
    if not text:
        raise PromptError("the prompt is empty: give some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start} is {text[error.start]!r}"
        raise PromptError(f"the prompt is no valid Unicode ({where}): give text in UTF-8") from error
    return text


def _are_messages(prompt: Prompt) -> TypeGuard[Sequence[Message]]:
    messages: object = prompt
    if isinstance(messages, str | bytes) or not isinstance(messages, Sequence):
        return False
    return any(isinstance(each, Mapping) for each in messages)


def _chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
    if not has_template(tokenizer):
        raise PromptError("the target has no chat template: give text instead of messages")
    for each in messages:
        message: object = each
        if not isinstance(message, Mapping) or "role" not in message:
            raise PromptError(f"{message!r} is no message: give each a role and its content")
        if isinstance(content := message.get("content"), str) and content:
            usable(content)
    try:
        _check_tools(tokenizer, template)
        text = _rendered(tokenizer, messages, template)
    except PromptError:
        raise
    except Exception as error:  # a template is a program: it raises anything, of its own will too
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise PromptError(f"the chat template refuses these messages ({reason}): change them") from error
    for place, message in enumerate(messages):
        if _is_lost(tokenizer, messages, place, template, text):
            left_out = f"message {place}, of role {message['role']!r}"
            raise PromptError(f"the chat template leaves out {left_out}: put its text into one of the user")
    return usable(text)


def _check_tools(tokenizer: PreTrainedTokenizerBase, template: Mapping[str, Any]) -> None:
    """Raise PromptError where the chat template has no place for the tools that it is given."""
    tools = template.get("tools")
    if tools and "tools" not in variables_of(tokenizer.get_chat_template(template.get("chat_template"), tools)):
        raise PromptError("the chat template has no place for tools: put them into a message, or leave tools out")


def _rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
    end = not template.get("continue_final_message", False)
    options: dict[str, Any] = {"add_generation_prompt": end, **template}
    return str(tokenizer.apply_chat_template([dict(message) for message in messages], tokenize=False, **options))


def _is_lost(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    place: int,
    template: Mapping[str, Any],
    text: str,
) -> bool:
    """True if a template writes the same text whatever is in a message of a role that it may not know."""
    content = messages[place].get("content")
    if messages[place]["role"] not in MAY_BE_LOST or not isinstance(content, str) or not content.strip():
        return False
    if content.strip() in text:
        return False
    other = [*messages]
    other[place] = {**messages[place], "content": f"{content} {content}"}  # it may be written in another form
    with suppress(Exception):  # as above
        return _rendered(tokenizer, other, template) == text
    return False


def _once(tokenizer: PreTrainedTokenizerBase, text: str, ids: list[int]) -> list[int]:
    """The ids without a second beginning-of-text token, where the text itself begins with one."""
    first, written = tokenizer.bos_token_id, tokenizer.bos_token
    twice = written and text.startswith(written) and ids[:2] == [first, first]
    return ids[1:] if twice and not text.startswith(written * 2) else ids


def _integers(prompt: Any) -> list[int]:
    """Integers of a sequence (T,) or (1, T) of any library, or of `input_ids` in a tokenizer's output."""
    ids = prompt
    if isinstance(prompt, Mapping):
        if "role" in prompt:
            raise PromptError("the prompt is a single message: put the message into a list")
        mask = prompt.get("attention_mask")
        if mask is not None and any(value == 0 for value in _flat(mask)):
            raise PromptError("the prompt is padded: leave out the tokens that the attention mask hides")
        ids = prompt.get("input_ids", prompt)
    refused = (str, bytes, bytearray, Mapping, set, frozenset)
    if isinstance(ids, refused) or not hasattr(ids, "__iter__") or getattr(ids, "ndim", 1) == 0:
        kind = type(prompt).__name__
        raise PromptError(f"the prompt is of type {kind}: give a str, messages, or a sequence of token ids")
    return [_integer(token, place) for place, token in enumerate(_flat(ids))]


def _flat(ids: Any) -> list[Any]:
    """The elements of a sequence (T,), or of the only row of (1, T)."""
    tokens = list(ids)
    return list(tokens[0]) if len(tokens) == 1 and _is_row(tokens[0]) else tokens


def _is_row(token: Any) -> bool:
    return isinstance(token, list | tuple) or bool(getattr(token, "shape", None))


def _integer(token: Any, place: int) -> int:
    if _is_row(token):
        kind = type(token).__name__
        raise PromptError(f"the prompt holds a {kind} at place {place}: give one prompt, a flat sequence of token ids")
    try:
        if isinstance(token.item() if hasattr(token, "item") else token, bool):
            raise TypeError
        return operator.index(token)
    except TypeError:
        entry = f"{reprlib.repr(token)} at place {place}"
        raise PromptError(f"the prompt holds {entry}, which is no token id: give integers, or text") from None
