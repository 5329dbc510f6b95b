"""The n-gram cache by itself (Table 14, Figures 7, 8 and 9): how it grows, what it brings, and what a bound costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.paper.evaluation import Evaluation
from experiments.paper.tables import ALONE, DIRECT, FIXED, Method
from experiments.student import Recorded, Student
from omnidraft.bench.tables import markdown_table
from omnidraft.distillation.adaptation import Adaptation

Row = dict[str, Any]
SHARES = {"1/8": 8, "1/4": 4, "1/2": 2}  # of what the cache holds without a bound
EVICTIONS = ("lru", "lfu")
SEEDS = ("empty", "vocabulary")
NEVER = "none, nor in learning"
COMMONEST = 2000  # n-grams whose use is kept


def cache_study(evaluation: Evaluation, task: str, seed: str) -> Row:
    """A drafter learns with an unbounded cache, and its weights draft with what a bound leaves of that, or with none.

    Beside them another drafter, which learned without n-grams.  Greedy, and with drafts of a fixed length.
    """
    stream = evaluation.stream(task, 0.0, subset=False)
    tests = evaluation.prompts(task, tests=True, subset=False)
    whole = evaluation.student(Method(FIXED | {"ngram_seed": seed}, ALONE), 0.0)
    curve = [_point(whole, one) for one in stream]
    whole.flush()
    size = whole.attached.cache.size
    without = evaluation.student(Method(DIRECT, ALONE), 0.0)
    for one in stream:
        without.learn(one)
    without.flush()
    students = {NEVER: without, "none": _with_weights(evaluation, whole, DIRECT), "full": whole}
    bounds: dict[str, int | None] = {NEVER: 0, "none": 0, "full": None}
    for share, parts in SHARES.items():
        for eviction in EVICTIONS:
            bound = max(1, size // parts)
            drafting = FIXED | {"ngram_seed": seed, "ngram_bound": bound, "ngram_eviction": eviction}
            students[f"{share} {eviction}"] = _with_weights(evaluation, whole, drafting)
            bounds[f"{share} {eviction}"] = bound
    before = {name: _held(student) for name, student in students.items()}
    uses = sorted(map(int, whole.attached.cache.hits[whole.attached.cache.hits > 0]), reverse=True)
    found = evaluation.timed(students, tests, 0.0)
    return {
        "target": evaluation.target,
        "task": task,
        "seed": seed,
        "train": len(stream),
        "test": len(tests),
        "rows": [{"cache": name, "bound": bounds[name], **before[name], **row} for name, row in found.items()],
        "curve": curve,
        "uses": uses[:COMMONEST],
    }


def _held(student: Student) -> Row:
    """What a cache holds after the answers, and the bytes of it in a profile."""
    cache = student.attached.cache
    size = 0 if cache.frozen else cache.size
    return {"entries": size, "bytes": sum(array.nbytes for array in cache.state().values()) if size else 0}


def _point(student: Student, answer: Recorded) -> list[int]:
    """Tokens, rounds, n-grams proposed and accepted for an answer before it is learned from, and n-grams after it."""
    stats = student.follow(answer)
    return [stats.tokens, stats.rounds, stats.ngrams_proposed, stats.ngrams_accepted, student.attached.cache.size]


def _with_weights(evaluation: Evaluation, source: Student, drafting: Row) -> Student:
    """A drafter with the weights of another, and what a cache of its own may keep of that one's."""
    student = evaluation.student(Method(drafting), 0.0)
    student.adaptation = Adaptation(student.attached, student.adaptation.shared, None, source.adaptation.state)
    if not student.attached.cache.frozen:
        student.attached.cache.resume(source.attached.cache.state())
    return student


# ---------------------------------------------------------------- tables


def markdown(studies: Sequence[Row]) -> list[str]:
    """A table for each target and task, seeds beside each other."""
    sections = []
    for target, task in dict.fromkeys((study["target"], study["task"]) for study in studies):
        its = [study for study in studies if (study["target"], study["task"]) == (target, task)]
        heads = ("entries", "bytes", "acceptance", "tokens a pass", "speedup", "hits a round")
        lines = [
            [row["cache"], *(cell for study in its for cell in _cells(study["rows"][number]))]
            for number, row in enumerate(its[0]["rows"])
        ]
        table = markdown_table(["cache", *(f"{study['seed']}: {head}" for study in its for head in heads)], lines)
        about = f"{target}, {task}: {its[0]['train']} answers, {its[0]['test']} tests"
        sections.append(f"## Table 14: bounded caches, {about}\n\n{table}")
    return sections


def _cells(row: Row) -> list[str]:
    forms = {"acceptance_rate": ".3f", "block_efficiency": ".3f", "speedup": ".3f", "ngram_hits": ".3f"}
    return [f"{row['entries']:,}", f"{row['bytes']:,}", *(format(row[name], form) for name, form in forms.items())]
