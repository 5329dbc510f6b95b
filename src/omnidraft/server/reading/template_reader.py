"""Answers of models whose tokenizer says how they are written: read by the parser of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from omnidraft.server.reading.call_formats import TOO_MANY
from omnidraft.server.reading.events import Call, Event, Functions, Reader, Reasoning, Text
from omnidraft.server.reading.json_calls import ARGUMENTS, BESIDE, cut_calls, loaded, mended, read_json

REASONING = ("thinking", "reasoning", "reasoning_content")
CALLS = "tool_calls"
UNREADABLE = (ValueError, KeyError, TypeError, RecursionError)  # what the parser raises


class TemplateReader(Reader):
    """Reads by a `response_template`; `prompt` is the text before the answer, which may have begun it.

    A field that it cannot read is text.
    """

    def __init__(
        self, template: Mapping[str, Any], prompt: str, functions: Functions, *, one: bool = False, reasons: bool = True
    ) -> None:
        tools: Any = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in functions.items()]
        self._parser = ResponseParser(dict(template), prefix=prompt, tools=tools)
        super().__init__(functions, one=one)
        self._reasons = reasons
        self._raw: str | None = None  # of the field that is open, where it is no text
        self._lost = False
        self._begun: set[str] = set()  # fields with text

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        for place, character in enumerate(text):  # one by one, so that what comes before a fault is not lost with it
            if self._lost:
                return [*events, Text(text[place:])]
            try:
                events += self._told(self._parser.feed(character))
            except UNREADABLE:
                events += self._give_up()
        return events

    def end(self, *, cut: bool = False) -> list[Event]:
        if self._lost:
            return []
        try:
            return self._told(self._parser.finalize()[1])
        except UNREADABLE:
            return self._give_up(cut=cut)

    def _give_up(self, *, cut: bool = False) -> list[Event]:
        """What cannot be read: a call, where that is clear, else text; all that comes after it is text."""
        self._lost = True
        raw = self._raw or ""
        found = read_json(raw, self._functions, over=not cut)
        if cut and (calls := cut_calls(found)):
            return self._called(calls)
        if found.end is not None and not TOO_MANY.sub("", raw[found.end :]).strip():
            return self._called(found.calls)
        return [Text(raw)] if raw else []

    def _told(self, events: Sequence[Mapping[str, Any]]) -> list[Event]:
        told: list[Event] = []
        for event in events:
            field, kind = event["field"], event["type"]
            if field == CALLS:
                self._raw = (self._raw or "") + event.get("text", "")
                if kind == "region_close":
                    calls = [self._call(each) for each in _listed(event["value"])]
                    whole = [call for call in calls if call is not None]
                    told += self._called(whole) if whole and len(whole) == len(calls) else [Text(self._raw)]
                    self._raw = None
            elif kind == "region_chunk" and (field == "content" or (field in REASONING and self._reasons)):
                text = event["text"] if field in self._begun else event["text"].lstrip()
                self._begun |= {field} if text else set()
                told += [Text(text) if field == "content" else Reasoning(text)] if text else []
        return told

    def _call(self, value: Any) -> Call | None:
        """The call that a value of the parser is, where it is one of the functions."""
        inner = value.get("function", value) if isinstance(value, Mapping) else {}
        if not isinstance(inner, Mapping):
            return None
        name, key = inner.get("name"), next((key for key in inner if key in ARGUMENTS), None)
        lost = key is None and not inner.keys() <= {*BESIDE}  # arguments that stand elsewhere
        if not isinstance(name, str) or name not in self._functions or lost:
            return None
        arguments = {} if key is None else inner[key]
        text = mended(arguments) if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return Call(name, text or "{}") if isinstance(loaded(text or "{}"), dict) else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
