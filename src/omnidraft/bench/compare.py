"""The comparison: every method answers every prompt, in turns, and is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from omnidraft.bench.interleaved import Method, Timed, TimedAnswer, interleave
from omnidraft.bench.methods import UnavailableError
from omnidraft.bench.records import Results, Run
from omnidraft.decoding.stats import Stats
from omnidraft.errors import PromptError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft


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
    for task, prompts in texts.items():
        fitting = [ids for prompt in prompts if len(ids := model.encode_message(prompt)) <= room]
        if not fitting:
            raise PromptError(f"no prompt of {task} fits {room} tokens, what an answer leaves: use --max-new-tokens")
        if len(fitting) < len(prompts):
            console.print(f"{task}: {len(prompts) - len(fitting)} prompts of more than {room} tokens are left out")
        questions += [Question(task, number, ids) for number, ids in enumerate(fitting)]
    return questions


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sizes of a comparison."""

    new_tokens: int
    repeats: int
    seed: int = 0  # decides every draw
    sampled: bool = False  # answers then need not be those of the baseline


def compare(
    methods: list[Method],
    questions: Sequence[Question],
    plan: Plan,
    results: Results,
    step: Callable[[], None],
    watch: Callable[[Question, Sequence[Timed]], None] = lambda *_: None,
) -> None:
    """Time every method on every prompt, in each repeat; the first method is the baseline.

    `step` is called after each prompt; `watch` receives its answers, in the order of `methods`.  A method that fails
    on these models is removed from `methods`.
    """
    _answered(methods, questions[0], plan, results, 0)  # warms up
    for repeat in range(plan.repeats):
        for method in methods:
            method.restart()
        for place, question in enumerate(questions):
            timed = _answered(methods, question, plan, results, repeat * len(questions) + place)
            expected = timed[0].answer.tokens
            for method, each in zip(methods, timed, strict=True):
                identical = None if plan.sampled else each.answer.tokens == expected
                results.runs.append(run_of(method, question, each, repeat, identical=identical))
            watch(question, timed)
            step()


def run_of(method: Method, question: Question, timed: Timed, repeat: int = 0, *, identical: bool | None = None) -> Run:
    """The record of a timed answer."""
    return Run(
        repeat=repeat,
        task=question.task,
        prompt=question.number,
        method=method.name,
        tokens=len(timed.answer.tokens),
        seconds=timed.seconds,
        identical=identical,
        **_counts(timed.answer, len(question.ids)),
    )


def _answered(methods: list[Method], question: Question, plan: Plan, results: Results, number: int) -> list[Timed]:
    """The answers to one prompt; methods that fail on these models are removed."""
    while True:
        try:
            return interleave(methods, question.ids, plan.new_tokens, plan.seed + number, number, plan.new_tokens)
        except UnavailableError as error:
            methods[:] = [method for method in methods if method.name != error.method]
            results.unavailable[error.method] = str(error)


def _counts(answer: TimedAnswer, prompt_tokens: int) -> dict[str, Any]:
    if answer.rounds is not None:
        stats = Stats.of(answer.rounds)
        names = ("rounds", "drafted", "rounds_without_draft", "symbols", "symbols_accepted")
        later = Stats.of(answer.rounds[1:])
        times = {"draft_s": later.draft_s, "verify_s": later.verify_s, "overhead_s": later.overhead_s + later.policy_s}
        return {name: getattr(stats, name) for name in names} | times
    rounds = len(answer.passes)
    # beside the prompt in the first pass, and in each later one beside the token that the one before it ended with
    drafts = [fed - (1 if place else prompt_tokens) for place, fed in enumerate(answer.passes)]
    drafted = max(0, sum(drafts))
    accepted = max(0, min(drafted, len(answer.tokens) - rounds))
    counts = {"rounds": rounds, "drafted": drafted, "rounds_without_draft": drafts.count(0)}
    return counts | {"symbols": drafted, "symbols_accepted": accepted}
