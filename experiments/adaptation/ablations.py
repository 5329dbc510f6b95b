"""Losses and adapters beside each other, and what happens when the task or the target changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.adaptation.setup import Row, Study, row, taught
from experiments.student import Recorded, Student
from omnidraft.config import Sampling
from omnidraft.decoding.stats import Stats

Settings = dict[str, Any]
# mode of drafting; what is learned by, of the settings of learning and of the trainer
LOSSES: dict[str, tuple[str, Settings | None, Settings]] = {
    "direct only": ("intersection", None, {}),
    "+ cache": ("exact", None, {}),
    "L_DM": ("intersection", {"loss": "hybrid"}, {"ngram_weight": 0.0}),
    "L_DM + cache": ("exact", {"loss": "hybrid"}, {"ngram_weight": 0.0}),
    "hybrid, 0.2": ("exact", {"loss": "hybrid"}, {"ngram_weight": 0.2}),
    "hybrid, 1": ("exact", {"loss": "hybrid"}, {"ngram_weight": 1.0}),
    "hybrid, p(t)": ("exact", {"loss": "hybrid"}, {"ngram_weight": None}),
    "marginal, forward": ("exact", {"loss": "forward"}, {}),
    "marginal, reverse": ("exact", {"loss": "reverse"}, {}),
    "marginal, tv": ("exact", {"loss": "tv"}, {}),
    "marginal, forward+tv": ("exact", {"loss": "forward+tv"}, {}),
}
MODES = ("intersection", "exact")
RANKS = (8, 32, 128)
LORA_RATE = 3.0  # LoRA's learning rate, in those of all weights


def losses(study: Study, temperatures: Sequence[float]) -> Iterator[Row]:
    """The table of losses: each taught by, and examined on, answers of the same temperature."""
    for temperature in temperatures:
        sampling = Sampling(temperature=temperature)
        stream = study.recorded("stream", study.ablation, sampling)
        tests = study.recorded("tests") if sampling.greedy else study.recorded("tests", study.sampled, sampling)
        untaught = {mode: _examined(study.student(None, mode), tests, study, sampling) for mode in MODES}
        for method, (mode, options, trainer) in LOSSES.items():
            learning = None if options is None else replace(study.learning, **options)
            student = study.student(learning, mode, settings=replace(study.trainer, **trainer))
            before = after = untaught[mode]
            if learning is not None:
                taught(student, stream)
                after = _examined(student, tests, study, sampling)
            made = row(study, method, 0, before, after, student, temperature=temperature)
            study.say(f"{method}, temperature {temperature:g}: block efficiency {made['block_efficiency_after']:.3f}")
            yield made


def _examined(student: Student, tests: Sequence[Recorded], study: Study, sampling: Sampling) -> Stats:
    if sampling.greedy:
        return student.examine(tests)
    return student.examine_live(tests, study.new_tokens, sampling)


def ranks(study: Study) -> Iterator[Row]:
    """LoRA of several ranks, and all weights."""
    stream, tests = study.recorded("stream", study.ablation), study.recorded("tests")
    before = study.student(None).examine(tests)
    rate = study.learning.learning_rate
    rate = rate if study.learning.adapter == "full" else rate / LORA_RATE
    choices = {f"LoRA {rank}": {"adapter": "lora", "rank": rank, "learning_rate": rate * LORA_RATE} for rank in RANKS}
    for method, options in {**choices, "all weights": {"adapter": "full", "learning_rate": rate}}.items():
        student = study.student(replace(study.learning, **options))  # type: ignore[arg-type]
        taught(student, stream)
        made = row(study, method, 0, before, student.examine(tests), student)
        study.say(f"{method}: block efficiency {made['block_efficiency_after']:.3f}")
        yield made


def curve(student: Student, stream: Sequence[Recorded]) -> list[list[int]]:
    """Of each answer, before it is learned from: tokens accepted, proposed, emitted, and rounds."""
    found = (student.follow(recorded) for recorded in stream)
    return [[stats.accepted, stats.proposed, stats.tokens, stats.rounds] for stats in found]


def switch(study: Study) -> Row:
    """The stream goes over to another task half-way, with and without the n-gram cache, learning and not."""
    first, second = study.recorded("stream", study.ablation), study.recorded("other", study.ablation)
    result: Row = {"target": study.name, "at": len(first), "curves": {}}
    for name, mode in (("with the n-gram cache", "exact"), ("without it", "intersection")):
        for learning in (study.learning, None):
            label = name + ("" if learning else ", frozen")
            result["curves"][label] = curve(study.student(learning, mode), [*first, *second])
    return result


def targets(one: Study, other: Study) -> Row:
    """The drafter goes from one target to another and back, each with what it learned there."""
    result: Row = {"targets": [one.name, other.name], "curves": {}, "tests": {}}
    for name, mode in (("with the n-gram cache", "exact"), ("without it", "intersection")):
        # both students draft with the same copy of the drafter
        serving = one.serving
        first = Student(one.model, serving, one.drafting(mode), one.learning, settings=one.trainer)
        second = Student(other.model, serving, other.drafting(mode), other.learning, settings=other.trainer)
        half = one.ablation // 2
        ahead, there = one.recorded("stream", 2 * half), other.recorded("stream", half)
        tests = one.recorded("tests")
        curves = [curve(first, ahead[:half])]
        left = first.examine(tests)
        curves.append(curve(second, there))
        back = first.examine(tests)
        curves.append(curve(first, ahead[half:]))
        result["curves"][name] = curves
        result["tests"][name] = {
            "leaving": [left.accepted, left.proposed, left.tokens, left.rounds],
            "coming back": [back.accepted, back.proposed, back.tokens, back.rounds],
        }
    return result
