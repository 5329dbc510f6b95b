"""One target of a study at work: it answers, drafters learn from that, and are timed in turns with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from experiments.paper_training import HybridLoss
from experiments.recipe import Recipe
from experiments.student import Recorded, Student, record
from omnidraft.api import load
from omnidraft.bench.interleaved import LaneMethod, Timed, interleave, lane_for
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.stats import Stats
from omnidraft.distillation.lora import parted
from omnidraft.errors import PromptError

Row = dict[str, Any]
Options = dict[str, Any]
Texts = Mapping[str, tuple[Sequence[str], Sequence[str]]]  # of each task: to learn from, and for tests
LORA_RATE = 3.0  # LoRA's learning rate, in that of all weights


@dataclass(frozen=True)
class Method:
    """The settings of drafting, and of learning where anything is learned; the rest is the recipe's."""

    drafting: Options
    learning: Options | None = None  # of `Learning`, and those of `paper_training.trainer_for`
    ngram_weight: float | None = 0.2  # of `HybridLoss`
    lora: bool = False


class Evaluation:
    """A target of a recipe, loaded with its drafter."""

    def __init__(self, recipe: Recipe, target: str, texts: Texts, device: str, console: Console) -> None:
        self.recipe, self.target, self._texts = recipe, target, texts
        places: Options = {"dtype": recipe.dtype, "device": device, "profile": None, "warn": console.print}
        self.model = load(recipe.place(target), recipe.place(recipe.drafter), **places)
        self._encoded: dict[tuple[str, bool], list[list[int]]] = {}
        self._answered: dict[tuple[str, bool, float], list[Recorded]] = {}

    # ------------------------------------------------------------ prompts and answers

    def prompts(self, task: str, *, tests: bool) -> list[list[int]]:
        """Prompts as token ids, without those that leave no room for an answer."""
        if (task, tests) not in self._encoded:
            room = self.model.target.lm.context - self.recipe.new_tokens
            encoded = (self.model.encode_message(text) for text in self._texts[task][tests])
            self._encoded[task, tests] = [ids for ids in encoded if len(ids) <= room]
        size = self.recipe.tasks[task]
        found = self._encoded[task, tests][: size.test if tests else size.train]
        if not found:
            raise PromptError(f"no prompt of {task} leaves {self.target} room for an answer: use fewer new_tokens")
        return found

    def answers(self, task: str, temperature: float = 0.0, *, tests: bool = False) -> list[Recorded]:
        """The target's answers to prompts of a task, made once, each with a seed of its own."""
        if (known := (task, tests, temperature)) not in self._answered:
            new_tokens, sampling = self.recipe.new_tokens, Sampling(temperature=temperature)
            teacher = self.recipe.learning.teacher_temperature
            self._answered[known] = [
                record(self.model, ids, new_tokens, sampling, teacher, number)
                for number, ids in enumerate(self.prompts(task, tests=tests))
            ]
        return self._answered[known]

    # ------------------------------------------------------------ drafters

    def student(self, method: Method, threshold: float = 0.4, **own: Any) -> Student:
        """A drafter for a method; `own` are other arguments of `Student`, such as its seed."""
        drafting = dict(method.drafting)
        if isinstance(drafting["draft_length"], int):
            drafting["draft_length"] = self.recipe.draft_length
        elif drafting["draft_length"] == "head":
            drafting.setdefault("threshold", threshold)
        asked: Options = {"train": self.recipe.learning.train} | (method.learning or {})
        how, hybrid = asked.pop("train"), HybridLoss(method.ngram_weight) if asked.get("loss") == "hybrid" else None
        fields = {name: value for name, value in asked.items() if value != "hybrid"}
        learning = None if method.learning is None else replace(self.recipe.learning, **fields)
        if learning is not None and method.lora:
            learning = replace(learning, adapter="lora", learning_rate=LORA_RATE * learning.learning_rate)
        return Student(self.model, Drafting(**drafting), learning, how=how, hybrid=hybrid, **own)

    def timed(self, students: Mapping[str, Student], tests: Sequence[list[int]]) -> dict[str, Row]:
        """The figures of each student, by name, where all answer in turns with the target alone."""
        sampling, new_tokens = Sampling(temperature=self.recipe.temperature), self.recipe.new_tokens
        ways = [LaneMethod("alone", lane_for(self.model), sampling)]
        ways += [LaneMethod(name, student.lane(), sampling) for name, student in students.items()]
        compared(ways, tests[:1], new_tokens)  # warms up
        found = compared(ways, tests, new_tokens)
        return {name: row for name, row in found.items() if name != "alone"}


def learning_counts(student: Student) -> Row:
    """Seconds and updates of a student's learning, and the bytes of what it learned."""
    learner = student.adaptation.learner
    learned = parted(student.adaptation.state)[0].values()
    return {
        "training_s": round(student.spent_s, 2),
        "updates": learner.counters.updates if learner else 0,
        "learned_bytes": sum(weight.numel() * weight.element_size() for weight in learned),
    }


def compared(ways: Sequence[LaneMethod], prompts: Sequence[list[int]], new_tokens: int) -> dict[str, Row]:
    """Answer all prompts by all ways, some tokens in turns: the figures of each way.

    The first way is plain decoding.  Greedy answers are `identical` where all ways say the same.
    """
    answers = [interleave(ways, ids, new_tokens, number, turn=number) for number, ids in enumerate(prompts)]
    same = all(each.answer.tokens == timed[0].answer.tokens for timed in answers for each in timed)
    rows = {way.name: _figures(timed) for way, timed in zip(ways, zip(*answers, strict=True), strict=True)}
    plain = rows[ways[0].name]["tokens_per_s"]
    return {
        way.name: {name: round(value, 4) for name, value in (row | {"speedup": row["tokens_per_s"] / plain}).items()}
        | {"prompts": len(prompts), "identical": same if way.sampling.greedy else None}
        for way, row in zip(ways, rows.values(), strict=True)
    }


def _figures(timed: Sequence[Timed]) -> dict[str, float]:
    """Speed and acceptance of one way."""
    stats = Stats.sum(Stats.of(each.answer.rounds or ()) for each in timed)
    return {
        "tokens_per_s": stats.tokens / sum(each.seconds for each in timed),
        "acceptance_rate": stats.acceptance_rate,
        "block_efficiency": stats.block_efficiency,
        "ngram_hits": stats.ngrams_accepted / stats.rounds,
        "drafted": stats.drafted / stats.rounds,
    }
