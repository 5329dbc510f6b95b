"""The answers of one request: one, or several to each of its prompts, made side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from omnidraft.server.answers import Answer, Delta
from omnidraft.server.errors import ApiError
from omnidraft.server.scheduler import Scheduler, Task


@dataclass(frozen=True)
class Wanted:
    """How many answers to each prompt are made, and how many of them, the likeliest, are told."""

    told: int = 1
    made: int = 1


class Batch:
    """Queues the tasks of a request; `deltas` while its answers are made, then `choices`.

    The answers to one prompt differ by their seeds, that of the first being the request's.  Greedy ones would not
    differ: one is made, and told as often as it is asked for.  Raises ApiError where they cannot all wait.
    """

    def __init__(self, tasks: Sequence[Task], scheduler: Scheduler, wanted: Wanted) -> None:
        self._told = wanted.told
        self._groups: list[list[Answer]] = []
        try:
            for task in tasks:
                group: list[Answer] = []
                self._groups.append(group)
                for number in range(1 if task.greedy else wanted.made):
                    seed = (task.options["seed"] + number) % 2**64
                    own = task if number == 0 else replace(task, options={**task.options, "seed": seed})
                    group.append(Answer(own, scheduler, after=group[0] if group else None))
        except ApiError:
            self.close()
            raise

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
        """The answers that are told, by their numbers; of more than those the likeliest, once they are complete."""
        found: list[Answer] = []
        for group in self._groups:
            best = group
            if len(group) > self._told:
                best = sorted(group, key=lambda answer: answer.likelihood, reverse=True)
            found += (best * self._told)[: self._told] if len(group) == 1 else best[: self._told]
        return found

    async def deltas(self) -> AsyncIterator[tuple[Answer, Delta]]:
        """What comes of each answer; raises ApiError, of the first that fails."""
        if len(answers := self.answers) == 1:
            async for delta in answers[0].deltas():
                yield answers[0], delta
            return
        told: asyncio.Queue[tuple[Answer, Delta] | BaseException | None] = asyncio.Queue()

        async def read(answer: Answer) -> None:
            try:
                async for delta in answer.deltas():
                    told.put_nowait((answer, delta))
                told.put_nowait(None)
            except ApiError as error:
                told.put_nowait(error)

        reading = [asyncio.ensure_future(read(answer)) for answer in answers]
        try:
            left = len(reading)
            while left:
                found = await told.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for each in reading:
                each.cancel()

    def close(self) -> None:
        """Have those end that are not complete; to be called in any case."""
        for answer in self.answers:
            answer.close()
