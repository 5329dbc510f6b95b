"""`python -m experiments.paper`: tables of the paper, by a recipe."""

from __future__ import annotations

import sys
from functools import partial
from itertools import product

from experiments import cache_study
from experiments.recipe import Recipe
from experiments.study import Part, Study
from experiments.tables import GAMMAS, SHOWN, JobPart, Measured, Table


def _caches(recipe: Recipe) -> Measured:
    """The study of the cache for each target and seed, on the first two tasks."""
    return [
        (target, f"{task}|{seed}", partial(cache_study.cache_study, task=task, seed=seed))
        for target, task, seed in product(recipe.targets, list(recipe.tasks)[:2], cache_study.SEEDS)
    ]


PARTS: dict[str, Part] = {
    "table-1": Table(
        "Table 1: across vocabularies",
        ("direct mapping", "L_DM", "L_DM + λ·L_N-gram", "L_DM + λ·L_N-gram, LoRA", "ours"),
        lambda recipe: recipe.targets,
    ),
    "table-2": Table(
        "Table 2: adaptive drafting, of the drafter's own vocabulary where the recipe has such a target, and across",
        ("plain SpD", "adapt only", "distil only", "joint", "interleaved", "ours"),
        lambda recipe: (*recipe.same, *recipe.targets[:1]),
    ),
    "table-3": Table(
        "Table 3: larger targets", ("L_DM + λ·L_N-gram", "ours"), lambda recipe: recipe.larger, ("gsm8k",)
    ),
    "table-11": Table(
        "Table 11: the threshold of adaptive drafting",
        (*(f"interleaved, γ = {gamma:g}" for gamma in GAMMAS), "ours"),
        lambda recipe: (*recipe.same, *recipe.targets)[:1],
        ("gsm8k", "code"),
        SHOWN | {"drafted": ".2f"},
    ),
    "table-14": JobPart("cache", _caches, cache_study.markdown),
}
STUDY = Study("paper", "Tables of the paper", PARTS, "recipes/zoo.toml")
main = STUDY.main

if __name__ == "__main__":
    sys.exit(main())
