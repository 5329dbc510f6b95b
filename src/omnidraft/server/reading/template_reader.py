"""Answers of models whose tokenizer says how they are written: read by the parser of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from omnidraft.server.reading.pieces import Call, Functions, Piece, Reader

REASONING = ("thinking", "reasoning", "reasoning_content")
CALLS = "tool_calls"
UNREADABLE = (ValueError, KeyError, TypeError)  # what the parser raises


class TemplateReader(Reader):
    """Reads by a `response_template`; `prompt` is the text before the answer, which may have begun it.

    A part that it cannot read is content.
    """

    def __init__(
        self, template: Mapping[str, Any], prompt: str, functions: Functions, *, one: bool = False, reasons: bool = True
    ) -> None:
        tools: Any = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in functions.items()]
        self._parser = ResponseParser(dict(template), prefix=prompt, tools=tools)
        super().__init__(functions, one=one)
        self._reasons = reasons
        self._raw: str | None = None  # of the part that is open, where it is no text
        self._lost = False
        self._begun: set[str] = set()  # fields with text

    def feed(self, text: str) -> Piece:
        found = Piece()
        for place, character in enumerate(text):  # one by one, so that what comes before a fault is not lost with it
            if self._lost:
                return found + Piece(content=text[place:])
            try:
                found += self._piece(self._parser.feed(character))
            except UNREADABLE:
                found += self._give_up()
        return found

    def end(self, *, cut: bool = False) -> Piece:  # noqa: ARG002
        if self._lost:
            return Piece()
        try:
            return self._piece(self._parser.finalize()[1])
        except UNREADABLE:
            return self._give_up()

    def _give_up(self) -> Piece:
        """The text of the part that cannot be read, as content: so is all that comes after it."""
        self._lost = True
        return Piece(content=self._raw or "")

    def _piece(self, events: Sequence[Mapping[str, Any]]) -> Piece:
        found = Piece()
        for event in events:
            field, kind = event["field"], event["type"]
            if field == CALLS:
                self._raw = (self._raw or "") + event.get("text", "")
                if kind == "region_close":
                    calls = [call for call in map(self._call, _listed(event["value"])) if call is not None]
                    pieces = self._called(len(self.calls), calls)
                    found += Piece(calls=pieces) if calls else Piece(content=self._raw)
                    self._raw = None
            elif kind == "region_chunk" and (field == "content" or (field in REASONING and self._reasons)):
                text = event["text"] if field in self._begun else event["text"].lstrip()
                self._begun |= {field} if text else set()
                found += Piece(content=text) if field == "content" else Piece(reasoning=text)
        return found

    def _call(self, value: Any) -> Call | None:
        """The call that a value of the parser is, where it is one of the functions."""
        inner = value.get("function", value) if isinstance(value, Mapping) else {}
        name, arguments = inner.get("name"), inner.get("arguments", {})
        if name not in self._functions:
            return None
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return Call(str(name), text or "{}")


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
