"""Readers of answers in text: reasoning and calls between marks, calls in JSON alone, and answers that are a call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omnidraft.server.reading.call_formats import python
from omnidraft.server.reading.json_calls import calls_in, read_json
from omnidraft.server.reading.marks import Region, RegionMarks
from omnidraft.server.reading.pieces import Functions, Piece, Reader

# the first key of an object that may be a call
FIRST = re.compile(r'\s*[\[{]?\s*\{?\s*"(?:name|function|tool|type|id|arguments|parameters|args)"')
KEYED = re.compile(r'\s*\[?\s*\{\s*"[^"]*"')
EARLY = re.compile(r'\s*\[?\s*(?:\{\s*(?:"[^"]*)?)?')  # of a text that may become one with a key
LISTED = re.compile(r"\s*\[\s*[\w.-]*(?:\(|$)")  # calls as Python writes them


class TextReader(Reader):
    """Reads reasoning at the beginning of an answer, and calls of these functions anywhere.

    `thinking` is the mark that ends the reasoning that the prompt has begun.
    """

    def __init__(
        self,
        functions: Functions,
        marks: RegionMarks,
        *,
        thinking: str | None = None,
        one: bool = False,
        reasons: bool = True,
    ) -> None:
        super().__init__(functions, one=one)
        self._marks = marks
        self._thoughts = marks.thoughts if reasons else ()
        self._regions = marks.regions if functions else ()
        self._held = ""
        self._close = thinking if reasons else None  # of the reasoning that is open
        self._region: Region | None = None  # that is open
        self._start = 0  # number of its first call
        self._began = self._reasoned = self._thought = False  # content; reasoning, and its end
        self._space = ""  # behind a call: content goes on with it, if it does
        self._opens = {each.open: each for each in self._regions}
        firsts = {mark[0] for mark in (*self._opens, *marks.around)} if self._regions else set()
        self._begins = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]") if firsts else None  # some mark

    def feed(self, text: str) -> Piece:
        busy = not self._began or self._held or self._region or self._close or self.calls
        if not busy and (self._begins is None or not self._begins.search(text)):  # most of most answers
            return Piece(text)
        self._held += text
        return self._read(final=False)

    def end(self, *, cut: bool = False) -> Piece:
        return self._read(final=True, cut=cut)

    # ------------------------------------------------------------ one state after the other

    def _read(self, *, final: bool, cut: bool = False) -> Piece:
        found = Piece()
        while True:
            before = (self._held, self._close, self._region)
            if self._close is not None:
                found += self._reasoning(self._close, final=final)
            elif self._region is not None:
                found += self._call(self._region, final=final)
            else:
                found += self._content(final=final, cut=cut)
            if before == (self._held, self._close, self._region):
                return found
            if not self._held and (self._region is None or not final):
                return found

    def _reasoning(self, close: str, *, final: bool) -> Piece:
        place = self._held.find(close)
        if place >= 0:
            text, self._held, self._close = self._held[:place].rstrip(), self._held[place + len(close) :], None
            self._thought = True
        elif final:
            text, self._held = self._held.rstrip(), ""
        else:
            length = len(self._held) - begun(self._held, (close,))
            length = len(self._held[:length].rstrip())
            text, self._held = self._held[:length], self._held[length:]
        if not self._reasoned:
            text = text.lstrip()
        self._reasoned |= bool(text)
        return Piece(reasoning=text)

    def _call(self, region: Region, *, final: bool) -> Piece:
        """The calls in an open region, which is over where no call can follow in it."""
        found = region.style(self._held, self._functions)
        if not found.calls and (found.wrong or final):  # it is none: the mark is content
            self._region = None
            return self._out(region.open)
        pieces = self._called(self._start, found.calls) if found.calls else []
        end = len(self._held) if final and found.end is None else found.end
        if end is not None and (end := self._closed(region, end, final=final)) is not None:
            self._held, self._region = self._held[end:], None
            self._space = ""
        return Piece(calls=pieces)

    def _closed(self, region: Region, end: int, *, final: bool) -> int | None:
        """Where a region is over whose calls end at `end`, its closing mark included; None where that is open."""
        rest = self._held[end:].lstrip()
        for mark in region.close:
            if rest.startswith(mark):
                return len(self._held) - len(rest) + len(mark)
        if not final and any(mark.startswith(rest) for mark in region.close):
            return None
        return end

    def _content(self, *, final: bool, cut: bool) -> Piece:
        text = self._held
        if not self._began and self._thoughts:
            begin = text.lstrip()
            for open_, close in self._thoughts:
                if begin.startswith(open_):
                    self._held, self._close = begin[len(open_) :], close
                    return Piece()
            if not final and any(open_.startswith(begin) for open_, _ in self._thoughts):
                return Piece()
        if not self._regions:
            self._held = ""
            return self._out(text)
        if not self._began and text.lstrip()[:1] in ("", "{", "["):
            alone = self._alone(final=final, cut=cut)
            if alone is not None:
                return alone
        return self._between(final=final)

    def _alone(self, *, final: bool, cut: bool) -> Piece | None:
        """The calls of an answer that is calls in JSON, or Python, and nothing else; None for any other."""
        text = self._held
        if not final:
            keyed = KEYED.match(text) and FIRST.match(text)
            return Piece() if keyed or EARLY.fullmatch(text) or LISTED.match(text) else None
        calls = calls_in(text, self._functions)
        if calls is None and text.lstrip()[:1] == "[":
            found = python(text, self._functions)
            calls = found.calls if found.end is not None and not text[found.end :].strip() else None
        if calls is None and cut:
            begun_ = read_json(text, 0, self._functions)
            calls = begun_.calls if begun_.calls and not begun_.wrong and begun_.calls[-1].cut else None
        if not calls:
            return None
        self._held = ""
        return Piece(calls=self._called(0, calls))

    def _between(self, *, final: bool) -> Piece:
        """Content up to the next mark."""
        text = self._held
        for mark in self._marks.around:
            text = text.replace(mark, "")
        places = [(place, -len(mark), mark) for mark in self._opens if (place := text.find(mark)) >= 0]
        longer = (*self._opens, *self._marks.around)
        safe = len(text) - (0 if final else begun(text, longer))
        if places and (first := min(places))[0] < safe:
            place, _, mark = first
            if not final and any(other != mark and other.startswith(text[place:]) for other in longer):
                safe = place
            else:
                self._region, self._start = self._opens[mark], len(self.calls)
                self._held = text[place + len(mark) :]
                return self._out(text[:place])
        self._held = text[safe:]
        return self._out(text[:safe])

    def _out(self, text: str) -> Piece:
        """Content; space behind a call, and before the first content after reasoning, comes only with more."""
        if not text:
            return Piece()
        if self.calls or (self._thought and not self._began):
            text = self._space + text
            kept = text.rstrip() if self.calls else text
            self._space = text[len(kept) :]
            text = kept if self._began else kept.lstrip() if self._thought else kept
        self._began |= bool(text.strip())
        return Piece(content=text)


class CallReader(Reader):
    """Reads an answer that is a call in JSON whatever comes, as its grammar allows nothing else."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions, one=True)
        self._text = ""

    def feed(self, text: str) -> Piece:
        self._text += text
        return Piece(calls=self._called(0, read_json(self._text, 0, self._functions).calls))


def begun(text: str, marks: Sequence[str]) -> int:
    """Length of the longest beginning of a mark, less than all of it, that a text ends with."""
    longest = min(max(map(len, marks), default=1) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if any(m.startswith(text[-n:]) and len(m) > n for m in marks)), 0)
