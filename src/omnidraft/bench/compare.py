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

from omnidraft.bench.interleaved import Answer, Timed, ordered, take_turns
from omnidraft.bench.methods import Method, UnavailableError
from omnidraft.bench.records import Counts, Run, Writer
from omnidraft.decoding.stats import Stats
from omnidraft.errors import PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

EVERY_S = 15.0  # between lines of progress where there is no terminal


@dataclass(frozen=True)
class Question:
    """A prompt as token ids of the target."""

    task: str
    number: int  # within the task
    ids: list[int]


def questions_of(model: OmniDraft, texts: dict[str, list[str]], new_tokens: int, console: Console) -> list[Question]:
    """The prompts that leave room for an answer, as token ids."""
    questions: list[Question] = []
    room = model.target.lm.context - new_tokens
    for task, its in texts.items():
        fitting = [ids for prompt in its if len(ids := model.encode_message(prompt)) <= room]
        if not fitting:
            raise PromptError(f"no prompt of {task} fits {room} tokens, what an answer leaves: use --max-new-tokens")
        if len(fitting) < len(its):
            console.print(f"{task}: {len(its) - len(fitting)} prompts of more than {room} tokens are left out")
        questions += [Question(task, number, ids) for number, ids in enumerate(fitting)]
    return questions


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the race is run; no repeat but the first is begun that would end after `budget_s` seconds."""

    new_tokens: int
    repeats: int
    first: int = 0  # the repeat to begin with
    budget_s: float = math.inf
    seed: int = 0  # decides every draw


def race(
    methods: list[Method], questions: Sequence[Question], plan: Plan, writer: Writer, step: Callable[[], None]
) -> None:
    """Time every method on every prompt, again and again; `step` is called after each turn.

    A method that does not work with these models is taken out of `methods`.
    """
    expected: dict[tuple[str, int], list[int]] = {}
    for method in list(methods):
        _try(methods, method, questions[0], plan, writer)  # warms up, and is dropped
    start = time.monotonic()
    for repeat in range(plan.first, plan.repeats):
        done = repeat - plan.first
        if done and (time.monotonic() - start) * (done + 1) / done > plan.budget_s:
            break
        for method in methods:
            method.restart()
        for place, question in enumerate(questions):
            answers: dict[Method, Timed] = {}
            number = repeat * len(questions) + place
            with _undisturbed():
                for method in ordered(methods, number):
                    timed = _try(methods, method, question, plan, writer, number)
                    if timed is not None:
                        answers[method] = timed
            for method, timed in answers.items():
                key = (question.task, question.number)
                expected.setdefault(key, answers[methods[0]].answer.tokens)
                identical = timed.answer.tokens == expected[key] if method.must_be_identical else None
                writer.add(_run(repeat, question, method.name, timed, identical))
            step()


def _try(
    methods: list[Method], method: Method, question: Question, plan: Plan, writer: Writer, number: int = 0
) -> Timed | None:
    """An answer; a method that does not work with these models is taken out of `methods`."""
    try:
        return take_turns([method], question.ids, plan.new_tokens, plan.seed + number, chunk=plan.new_tokens)[0]
    except UnavailableError as error:
        methods.remove(method)
        writer.drop(method.name, str(error))
        return None


def _run(repeat: int, question: Question, method: str, timed: Timed, identical: bool | None) -> Run:
    return Run(
        repeat=repeat,
        task=question.task,
        prompt=question.number,
        method=method,
        tokens=len(timed.answer.tokens),
        seconds=timed.seconds,
        identical=identical,
        counts=_counts(timed.answer, len(question.ids)),
    )


def _counts(answer: Answer, prompt_tokens: int) -> Counts | None:
    if answer.rounds is not None:
        stats = Stats.of(answer.rounds)
        names = {each.name for each in fields(Counts)} - {"overhead_s"}
        return Counts(**{name: getattr(stats, name) for name in names}, overhead_s=stats.overhead_s + stats.policy_s)
    if answer.passes is None:
        return None
    rounds = len(answer.passes)
    # every pass but the first is also fed the token that the one before it ended with
    drafted = max(0, sum(answer.passes) - prompt_tokens - (rounds - 1))
    accepted = max(0, min(drafted, len(answer.tokens) - rounds))
    return Counts(
        rounds=rounds,
        drafted=drafted,
        proposed=drafted,
        accepted=accepted,
        symbols=drafted,
        symbols_accepted=accepted,
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
