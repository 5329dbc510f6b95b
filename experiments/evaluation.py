"""One target of a study at work: it answers, drafters learn from that, and are timed in turns with it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from experiments.paper_training import HybridLoss
from experiments.recipe import Recipe
from experiments.student import Recorded, Student, record
from omnidraft.api import load
from omnidraft.bench.interleaved import EngineMethod, Timed, engine_for, interleave
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
    loss: Options = field(default_factory=dict)  # of `HybridLoss`
    lora: bool = False
    then: str | None = None  # the loss of the second half of the answers


class Evaluation:
    """A target of a recipe, loaded with its drafter."""

    def __init__(self, recipe: Recipe, target: str, texts: Texts, device: str, console: Console) -> None:
        self.recipe, self.target, self.device, self.console, self._texts = recipe, target, device, console, texts
        places: Options = {"dtype": recipe.dtype, "device": device, "profile": None, "warn": console.print}
        self.model = load(recipe.place(target), recipe.place(recipe.drafter), **places)
        self._encoded: dict[tuple[str, bool], list[list[int]]] = {}
        self._answered = defaultdict[tuple[str, bool, float], list[Recorded]](list)

    def other(self, target: str) -> Evaluation:
        """The same with another target of the recipe."""
        return Evaluation(self.recipe, target, self._texts, self.device, self.console)

    # ------------------------------------------------------------ prompts and answers

    def prompts(self, task: str, *, tests: bool, subset: bool = False) -> list[list[int]]:
        """Prompts as token ids, without those that leave no room for an answer."""
        if (task, tests) not in self._encoded:
            room = self.model.target.lm.context - self.recipe.new_tokens
            encoded = (self.model.encode_message(text) for text in self._texts[task][tests])
            self._encoded[task, tests] = [ids for ids in encoded if len(ids) <= room]
        size = self.recipe.size(task, subset=subset)
        found = self._encoded[task, tests][: size.test if tests else size.train]
        if not found:
            raise PromptError(f"no prompt of {task} leaves {self.target} room for an answer: use fewer new_tokens")
        return found

    def answers(
        self, task: str, temperature: float = 0.0, *, tests: bool = False, subset: bool = False
    ) -> list[Recorded]:
        """The target's answers to prompts of a task, made once."""
        recipe, sampling = self.recipe, Sampling(temperature=temperature)
        teacher, known = recipe.learning.teacher_temperature, self._answered[task, tests, temperature]
        asked = self.prompts(task, tests=tests, subset=subset)
        for number, ids in enumerate(asked[len(known) :], len(known)):
            # each with a seed of its own, so that it does not matter how many are made at a time
            known.append(record(self.model, ids, recipe.new_tokens, sampling, teacher, number))
        return known[: len(asked)]

    # ------------------------------------------------------------ drafters

    def student(self, method: Method, threshold: float = 0.4, **own: Any) -> Student:
        """A drafter for a method; `own` are other arguments of `Student`, such as the copy that drafts."""
        drafting = dict(method.drafting)
        if isinstance(drafting["draft_length"], int):
            drafting["draft_length"] = self.recipe.draft_length
        elif drafting["draft_length"] == "head":
            drafting.setdefault("threshold", threshold)
        asked: Options = {"train": self.recipe.learning.train} | (method.learning or {})
        how, hybrid = asked.pop("train"), HybridLoss(**method.loss) if asked.get("loss") == "hybrid" else None
        fields = {name: value for name, value in asked.items() if value != "hybrid"}
        learning = None if method.learning is None else replace(self.recipe.learning, **fields)
        if learning is not None and method.lora:
            learning = replace(learning, adapter="lora", learning_rate=LORA_RATE * learning.learning_rate)
        return Student(
            self.model, Drafting(**drafting), learning,
            how=how, hybrid=hybrid, then=method.then, **own,
        )  # fmt: skip

    def timed(
        self, students: Mapping[str, Student], tests: Sequence[list[int]], temperature: float = 0.0
    ) -> dict[str, Row]:
        """The figures of each student, by name, where all answer in turns with the target alone.

        Each needs a drafter of its own.
        """
        sampling, new_tokens = Sampling(temperature=temperature), self.recipe.new_tokens
        ways = [EngineMethod("alone", engine_for(self.model), sampling)]
        ways += [EngineMethod(name, student.engine(), sampling) for name, student in students.items()]
        compared(ways, tests[:1], new_tokens, 1)  # warms up
        found = compared(ways, tests, new_tokens, self.recipe.repeats)
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


# ---------------------------------------------------------------- ways that are compared


def compared(
    ways: Sequence[EngineMethod], prompts: Sequence[list[int]], new_tokens: int, repeats: int
) -> dict[str, Row]:
    """Answer all prompts by all ways in each repeat, some tokens in turns: by way, the medians of its figures.

    The first way is plain decoding.  Greedy answers are `identical` where all ways say the same.
    """
    found = defaultdict[str, list[Row]](list)
    for number in range(repeats):
        answers = [interleave(ways, ids, new_tokens, 1000 * number + n, turn=n) for n, ids in enumerate(prompts)]
        same = all(each.answer.tokens == timed[0].answer.tokens for timed in answers for each in timed)
        for way, timed in zip(ways, zip(*answers, strict=True), strict=True):
            row = _figures(timed)
            plain = found[ways[0].name][number] if way is not ways[0] else row
            found[way.name].append(
                row
                | {"speedup": row["tokens_per_s"] / plain["tokens_per_s"], "prompts": len(prompts)}
                | {"identical": same if way.sampling.greedy else None}
            )
    return {name: _medians(rows) for name, rows in found.items()}


def _figures(timed: Sequence[Timed]) -> Row:
    """Speed and acceptance of one way in one repeat."""
    stats = Stats.sum(Stats.of(each.answer.rounds or ()) for each in timed)
    return {
        "tokens_per_s": stats.tokens / sum(each.seconds for each in timed),
        "acceptance_rate": stats.acceptance_rate,
        "block_efficiency": stats.block_efficiency,
        "ngram_hits": stats.ngrams_accepted / stats.rounds,
        "drafted": stats.drafted / stats.rounds,
    }


def _medians(rows: Sequence[Row]) -> Row:
    """Of each figure the median, and whether greedy answers were the same in all rows."""
    return {
        name: round(statistics.median(row[name] for row in rows), 4) if isinstance(value, float) else value
        for name, value in rows[-1].items()
    } | {"identical": None if rows[0]["identical"] is None else all(row["identical"] for row in rows)}
