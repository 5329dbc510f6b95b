"""Conversations for chat templates that refuse or lose the roles of some messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

JOINED = ("system", "user", "assistant")  # a template needs each result of a tool by itself


def of_fewer_roles(messages: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The messages with neighbors of one role as one: without later system messages, then without any.

    The text of those is the user's.
    """
    yield _joined(messages, system=True)
    yield _joined(messages, system=False)


def _joined(messages: Sequence[Mapping[str, Any]], *, system: bool) -> list[dict[str, Any]]:
    """The messages with neighbors of one role as one message, and system messages as the user's.

    With `system`, those at the beginning are one system message.
    """
    joined: list[dict[str, Any]] = []
    for each in messages:
        first = system and all(before["role"] == "system" for before in joined)
        role = "user" if each["role"] == "system" and not first else each["role"]
        if joined and role in JOINED and role == joined[-1]["role"] and "tool_calls" not in joined[-1]:
            texts = [text for text in (joined[-1]["content"], each["content"]) if text]
            joined[-1] = {**joined[-1], **each, "role": role, "content": "\n".join(texts)}
        else:
            joined.append({**each, "role": role})
    return joined
