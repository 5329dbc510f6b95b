"""Answers in channels, as gpt-oss writes them: analysis, commentary with calls, and the final text."""

from __future__ import annotations

import re

from omnidraft.server.reading.pieces import Call, Functions, Piece, Reader
from omnidraft.server.reading.reader import begun

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
        self._arguments, self._place = "", -1  # of the present call

    def feed(self, text: str) -> Piece:
        self._held += text
        return self._read(final=False)

    def end(self, *, cut: bool = False) -> Piece:  # noqa: ARG002
        return self._read(final=True)

    def _read(self, *, final: bool) -> Piece:
        found = Piece()
        while True:
            before = (self._held, self._channel)
            found += self._header(final=final) if self._channel == "header" else self._body(final=final)
            if before == (self._held, self._channel) or not self._held:
                return found

    def _header(self, *, final: bool) -> Piece:
        place = self._held.find(MESSAGE)
        bare = self._held.lstrip()
        if bare and not any(bare.startswith(mark) or mark.startswith(bare) for mark in HEADS):
            self._channel = "final"  # it answers without a header
            return Piece()
        if place < 0:
            if final and not any(bare.startswith(mark) for mark in MARKS):
                self._channel = "final"  # a short answer without one
            elif final:
                self._held = ""
            return Piece()
        head, self._held = self._held[:place], self._held[place + len(MESSAGE) :]
        channel, recipient = CHANNEL.search(head), RECIPIENT.search(head)
        self._channel = channel[1] if channel else "final"
        self._name = recipient[1] if recipient and recipient[1] in self._functions else None
        self._arguments = ""
        self._place += self._name is not None
        return self._message(whole=False) if self._name else Piece()

    def _body(self, *, final: bool) -> Piece:
        places = [(place, mark) for mark in ENDS if (place := self._held.find(mark)) >= 0]
        if places:
            place, mark = min(places)
            text, self._held = self._held[:place], self._held[place + len(mark) :]
        else:
            length = len(self._held) - (0 if final else begun(self._held, ENDS))
            text, self._held = self._held[:length], self._held[length:]
        channel, self._channel = self._channel, "header" if places else self._channel
        if self._name is None:
            return Piece(reasoning=text) if channel == "analysis" else Piece(content=text)
        self._arguments += text
        found = self._message(whole=bool(places))
        self._name = None if places else self._name
        return found

    def _message(self, *, whole: bool) -> Piece:
        """The call of the present message, with its arguments so far."""
        arguments = self._arguments.lstrip()
        if whole:
            arguments = arguments.rstrip() or "{}"
        return Piece(calls=self._called(self._place, [Call(self._name or "", arguments, cut=not whole)]))
