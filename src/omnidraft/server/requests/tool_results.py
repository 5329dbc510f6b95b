"""Results of tools and the calls that they are of: names and ids that chat templates need and clients leave out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

SHORT = 9  # letters and digits of an id, as Mistral's templates want them
Messages = Sequence[Mapping[str, Any]]


def name_results(messages: Sequence[dict[str, Any]]) -> None:
    """Give each result without a name that of the function whose call it is of."""
    calls = _calls(messages)
    for place, number in _answered(messages).items():
        messages[place].setdefault("name", calls[number]["function"]["name"])


def with_short_ids(messages: Messages) -> list[dict[str, Any]]:
    """The messages with ids of nine letters and digits, alike in a call and in its result, also where they had none."""
    ids = [_short(call.get("id") or str(number)) for number, call in enumerate(_calls(messages))]
    answered, told, count = _answered(messages), list[dict[str, Any]](), 0
    for place, message in enumerate(messages):
        entry = dict(message)
        if calls := message.get("tool_calls"):
            entry["tool_calls"] = [call | {"id": ids[count + at]} for at, call in enumerate(calls)]
            count += len(calls)
        if message["role"] == "tool":
            number = answered.get(place)
            entry["tool_call_id"] = _short(message.get("tool_call_id") or "") if number is None else ids[number]
        told.append(entry)
    return told


def _calls(messages: Messages) -> list[dict[str, Any]]:
    return [call for message in messages for call in message.get("tool_calls") or ()]


def _answered(messages: Messages) -> dict[int, int]:
    """By the places of results, the numbers of their calls: by id, or where a result has none, the next of its name.

    Ollama's clients tell the name of the function alone, which stands for the id.
    """
    calls, numbers, known = _calls(messages), dict[int, int](), dict[str, int]()
    waiting: list[int] = []
    count = 0
    for place, message in enumerate(messages):
        for call in message.get("tool_calls") or ():
            known[call.get("id") or ""] = count
            waiting.append(count)
            count += 1
        if message["role"] == "user":
            waiting.clear()
        if message["role"] != "tool":
            continue
        id_, name = message.get("tool_call_id") or "", message.get("name")
        number = known.get(id_) if id_ else None
        if number is None and id_ in ("", name):
            of_name = (each for each in waiting if name in (None, calls[each]["function"]["name"]))
            number = next(of_name, None)
        if number is not None:
            numbers[place] = number
            waiting = [each for each in waiting if each != number]
    return numbers


def _short(id_: str) -> str:
    """An id as it is where it is short already, else so much of its hash."""
    return (
        id_
        if re.fullmatch(f"[a-zA-Z0-9]{{{SHORT}}}", id_)
        else sha256(id_.encode("utf-8", "surrogatepass")).hexdigest()[:SHORT]
    )
