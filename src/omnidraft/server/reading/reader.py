"""Readers of answers in text: reasoning and calls between marks, calls in JSON alone, and answers that are a call."""

from __future__ import annotations

import re
from collections.abc import Mapping

from omnidraft.server.reading.call_formats import (
    FENCE,
    FUNCTION_MARK,
    LINE_MARK,
    TOO_MANY,
    Style,
    fenced,
    function_in_xml,
    gemma,
    last_lines,
    python,
    tagged,
)
from omnidraft.server.reading.events import Arguments, Begin, End, Event, Functions, Reader, Reasoning, Text
from omnidraft.server.reading.json_calls import MORE, NONE, Found, calls_in, cut_calls, quoted, read_value, whole_calls
from omnidraft.server.reading.marks import TAG, Region, RegionMarks
from omnidraft.server.reading.scanning import GEMMA, JSON, PYTHON, Brackets, begins, begun, scan

# the first key of an object that may be a call
FIRST = re.compile(r'\s*[\[{]?\s*\{?\s*"(?:name|function|tool|type|id|arguments|parameters|args)"')
KEYED = re.compile(r'\s*\[?\s*\{\s*"[^"]*"')
EARLY = re.compile(r'\s*\[?\s*(?:\{\s*(?:"[^"]*)?)?')  # of a text that may become one with a key
LISTED = re.compile(r"\s*\[\s*[\w.-]*(?:\(|\Z)")  # calls as Python writes them
LONG = 200  # characters of a call behind which only what may end it is looked at
OFTEN = 32  # times that each character is read at most while more comes, where all of a text might end a call
SYNTAXES: Mapping[Style, str] = {python: PYTHON, gemma: GEMMA}  # of brackets, but for JSON
MAY_END = re.compile(r"[\])}>`]")
XML_MAY_END = re.compile("</(?:parameter|function|arg_key|arg_value|tool_call)>|```")
BRACKET = re.compile(r"\s*[\[{]")
IN_STRING = re.compile(r'\\.|"|(?P<more>\\\Z)', re.DOTALL)
OUTSIDE = re.compile(r'["\[\]{}]|(?P<more>[^\s"{}\[\],:]+\Z)|(?P<literal>[^\s"{}\[\],:]+)')  # a string
DEPTHS = {"{": 1, "[": 1, "}": -1, "]": -1}
BETWEEN = " \n\t\r,;"  # calls
LAST = ("}", "]", ">", ",", ";")  # ends of calls in an answer's last lines, and of what may stand behind them


class TextReader(Reader):
    """Reads reasoning at the beginning of an answer, and calls of these functions anywhere.

    `thinking` is the mark that ends the reasoning that the prompt has begun; `goes_on`: with words of it.
    """

    def __init__(
        self,
        functions: Functions,
        marks: RegionMarks,
        *,
        thinking: str | None = None,
        goes_on: bool = False,
        one: bool = False,
        reasons: bool = True,
    ) -> None:
        super().__init__(functions, one=one)
        self._thoughts = marks.thoughts if reasons else ()
        self._repeats = {close: open_ for open_, close in self._thoughts}
        self._held = ""
        self._close = thinking if reasons else None  # of the reasoning that is open
        self._region: Region | None = None  # that is open
        self._behind = False  # a call in it
        self._brackets: Brackets | None = None  # of the call in it that comes
        self._fed = self._read_again = 0  # characters
        self._sure = 0  # characters of the last lines that are whole calls
        self._passed, self._open = 0, set[int]()  # places in the answer before which, and at which, none of these begin
        self._began = self._thought = False  # text; the end of reasoning
        self._reasoned = goes_on
        self._maybe = False  # a call in reasoning, as far as it is there
        self._in_fence, self._lead = False, ""  # of the text that is told: a block of code; its last line's beginning
        self._space = ""  # before text, with which it comes, if any does
        self._opens = {each.open: each for each in marks.regions} if functions else {}
        self._around = {*marks.around} if functions else set()
        self._mark_ahead()

    def _mark_ahead(self) -> None:
        """Look for the marks of calls from now on."""
        self._marks = sorted({*self._opens, *self._around}, key=len, reverse=True)  # one may begin with another
        firsts = re.escape("".join(sorted({mark[0] for mark in self._marks})))
        self._begins = re.compile(f"[{firsts}]") if firsts else None  # some mark
        self._next, self._next_of_thoughts = (
            re.compile("|".join(map(re.escape, marks)) or "(?!)")
            for marks in (self._marks, [mark for mark in self._marks if self._before_tag(mark) == mark])
        )

    def _before_tag(self, mark: str) -> str:
        """What of a mark is text where it opens nothing: the tag behind the opening line of a fence may yet do so."""
        region = self._opens.get(mark)
        return mark if region is None or region.style is not fenced else mark.removesuffix(TAG)

    def feed(self, text: str) -> list[Event]:
        busy = self._held or not self._began or self._calls or self._region or self._close
        if not busy and (self._begins is None or not self._begins.search(text)):  # most of most answers
            self._lead = (self._lead + text).lstrip()[: len(FENCE)]  # a line's end may begin a mark
            return [Text(text)] if text else []
        self._held += text
        self._fed += len(text)
        length = len(self._held)
        if length > LONG and (not self._may_end(text) or self._read_again + length > OFTEN * self._fed):
            return []
        self._read_again += length
        events = self._read(final=False)
        if len(self._held) < length:
            self._brackets = None
        return events

    def _may_end(self, text: str) -> bool:
        """Whether what is held may be decided with this text, the last of it."""
        region = self._region
        if region is None:
            maybe = self._maybe and str(self._close) not in self._held
            return not maybe or MAY_END.search(text) is not None
        if region.style in (tagged, fenced, function_in_xml) and not BRACKET.match(self._held):
            return XML_MAY_END.search(self._held, max(0, len(self._held) - len(text) - len("</arg_value"))) is not None
        if self._brackets is None:
            self._brackets = Brackets(SYNTAXES.get(region.style, JSON), region.close)
        return self._brackets.may_end(region.open + self._held if region.style is last_lines else self._held)

    def end(self, *, cut: bool = False) -> list[Event]:
        events = self._read(final=True, cut=cut)
        if self._space and not (self._began or self._calls or self._thought):
            events.append(Text(self._space))
        return events

    # ------------------------------------------------------------ one state after the other

    def _read(self, *, final: bool, cut: bool = False) -> list[Event]:
        events: list[Event] = []
        while self._held or (self._region is not None and final):
            before = (self._held, self._close, self._region)
            if self._close is not None:
                events += self._reasoning(self._close, final=final, cut=cut)
            elif self._region is None:
                events += self._content(final=final, cut=cut)
            else:
                events += self._call(self._region, final=final, cut=cut)
            if before == (self._held, self._close, self._region):
                break
        return events

    def _reasoning(self, close: str, *, final: bool, cut: bool) -> list[Event]:
        """Reasoning up to its end; where the answer ends with it, a call in it is one."""
        if not self._reasoned:
            self._held = self._held.lstrip()
            open_ = self._repeats[close]
            if self._held.startswith(open_):  # as the prompt ends
                self._held = self._held[len(open_) :]
                return []
            if not final and open_.startswith(self._held):
                return []
        text = self._held
        end = text.find(close)
        answers = end >= 0 and bool(text[end + len(close) :].strip())
        place = end if end >= 0 else len(text) - (0 if final else begun(text, (close,)))
        mark = None if answers or (final and cut) else self._next_of_thoughts.search(text, 0, place)
        if mark is None and end >= 0:
            self._held, self._close, self._thought, self._maybe = text[end + len(close) :], None, True, False
            return self._thoughts_told(text[:end].rstrip())
        if mark is None:
            place -= 0 if final else begun(text[:place], self._marks)
            place = len(text[:place].rstrip())
            self._held = "" if final else text[place:]
            return self._thoughts_told(text[:place])
        called = self._calls_ahead(text[mark.start() : place], over=final)
        self._maybe = called is not False
        if not self._maybe:
            self._held = text[mark.end() :]
            return self._thoughts_told(text[: mark.end()])
        before = text[: mark.start()].rstrip()
        self._held = text[len(before) :]
        if final:
            self._held, self._close, self._thought = text[mark.start() : place], None, True
        return self._thoughts_told(before)

    def _thoughts_told(self, text: str) -> list[Event]:
        self._reasoned |= bool(text)
        return [Reasoning(text)] if text else []

    def _calls_ahead(self, text: str, *, over: bool) -> bool | None:
        """Whether a text that begins with a mark is calls, and nothing else; None where more of it decides."""
        region: Region | None = None
        called = False
        while text:
            close = region.close if region else ()
            if not over and begins(text, (*self._marks, *close)):
                return None
            if called and (closed := next((each for each in close if text.startswith(each)), None)):
                text, region = text[len(closed) :].lstrip(), None
                continue
            if (mark := self._next_of_thoughts.match(text)) is not None:
                text, region = text[mark.end() :], self._opens.get(mark[0])
                if region is None:  # it says nothing more
                    text = text.lstrip()
                    continue
            elif not called or region is None or text[0] not in "{[":
                return False
            found = region.style(text, self._functions, region.close, over=over)
            if found.end is None:
                return False if found.wrong or over else None
            text, called = text[found.end :].lstrip(" \n\t\r,;"), True
        return called if over else None

    def _call(self, region: Region, *, final: bool, cut: bool) -> list[Event]:
        """The next calls in an open region; the mark of one without any is text."""
        start = self._next_call(region, final=final) if self._behind else 0
        if start is None:
            return []
        if region.style is last_lines:
            found = self._last_lines(over=final and not cut)
        else:
            found = region.style(self._held[start:], self._functions, region.close, over=final and not cut)
        if found.end is not None:
            self._held, self._behind, self._space = self._held[start + found.end :], True, ""
            return self._called(found.calls)
        if not (found.wrong or final):
            return []
        if cut and (calls := cut_calls(found)):
            self._held, self._region, self._space = "", None, ""
            return self._called(calls)
        if self._behind:
            self._leave(region)
            return []
        self._region, told = None, self._before_tag(region.open)
        self._held = region.open[len(told) :] + self._held
        return self._out(told)

    def _last_lines(self, *, over: bool) -> Found:
        """What `last_lines` finds; where that is nothing, no calls begin at places that this shows, too."""
        lines = LINE_MARK.lstrip() + self._held
        start = self._fed - len(lines)
        if over and not lines.rstrip().endswith(LAST):
            self._passed = start + self._sure
            return NONE
        self._sure, more = whole_calls(lines, self._functions, self._sure)
        if more and not over:
            return MORE
        whole = not lines[self._sure :].strip()
        found = last_lines(self._held, self._functions, (), over=True) if over and whole else NONE
        if found.wrong:
            self._passed = start + self._sure
            if over:  # what is in open brackets now, is so to the end
                self._open |= {start + place for place in scan(lines, self._sure, JSON).open}
        return found

    def _next_call(self, region: Region, *, final: bool) -> int | None:
        """Where another call may begin in a region; None where the region is over, or more text decides."""
        while True:
            self._held = TOO_MANY.sub("", self._held, count=1)
            rest = self._held.lstrip(BETWEEN)
            told = next((each for each in region.between if rest.startswith(each)), None)
            if told is None:
                break
            self._held = rest[len(told) :]
        if not final and begins(rest, (*region.close, *region.between)):
            return None
        for mark in region.close:
            if rest.startswith(mark):
                self._held, self._region, self._behind = rest[len(mark) :], None, False
                return None
        if rest[:1] in ("{", "[") or (region.style is tagged and rest.startswith(FUNCTION_MARK[: len(rest) or 1])):
            return len(self._held) - len(rest)
        if rest or final:
            self._leave(region)
        return None

    def _leave(self, region: Region) -> None:
        """Leave a region without its closing mark, which is no text where it comes later."""
        self._region, self._behind = None, False
        self._around |= {mark for mark in region.close if mark != FENCE}
        self._mark_ahead()

    def _content(self, *, final: bool, cut: bool) -> list[Event]:
        text = self._held
        if not self._began and self._thoughts:
            begin = text.lstrip()
            for open_, close in self._thoughts:
                if begin.startswith(open_):
                    self._held, self._close = begin[len(open_) :], close
                    return []
            if not final and any(open_.startswith(begin) for open_, _ in self._thoughts):
                return []
        if not self._marks:
            self._held = ""
            return self._out(text)
        if not self._began and not self._calls and text.lstrip()[:1] in ("", "{", "["):
            alone = self._alone(final=final, cut=cut)
            if alone is not None:
                return alone
        return self._between(final=final)

    def _alone(self, *, final: bool, cut: bool) -> list[Event] | None:
        """The calls of an answer that is calls in JSON, or Python, and nothing else; None for any other."""
        text = self._held
        if not final:
            keyed = KEYED.match(text) and FIRST.match(text)
            return [] if keyed or EARLY.fullmatch(text) or LISTED.match(text) else None
        calls = calls_in(text, self._functions, cut=cut)
        if calls is None and text.lstrip()[:1] == "[":
            found = python(text, self._functions, ())
            calls = found.calls if found.end is not None and not text[found.end :].strip() else None
        if not calls:
            return None
        self._held = ""
        return self._called(calls)

    def _between(self, *, final: bool) -> list[Event]:
        """Text up to the next mark."""
        text = self._held
        mark = self._next.search(text)
        while mark is not None and mark[0] == LINE_MARK and self._is_passed(self._fed - len(text) + mark.start() + 1):
            mark = self._next.search(text, mark.end())
        if mark is None:
            busy = not final and self._begins is not None and self._begins.search(text)
            safe = len(text) - (begun(text, self._marks) if busy else 0)
            self._held = text[safe:]
            return self._out(text[:safe])
        told, events = self._before_tag(mark[0]), self._out(text[: mark.start()])
        if not final and begins(text[mark.start() :], self._marks):
            self._held = text[mark.start() :]
        elif told != mark[0] and (self._in_fence or self._lead):  # the end of a block of code, or no fence
            self._held = text[mark.start() + len(told) :]
            events += self._out(told)
        else:
            self._region, self._held = self._opens.get(mark[0]), text[mark.end() :]
            self._sure = 0
        return events

    def _is_passed(self, place: int) -> bool:
        """True where no calls of the last lines begin."""
        return place < self._passed or place in self._open

    def _out(self, text: str) -> list[Event]:
        """Text; space before the first, and behind a call, comes only with more."""
        for number, line in enumerate(text.split("\n")):
            self._lead = "" if number else self._lead
            if len(self._lead) < len(FENCE):
                self._lead = (self._lead + line).lstrip()[: len(FENCE)]
                self._in_fence ^= self._lead == FENCE
        text = self._space + text
        self._space = "" if self._began or text.strip() else text
        if self._space:
            return []
        if self._thought and not self._began:
            text = text.lstrip()
        if self._calls:
            kept = text.rstrip()
            self._space, text = text[len(kept) :], kept
        self._began |= bool(text)
        return [Text(text)] if text else []


class CallReader(Reader):
    """Reads an answer that is a call in JSON whatever comes, as its grammar allows nothing else."""

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions, one=True)
        self._text, self._told = "", -1  # characters of the arguments; -1 before they begin
        self._arguments: Value | None = None  # that are open
        self._over = False

    def feed(self, text: str) -> list[Event]:
        self._text += text
        if self._over:
            return []
        if self._arguments is not None:
            more = self._arguments.feed(text)
            if self._arguments.depth > 0:
                self._told += len(more)
                return [Arguments(more)] if more else []
        return self._more(read_value(self._text, self._functions))

    def end(self, *, cut: bool = False) -> list[Event]:  # noqa: ARG002
        return [] if self._over or self._told < 0 else [End(cut=True)]

    def _more(self, found: Found) -> list[Event]:
        if not found.calls:
            return []
        call, events = found.calls[0], list[Event]()
        if self._told < 0:
            events.append(Begin(call.name))
            self._told = 0
        arguments, value = quoted(call.arguments, whole=not call.cut), Value()
        if call.cut and self._text.endswith(call.arguments):
            value.feed(call.arguments)
        self._arguments = value if value.depth > 0 else None
        if more := arguments[self._told :]:
            events.append(Arguments(more))
            self._told += len(more)
        self._over = found.end is not None
        return [*events, *([End()] if self._over else [])]


class Value:
    """A value in JSON that comes in pieces: what `quoted` makes of it, as far as that is certain."""

    def __init__(self) -> None:
        self.depth = 0  # brackets that are open
        self._string, self._rest = False, ""

    def feed(self, text: str) -> str:
        """What is certain with this text, up to the value's end, and was not before."""
        text, told, place, self._rest = self._rest + text, "", 0, ""
        while (token := (IN_STRING if self._string else OUTSIDE).search(text, place)) is not None:
            told += text[place : token.start()]
            place = token.end()
            if token.lastgroup == "more":
                self._rest = token[0]
                return told
            told += quoted(token[0], whole=True) if token.lastgroup == "literal" else token[0]
            if token[0] == '"':
                self._string = not self._string
            elif not self._string and token[0] in DEPTHS:
                self.depth += DEPTHS[token[0]]
                if self.depth <= 0:
                    return told
        return told + text[place:]
