"""One target of the paper's evaluation at work: it answers, drafters learn from that, and are timed beside it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from experiments.adaptation.setup import Study
from experiments.compared import compared, medians
from experiments.paper.recipe import Recipe, Task
from experiments.paper.tables import LORA_RATE, METHODS, Cell, Method
from experiments.recordings import Recordings
from experiments.student import GREEDY, Recorded, Student, record
from omnidraft.api import OmniDraft, load
from omnidraft.bench.interleaved import EngineWay, engine_for, own_cache
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation.weights import parted
from omnidraft.errors import PromptError

Row = dict[str, Any]
Texts = dict[str, tuple[list[str], list[str]]]  # of each task: to learn from, and for tests
PROBE_TOKENS = 24
PROBE_ANSWERS = 2


@dataclass(frozen=True)
class Speeds:
    """Seconds, as they were measured."""

    token: float  # of the target alone
    lesson: float  # of learning from an answer


class Evaluation:
    """A target of a recipe, loaded with its drafter."""

    def __init__(
        self, recipe: Recipe, target: str, texts: Texts, recordings: Recordings, device: str, console: Console
    ) -> None:
        self.recipe, self.target, self.console = recipe, target, console
        self.recordings, self._texts = recordings, texts
        self.model: OmniDraft = load(
            recipe.place(target),
            recipe.place(recipe.drafter),
            dtype=recipe.dtype,
            device=device,
            profile=None,
            warn=console.print,
        )
        self._encoded: dict[tuple[str, bool], list[list[int]]] = {}

    # ------------------------------------------------------------ prompts and answers

    def size(self, task: str, *, subset: bool) -> Task:
        """How many prompts of a task are used."""
        whole = self.recipe.tasks[task]
        if not subset:
            return whole
        few = self.recipe.subset
        return replace(whole, train=min(few.train, whole.train), test=min(few.test, whole.test))

    def prompts(self, task: str, *, tests: bool, subset: bool) -> list[list[int]]:
        """Prompts as token ids, without those that leave no room for an answer."""
        if (task, tests) not in self._encoded:
            room = self.model.target.lm.context - self.recipe.new_tokens
            encoded = (self.model.encode_message(prompt) for prompt in self._texts[task][tests])
            self._encoded[task, tests] = [ids for ids in encoded if len(ids) <= room]
        size = self.size(task, subset=subset)
        found = self._encoded[task, tests][: size.test if tests else size.train]
        if not found:
            raise PromptError(f"no prompt of {task} leaves {self.target} room for an answer: use fewer new_tokens")
        return found

    def stream(self, task: str, temperature: float, *, subset: bool) -> list[Recorded]:
        """The target's answers to the prompts to learn from, made once."""
        asked = self.prompts(task, tests=False, subset=subset)
        left = self.recordings.left(self._name(task, temperature), asked)
        if left:
            self.say(f"recording {left} answers ({task}, temperature {temperature:g})")

        def make(some: Sequence[list[int]], before: int) -> list[Recorded]:
            teacher = self.recipe.learning.teacher_temperature
            sampling = Sampling(temperature=temperature)
            new_tokens = self.recipe.new_tokens
            # each with a seed of its own, so that it does not matter how many are made at a time
            each = (record(self.model, [ids], new_tokens, sampling, teacher, before + i) for i, ids in enumerate(some))
            return [answer for answers in each for answer in answers]

        return self.recordings.answers(self._name(task, temperature), asked, make)

    def unrecorded(self, task: str, temperature: float, *, subset: bool) -> int:
        """How many answers are yet to be made for that."""
        asked = self.prompts(task, tests=False, subset=subset)
        return self.recordings.left(self._name(task, temperature), asked)

    def _name(self, task: str, temperature: float) -> str:
        recipe = self.recipe
        settings = (recipe.place(self.target), recipe.new_tokens, recipe.learning.teacher_temperature, recipe.dtype)
        digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
        return f"{self.target.replace('/', '--').replace(':', '-')}-{task}-{temperature:g}-{digest}"

    # ------------------------------------------------------------ what is measured

    def cell(self, cell: Cell) -> Row:
        """Learn as the method does, then answer the tests side by side with the target alone."""
        stream = self.stream(cell.task, cell.temperature, subset=cell.subset)
        student = self.student(METHODS[cell.method], self.size(cell.task, subset=cell.subset).threshold)
        for one in stream:
            student.attached.cache.observe(one.tokens)
            student.learn(one)
        student.flush()
        ngrams = student.attached.cache.size
        tests = self.prompts(cell.task, tests=True, subset=cell.subset)
        found = self.timed({cell.method: student}, tests, cell.temperature)[cell.method]
        learner = student.adaptation.learner
        learned = parted(student.adaptation.state)[0].values()
        return found | {
            "ngrams": ngrams,
            "training_s": round(student.spent_s, 2),
            "updates": learner.counters.updates if learner else 0,
            "learned_bytes": sum(weight.numel() * weight.element_size() for weight in learned),
            "train": len(stream),
            "test": len(tests),
        }

    def student(self, method: Method, threshold: float) -> Student:
        """A drafter of its own for a method."""
        if self.model.drafter is None:
            raise ValueError("the evaluation needs a drafter")
        drafting: dict[str, Any] = dict(method.drafting)
        if isinstance(drafting["draft_length"], int):
            drafting["draft_length"] = self.recipe.draft_length
        elif drafting["draft_length"] == "head":
            drafting.setdefault("threshold", threshold)
        learning = None if method.learning is None else replace(self.recipe.learning, **method.learning)
        if learning is not None and method.lora:
            learning = replace(learning, adapter="lora", learning_rate=LORA_RATE * learning.learning_rate)
        settings = replace(self.recipe.trainer, **method.trainer)
        serving = SharedDrafter(own_cache(self.model.drafter.lm))
        return Student(self.model, serving, Drafting(**drafting), learning, settings=settings)

    def timed(self, students: dict[str, Student], tests: Sequence[list[int]], temperature: float) -> dict[str, Row]:
        """Answer the tests with each, and with the target alone, side by side; what each came to, by its name.

        Each needs a drafter of its own.
        """
        sampling = Sampling(temperature=temperature)
        ways = [EngineWay("alone", engine_for(self.model), sampling)]
        for name, student in students.items():
            student.adaptation.load_weights()
            ways.append(EngineWay(name, student.engine(), sampling))
        list(compared(ways, tests[:1], self.recipe.new_tokens))  # warms up
        found = medians(compared(ways, tests, self.recipe.new_tokens, range(self.recipe.repeats)))
        return {name: row for name, row in found.items() if name != "alone"}

    # ------------------------------------------------------------ the rest

    def study(self, task: str, other: str) -> Study:
        """The same, as the studies of changes of task and target take it: greedy, with all that is recorded."""
        stream, second = (self.stream(name, 0.0, subset=True) for name in (task, other))
        study = Study(
            model=self.model,
            name=self.target,
            stream=[list(one.prompt) for one in stream],
            tests=self.prompts(task, tests=True, subset=True),
            other=[list(one.prompt) for one in second],
            new_tokens=self.recipe.new_tokens,
            draft_length=self.recipe.draft_length,
            learning=replace(self.recipe.learning, trains="drafter"),
            trainer=self.recipe.trainer,
            console=self.console,
            ablation=len(stream),
            sampled=1,
        )
        study.keep("stream", stream)
        study.keep("other", second)
        return study

    def speeds(self) -> Speeds:
        """Measure what a token of the target alone takes, and learning from an answer as by default."""
        task = next(iter(self.recipe.tasks))
        asked = self.prompts(task, tests=False, subset=True)[:PROBE_ANSWERS]
        tokens = min(PROBE_TOKENS, self.recipe.new_tokens)
        record(self.model, asked[:1], 2, GREEDY, 1.0)  # warms up
        began = time.perf_counter()
        answers = record(self.model, asked, tokens, GREEDY, self.recipe.learning.teacher_temperature)
        token = (time.perf_counter() - began) / max(1, sum(len(one.tokens) for one in answers))
        student = self.student(METHODS["ours"], 0.4)
        for one in answers:
            student.learn(one)
        student.flush()
        return Speeds(token, student.spent_s / len(answers) * self.recipe.new_tokens / tokens)

    def say(self, text: str) -> None:
        """A line of progress."""
        self.console.print(f"{self.target}: {text}")
