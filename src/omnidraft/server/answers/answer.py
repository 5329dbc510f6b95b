"""An answer in the making, on the side of the client: content, tool calls, and what is said beside them."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from omnidraft.server.reading.events import Begin, Event, Reader, Reasoning, Text
from omnidraft.server.reading.events import End as CallEnd
from omnidraft.server.reading.json_calls import loaded
from omnidraft.server.running.request_queue import Done, Task, Told
from omnidraft.verification.round import Round

ENDS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}
CUTS = {reason for reason, said in ENDS.items() if said == "length"}
MIN_LOGPROB = -9999.0  # log-probability of what is impossible: JSON has no infinity


@dataclass(frozen=True, kw_only=True)
class TokenInfo:
    """A token with its text, bytes and log-probability, and the most probable ones in its place."""

    text: str
    data: list[int] | None
    logprob: float | None  # None of the first token of a text
    top: Sequence[TokenInfo] = ()
    token: int = 0  # its id

    def as_dict(self) -> dict[str, Any]:
        """In OpenAI's form."""
        top = [{"token": each.text, "logprob": each.logprob, "bytes": each.data} for each in self.top]
        return {"token": self.text, "logprob": self.logprob, "bytes": self.data, "top_logprobs": top}


@dataclass(eq=False, slots=True)
class Item:
    """A stretch of an answer that is of one kind, as far as it is there."""

    kind: Literal["text", "reasoning", "call"]
    place: int  # among the answer's items
    text: str = ""  # of a call its arguments, as JSON
    name: str = ""  # of a call's function
    number: int = 0  # of a call, among the calls
    cut: bool = False  # the answer ended within it
    id: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def call_id(self) -> str:
        """By which the result of a call is told."""
        return f"call_{self.id}"

    @property
    def values(self) -> dict[str, Any]:
        """The arguments of a call by name; of one that is cut, those that are whole."""
        value = loaded(self.text, begun=True)
        return value if isinstance(value, dict) else {"arguments": self.text} if self.text else {}


@dataclass(slots=True)
class Change:
    """What happens to an item: it begins, has more text, or is over."""

    item: Item
    text: str = ""
    begins: bool = False
    ends: bool = False


@dataclass(frozen=True, kw_only=True)
class Delta:
    """What a round adds to an answer."""

    changes: Sequence[Change] = ()
    logprobs: Sequence[TokenInfo] = ()
    tokens: Sequence[int] = ()  # but for one that ends the answer
    trace: dict[str, Any] | None = None  # the extension, where it is asked for

    @property
    def content(self) -> str:
        """Its text."""
        return "".join(change.text for change in self.changes if change.item.kind == "text")


class Answer:
    """Takes the events of one task: `take` while it is made, then the attributes.

    Its items follow each other as in its text, each whole before the next begins; there is a text, maybe empty, where
    there is no call.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.items: list[Item] = []
        self.logprobs: list[TokenInfo] = []  # the prompt's among them, where they are asked for
        self.prompt_tokens = 0  # of the log-probabilities
        self._thought = 0  # characters of reasoning, told or not
        self.done: Done | None = None
        self._reader: Reader = task.reading.reader(task.served.marks)
        self._open: Item | None = None  # the last item, where more of it may come
        self._sources = Sources(task) if task.trace else None

    def take(self, event: Told | Done) -> Delta:
        """What a round adds, or the end."""
        delta = self._step(event) if isinstance(event, Told) else self._end(event)
        self.logprobs += delta.logprobs
        return delta

    @property
    def content(self) -> str:
        """All text so far."""
        return "".join(item.text for item in self.items if item.kind == "text")

    @property
    def reasoning(self) -> str:
        """All reasoning so far."""
        return "".join(item.text for item in self.items if item.kind == "reasoning")

    @property
    def calls(self) -> list[Item]:
        """The calls so far."""
        return [item for item in self.items if item.kind == "call"]

    @property
    def likelihood(self) -> float:
        """Mean log-probability of the answer's tokens."""
        logprobs = [info.logprob for info in self.logprobs[self.prompt_tokens :] if info.logprob is not None]
        return sum(logprobs) / len(logprobs) if logprobs else 0.0

    @property
    def finish(self) -> str:
        """OpenAI's reason for the end."""
        calls = self.calls
        return "tool_calls" if calls and not calls[-1].cut else ENDS.get(self.finished.result.finish_reason, "stop")

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the target: of the prompt, of them cached, and of the answer."""
        done = self.finished
        return {"prompt": len(self.task.ids), "cached": done.cached, "completion": self.made}

    @cached_property
    def reasoned(self) -> int:
        """Tokens of the answer's reasoning."""
        result = self.finished.result
        return reasoning_tokens(self.task, result.token_ids, self._thought, cut=result.finish_reason in CUTS)

    @property
    def made(self) -> int:
        """Tokens of the answer; none of one that is made for its prompt alone."""
        return 0 if self.task.prompt_alone else len(self.finished.result.token_ids)

    @property
    def tokens(self) -> list[int]:
        """Ids of the answer's tokens, but for one that ends it."""
        return [] if self.task.prompt_alone else self._told(self.finished.result.token_ids)

    @property
    def beside(self) -> dict[str, Any]:
        """Fields of a complete answer, or of its last chunk, that only this server has: times, and the extension."""
        ignored = {"ignored": list(self.task.ignored)} if self.task.ignored else {}
        stats = self.finished.result.stats
        idle = {} if stats.proposed else {"drafting": self.task.served.undrafted(stats.no_draft_reason)}
        fields = (self.summary or {}) | ignored | idle
        return {"timings": timings([self])} | ({"omnidraft": fields} if fields else {})

    @property
    def summary(self) -> dict[str, Any] | None:
        """The extension of the last chunk, where it is asked for."""
        done, stats = self.finished, self.finished.result.stats
        if self._sources is None:
            return None
        seconds = done.prompt_s + done.predicted_s
        return {
            "seconds": seconds,
            "tokens": stats.tokens,
            "tokens_per_s": stats.tokens / seconds if seconds else 0.0,
            "acceptance_rate": stats.acceptance_rate if stats.proposed else None,
            "tokens_per_pass": stats.block_efficiency,
            "estimated_speedup": done.speedup if stats.proposed else None,
            "learned": dict(done.learned),
        }

    @property
    def finished(self) -> Done:
        """The end; raises RuntimeError before."""
        if self.done is None:
            raise RuntimeError("the answer is not complete: read its deltas first")
        return self.done

    def _step(self, step: Told) -> Delta:
        record, infos = step.record, self._prompt_infos(step)
        if self.task.prompt_alone:
            return Delta(logprobs=infos)
        told = self._reader.feed(step.text)
        trace = None if self._sources is None else self._sources.of(record, told)
        tokens, infos = self._told(record.emitted), [*infos, *self._infos(record)]
        return Delta(changes=self._changes(told), logprobs=infos, tokens=tokens, trace=trace)

    def _end(self, done: Done) -> Delta:
        self.done = done
        told = self._reader.end(cut=done.result.finish_reason in CUTS)
        shown = self._sources is not None and any(isinstance(each, Text | Reasoning) for each in told)
        trace = self._sources.of(None, told) if self._sources is not None and shown else None
        changes, finish = self._changes(told), self.finish
        if self._open is not None:
            self._open.cut = finish == "length"
        if all(item.kind == "reasoning" for item in self.items):
            changes += self._begun("text")
            self.items[-1].cut = finish == "length"
        return Delta(changes=changes + self._ended(), trace=trace)

    def _changes(self, events: Sequence[Event]) -> list[Change]:
        """What events do to the items."""
        changes: list[Change] = []
        for each in events:
            if isinstance(each, Begin):
                changes += self._begun("call", each.name)
                continue
            if isinstance(each, Text | Reasoning):
                kind: Literal["text", "reasoning"] = "text" if isinstance(each, Text) else "reasoning"
                if kind == "reasoning":
                    self._thought += len(each.text)
                    if not self.task.reading.tells_reasoning:
                        continue
                if self._open is None or self._open.kind != kind:
                    changes += self._begun(kind)
            item = self.items[-1]
            if isinstance(each, CallEnd):
                item.cut = each.cut
                changes += self._ended()
            else:
                item.text += each.text
                changes.append(Change(item, each.text))
        return changes

    def _begun(self, kind: Literal["text", "reasoning", "call"], name: str = "") -> list[Change]:
        """A new item begins, and the one before is over."""
        ended = self._ended()
        self._open = Item(kind, len(self.items), name=name, number=len(self.calls))
        self.items.append(self._open)
        return [*ended, Change(self._open, begins=True)]

    def _ended(self) -> list[Change]:
        item, self._open = self._open, None
        return [] if item is None else [Change(item, ends=True)]

    def _told(self, tokens: Sequence[int]) -> list[int]:
        return [token for token in tokens if token not in self.task.served.model.lane.eos]

    def _prompt_infos(self, step: Told) -> list[TokenInfo]:
        """The log-probabilities of the prompt's tokens, with the first round; the first token has none."""
        if not step.prompt:
            return []
        text, data = self.task.served.text_of(self.task.ids[0])
        infos = [TokenInfo(text=text, data=data, logprob=None)]
        for info in step.prompt:
            top = [self._info(each, logprob) for each, logprob in info.top]
            infos.append(self._info(info.token, info.logprob, top))
        self.prompt_tokens = len(infos)
        return infos

    def _infos(self, record: Round) -> list[TokenInfo]:
        """The log-probabilities of a round's tokens, but for one that ends the answer and has no text.

        Behind a prompt that is repeated it is there, too: who scores texts counts on a token for each that was made.
        """
        ends = () if self.task.echo else self.task.served.model.lane.eos
        infos = []
        for token, info in zip(record.emitted, record.logprobs, strict=False):
            if token not in ends:
                top = [self._info(each, logprob) for each, logprob in info.top]
                infos.append(self._info(token, info.logprob, top))
        return infos

    def _info(self, token: int, logprob: float, top: Sequence[TokenInfo] = ()) -> TokenInfo:
        text, data = self.task.served.text_of(token)
        return TokenInfo(token=token, text=text, data=data, logprob=max(logprob, MIN_LOGPROB), top=top)


def timings(answers: Sequence[Answer]) -> dict[str, float]:
    """Counts and milliseconds in llama-server's form: all tokens of some answers, and all of the time."""
    results = [answer.finished for answer in answers]
    cached = sum(done.cached for done in results)
    read, written = sum(len(answer.task.ids) for answer in answers) - cached, sum(answer.made for answer in answers)
    figures: dict[str, float] = {"cache_n": cached}
    for name, count, seconds in (
        ("prompt", read, sum(done.prompt_s for done in results)),
        ("predicted", written, sum(done.predicted_s for done in results)),
    ):
        figures[f"{name}_n"], figures[f"{name}_ms"] = count, 1e3 * seconds
        figures[f"{name}_per_token_ms"] = 1e3 * seconds / max(count, 1)
        figures[f"{name}_per_second"] = count / seconds if seconds else 0.0
    stats = [done.result.stats for done in results]
    figures["draft_n"], figures["draft_n_accepted"] = sum(s.proposed for s in stats), sum(s.accepted for s in stats)
    return figures


def reasoning_tokens(task: Task, ids: Sequence[int], length: int, *, cut: bool) -> int:
    """How many of these tokens have text of the reasoning, which has `length` characters, in an answer maybe `cut`.

    They are read one by one: the rounds that they came in have no say in it.
    """
    if not length:
        return 0
    text = task.served.model.text_after(task.ids, task.options["extras"].marks)
    reader = task.reading.reader(task.served.marks)
    counted: set[int] = set()
    begins: list[int] = []  # places of the tokens in the text; one without text is of the character behind it
    read, told = "", 0
    for token in (*ids, None):
        if token is None:
            events = reader.end(cut=cut)
        else:
            begins.append(len(read))
            new = text.feed([token])
            read += new
            events = reader.feed(new)
        reasoning = "".join(each.text for each in events if isinstance(each, Reasoning))
        if not reasoning:
            continue
        start = read.rfind(reasoning)  # what is held back may follow it
        first = bisect_left(begins, start)
        if first == len(begins) or begins[first] > start:  # it begins within a token
            first -= 1
        counted.update(range(first, bisect_left(begins, start + len(reasoning))))
        told += len(reasoning)
        if told >= length:
            break
    return len(counted)


class Sources:
    """Says of each piece of an answer's reasoning and text which tokens it is of, and where these come from."""

    def __init__(self, task: Task) -> None:
        self._text = task.served.model.text_after(task.ids)
        self._waiting: deque[tuple[str, str]] = deque()  # text and source of tokens that are not out

    def of(self, record: Round | None, told: Sequence[Event]) -> dict[str, Any]:
        """The extension of a chunk that tells this; None is the end of the answer."""
        if record is not None:
            for place, token in enumerate(record.emitted):
                self._waiting.append((self._text.feed([token]), _source(record, place)))
        texts = [each.text for each in told if isinstance(each, Text | Reasoning)]
        tokens = [token for text in texts for token in self._tokens(text)]
        proposed = 0 if record is None else len(record.proposals)
        return {"tokens": tokens, "draft": proposed, "accepted": 0 if record is None else record.counts.accepted}

    def _tokens(self, told: str) -> Iterator[dict[str, str]]:
        """The tokens of a text that is told; what stands before it, such as a mark of reasoning, is left out."""
        if not told:
            return
        self._skip("".join(text for text, _ in self._waiting).find(told))
        last = "target"
        while self._waiting and len(self._waiting[0][0]) <= len(told):
            text, last = self._waiting.popleft()
            yield {"text": text, "source": last}
            told = told[len(text) :]
        if told and self._waiting:  # the rest of the token's text is held back
            text, last = self._waiting.popleft()
            self._waiting.appendleft((text[len(told) :], last))
        if told:
            yield {"text": told, "source": last}

    def _skip(self, count: int) -> None:
        """Take this number of characters away."""
        while count > 0 and self._waiting:
            text, source = self._waiting.popleft()
            if len(text) > count:
                self._waiting.appendleft((text[count:], source))
            count -= len(text)


def _source(record: Round, place: int) -> str:
    """Where a round's token comes from: the target, the drafter, or the counts without a pass of the drafter."""
    if place >= record.counts.accepted:
        return "target"
    return "drafted" if record.counts.draft_passes else "counted"
