"""A drafter whose task or target changes (Figures 5 and 6 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments import figures
from experiments.evaluation import Evaluation, Method, Row
from experiments.recipe import Recipe
from experiments.student import Recorded, Student
from experiments.tables import JobPart, Measured
from omnidraft.bench.output import markdown_table
from omnidraft.decoding.stats import Stats

MODES = {
    "with the n-gram cache": Method({"draft_length": 4}, {}),
    "without it": Method({"draft_length": 4, "mode": "intersection"}, {}),
}


def curve(student: Student, stream: Sequence[Recorded]) -> list[list[int]]:
    """The counts of each answer of a stream, before it is learned from."""
    return [_counts(student.follow(recorded)) for recorded in stream]


def _counts(stats: Stats) -> list[int]:
    return [stats.accepted, stats.proposed, stats.tokens, stats.rounds]


def tasks(evaluation: Evaluation) -> Row:
    """A stream that goes over to another task half-way, with and without the n-gram cache, learning and not."""
    names = list(evaluation.recipe.tasks)[:2]
    first, second = (evaluation.answers(name, subset=True) for name in names)
    curves = {}
    for name, method in MODES.items():
        curves[name] = curve(evaluation.student(method), [*first, *second])
        frozen = replace(method, learning=None)
        curves[f"{name}, frozen"] = curve(evaluation.student(frozen), [*first, *second])
    return {"target": evaluation.target, "tasks": ", then ".join(names), "at": len(first), "curves": curves}


def targets(one: Evaluation) -> Row:
    """A drafter that goes from one target to another and back, each with what it learned there."""
    recipe = one.recipe
    other, task = one.other(recipe.switch[1]), next(iter(recipe.tasks))
    result: Row = {"targets": list(recipe.switch), "curves": {}, "tests": {}}
    for name, method in MODES.items():
        first = one.student(method)
        second = other.student(method, shared=first.shared)  # both draft with the same copy of the drafter
        stream, tests = one.answers(task, subset=True), one.answers(task, tests=True, subset=True)
        half = len(stream) // 2
        curves = [curve(first, stream[:half])]
        left = first.examine(tests)
        curves.append(curve(second, other.answers(task, subset=True)[:half]))
        back = first.examine(tests)
        curves.append(curve(first, stream[half:]))
        result["curves"][name] = curves
        result["tests"][name] = {"leaving": _counts(left), "coming back": _counts(back)}
    return result


def _table(rows: Sequence[Row]) -> str:
    lines = [
        [name, when, f"{accepted / max(1, proposed):.4f}", f"{tokens / rounds:.4f}"]
        for row in rows
        for name, tests in row["tests"].items()
        for when, (accepted, proposed, tokens, rounds) in tests.items()
    ]
    heads = ["n-gram cache", "when", "acceptance rate", "block efficiency"]
    return f"## {' before and after '.join(rows[0]['targets'])}\n\n{markdown_table(heads, lines, 2)}"


def _task_jobs(recipe: Recipe) -> Measured:
    if len(recipe.tasks) > 1:
        yield recipe.targets[0], "tasks", tasks


def _target_jobs(recipe: Recipe) -> Measured:
    if recipe.switch:
        yield recipe.switch[0], "targets", targets


TASKS = JobPart("switch", _task_jobs, panel=figures.tasks)
TARGETS = JobPart("targets", _target_jobs, _table, panel=figures.targets)
