"""Tool calls in an answer: `<tool_call>{JSON}</tool_call>`, or an answer that is a call in JSON and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BEGUN = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(.*)', re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A function and its arguments, as JSON text; of a call that is cut there is but the beginning."""

    name: str
    arguments: str
    cut: bool = False


class Reader:
    """Tells content from tool calls while the text comes in: content is passed on, what may be a call is held back."""

    def __init__(self, names: Collection[str], *, forced: bool = False) -> None:
        self._names = frozenset(names)
        self._forced = forced  # whatever comes is a call, or the beginning of one
        self._held = ""
        self._began = False  # content, so that JSON is no call any more

    def feed(self, piece: str) -> str:
        """The content that is certain with this piece."""
        if not self._names:
            return piece
        self._held += piece
        place = self._held.find(OPEN)
        if place < 0 and not self._began and self._held.lstrip()[:1] in ("", "{", "["):
            return ""
        if place < 0:
            place = len(self._held) - _begun(self._held)
        content, self._held = self._held[:place], self._held[place:]
        self._began |= bool(content.strip())
        return content

    def end(self, *, cut: bool = False) -> tuple[str, list[Call]]:
        """The rest of the content, and the calls; `cut`: the text may end within one."""
        held, self._held = self._held, ""
        if not self._names:
            return held, []
        if not held.startswith(OPEN):
            value, end = _json(held.strip())
            alone = not self._began and end == len(held.strip())
            calls = _calls(value, self._names) if alone else None
            if calls is None and not self._began and (cut or self._forced):
                calls = self._beginning(held)
            return ("", calls or []) if calls or self._forced else (held, [])
        found: list[Call] = []
        rest = ""
        parts = held.split(OPEN)[1:]
        for part in parts:
            value, end = _json(part.lstrip())
            calls = _calls(value, self._names)
            if calls is None and cut and not end and part is parts[-1]:
                calls, end = self._beginning(part) or None, len(part)
            if calls is None:
                rest += OPEN + part
            else:
                found += calls
                rest += part.lstrip()[end:].lstrip().removeprefix(CLOSE)
        return rest if rest.strip() else "", found

    def _beginning(self, text: str) -> list[Call]:
        """The call that a text is the beginning of."""
        found = BEGUN.fullmatch(text)
        return [Call(found[1], found[2], cut=True)] if found and found[1] in self._names else []


def _begun(text: str) -> int:
    """Length of the beginning of OPEN that the text ends with."""
    return next((n for n in range(min(len(OPEN) - 1, len(text)), 0, -1) if text.endswith(OPEN[:n])), 0)


def _json(text: str) -> tuple[Any, int]:
    """The JSON value that the text begins with, and where it ends; (None, 0) for none."""
    try:
        return json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None, 0


def _calls(found: Any, names: Collection[str]) -> list[Call] | None:
    """The calls that a JSON value stands for; None unless all of it is calls of these functions."""
    calls = []
    for one in found if isinstance(found, list) else [found]:
        each = one if isinstance(one, dict) else {}
        name, arguments = each.get("name"), each.get("arguments", each.get("parameters"))
        if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
            return None
        calls.append(Call(name, json.dumps(arguments, ensure_ascii=False)))
    return calls or None
