"""One target, its recorded answers, and a row of what a drafter learned from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from experiments.student import GREEDY, Recorded, Student, record
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import sampler
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stats import Stats
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.verification.round import Round

Row = dict[str, Any]


@dataclass
class Study:
    """One target, its recorded answers, and how much of them is used."""

    model: OmniDraft
    name: str
    stream: list[list[int]]  # prompts
    tests: list[list[int]]
    other: list[list[int]]  # of another task
    new_tokens: int
    draft_length: int
    learning: Learning
    console: Console
    ablation: int  # prompts of the stream that ablations use
    sampled: int  # test prompts at temperature 1
    trainer: TrainerSettings = field(default_factory=TrainerSettings)
    _records: dict[Any, list[Recorded]] = field(default_factory=dict)
    _serving: SharedDrafter | None = None

    @property
    def serving(self) -> SharedDrafter:
        if self._serving is None:
            if self.model.side is None:
                raise ValueError("a study needs a model with a drafter")
            self._serving = self.model.side.adaptation.shared
        return self._serving

    def drafting(self, mode: str = "exact") -> Drafting:
        return Drafting(draft_length=self.draft_length, mode=mode)

    def student(
        self,
        learning: Learning | None,
        mode: str = "exact",
        seed: int = 0,
        settings: TrainerSettings | None = None,
    ) -> Student:
        return Student(self.model, self.serving, self.drafting(mode), learning, seed, settings or self.trainer)

    def recorded(self, which: str, count: int | None = None, sampling: Sampling = GREEDY) -> list[Recorded]:
        """The first answers to a set of prompts, made once."""
        prompts: list[list[int]] = getattr(self, which)[:count]
        known = self._records.setdefault((which, sampling), [])
        if len(known) < len(prompts):
            self.say(f"recording {len(prompts) - len(known)} answers ({which}, temperature {sampling.temperature:g})")
            teacher, left = self.learning.teacher_temperature, prompts[len(known) :]
            known += record(self.model, left, self.new_tokens, sampling, teacher, seed=len(known))
        return known[: len(prompts)]

    def keep(self, which: str, recorded: list[Recorded]) -> None:
        """Take over greedy answers that were made elsewhere, to the first prompts of a set."""
        self._records[which, GREEDY] = recorded

    def say(self, text: str) -> None:
        self.console.print(f"{self.name}: {text}")


def taught(student: Student, stream: Sequence[Recorded]) -> None:
    """Let a student follow a stream of answers."""
    for recorded in stream:
        student.attached.cache.observe(recorded.tokens)
        student.learn(recorded)


def row(study: Study, method: str, seed: int, before: Stats, after: Stats, student: Student, **more: Any) -> Row:
    """What a student learned, as a row of the results; where it was not timed, the speedups are null."""
    learner = student.adaptation.learner
    return {
        "target": study.name,
        "method": method,
        "seed": seed,
        "acceptance_before": round(before.acceptance_rate, 4),
        "acceptance_after": round(after.acceptance_rate, 4),
        "block_efficiency_before": round(before.block_efficiency, 4),
        "block_efficiency_after": round(after.block_efficiency, 4),
        "net_speedup": None,
        "frozen_speedup": None,
        "crossover_prompt": None,
        "training_s": round(student.spent_s, 2),
        "rolled_back": learner.counters.rolled_back if learner else 0,
        **more,
    }


def rounds(engine: Engine, ids: list[int], study: Study) -> Iterator[Round]:
    """The rounds of one greedy answer."""
    return engine.rounds(ids, study.new_tokens, GREEDY, sampler())
