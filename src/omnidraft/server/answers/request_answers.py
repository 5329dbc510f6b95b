"""The answers of one request: one, or several to each of its prompts, made side by side; and how they go out."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from omnidraft.server.answers.answer import Answer, Delta
from omnidraft.server.errors import ApiError, to_json
from omnidraft.server.grammars.grammar import Grammar
from omnidraft.server.requests.bodies import Received
from omnidraft.server.running.request_queue import Event, Progress, Scheduler, Task

QUIET_S = 15.0  # after which a stream says that it is alive: clients and proxies end one that says nothing for a minute


class RequestAnswers:
    """Queues the tasks of a request; `deltas` while its answers are made, then `choices`.

    The answers to one prompt differ by their seeds, that of the first being the request's.  Greedy ones would not
    differ: one is made, and told as often as it is asked for.  Raises ApiError where they cannot all wait.
    """

    def __init__(self, tasks: Sequence[Task], scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._groups: list[list[Answer]] = []
        self._events: asyncio.Queue[tuple[Answer, Event]] = asyncio.Queue()  # no longer than the answers
        try:
            for task in tasks:
                group: list[Answer] = []
                self._groups.append(group)
                for number in range(1 if task.greedy else task.best_of):
                    seed = (task.options["seed"] + number) % 2**64
                    own = task if number == 0 else replace(task, options=_afresh(task.options, seed), first=task)
                    group.append(self._queued(own))
        except ApiError:
            self.close()
            raise

    def _queued(self, task: Task) -> Answer:
        answer, loop = Answer(task), asyncio.get_running_loop()

        def send(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._events.put_nowait, (answer, event))

        task.send = send
        self._scheduler.submit(task)
        return answer

    @property
    def answers(self) -> list[Answer]:
        """All that are made."""
        return [answer for group in self._groups for answer in group]

    @property
    def task(self) -> Task:
        """The first."""
        return self._groups[0][0].task

    @property
    def prompts(self) -> list[Answer]:
        """An answer to each prompt."""
        return [group[0] for group in self._groups]

    @property
    def choices(self) -> list[Answer]:
        """The `n` answers that are sent, by their numbers: the likeliest of those made, once they are complete."""
        n, answers = self.task.n, list[Answer]()
        for group in self._groups:
            best = group
            if len(group) > n:
                best = sorted(group, key=lambda answer: answer.likelihood, reverse=True)
            answers += (best * n)[:n] if len(group) == 1 else best[:n]
        return answers

    async def deltas(self, quiet_s: float | None = None) -> AsyncIterator[tuple[Answer, Delta | Progress | None]]:
        """One delta of an answer a round, and one at its end; None after each `quiet_s` seconds without any.

        While a prompt is read, its progress where that is asked for.

        Raises ApiError, of the first that fails.
        """
        left = len(self.answers)
        while left:
            try:
                async with asyncio.timeout(quiet_s):
                    answer, event = await self._events.get()
            except TimeoutError:
                yield self.answers[0], None
                continue
            if isinstance(event, ApiError):
                raise event
            if isinstance(event, Progress):
                yield answer, event
                continue
            delta = answer.take(event)
            left -= answer.done is not None
            yield answer, delta

    def close(self) -> None:
        """Have those end that are not complete; to be called in any case."""
        for answer in self.answers:
            if answer.done is None:
                self._scheduler.cancel(answer.task)


class Reply(ABC):
    """The reply to a request, in the format of an API."""

    media_type: ClassVar[str] = "text/event-stream"

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        self.batch, self.asked = batch, asked
        self.answer = batch.answers[0]
        self.model = batch.task.served.name

    @abstractmethod
    def whole(self) -> Any:
        """The body for complete answers."""

    def begin(self) -> Iterable[bytes]:
        """The first event of a stream."""
        return ()

    @abstractmethod
    def add(self, answer: Answer, delta: Delta) -> Iterable[bytes]:
        """The events of a stream for a delta."""

    def progress(self, progress: Progress) -> Iterable[bytes]:  # noqa: ARG002
        """The events of a stream that tell how much of the prompt is read."""
        return ()

    def alive(self) -> bytes:
        """The event of a stream that only says that it goes on."""
        return b": alive\n\n"

    @abstractmethod
    def end(self) -> Iterable[bytes]:
        """The last event of a stream, once the answers are complete."""

    @abstractmethod
    def fail(self, error: ApiError) -> bytes:
        """The last event of a stream that is cut."""

    async def stream(self) -> AsyncIterator[bytes]:
        """The answers as they are made."""
        try:
            for each in self.begin():
                yield each
            said = time.perf_counter()
            async for answer, delta in self.batch.deltas(QUIET_S):
                if isinstance(delta, Progress):
                    events = [*self.progress(delta)]
                else:
                    events = [] if delta is None else [*self.add(answer, delta)]
                if not events and (
                    delta is None or time.perf_counter() - said > QUIET_S
                ):  # long calls are told when whole
                    events = [self.alive()]
                for each in events:
                    yield each
                said = time.perf_counter() if events else said
            for each in self.end():
                yield each
        except ApiError as error:
            yield self.fail(error)


def _afresh(options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The options of another answer to the same prompt; a grammar keeps state, so each answer has its own."""
    processors = options.get("logits_processor") or ()
    afresh = [each.afresh() if isinstance(each, Grammar) else each for each in processors]
    return {**options, "seed": seed} | ({"logits_processor": afresh} if afresh else {})


def event(body: Mapping[str, Any], name: str = "") -> bytes:
    """A server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + to_json(body) + b"\n\n"
