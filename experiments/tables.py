"""Tables of methods: their cells, each a method with a target on a task, and the rows that these come to.

A cell that several tables show is measured once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from experiments.evaluation import Evaluation, Method, Options, Row, learning_counts
from experiments.figures import figure
from experiments.recipe import Recipe
from experiments.results import Results
from omnidraft.bench.output import markdown_table

SIZE = (10.0, 4.5)  # inches of a figure, of 100 dots each
Measured = Iterable[tuple[str, str, Callable[[Evaluation], Row]]]
"""For each job its target, its key in the file, and how it is measured."""
FIXED: Options = {"draft_length": 4}  # or the recipe's
DIRECT: Options = FIXED | {"mode": "intersection"}
PAPER: Options = FIXED | {"mode": "paper", "ngram_seed": "empty"}
BY_HEAD: Options = {"draft_length": "head"}
HYBRID: Options = {"loss": "hybrid", "train": "drafter"}
ALONE: Options = {"train": "drafter"}
RANKS = (8, 16, 32, 64, 128)
GAMMAS = (0.3, 0.5, 0.7, 0.9)
# an acceptance rate is of proposed target tokens, which are fewer where drafts merge: it says less than tokens a pass
SHOWN = {"acceptance_rate": ".3f", "block_efficiency": ".3f", "speedup": ".2f"}
HITS = SHOWN | {"ngram_hits": ".2f"}
UNTRAINED, DISTILLED = Method(FIXED), Method(FIXED, ALONE)  # each has another name in Table 2
METHODS: dict[str, Method] = {
    "direct mapping": Method(DIRECT),
    "direct mapping + cache": Method(PAPER),
    "L_DM": Method(DIRECT, HYBRID, {"ngram_weight": 0.0}),
    "L_DM + cache": Method(PAPER, HYBRID, {"ngram_weight": 0.0}),
    "L_DM + λ·L_N-gram": Method(PAPER, HYBRID),
    "L_DM + λ·L_N-gram, LoRA": Method(PAPER, HYBRID, lora=True),
    "L_DM + p(t)·L_N-gram": Method(PAPER, HYBRID, {"ngram_weight": None}),
    "L_N-gram alone (NLL)": Method(PAPER, HYBRID, {"direct_divergence": "none"}),
    "NLL + NLL": Method(PAPER, HYBRID, {"direct_divergence": "forward"}),
    "KL through the trie": Method(PAPER, ALONE | {"loss": "reverse"}),
    "exact, untrained": UNTRAINED,
    "ours, fixed": DISTILLED,
    "ours": Method({"draft_length": "goodput"}, {}),
    "plain SpD": UNTRAINED,
    "adapt only": Method(BY_HEAD, {"train": "head"}),
    "distil only": DISTILLED,
    "joint": Method(BY_HEAD, {"train": "joint"}),
    "interleaved": Method(BY_HEAD, {"train": "interleaved"}),
    **{f"interleaved, γ = {g:g}": Method(BY_HEAD | {"threshold": round(1 - g, 3)}, {}) for g in GAMMAS},
    **{f"LoRA {rank}": Method(PAPER, HYBRID | {"rank": rank}, lora=True) for rank in RANKS},
}


@dataclass(frozen=True)
class JobPart:
    """A part of a study of jobs of its own, with a table, a figure or both of their rows."""

    kind: str
    made: Callable[[Recipe], Measured]
    table: Callable[[Sequence[Row]], str] | None = None
    panel: Callable[[Row, Any], None] | None = None
    panels: Callable[[Sequence[Row]], Sequence[Row]] = list

    def jobs(self, recipe: Recipe) -> Measured:
        """The jobs that it is made of."""
        return ((target, f"{target}|{key}", act) for target, key, act in self.made(recipe))

    def markdown(self, results: Results, recipe: Recipe, *, partial: bool) -> str:  # noqa: ARG002
        """Its section of the report; empty where there is none."""
        rows = list(results.of(self.kind).values())
        return self.table(rows) if self.table is not None and rows else ""

    def draw(self, results: Results, path: Path) -> None:
        """Write its figure, if it has one."""
        rows = list(results.of(self.kind).values())
        if self.panel is not None and rows:
            figure(self.panels(rows), self.panel, path, SIZE)


@dataclass(frozen=True)
class Cell:
    """One figure of a table: a method with a target on a task."""

    target: str
    task: str
    method: str
    temperature: float
    subset: bool  # fewer prompts

    @property
    def key(self) -> str:
        few = "|few" if self.subset else ""
        return f"{self.target}|{self.task}|{self.method}|T = {self.temperature:g}{few}"


def measured(evaluation: Evaluation, cell: Cell) -> Row:
    """Let a drafter learn as the method does, and answer the tests in turns with the target alone."""
    method = METHODS[cell.method]
    stream = evaluation.answers(cell.task, cell.temperature, subset=cell.subset)
    student = evaluation.student(method, evaluation.recipe.size(cell.task).threshold)
    student.learn_all(stream)
    ngrams = student.attached.cache.size
    tests = evaluation.prompts(cell.task, tests=True, subset=cell.subset)
    found = evaluation.timed({cell.method: student}, tests, cell.temperature)[cell.method]
    return found | learning_counts(student) | {"ngrams": ngrams, "train": len(stream), "test": len(tests)}


@dataclass(frozen=True)
class Table:
    """A part of a study that is a table of methods."""

    title: str
    methods: Sequence[str]
    targets: Callable[[Recipe], Sequence[str]]
    tasks: Sequence[str] | None = None  # all
    temperatures: Sequence[float] | None = None  # the recipe's
    subset: bool = False
    shows: Mapping[str, str] = field(default_factory=lambda: SHOWN)
    kind: str = "cells"

    def cells(self, recipe: Recipe) -> Iterator[Cell]:
        """The cells to be measured for it."""
        for target in dict.fromkeys(self.targets(recipe)):
            for task in (task for task in recipe.tasks if self.tasks is None or task in self.tasks):
                few = self.subset and recipe.size(task, subset=True) != recipe.size(task)
                for temperature in self.temperatures or (recipe.temperature,):
                    for method in self.methods:
                        yield Cell(target, task, method, temperature, few)

    def jobs(self, recipe: Recipe) -> Measured:
        """A job for each cell."""
        return ((cell.target, cell.key, partial(measured, cell=cell)) for cell in self.cells(recipe))

    def markdown(self, results: Results, recipe: Recipe, *, partial: bool) -> str:
        """A line for each method and target, columns for tasks and temperatures; – where nothing is measured yet.

        It is empty where not all of it is measured and not `partial`.
        """
        rows, every = results.of("cells"), list(self.cells(recipe))
        cells = [cell for cell in every if cell.key in rows]
        if not cells or not (partial or len(cells) == len(every)):
            return ""
        places = list(dict.fromkeys((cell.task, cell.temperature) for cell in cells))
        heads = [f"{task}, T = {warm:g}: {shown.replace('_', ' ')}" for task, warm in places for shown in self.shows]
        found = {(cell.target, cell.method, cell.task, cell.temperature): rows[cell.key] for cell in cells}
        lines = []
        for target, method in dict.fromkeys((cell.target, cell.method) for cell in cells):
            its = [found.get((target, method, *place), {}) for place in places]
            shown = [
                format(row[name], form) if name in row else "–" for row in its for name, form in self.shows.items()
            ]
            lines.append([target, method, *shown])
        return f"## {self.title}\n\n{markdown_table(['target', 'method', *heads], lines, 2)}"

    def draw(self, *_: object) -> None:
        """Draw nothing: a table has no figure."""
