"""The methods that studies compare, and their parts: tables of methods, and jobs with a table of their own.

A cell that several tables show is measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from experiments.evaluation import Evaluation, Method, Options, Row, learning_counts
from experiments.recipe import Recipe
from experiments.results import Results
from omnidraft.bench.output import markdown_table

Measured = Iterable[tuple[str, str, Callable[[Evaluation], Row]]]
"""For each job its target, its key in the file, and how it is measured."""
FIXED: Options = {"draft_length": 4}  # or the recipe's
DIRECT: Options = FIXED | {"mode": "intersection"}
PAPER: Options = FIXED | {"mode": "paper", "ngram_seed": "empty"}
BY_HEAD: Options = {"draft_length": "head"}
HYBRID: Options = {"loss": "hybrid", "train": "drafter"}
ALONE: Options = {"train": "drafter"}
GAMMAS = (0.3, 0.5, 0.7, 0.9)
# an acceptance rate is of proposed target tokens, which are fewer where drafts merge: it says less than tokens a pass
SHOWN = {"acceptance_rate": ".3f", "block_efficiency": ".3f", "speedup": ".2f"}
METHODS: dict[str, Method] = {
    "direct mapping": Method(DIRECT),
    "L_DM": Method(DIRECT, HYBRID, ngram_weight=0.0),
    "L_DM + λ·L_N-gram": Method(PAPER, HYBRID),
    "L_DM + λ·L_N-gram, LoRA": Method(PAPER, HYBRID, lora=True),
    "ours": Method({"draft_length": "goodput"}, {}),
    "plain SpD": Method(FIXED),
    "adapt only": Method(BY_HEAD, {"train": "head"}),
    "distil only": Method(FIXED, ALONE),
    "joint": Method(BY_HEAD, {"train": "joint"}),
    "interleaved": Method(BY_HEAD, {"train": "interleaved"}),
    **{f"interleaved, γ = {g:g}": Method(BY_HEAD | {"threshold": round(1 - g, 3)}, {}) for g in GAMMAS},
}


@dataclass(frozen=True)
class JobPart:
    """A part of a study of jobs of its own, with a table of their rows."""

    kind: str
    made: Callable[[Recipe], Measured]
    table: Callable[[Sequence[Row]], str]

    def jobs(self, recipe: Recipe) -> Measured:
        """The jobs that it is made of."""
        return ((target, f"{target}|{key}", act) for target, key, act in self.made(recipe))

    def markdown(self, results: Results, recipe: Recipe, *, partial: bool) -> str:  # noqa: ARG002
        """Its section of the report; empty where there is none."""
        rows = list(results.of(self.kind).values())
        return self.table(rows) if rows else ""


def measured(evaluation: Evaluation, task: str, method: str) -> Row:
    """Let a drafter learn as the method does, and answer the tests in turns with the target alone."""
    recipe = evaluation.recipe
    stream = evaluation.answers(task, recipe.temperature)
    student = evaluation.student(METHODS[method], recipe.tasks[task].threshold)
    student.learn_all(stream)
    ngrams = student.attached.cache.size
    tests = evaluation.prompts(task, tests=True)
    found = evaluation.timed({method: student}, tests)[method]
    return found | learning_counts(student) | {"ngrams": ngrams, "train": len(stream), "test": len(tests)}


@dataclass(frozen=True)
class Table:
    """A part of a study that is a table of methods."""

    title: str
    methods: Sequence[str]
    targets: Callable[[Recipe], Sequence[str]]
    tasks: Sequence[str] | None = None  # all
    shows: Mapping[str, str] = field(default_factory=lambda: SHOWN)
    kind: str = "cells"

    def cells(self, recipe: Recipe) -> dict[str, tuple[str, str, str]]:
        """Target, method and task of each cell, by its key in the file."""
        return {
            f"{target}|{task}|{method}|T = {recipe.temperature:g}": (target, method, task)
            for target in self.targets(recipe)
            for task in recipe.tasks
            for method in self.methods
            if self.tasks is None or task in self.tasks
        }

    def jobs(self, recipe: Recipe) -> Measured:
        """A job for each cell."""
        cells = self.cells(recipe).items()
        return ((target, key, partial(measured, task=task, method=method)) for key, (target, method, task) in cells)

    def markdown(self, results: Results, recipe: Recipe, *, partial: bool) -> str:
        """A line for each method and target, columns for tasks; – where nothing is measured yet.

        It is empty where not all of it is measured and not `partial`.
        """
        rows, cells = results.of("cells"), self.cells(recipe)
        found = {cell: rows[key] for key, cell in cells.items() if key in rows}
        if not found or not (partial or len(found) == len(cells)):
            return ""
        tasks = list(dict.fromkeys(task for *_, task in found))
        heads = [
            f"{task}, T = {recipe.temperature:g}: {name.replace('_', ' ')}" for task in tasks for name in self.shows
        ]
        lines = []
        for target, method in dict.fromkeys(cell[:2] for cell in found):
            its = [found.get((target, method, task), {}) for task in tasks]
            shown = [
                format(row[name], form) if name in row else "–" for row in its for name, form in self.shows.items()
            ]
            lines.append([target, method, *shown])
        return f"## {self.title}\n\n{markdown_table(['target', 'method', *heads], lines, 2)}"
