"""Answers in channels, as gpt-oss writes them: analysis, commentary with calls, and the final text."""

from __future__ import annotations

import re

from omnidraft.server.reading.events import Call, Event, Functions, Reader, Reasoning, Text
from omnidraft.server.reading.json_calls import Found, cut_calls, read_arguments
from omnidraft.server.reading.scanning import begun

MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
MARKS = ("<|start|>", "<|channel|>", "<|constrain|>", MESSAGE)
HEADS = (*MARKS, "assistant")  # the word follows a mark that the tokenizer may leave out


class ChannelReader(Reader):
    """Reads messages that begin with a header, which says of what channel they are, and whom they call."""

    def __init__(self, functions: Functions, *, one: bool = False) -> None:
        super().__init__(functions, one=one)
        self._held, self._channel = "", "header"
        self._name: str | None = None

    def feed(self, text: str) -> list[Event]:
        self._held += text
        return self._read(final=False)

    def end(self, *, cut: bool = False) -> list[Event]:
        return self._read(final=True, cut=cut)

    def _read(self, *, final: bool, cut: bool = False) -> list[Event]:
        events: list[Event] = []
        while True:
            before = (self._held, self._channel)
            if self._channel == "header":
                self._header(final=final)
            else:
                events += self._body(final=final, cut=cut)
            if before == (self._held, self._channel) or not self._held:
                return events

    def _header(self, *, final: bool) -> None:
        place = self._held.find(MESSAGE)
        bare = self._held.lstrip()
        if bare and not any(bare.startswith(mark) or mark.startswith(bare) for mark in HEADS):
            self._channel = "final"  # it answers without a header
        elif place >= 0:
            head, self._held = self._held[:place], self._held[place + len(MESSAGE) :]
            channel, recipient = CHANNEL.search(head), RECIPIENT.search(head)
            self._channel = channel[1] if channel else "final"
            self._name = recipient[1] if recipient and recipient[1] in self._functions else None
        elif final and not any(bare.startswith(mark) for mark in MARKS):
            self._channel = "final"  # a short answer without one
        elif final:
            self._held = ""

    def _body(self, *, final: bool, cut: bool) -> list[Event]:
        places = [(place, mark) for mark in ENDS if (place := self._held.find(mark)) >= 0]
        if not places and not final and self._name is not None:
            return []
        place, mark = min(places, default=(len(self._held) - (0 if final else begun(self._held, ENDS)), ""))
        text, self._held = self._held[:place], self._held[place + len(mark) :]
        name, channel = self._name, self._channel
        if places:
            self._name, self._channel = None, "header"
        if name is not None:
            self._name = None
            if calls := self._message(name, text, cut=cut and not places):
                return self._called(calls)
        told = Reasoning if channel == "analysis" else Text
        return [told(text)] if text else []

    def _message(self, name: str, text: str, *, cut: bool) -> list[Call]:
        """The call of a message; none where its text is no JSON."""
        arguments = text.strip()
        if cut:
            return cut_calls(Found([Call(name, text.lstrip(), cut=True)]))
        found = read_arguments(name, arguments or "{}", over=True)
        rest = arguments[found.end :].strip("}] \n\t\r") if found.end is not None else "else"
        return [] if rest else found.calls
