"""`python -m experiments.paper`: the tables and figures of the paper, by a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from itertools import product

from experiments import cache_study, changes, figures
from experiments.recipe import Recipe
from experiments.study import Part, Study
from experiments.tables import GAMMAS, HITS, RANKS, SHOWN, JobPart, Measured, Table

CROSS = ("direct mapping", "L_DM", "L_DM + λ·L_N-gram", "L_DM + λ·L_N-gram, LoRA", "ours")


def every(recipe: Recipe) -> Sequence[str]:
    """The targets of a recipe."""
    return recipe.targets


def first(recipe: Recipe) -> Sequence[str]:
    """The first target of a recipe."""
    return recipe.targets[:1]


TABLES: dict[str, Table] = {
    "table-1": Table("Table 1: across vocabularies", CROSS, every),
    "table-2": Table(
        "Table 2: adaptive drafting, of the drafter's own vocabulary where the recipe has such a target, and across",
        ("plain SpD", "adapt only", "distil only", "joint", "interleaved", "ours"),
        lambda recipe: (*recipe.same, *recipe.targets[:1]),
    ),
    "table-3": Table(
        "Table 3: larger targets", ("L_DM + λ·L_N-gram", "ours"), lambda recipe: recipe.larger, ("gsm8k",)
    ),
    "table-5": Table(
        "Table 5: the cache and the losses",
        (
            "direct mapping",
            "direct mapping + cache",
            "exact, untrained",
            "L_DM",
            "L_DM + cache",
            "L_DM + λ·L_N-gram",
            "ours, fixed",
        ),
        first,
        ("gsm8k",),
        subset=True,
        shows=HITS,
    ),
    "table-6": Table(
        "Table 6: losses at two temperatures",
        (
            "L_N-gram alone (NLL)",
            "NLL + NLL",
            "L_DM + λ·L_N-gram",
            "L_DM + p(t)·L_N-gram",
            "KL through the trie",
            "ours, fixed",
        ),
        first,
        ("gsm8k",),
        (0.0, 1.0),
        subset=True,
    ),
    "table-11": Table(
        "Table 11: the threshold of adaptive drafting",
        (*(f"interleaved, γ = {gamma:g}" for gamma in GAMMAS), "ours"),
        lambda recipe: (*recipe.same, *recipe.targets)[:1],
        ("gsm8k", "code"),
        subset=True,
        shows=SHOWN | {"drafted": ".2f"},
    ),
    "table-12": Table(
        "Table 12: LoRA ranks",
        (*(f"LoRA {rank}" for rank in RANKS), "L_DM + λ·L_N-gram"),
        first,
        ("gsm8k",),
        subset=True,
        shows=SHOWN | {"learned_bytes": ",.0f"},
    ),
}


def _caches(recipe: Recipe) -> Measured:
    """The study of the cache for each target and seed, on the first two tasks."""
    return [
        (target, f"{task}|{seed}", partial(cache_study.cache_study, task=task, seed=seed))
        for target, task, seed in product(recipe.targets, list(recipe.tasks)[:2], cache_study.SEEDS)
    ]


PARTS: dict[str, Part] = {
    **TABLES,
    "table-14": JobPart("cache", _caches, cache_study.markdown),
    "figure-5": changes.TASKS,
    "figure-6": changes.TARGETS,
    "figure-7": JobPart("cache", _caches, panel=figures.uses, panels=figures.by_place),
    "figure-8": JobPart("cache", _caches, panel=figures.hits, panels=figures.by_place),
    "figure-9": JobPart("cache", _caches, panel=figures.growth, panels=figures.by_place),
}
STUDY = Study("paper", "The tables and figures of the paper", PARTS, "recipes/zoo.toml")
main = STUDY.main

if __name__ == "__main__":
    sys.exit(main())
