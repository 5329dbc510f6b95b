"""An answer in the making, on the side of the client: content, tool calls, and what is said beside them."""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from omnidraft.server.reading.pieces import Call, CallPiece, Piece, Reader
from omnidraft.server.scheduler import Done, Task, Told
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

    def as_dict(self) -> dict[str, Any]:
        """In OpenAI's form."""
        top = [{"token": each.text, "logprob": each.logprob, "bytes": each.data} for each in self.top]
        return {"token": self.text, "logprob": self.logprob, "bytes": self.data, "top_logprobs": top}


@dataclass(frozen=True, kw_only=True)
class Delta:
    """The part of an answer that a round adds."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()
    logprobs: Sequence[TokenInfo] = ()
    trace: dict[str, Any] | None = None  # the extension, where it is asked for


class Answer:
    """Takes the events of one task: `take` while it is made, then the attributes."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.content = self.reasoning = ""
        self.logprobs: list[TokenInfo] = []  # the prompt's among them, where they are asked for
        self.prompt_tokens = 0  # of the log-probabilities
        self.call_ids: list[str] = []
        self._thought = 0  # characters of reasoning, told or not
        self.done: Done | None = None
        self._reader: Reader = task.reading.reader(task.served.marks)
        self._sources = Sources(task) if task.trace else None

    def take(self, event: Told | Done) -> Delta:
        """The part that a round adds, or the end."""
        delta = self._step(event) if isinstance(event, Told) else self._end(event)
        self.content += delta.content
        self.reasoning += delta.reasoning
        self.logprobs += delta.logprobs
        self.call_ids += [f"call_{secrets.token_hex(12)}" for each in delta.calls if each.name is not None]
        return delta

    @property
    def calls(self) -> Sequence[Call]:
        """The calls so far."""
        return self._reader.calls

    @property
    def likelihood(self) -> float:
        """Mean log-probability of the answer's tokens."""
        own = [info.logprob for info in self.logprobs[self.prompt_tokens :] if info.logprob is not None]
        return sum(own) / len(own) if own else 0.0

    @property
    def finish(self) -> str:
        """OpenAI's reason for the end."""
        whole = bool(self.calls) and not self.calls[-1].cut
        return "tool_calls" if whole else ENDS.get(self.finished.result.finish_reason, "stop")

    @property
    def usage(self) -> dict[str, int]:
        """Tokens of the target: of the prompt, of them cached, and of the answer."""
        done = self.finished
        return {"prompt": len(self.task.ids), "cached": done.cached, "completion": self.made}

    @cached_property
    def reasoned(self) -> int:
        """Tokens of the answer's reasoning."""
        return reasoning_tokens(self.task, self.finished.result.token_ids, self._thought)

    @property
    def made(self) -> int:
        """Tokens of the answer; none of one that is made for its prompt alone."""
        return 0 if self.task.prompt_alone else len(self.finished.result.token_ids)

    @property
    def beside(self) -> dict[str, Any]:
        """Fields of a complete answer, or of its last chunk, that only this server has: times, and the extension."""
        ignored = {"ignored": list(self.task.ignored)} if self.task.ignored else {}
        stats = self.finished.result.stats
        idle = {} if stats.proposed else {"drafting": self.task.served.undrafted(stats.no_draft_reason)}
        own = (self.summary or {}) | ignored | idle
        return {"timings": timings([self])} | ({"omnidraft": own} if own else {})

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
        piece = self._reader.feed(step.text)
        trace = None if self._sources is None else self._sources.of(record, piece)
        return self._delta(piece, [*infos, *self._infos(record)], trace)

    def _end(self, done: Done) -> Delta:
        self.done = done
        piece = self._reader.end(cut=done.result.finish_reason in CUTS)
        told = piece.content or piece.reasoning
        trace = self._sources.of(None, piece) if self._sources is not None and told else None
        return self._delta(piece, (), trace)

    def _delta(self, piece: Piece, infos: Sequence[TokenInfo], trace: dict[str, Any] | None) -> Delta:
        self._thought += len(piece.reasoning)
        reasoning = piece.reasoning if self.task.reading.tells_reasoning else ""
        return Delta(content=piece.content, reasoning=reasoning, calls=piece.calls, logprobs=infos, trace=trace)

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
        ends = () if self.task.echo else self.task.served.model.engine.eos
        infos = []
        for token, info in zip(record.emitted, record.logprobs, strict=False):
            if token not in ends:
                top = [self._info(each, logprob) for each, logprob in info.top]
                infos.append(self._info(token, info.logprob, top))
        return infos

    def _info(self, token: int, logprob: float, top: Sequence[TokenInfo] = ()) -> TokenInfo:
        text, data = self.task.served.text_of(token)
        return TokenInfo(text=text, data=data, logprob=max(logprob, MIN_LOGPROB), top=top)


def timings(answers: Sequence[Answer]) -> dict[str, float]:
    """Counts and milliseconds in llama-server's form: all tokens of some answers, and all of the time."""
    results = [answer.finished for answer in answers]
    cached = sum(done.cached for done in results)
    read, made = sum(len(answer.task.ids) for answer in answers) - cached, sum(answer.made for answer in answers)
    found: dict[str, float] = {"cache_n": cached}
    for name, count, seconds in (
        ("prompt", read, sum(done.prompt_s for done in results)),
        ("predicted", made, sum(done.predicted_s for done in results)),
    ):
        found[f"{name}_n"], found[f"{name}_ms"] = count, 1e3 * seconds
        found[f"{name}_per_token_ms"] = 1e3 * seconds / max(count, 1)
        found[f"{name}_per_second"] = count / seconds if seconds else 0.0
    stats = [done.result.stats for done in results]
    found["draft_n"], found["draft_n_accepted"] = sum(s.proposed for s in stats), sum(s.accepted for s in stats)
    return found


def reasoning_tokens(task: Task, ids: Sequence[int], length: int) -> int:
    """How many of these tokens have text of the reasoning, which has `length` characters.

    They are read one by one: the rounds that they came in have no say in it.
    """
    if not length:
        return 0
    text = task.served.model.text_after(task.ids, task.options["extras"].marks)
    reader = task.reading.reader(task.served.marks)
    counted: set[int] = set()
    begins: list[int] = []  # places of the tokens in the text; one without text is of the character behind it
    read, told = "", 0
    for token in ids:
        begins.append(len(read))
        new = text.feed([token])
        read += new
        reasoning = reader.feed(new).reasoning
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
    """Says of each piece of an answer's reasoning and content which tokens it is of, and where these come from."""

    def __init__(self, task: Task) -> None:
        self._text = task.served.model.text_after(task.ids)
        self._waiting: deque[tuple[str, str]] = deque()  # text and source of tokens that are not out

    def of(self, record: Round | None, piece: Piece) -> dict[str, Any]:
        """The extension of a chunk with this piece; None is the end of the answer."""
        if record is not None:
            for place, token in enumerate(record.emitted):
                self._waiting.append((self._text.feed([token]), _source(record, place)))
        tokens = [*self._tokens(piece.reasoning), *self._tokens(piece.content)]
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
