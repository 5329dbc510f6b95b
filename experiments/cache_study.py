"""The n-gram cache by itself (Table 14): its worth, and the cost of a bound."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np

from experiments.evaluation import Evaluation, Method, Row
from experiments.student import Student
from experiments.tables import ALONE, DIRECT, FIXED
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.bench.output import markdown_table

SHARES = {"1/8": 8, "1/4": 4, "1/2": 2}  # of what the cache holds without a bound
EVICTIONS = ("lru", "lfu")
SEEDS = ("empty", "vocabulary")
NEVER = "none, nor in learning"
SHOWN = ("acceptance_rate", "block_efficiency", "speedup", "ngram_hits")


class BoundedCache(NgramCache):
    """At most `bound` n-grams are active: the most used (`"lfu"`), or the most recently used (`"lru"`).

    Of those alike, low ids stay: they were merged first, as the frequent ones.
    """

    def __init__(self, table: SpellingTable, bound: int, eviction: str, *, seed: str = "vocabulary") -> None:
        self.bound, self.eviction = bound, eviction
        super().__init__(table, seed=seed)

    def _refresh(self) -> None:
        active = np.flatnonzero(self.active & self._ngram)
        first, second = (self.hits, self.last_use) if self.eviction == "lfu" else (self.last_use, self.hits)
        worst = np.lexsort((-active, second[active], first[active]))[: max(0, len(active) - self.bound)]
        for token in active[worst]:
            self._switch(int(token), on=False)
        super()._refresh()


def cache_study(evaluation: Evaluation, task: str, seed: str) -> Row:
    """A drafter learns with an unbounded cache, and its weights draft with what a bound leaves of that, or with none.

    Beside them another drafter, which learned without n-grams.  Greedy, and with drafts of a fixed length.
    """
    stream, tests = evaluation.answers(task), evaluation.prompts(task, tests=True)
    full = evaluation.student(Method(FIXED | {"ngram_seed": seed}, ALONE))
    without = evaluation.student(Method(DIRECT, ALONE))
    full.learn_all(stream, drafting=True)
    without.learn_all(stream)

    def resumed(cache: NgramCache | None = None, **drafting: object) -> Student:
        student = evaluation.student(Method(FIXED | drafting), cache=cache)
        student.resume(full)
        return student

    students = {NEVER: without, "none": resumed(mode="intersection"), "full": full}
    bounds: dict[str, int | None] = {NEVER: 0, "none": 0, "full": None}
    for share, parts in SHARES.items():
        for eviction in EVICTIONS:
            bound = max(1, full.attached.cache.size // parts)
            cache = BoundedCache(full.attached.cache.table, bound, eviction, seed=seed)
            students[f"{share} {eviction}"] = resumed(cache, ngram_seed=seed)
            bounds[f"{share} {eviction}"] = bound
    before = {name: _held(student) for name, student in students.items()}
    found = evaluation.timed(students, tests)
    return {
        "target": evaluation.target,
        "task": task,
        "seed": seed,
        "train": len(stream),
        "test": len(tests),
        "rows": [{"cache": name, "bound": bounds[name], **before[name], **row} for name, row in found.items()],
    }


def _held(student: Student) -> Row:
    """The n-grams in a cache after the answers, and the bytes of it in a profile."""
    cache = student.attached.cache
    size = 0 if cache.frozen else cache.size
    return {"entries": size, "bytes": sum(array.nbytes for array in cache.state().values()) if size else 0}


def markdown(studies: Sequence[Row]) -> str:
    """A table for each target and task, seeds beside each other."""
    sections, place = [], itemgetter("target", "task")
    for its in (list(group) for _, group in groupby(sorted(studies, key=itemgetter("target", "task", "seed")), place)):
        heads = ("entries", "bytes", "acceptance", "tokens a pass", "speedup", "hits a round")
        lines = [
            [row["cache"], *(cell for study in its for cell in _cells(study["rows"][number]))]
            for number, row in enumerate(its[0]["rows"])
        ]
        table = markdown_table(["cache", *(f"{study['seed']}: {head}" for study in its for head in heads)], lines)
        about = f"{its[0]['target']}, {its[0]['task']}: {its[0]['train']} answers, {its[0]['test']} tests"
        sections.append(f"## Table 14: bounded caches, {about}\n\n{table}")
    return "\n".join(sections)


def _cells(row: Row) -> list[str]:
    return [f"{row['entries']:,}", f"{row['bytes']:,}", *(f"{row[name]:.3f}" for name in SHOWN)]
