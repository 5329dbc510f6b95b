"""Answers of loaded models: whole, or piece by piece, one or several together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

from omnidraft.counts.counts import AnswerMemory
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.shared_drafter import Slot
from omnidraft.decoding.stats import Stats
from omnidraft.detokenizer import StopStrings
from omnidraft.errors import OmniDraftError
from omnidraft.prompting import Prompt
from omnidraft.session import Outcome, Session, take_turn
from omnidraft.verification.round import Round


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


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a turn added to an answer: the text of a round, None without one, or an error; see `Outcome`."""

    text: str | None = None
    error: Exception | None = None
    waits: bool = False


class Stream:
    """An answer in the making: iterate over it for pieces of text, whole characters each.

    Or call `step` for each round, of the streams of several lanes in turns, or `step_together` for one of each.
    `result` is the `Generation` so far, also after an interruption.  One that is not read to its end is to be closed,
    by `close`, of any thread, or at the end of a `with` block.  One thread at a time reads it, else OmniDraftError.
    """

    def __init__(self, session: Session, text: StopStrings) -> None:
        self.session = session
        self._text = text
        self._pieces: list[str] = []
        self._piece = ""  # of the present round
        self._busy = threading.Lock()  # never waited for: who holds it may wait for the models
        self._closed = False

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while (piece := self.step()) is not None:
            if piece:
                return piece
        raise StopIteration

    def step(self) -> str | None:
        """Do one round: the text that it completes, which may be empty, or None after the last one."""
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
        self._closed = self.session.stopping = True
        if self._busy.acquire(blocking=False):  # else the reader sees to it
            try:
                self.session.close()
            finally:
                self._busy.release()

    @property
    def rounds(self) -> tuple[Round, ...]:
        """Records of the rounds so far."""
        return tuple(self.session.records)

    @property
    def result(self) -> Generation:
        rounds = self.rounds
        return Generation(
            text="".join(self._pieces),
            token_ids=tuple(token for record in rounds for token in record.emitted),
            finish_reason=(rounds[-1].finish if rounds else None) or "interrupted",
            stats=Stats.of(rounds),
        )

    def enter(self) -> Step | None:
        """Take the stream for a turn, until `leave`; what its reader is to be told where it cannot be."""
        if not self._busy.acquire(blocking=False):
            fix = "read it in one thread, not in its processors"
            error = None if self._closed else OmniDraftError(f"the stream is being read already: {fix}")
            return Step(error=error)
        if self._closed:
            self.leave()
            return Step()
        return None

    def leave(self) -> None:
        """Let go of it, and end it where it was closed meanwhile."""
        self._busy.release()
        if self._closed:
            self.close()

    def cut(self, tokens: Sequence[int]) -> int | None:
        """Take in the tokens of a round; how many of them stay, where a stop string ends the answer."""
        self._piece, kept = self._text.feed(tokens)
        return kept

    def taken(self, outcome: Outcome) -> Step:
        """What a turn added to the answer."""
        if isinstance(outcome.error, OmniDraftError) and self._closed:
            return Step()  # while it waited for the models, which have a later request now
        if outcome.record is None:
            return Step(error=outcome.error, waits=outcome.waits)
        self._pieces.append(self._piece + (self._text.end() if outcome.record.finish else ""))
        return Step(text=self._pieces[-1])


def step_together(streams: Sequence[Stream]) -> list[Step]:
    """A round of each of several streams, in joint passes of the models that they share; an error is one stream's own.

    Of one whose prompt is long a part is read; prompts one after the other.
    """
    steps = {at: step for at, stream in enumerate(streams) if (step := stream.enter()) is not None}
    going = {at: stream for at, stream in enumerate(streams) if at not in steps}
    try:
        outcomes = take_turn([each.session for each in going.values()], [each.cut for each in going.values()])
        steps |= {at: each.taken(outcome) for (at, each), outcome in zip(going.items(), outcomes, strict=True)}
    finally:
        for stream in going.values():
            stream.leave()
    return [steps[at] for at in range(len(streams))]


class Lane:
    """A place for one request at a time, beside those of a model's other lanes; made by `OmniDraft.lanes`.

    After an answer its KV caches stay, and the next request reads only what follows the beginning that it has in common
    with that one: of a conversation, the new messages.  A round that fails leaves them empty.
    """

    def __init__(self, engine: Engine, slot: Slot, stream: Callable[..., Stream]) -> None:
        self._engine, self._slot, self._stream = engine, slot, stream

    def stream(self, prompt: Prompt, *, memory: AnswerMemory | None = None, **options: Any) -> Stream:
        """Stream the answer to a prompt, as `OmniDraft.stream` does; another request on this lane ends it, too.

        `memory` holds the earlier answers of one user among several, in place of the model's own.
        """
        return self._stream(prompt, memory, **options)

    def common(self, ids: Sequence[int]) -> int:
        """How many leading token ids of a prompt the target's KV cache holds."""
        return self._engine.common(ids)

    @property
    def nbytes(self) -> int:
        """Memory of the KV caches of target and drafter now, in bytes."""
        attached = self._engine.attached
        return self._engine.target.nbytes + (attached.drafter.sequence.nbytes if attached else 0)

    def clear(self) -> None:
        """Empty the KV caches; a stream that is still open cannot go on."""
        with self._slot.lock:
            self._slot.take(object())
            self._engine.release()
