"""The comparison: every method answers every prompt, taking turns, against the clock."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from omnidraft.bench.methods import Answer, Method, UnavailableError
from omnidraft.bench.passes import Pass, counting, measure
from omnidraft.bench.records import Counts, Passes, Run, Writer
from omnidraft.metrics import Stats

if TYPE_CHECKING:
    from omnidraft.bench.passes import Runner

COUNTED = 12  # prompts whose passes are counted, of all tasks alike
EVERY_S = 15.0  # between lines of progress where there is no terminal


@dataclass(frozen=True)
class Question:
    """A prompt as token ids of the target."""

    task: str
    number: int  # within the task
    ids: list[int]


def rotated(methods: Sequence[Method], turn: int) -> list[Method]:
    """The order of one turn: over as many turns as there are methods, each has had every place."""
    first = turn % len(methods) if methods else 0
    return [*methods[first:], *methods[:first]]


def race(
    methods: list[Method],
    questions: Sequence[Question],
    new_tokens: int,
    repeats: int,
    writer: Writer,
    step: Callable[[], None],
    budget_s: float = math.inf,
) -> None:
    """Time every method on every prompt, `repeats` times over; `step` is called after each turn.

    A method that does not work with these models is taken out of `methods`.  No repeat but the first is begun that
    would end after `budget_s` seconds.
    """
    expected: dict[tuple[str, int], list[int]] = {}
    for method in rotated(methods, 0):
        method.begin(0)
        _try(methods, method, questions[0], new_tokens, writer)  # warms up, and is dropped
    start = time.monotonic()
    for repeat in range(repeats):
        if repeat and (time.monotonic() - start) * (repeat + 1) / repeat > budget_s:
            break
        for method in methods:
            method.begin(repeat)
        for place, question in enumerate(questions):
            answers: dict[Method, tuple[Answer, float]] = {}
            with _undisturbed():
                for method in rotated(methods, repeat + place):
                    timed = _try(methods, method, question, new_tokens, writer)
                    if timed is not None:
                        answers[method] = timed
            for method, (answer, seconds) in answers.items():
                key = (question.task, question.number)
                expected.setdefault(key, answers[methods[0]][0].tokens)
                identical = answer.tokens == expected[key] if method.must_be_identical else None
                writer.add(_run(repeat, question, method.name, answer, seconds, identical))
            step()


def count(
    methods: Sequence[Method],
    questions: Sequence[Question],
    new_tokens: int,
    limit: int,
    writer: Writer,
    step: Callable[[], None],
) -> None:
    """Count the passes of every method on the first prompts of each task, and measure what they cost."""
    tasks = list(dict.fromkeys(question.task for question in questions))
    counted = [question for question in questions if question.number < max(1, COUNTED // len(tasks))]
    turns: list[_Turn] = []
    for method in methods:
        method.begin(0)
        for task in tasks:
            mine = [question for question in counted if question.task == task]
            with counting(method.target) as target, counting(method.drafter) as drafter:
                tokens = sum(len(method.run(question.ids, new_tokens).tokens) for question in mine)
            turns.append(_Turn(task, method, len(mine), tokens, sum(len(q.ids) for q in mine), target, drafter))
            step()
    runners: dict[int, tuple[Runner, list[Pass]]] = {}
    for turn in turns:
        for runner, passes in ((turn.method.target, turn.target), (turn.method.drafter, turn.drafter)):
            if runner is not None:
                runners.setdefault(id(runner), (runner, []))[1].extend(passes)
    costs = dict(zip(runners, measure(list(runners.values()), limit), strict=True))
    for turn in turns:
        drafter_s = costs[id(turn.method.drafter)].total(turn.drafter) if turn.method.drafter is not None else 0.0
        writer.add(
            Passes(
                task=turn.task,
                method=turn.method.name,
                prompts=turn.prompts,
                tokens=turn.tokens,
                prompt_tokens=turn.prompt_tokens,
                target_passes=len(turn.target),
                fed=sum(one.tokens for one in turn.target),
                target_s=costs[id(turn.method.target)].total(turn.target),
                drafter_s=drafter_s,
            )
        )


@dataclass(frozen=True)
class _Turn:
    """The passes of a method over some prompts of a task."""

    task: str
    method: Method
    prompts: int
    tokens: int
    prompt_tokens: int
    target: list[Pass]
    drafter: list[Pass]


def _try(
    methods: list[Method], method: Method, question: Question, new_tokens: int, writer: Writer
) -> tuple[Answer, float] | None:
    began = time.perf_counter()
    try:
        answer = method.run(question.ids, new_tokens)
    except UnavailableError as error:
        methods.remove(method)
        writer.drop(method.name, str(error))
        return None
    return answer, time.perf_counter() - began


def _run(repeat: int, question: Question, method: str, answer: Answer, seconds: float, identical: bool | None) -> Run:
    counts = None
    if answer.rounds is not None:
        stats = Stats.of(answer.rounds)
        counts = Counts(**{name: getattr(stats, name) for name in (its.name for its in fields(Counts))})
    return Run(
        repeat=repeat,
        task=question.task,
        prompt=question.number,
        method=method,
        tokens=len(answer.tokens),
        seconds=seconds,
        identical=identical,
        counts=counts,
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage is collected inside."""
    gc.collect(0)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def progress(console: Console, what: str, steps: int) -> Iterator[Callable[[], None]]:
    """Show how far it is and how long it will take: a bar on a terminal, else a line now and then."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        # drawn between the turns only: a thread that draws would take time from what is timed
        with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
            task = bar.add_task(what, total=steps)
            yield lambda: bar.update(task, advance=1, refresh=True)
        return
    began = said = time.monotonic()
    done = 0

    def step() -> None:
        nonlocal done, said
        done += 1
        now = time.monotonic()
        if now - said >= EVERY_S:
            said = now
            left = (now - began) / done * (steps - done)
            console.print(f"{what}: {done} of {steps}, about {left:.0f} s left")

    yield step
