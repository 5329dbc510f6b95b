"""`python -m experiments.adaptation`: the acceptance that a drafter has after learning by each loss.

Several orders of the answers show how much of a difference is chance.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product

from experiments.evaluation import Evaluation, Method, Row
from experiments.recipe import Recipe
from experiments.study import Study
from experiments.tables import ALONE, FIXED, HYBRID, JobPart, Measured
from omnidraft.bench.output import markdown_table
from omnidraft.distillation.losses import DIVERGENCES

ORDERS = 3
TEMPERATURES = (0.0, 1.0)
LOSSES = {
    "none": Method(FIXED),
    "hybrid, λ = 0.2": Method(FIXED, HYBRID),
    "hybrid, p(t)": Method(FIXED, HYBRID, ngram_weight=None),
    **{name: Method(FIXED, ALONE | {"loss": name}) for name in DIVERGENCES},
}


def losses(evaluation: Evaluation, task: str, temperature: float) -> Row:
    """Acceptance on tests of a task after learning by each loss, in each order."""
    stream, tests = (evaluation.answers(task, temperature, tests=part) for part in (False, True))
    teacher = evaluation.recipe.learning.teacher_temperature
    found: dict[str, list[float]] = {}
    for name, method in LOSSES.items():
        found[name] = []
        for order in range(ORDERS if method.learning is not None else 1):
            student = evaluation.student(method, seed=order)
            answers = list(stream)
            random.Random(order).shuffle(answers)  # noqa: S311  an order, not a secret
            student.learn_all(answers)
            found[name].append(round(student.chances(tests, temperature, teacher), 5))
    where: Row = {"target": evaluation.target, "task": task, "temperature": temperature}
    return where | {"train": len(stream), "test": len(tests), "losses": found}


def _jobs(recipe: Recipe) -> Measured:
    for target, task, warm in product(recipe.targets[:1], recipe.tasks, TEMPERATURES):
        yield target, f"{task}|T = {warm:g}", partial(losses, task=task, temperature=warm)


def _table(rows: Sequence[Row]) -> str:
    lines = [[name, *(_spread(row["losses"][name]) for row in rows)] for name in LOSSES]
    heads = ["loss", *(f"{row['task']}, T = {row['temperature']:g}" for row in rows)]
    sizes = f"{rows[0]['target']}, {rows[0]['train']} answers, {rows[0]['test']} tests"
    about = f"{sizes}: acceptance at each place of the tests; the mean of {ORDERS} orders ± half their range"
    return f"## Losses\n\n{about}\n\n{markdown_table(heads, lines, 1)}"


def _spread(values: Sequence[float]) -> str:
    half = (max(values) - min(values)) / 2
    return f"{statistics.mean(values):.3f}" + (f" ± {half:.3f}" if len(values) > 1 else "")


PARTS = {"losses": JobPart("losses", _jobs, _table)}
STUDY = Study("adaptation", "Benefit of online distillation", PARTS, "recipes/learning.toml")
main = STUDY.main

if __name__ == "__main__":
    sys.exit(main())
