"""The choice of a reader: by the answer's grammar, the tokenizer's own template, channels, or marks in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnidraft.server.reading.channels import ChannelReader
from omnidraft.server.reading.events import Functions, Reader
from omnidraft.server.reading.marks import RegionMarks
from omnidraft.server.reading.reader import CallReader, TextReader

TAIL = 32  # last tokens of a prompt, in which it may open reasoning


@dataclass(frozen=True)
class Reading:
    """The way to read an answer: for calls of these functions, and for reasoning where it `reasons`."""

    functions: Functions = field(default_factory=dict)
    forced: bool = False  # the answer is a call in JSON, and nothing else
    one: bool = False  # no more than one call
    reasons: bool = False
    tells_reasoning: bool = True
    thinking: str | None = None  # the mark that ends the reasoning which the prompt has begun
    goes_on: bool = False  # with words of it
    template: Mapping[str, Any] | None = None  # of the tokenizer's own
    prompt: str = ""  # for that

    def reader(self, marks: RegionMarks) -> Reader:
        """A reader of one answer."""
        if self.forced and self.thinking is None:
            return CallReader(self.functions)
        if self.template is not None:
            from omnidraft.server.reading.template_reader import TemplateReader

            return TemplateReader(self.template, self.prompt, self.functions, one=self.one)
        if marks.channels and self.reasons:
            return ChannelReader(self.functions, one=self.one)
        how = {"one": self.one, "reasons": self.reasons, "goes_on": self.goes_on}
        return TextReader(self.functions, marks, thinking=self.thinking, **how)

    def marks(self, marks: RegionMarks) -> frozenset[int]:
        """The special tokens whose text the reader needs."""
        read = self.functions or (self.reasons and (marks.thoughts or marks.channels)) or self.template is not None
        return marks.special if read else frozenset()


def reading_of(
    tokenizer: Any,
    ids: Sequence[int],
    marks: RegionMarks,
    functions: Functions,
    *,
    reasons: bool,
    forced: bool,
    said: str = "",
) -> Reading:
    """The way to read the answer to a prompt, which may have begun the answer's reasoning.

    The prompt ends with what is `said` of the answer, where that is to go on.
    """
    template = getattr(tokenizer, "response_template", None) if reasons and not forced else None
    said = said.strip()
    thoughts = marks.thoughts if reasons else ()
    tail = str(tokenizer.decode(list(ids[-TAIL - len(said) :]), skip_special_tokens=False)) if thoughts else ""
    before = tail.rstrip().removesuffix(said).rstrip()
    thinking = goes_on = None
    for open_, close in thoughts:
        words = said.removeprefix(open_)
        if (before.endswith(open_) or words != said) and close not in words:
            thinking, goes_on = close, words.strip()
    return Reading(
        functions=functions,
        forced=forced,
        reasons=reasons,
        thinking=thinking,
        goes_on=bool(goes_on),
        template=template if isinstance(template, Mapping) else None,
        prompt=str(tokenizer.decode(list(ids), skip_special_tokens=False)) if template else "",
    )
