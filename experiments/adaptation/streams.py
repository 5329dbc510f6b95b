"""A stream of prompts: what is accepted before and after it, and live, whether learning pays for itself."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from experiments.adaptation.setup import Row, Study, row, taught
from experiments.student import GREEDY, Recorded, Student
from omnidraft.bench.interleaved import EngineWay, engine_for, take_turns

FROZEN_EVERY, PLAIN_EVERY = 2, 4  # prompts: what does not learn is timed on so many fewer


def streams(study: Study, seeds: int) -> Iterator[Row]:
    """Acceptance and block efficiency before and after the stream, in another order for each seed."""
    tests, stream = study.recorded("tests"), study.recorded("stream")
    before = study.student(None).examine(tests)
    for seed in range(seeds):
        order = list(stream)
        if seed:
            random.Random(seed).shuffle(order)  # noqa: S311  an order, not a secret
        student = study.student(study.learning, seed=seed)
        taught(student, order)
        yield row(study, "default", seed, before, student.examine(tests), student)


@dataclass(frozen=True)
class Live:
    """Seconds of each prompt of a stream.

    `adapted` has learning in it.  Where the frozen drafter or the target alone was not timed, it is taken to need what
    it needed for each token elsewhere.
    """

    adapted: list[float]
    frozen: list[float]
    plain: list[float]
    identical: bool

    @property
    def net_speedup(self) -> float:
        """Of learning and drafting over the target alone, at the end of the stream."""
        return round(sum(self.plain) / sum(self.adapted), 4)

    @property
    def frozen_speedup(self) -> float:
        return round(sum(self.plain) / sum(self.frozen), 4)

    @property
    def crossover(self) -> int | None:
        """The prompt, from 1, from which on learning has paid for itself; None where it has not."""
        ahead = [a <= f for a, f in zip(*map(itertools.accumulate, (self.adapted, self.frozen)), strict=True)]
        return (
            len(ahead) - ahead[::-1].index(False) + 1 if False in ahead and ahead[-1] else (1 if all(ahead) else None)
        )


class StudentWay(EngineWay):
    """Drafting by a student that learns from each of its answers, learning included."""

    def __init__(self, name: str, student: Student, teacher_temperature: float | None) -> None:
        super().__init__(name, student.engine(), GREEDY)
        self.engine.teacher_temperature = teacher_temperature
        self._adaptation = student.adaptation

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:
        # the copy that drafts goes from one student to the other here, which is not part of either's work
        self._adaptation.load_weights()
        super().begin(ids, new_tokens, seed)
        self._rounds = self._adaptation.following(self._rounds)


def live(study: Study, seed: int = 0) -> tuple[Live, Student]:
    """Decode the stream by a drafter that learns and one that does not, in turns, and by the target alone at times."""
    student, frozen = study.student(study.learning, seed=seed), study.student(None)
    adapted = StudentWay("adapted", student, study.learning.teacher_temperature)
    plain = EngineWay("plain", engine_for(study.model), GREEDY)
    every = {adapted: 1, StudentWay("frozen", frozen, None): FROZEN_EVERY, plain: PLAIN_EVERY}
    whole = study.new_tokens + 1  # a turn is an answer, with what is learned at its end
    take_turns([way for way in every if way is not adapted], study.stream[0], study.new_tokens, chunk=whole)  # warms up
    times: dict[str, dict[int, float]] = {way.name: {} for way in every}
    identical = True
    kept: list[Recorded] = []
    for number, ids in enumerate(study.stream):
        ways = [way for way, step in every.items() if number % step == 0]
        timed = take_turns(ways, ids, study.new_tokens, turn=number, chunk=whole)
        for way, each in zip(ways, timed, strict=True):
            times[way.name][number] = each.seconds
        kept.append(Recorded.of(ids, timed[0].answer.rounds or ()))
        identical &= all(each.answer.tokens == timed[0].answer.tokens for each in timed)
        if (number + 1) % 100 == 0:
            share = sum(times["adapted"][i] for i in times["frozen"]) / sum(times["frozen"].values())
            study.say(f"prompt {number + 1}: {share:.3f} of the frozen drafter's time")
    study.keep("stream", kept)
    lengths = [len(recorded.tokens) for recorded in kept]
    adapted_s, frozen_s, plain_s = (filled(times[way.name], lengths) for way in every)
    return Live(adapted_s, frozen_s, plain_s, identical), student


def filled(times: dict[int, float], lengths: list[int]) -> list[float]:
    """The seconds of all prompts, by those of some and the tokens of each."""
    each = sum(times.values()) / sum(lengths[i] for i in times)
    return [times.get(i, each * length) for i, length in enumerate(lengths)]


def live_row(study: Study) -> tuple[Row, Row]:
    """The row of a live stream, and the curve behind it."""
    found, student = live(study)
    tests = study.recorded("tests")
    before, after = study.student(None).examine(tests), student.examine(tests)
    timed = {
        "net_speedup": found.net_speedup,
        "frozen_speedup": found.frozen_speedup,
        "crossover_prompt": found.crossover,
        "identical": found.identical,
        "training_s": None,  # a part of what is timed
    }
    made = row(study, "default, live", 0, before, after, student, **timed)
    curve = {"adapted_s": found.adapted, "frozen_s": found.frozen, "plain_s": found.plain}
    return made, {name: [round(value, 4) for value in values] for name, values in curve.items()}
