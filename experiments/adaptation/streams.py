"""A stream of prompts: what is accepted before and after it, and live, whether learning pays for itself."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.adaptation.setup import Row, Study, rounds, row, taught
from experiments.replay_learner import Pupil, Recorded
from omnidraft.decoding.engine import Engine
from omnidraft.verification.round import Round

FROZEN_EVERY, PLAIN_EVERY = 2, 4  # prompts: what does not learn is timed on so many fewer


def streams(study: Study, seeds: int) -> Iterator[Row]:
    """Acceptance and block efficiency before and after the stream, in another order for each seed."""
    tests, stream = study.recorded("tests"), study.recorded("stream")
    before = study.pupil(None).examine(tests)
    for seed in range(seeds):
        order = list(stream)
        if seed:
            random.Random(seed).shuffle(order)  # noqa: S311  an order, not a secret
        pupil = study.pupil(study.learning, seed=seed)
        taught(pupil, order)
        yield row(study, "default", seed, before, pupil.examine(tests), pupil)


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


def live(study: Study, seed: int = 0) -> tuple[Live, Pupil]:
    """Decode the stream by a drafter that learns and one that does not, in turns, and by the target alone at times."""
    target = study.model.engine.target
    eos = sorted(study.model.engine.eos)
    pupil, frozen = study.pupil(study.learning, seed=seed), study.pupil(None)
    ours, theirs = pupil.engine(), frozen.engine()
    ours.teacher_temperature = study.learning.teacher_temperature
    runs: dict[str, Callable[[list[int]], Iterator[Round]]] = {
        "adapted": lambda ids: pupil.adaptation.following(rounds(ours, ids, study)),
        "frozen": lambda ids: frozen.adaptation.following(rounds(theirs, ids, study)),
        "plain": lambda ids: rounds(Engine(target, eos), ids, study),
    }
    for run in (runs["frozen"], runs["plain"]):  # warm up
        list(run(study.stream[0]))
    times: dict[str, dict[int, float]] = {name: {} for name in runs}
    order = random.Random(0)  # noqa: S311  an order, not a secret
    identical = True
    kept: list[Recorded] = []
    for number, ids in enumerate(study.stream):
        every = {"adapted": 1, "frozen": FROZEN_EVERY, "plain": PLAIN_EVERY}
        names = [name for name in runs if number % every[name] == 0]
        said = []
        for name in order.sample(names, len(names)):
            # the copy that drafts goes from one to the other here, which is not part of either's work
            (pupil if name == "adapted" else frozen).adaptation.load_weights()
            began = time.perf_counter()
            answer = list(runs[name](ids))
            times[name][number] = time.perf_counter() - began
            said.append([token for r in answer for token in r.emitted])
            if name == "adapted":
                kept.append(Recorded.of(ids, answer))
        identical &= all(tokens == said[0] for tokens in said)
        if (number + 1) % 100 == 0:
            share = sum(times["adapted"][i] for i in times["frozen"]) / sum(times["frozen"].values())
            study.say(f"prompt {number + 1}: {share:.3f} of the frozen drafter's time")
    study.keep("stream", kept)
    lengths = [len(recorded.tokens) for recorded in kept]
    adapted, unlearned, plain = (_filled(times[name], lengths) for name in ("adapted", "frozen", "plain"))
    return Live(adapted, unlearned, plain, identical), pupil


def _filled(times: dict[int, float], lengths: list[int]) -> list[float]:
    """The seconds of all prompts, by those of some and the tokens of each."""
    each = sum(times.values()) / sum(lengths[i] for i in times)
    return [times.get(i, each * length) for i, length in enumerate(lengths)]


def live_row(study: Study) -> tuple[Row, Row]:
    """The row of a live stream, and the curve behind it."""
    found, pupil = live(study)
    tests = study.recorded("tests")
    before, after = study.pupil(None).examine(tests), pupil.examine(tests)
    timed = {
        "net_speedup": found.net_speedup,
        "frozen_speedup": found.frozen_speedup,
        "crossover_prompt": found.crossover,
        "identical": found.identical,
        "training_s": None,  # a part of what is timed
    }
    made = row(study, "default, live", 0, before, after, pupil, **timed)
    curve = {"adapted_s": found.adapted, "frozen_s": found.frozen, "plain_s": found.plain}
    return made, {name: [round(value, 4) for value in values] for name, values in curve.items()}
