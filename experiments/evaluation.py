"""One target of a study at work: it answers, drafters learn from that, and are timed in turns with it."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from experiments.recipe import Recipe
from experiments.recordings import Recordings
from experiments.student import Recorded, Student, record
from omnidraft.api import OmniDraft, load
from omnidraft.bench.interleaved import EngineWay, Timed, engine_for, take_turns
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stats import Stats
from omnidraft.distillation.lora import parted
from omnidraft.distillation.losses import HybridLoss
from omnidraft.errors import PromptError

Row = dict[str, Any]
Options = dict[str, Any]
Texts = Mapping[str, tuple[Sequence[str], Sequence[str]]]  # of each task: to learn from, and for tests
UNITS = {"speedup": "tokens_per_s", "speedup_cpu": "tokens_per_cpu_s"}
LORA_RATE = 3.0  # LoRA's learning rate, in that of all weights


@dataclass(frozen=True)
class Method:
    """The settings of drafting, and of learning where anything is learned; the rest is the recipe's."""

    drafting: Options
    learning: Options | None = None
    loss: Options = field(default_factory=dict)  # of `HybridLoss`
    lora: bool = False
    order: int = 0  # of the answers; each other number is another order, and another seed
    then: str | None = None  # the loss of the second half of the answers


class Evaluation:
    """A target of a recipe, loaded with its drafter."""

    def __init__(
        self, recipe: Recipe, target: str, texts: Texts, recordings: Recordings, device: str, console: Console
    ) -> None:
        self.recipe, self.target, self.device, self.console = recipe, target, device, console
        self.recordings, self._texts = recordings, texts
        self.model: OmniDraft = self.load(recipe.place(recipe.drafter))
        self._encoded: dict[tuple[str, bool], list[list[int]]] = {}

    def load(self, drafter: str | OmniDraft, **options: Any) -> OmniDraft:
        """The target with a drafter, without a profile unless `options` say otherwise."""
        options = {"profile": None, "dtype": self.recipe.dtype, "device": self.device} | options
        return load(self.recipe.place(self.target), drafter, warn=self.console.print, **options)

    def other(self, target: str) -> Evaluation:
        """The same with another target of the recipe."""
        return Evaluation(self.recipe, target, self._texts, self.recordings, self.device, self.console)

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
        teacher = recipe.learning.teacher_temperature
        settings = (recipe.place(self.target), recipe.new_tokens, teacher, recipe.dtype)
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
        place = self.target.replace("/", "--").replace(":", "-")
        name = f"{place}-{task}{'-tests' if tests else ''}-{temperature:g}-{digest}"
        return self.recordings.answers(
            name,
            self.prompts(task, tests=tests, subset=subset),
            # each with a seed of its own, so that it does not matter how many are made at a time
            lambda ids, number: record(self.model, ids, recipe.new_tokens, sampling, teacher, number),
        )

    # ------------------------------------------------------------ drafters

    def student(self, method: Method, threshold: float = 0.4, shared: SharedDrafter | None = None) -> Student:
        """A drafter for a method; `shared` is the copy that drafts, by default one of its own."""
        drafting = dict(method.drafting)
        if isinstance(drafting["draft_length"], int):
            drafting["draft_length"] = self.recipe.draft_length
        elif drafting["draft_length"] == "head":
            drafting.setdefault("threshold", threshold)
        learning = None if method.learning is None else replace(self.recipe.learning, **method.learning)
        if learning is not None and method.lora:
            learning = replace(learning, adapter="lora", learning_rate=LORA_RATE * learning.learning_rate)
        return Student(
            self.model, Drafting(**drafting), learning,
            shared=shared, seed=method.order, variant=HybridLoss(**method.loss), then=method.then,
        )  # fmt: skip

    def timed(
        self, students: Mapping[str, Student], tests: Sequence[list[int]], temperature: float = 0.0
    ) -> dict[str, Row]:
        """The medians over repeats of each student's figures, by name, where all answer in turns with the target alone.

        Each needs a drafter of its own.
        """
        sampling, new_tokens = Sampling(temperature=temperature), self.recipe.new_tokens
        ways = [EngineWay("alone", engine_for(self.model), sampling)]
        ways += [EngineWay(name, student.engine(), sampling) for name, student in students.items()]
        list(compared(ways, tests[:1], new_tokens))  # warms up
        found = medians(compared(ways, tests, new_tokens, range(self.recipe.repeats)))
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
    ways: Sequence[EngineWay],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    repeats: Iterable[int] = (0,),
) -> Iterator[Row]:
    """Answer all prompts by all ways in each repeat, some tokens in turns; the first way is plain decoding.

    Greedy answers are `identical` where all ways say the same.
    """
    for number in repeats:
        timed: list[list[Timed]] = []
        for place, ids in enumerate(prompts):
            timed.append(take_turns(ways, list(ids), new_tokens, 1000 * number + place, turn=place))
        identical = all(each.answer.tokens == answers[0].answer.tokens for answers in timed for each in answers)
        rows = [_row([answers[place] for answers in timed]) for place in range(len(ways))]
        for way, row in zip(ways, rows, strict=True):
            yield {
                "way": way.name,
                "repeat": number,
                **row,
                **{f"plain_{unit}": rows[0][unit] for unit in UNITS.values()},
                **{name: round(row[unit] / rows[0][unit], 4) for name, unit in UNITS.items()},
                "ways": len(ways),
                "prompts": len(prompts),
                "identical": identical if way.sampling.greedy else None,
            }


def _row(timed: Sequence[Timed]) -> Row:
    """Speed and acceptance of one way in one repeat."""
    stats = Stats.sum(Stats.of(each.answer.rounds or ()) for each in timed)
    return {
        "tokens_per_s": round(stats.tokens / sum(each.seconds for each in timed), 3),
        "tokens_per_cpu_s": round(stats.tokens / sum(each.cpu_s for each in timed), 3),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "block_efficiency": round(stats.block_efficiency, 4),
        "ngram_hits": round(stats.ngrams_accepted / stats.rounds, 4),
        "drafted": round(stats.drafted / stats.rounds, 3),
        "without_draft": round(stats.rounds_without_draft / stats.rounds, 4),
        "no_draft_reason": stats.no_draft_reason,
    }


def medians(rows: Iterable[Row]) -> dict[str, Row]:
    """By way, the median over its repeats of each figure, and the last of what is no figure."""
    ways: dict[str, list[Row]] = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row)
    return {
        way: {
            name: round(statistics.median(each[name] for each in its), 4) if isinstance(value, float) else value
            for name, value in its[-1].items()
        }
        for way, its in ways.items()
    }
