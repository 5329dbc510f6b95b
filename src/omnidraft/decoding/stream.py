"""An answer of loaded models as it comes: whole, piece by piece, or round by round."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from omnidraft.config import Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.passes import Passes, Stop, Stopped, Work, never
from omnidraft.decoding.request import Request
from omnidraft.decoding.round import Verified, commit, read_chunk, verify
from omnidraft.decoding.schedule import Step, step_together
from omnidraft.decoding.stats import Stats
from omnidraft.errors import OmniDraftError
from omnidraft.verification.round import Round, TokenLogprobs
from omnidraft.verification.sampling import Processor, Sampler


@dataclass(frozen=True, kw_only=True)
class Generation:
    """An answer.

    `token_ids` are the target's, an end-of-text id included.  `finish_reason` is "eos", "stop" (the text ends before a
    stop string, whose tokens are in `token_ids`), "length" (as many tokens as were asked for), "context" (the target
    holds no more) or "interrupted" (a stream that was not read to its end).
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


class Text(Protocol):
    """Receiver of the tokens of an answer."""

    def feed(self, ids: Sequence[int], /) -> tuple[str, int | None]:
        """Return the text that a round's tokens complete, and how many tokens stay if the answer ends among them."""

    def end(self) -> str:
        """The rest of the text at its end."""


class NoText:
    """The text of an answer of which the tokens alone are asked for."""

    def feed(self, ids: Sequence[int], /) -> tuple[str, int | None]:  # noqa: ARG002
        return "", None

    def end(self) -> str:
        return ""


class Stream:
    """A request on a lane, and its answer so far: iterate over it for pieces of text, each of whole characters.

    Or call `step` for each round, of the streams of several lanes in turns, or `step_together` for one of each.
    `result` is the `Generation` so far, also after an interruption.  One that is not read to its end is to be closed,
    by `close`, of any thread, or at the end of a `with` block.  One thread at a time reads it, else OmniDraftError.

    It takes the lane when it is made, and drafts with the latest learned weights from round to round.  `stop` says,
    between rounds and while a long prompt is read, whether to end here.  In the end a complete answer is learned from,
    and the lane drops its state, unless it keeps it and no round has failed.
    """

    def __init__(self, lane: Lane, request: Request, text: Text | None = None, stop: Stop = never) -> None:
        self.lane, self.request = lane, request
        self.records: list[Round] = []  # of the rounds so far
        self._text = text or NoText()
        self._pieces: list[str] = []
        self._begun = self._ended = self._failed = False
        self._closed = closed = threading.Event()
        # the request asks this, and does not keep the stream
        self._stops: Stop = closed.is_set if stop is never else lambda: closed.is_set() or stop()
        request.stop = self._stops
        self._busy = threading.Lock()  # never waited for: who holds it may wait for the models
        self._holds = False  # the models, for a turn
        self._ticket = object()  # not this object, which its lane would keep alive
        lane.turns.take(self._ticket)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (piece := self.step()) is not None:
            if piece:
                return piece
        raise StopIteration

    def step(self) -> str | None:
        """Do one round; return the text that it completes, possibly empty, or None after the last round."""
        while (step := step_together([self])[0]).waits:
            pass
        if step.error is not None:
            raise step.error
        return step.text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """End the answer here, and let go of what the models hold of it; with the round that another thread is at.

        A long prompt that is being read is not read to its end.
        """
        self._closed.set()
        if self._busy.acquire(blocking=False):  # else the reader sees to it
            try:
                self._end()
            finally:
                self._busy.release()

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Records of the rounds so far."""
        return tuple(self.records)

    @property
    def prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Of the prompt's tokens but the first, after the first round, where they are asked for."""
        return tuple(self.request.scores or ()) if self._begun else ()

    @property
    def result(self) -> Generation:
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in self.records for token in record.emitted),
            finish_reason=(self.records[-1].finish if self.records else None) or "interrupted",
            stats=Stats.of(self.records),
        )

    # ------------------------------------------------------------ for a turn

    def enter(self) -> Step | None:
        """Take the stream and its models for a turn, until `leave`; return the last step if that is impossible."""
        if not self._busy.acquire(blocking=False):
            fix = "read it in one thread, not in its processors"
            error = None if self._closed.is_set() else OmniDraftError(f"the stream is being read already: {fix}")
            return Step(error=error)
        lane, request = self.lane, self.request
        try:
            if self._ended or self._stops() or not request.open:
                self._end()
                step = Step()
            else:
                lane.turns.begin(self._ticket)
                self._holds = True
                if lane.learning is not None:
                    lane.learning.load_weights(lane.attached)
                request.turns += 1
                if not self._begun:
                    lane.begin(request)
                    self._begun = True
                elif not self.records:
                    lane.adopt(request)  # what others have read meanwhile
                return None
        except Exception as error:  # noqa: BLE001  one request's failure is no other's
            step = self._fail(error)
        except BaseException:
            self.abandon()
            self.leave()
            raise
        self.leave()
        return step

    def work(self, chunk: int) -> Work[Verified | None]:
        """Return the reads of the next round, or of the next `chunk` ids of the prompt."""
        lane, request = self.lane, self.request
        passes: Passes[Verified | None] = read_chunk(lane, request, chunk) if chunk else verify(lane, request)
        return Work(passes, lane.target, request)

    def take(self, work: Work[Verified | None]) -> Step:
        """Add the result of the work to the answer."""
        try:
            verified = work.done()
            if verified is None:
                return Step(waits=True)
            piece, kept = self._text.feed(verified.emitted)
            self.lane.turns.check(self._ticket)  # a logits processor may have begun another request
            record = commit(self.lane, self.request, verified, kept)
            if record.finish is not None:
                piece += self._text.end()
        except Stopped:
            self._end()
            return Step()
        except Exception as error:  # noqa: BLE001  any error ends this answer alone
            return self._fail(error)
        self.records.append(record)
        self._pieces.append(piece)
        return Step(text=piece)

    def leave(self) -> None:
        """Let go of it; it ends here where it was closed meanwhile."""
        if self._holds:
            self._holds = False
            self.lane.turns.end()
        self._busy.release()
        if self._closed.is_set():
            self.close()

    def abandon(self) -> None:
        """End after an incomplete round: nothing is learned and no cache is kept."""
        self._failed = True
        self._end()

    def _fail(self, error: Exception) -> Step:
        """End with an error, of which nobody is told who closed the stream while it waited for the models."""
        self.abandon()
        return Step() if isinstance(error, OmniDraftError) and self._closed.is_set() else Step(error=error)

    def _end(self) -> None:
        """Release the models, once; a complete answer is learned from."""
        if self._ended:
            return
        self._ended = True
        lane = self.lane
        try:
            lane.turns.begin(self._ticket)
        except OmniDraftError:  # a later request has them
            return
        try:
            lane.turns.resume()
            if lane.learning is not None and self.request.finish is not None and not self._failed:
                lane.learning.teach(self.records, lane.attached)
        finally:
            try:
                if self._failed or not lane.keeps:
                    lane.release()
                else:
                    lane.end(self.request if self._begun else None)
            finally:
                lane.turns.end()


def decode(
    lane: Lane,
    prompt: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    draw: Sampler,
    processors: Sequence[Processor] = (),
    memory: AnswerMemory | None = None,
) -> Generator[Round]:
    """Decode a request of target tokens to its end, a record at a time; arguments and errors are `Lane.request`'s."""
    with Stream(lane, lane.request(prompt, max_new_tokens, sampling, draw, processors, memory=memory)) as stream:
        while stream.step() is not None:
            yield stream.records[-1]
