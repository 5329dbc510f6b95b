"""`python -m experiments.adaptation`: what learning from answers is worth."""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from operator import truediv
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments import changes, figures, losses
from experiments.evaluation import Evaluation, Method, Row
from experiments.recipe import Recipe
from experiments.student import GREEDY, Student
from experiments.study import JobPart, Measured, Part, Study
from experiments.tables import FIXED, LEARNED, Table, every
from omnidraft.bench.interleaved import EngineWay, engine_for, take_turns
from omnidraft.bench.output import markdown_table
from omnidraft.decoding.stats import Stats
from omnidraft.verification.round import Round

BESIDE = 40  # prompts beside the background trainer
THINKING_S = 1.0  # between a reply and the next prompt
STILL = 1e-12  # a learning rate too small to change a draft


# ---------------------------------------------------------------- against the clock


class LearningWay(EngineWay):
    """Drafting by a student that learns from each of its answers, learning included."""

    def __init__(self, student: Student, teacher_temperature: float) -> None:
        super().__init__("learning", student.engine(), GREEDY)
        self.engine.teacher_temperature = teacher_temperature
        self._adaptation = student.adaptation

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        super().begin(ids, new_tokens, seed)
        self._rounds = self._learned_from(self._rounds)

    def _learned_from(self, rounds: Iterator[Round]) -> Iterator[Round]:
        records = []
        for record in rounds:
            records.append(record)
            yield record
        self._adaptation.teach(records)


def live(evaluation: Evaluation) -> Row:
    """A stream of prompts, by a drafter that learns, by one that does not, and by the target alone, in turns."""
    recipe, task = evaluation.recipe, next(iter(evaluation.recipe.tasks))
    student, frozen = evaluation.student(Method(FIXED, {})), evaluation.student(Method(FIXED))
    ways = [
        EngineWay("plain", engine_for(evaluation.model), GREEDY),
        EngineWay("frozen", frozen.engine(), GREEDY),
        LearningWay(student, recipe.learning.teacher_temperature),
    ]
    prompts, tests = evaluation.prompts(task, tests=False), evaluation.answers(task, tests=True)
    before, whole = frozen.examine(tests), recipe.new_tokens + 1  # a turn is an answer, with the learning at its end
    take_turns(ways[:2], prompts[0], recipe.new_tokens, chunk=whole)  # warms up
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    identical = True
    for number, ids in enumerate(prompts):
        timed = take_turns(ways, ids, recipe.new_tokens, turn=number, chunk=whole)
        identical &= all(each.answer.tokens == timed[0].answer.tokens for each in timed)
        for way, each in zip(ways, timed, strict=True):
            seconds[way.name].append(round(each.seconds, 4))
    after = student.examine(tests)
    return {
        "target": evaluation.target,
        "seconds": seconds,
        "speedup_learning": round(sum(seconds["plain"]) / sum(seconds["learning"]), 4),
        "speedup_frozen": round(sum(seconds["plain"]) / sum(seconds["frozen"]), 4),
        "crossover": crossover(seconds["learning"], seconds["frozen"]),
        "acceptance_rate": [round(stats.acceptance_rate, 4) for stats in (before, after)],
        "block_efficiency": [round(stats.block_efficiency, 4) for stats in (before, after)],
        "identical": identical,
    }


def crossover(learning: Sequence[float], frozen: Sequence[float]) -> int | None:
    """The prompt, from 1, from which on learning has paid for itself; None where it has not."""
    ahead = [a <= f for a, f in zip(*map(itertools.accumulate, (learning, frozen)), strict=True)]
    behind = [number for number, paid in enumerate(ahead, 1) if not paid]
    last = behind[-1] if behind else 0
    return last + 1 if last < len(ahead) else None


def _live_table(rows: Sequence[Row]) -> str:
    lines = [
        [
            row["target"],
            *(" → ".join(f"{value:.3f}" for value in row[name]) for name in ("acceptance_rate", "block_efficiency")),
            f"{row['speedup_learning']:.3f}",
            f"{row['speedup_frozen']:.3f}",
            row["crossover"] or "–",
        ]
        for row in rows
    ]
    heads = ["target", "acceptance rate", "block efficiency", "speedup, learning", "frozen", "crossover prompt"]
    return f"## Against the clock\n\n{markdown_table(heads, lines)}"


# ---------------------------------------------------------------- beside a trainer in the background


def background(evaluation: Evaluation, pause_s: float = THINKING_S) -> Row:
    """Reply times with a trainer beside them and without, at the same drafts; and what it learns, beside inline.

    The trainer that is timed learns at a rate too small to change a draft, so that both sides do the same work.
    """
    recipe, task = evaluation.recipe, next(iter(evaluation.recipe.tasks))
    prompts = evaluation.prompts(task, tests=False, subset=True)[:BESIDE]
    seconds: dict[str, list[float]] = {"off": [], "background": []}
    # both draft with the copy that the trainer belongs to, which pauses for the replies of either
    options = {"draft_length": recipe.draft_length}
    with evaluation.load(evaluation.model, adapt="background", learning_rate=STILL, **options) as beside:
        models = {"off": evaluation.load(evaluation.model, **options), "background": beside}
        for number, ids in enumerate(prompts):
            for name in sorted(models, reverse=bool(number % 2)):
                began = time.perf_counter()
                models[name].generate(ids, max_new_tokens=recipe.new_tokens, temperature=0.0)
                seconds[name].append(time.perf_counter() - began)
            time.sleep(pause_s)
    slowest = {name: statistics.quantiles(each * 2, n=20, method="inclusive")[-1] for name, each in seconds.items()}
    found = {adapt: _learned(evaluation, adapt, prompts, pause_s) for adapt in ("background", "inline")}
    return {
        "target": evaluation.target,
        "prompts": len(prompts),
        "reply_time_ratio": round(statistics.median(map(truediv, seconds["background"], seconds["off"])), 4),
        "slowest_ratio": round(slowest["background"] / slowest["off"], 4),
        "acceptance_rate": {adapt: round(stats.acceptance_rate, 4) for adapt, stats in found.items()},
    }


def _learned(evaluation: Evaluation, adapt: str, prompts: Sequence[list[int]], pause_s: float) -> Stats:
    """The counts of drafting on tests after learning from the answers to `prompts`."""
    recipe, task = evaluation.recipe, next(iter(evaluation.recipe.tasks))
    with TemporaryDirectory() as folder:
        options = {"draft_length": recipe.draft_length, "profile": Path(folder) / "learned"}
        with evaluation.load(evaluation.model, adapt=adapt, **options) as learner:
            for ids in prompts:
                learner.generate(ids, max_new_tokens=recipe.new_tokens, temperature=0.0)
                time.sleep(pause_s if adapt == "background" else 0.0)
        drafts = evaluation.load(evaluation.model, **options)
        tests = evaluation.prompts(task, tests=True, subset=True)
        answers = (drafts.generate(ids, max_new_tokens=recipe.new_tokens, temperature=0.0) for ids in tests)
        return Stats.sum(answer.stats for answer in answers)


def _background_table(rows: Sequence[Row]) -> str:
    heads = ["target", "prompts", "reply time, of that without", "the slowest twentieth", "acceptance after", "inline"]
    lines = [
        [row["target"], row["prompts"], f"{row['reply_time_ratio']:.3f}", f"{row['slowest_ratio']:.3f}"]
        + [f"{rate:.3f}" for rate in row["acceptance_rate"].values()]
        for row in rows
    ]
    return f"## Beside a trainer in the background\n\n{markdown_table(heads, lines)}"


# ---------------------------------------------------------------- the study


def _live_jobs(recipe: Recipe) -> Measured:
    return ((target, "live", live) for target in recipe.targets)


def _background_jobs(recipe: Recipe) -> Measured:
    return ((target, "background", background) for target in recipe.targets)


PARTS: dict[str, Part] = {
    "live": JobPart("live", _live_jobs, _live_table, figures.live),
    "streams": Table(
        "Before and after a stream, in several orders",
        ("exact, untrained", *(f"answers in order {order}" for order in range(3))),
        every,
        ("gsm8k", "code"),
        shows=LEARNED,
    ),
    "background": JobPart("background", _background_jobs, _background_table),
    "losses": losses.LOSS_PART,
    "switch": changes.TASKS,
    "targets": changes.TARGETS,
}
STUDY = Study("adaptation", "Benefit of online distillation", PARTS, "recipes/learning.toml")
main = STUDY.main

if __name__ == "__main__":
    sys.exit(main())
