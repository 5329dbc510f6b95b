"""Linear cost model of speculative decoding, profiled by timed forward passes or tracked from rounds.

Costs are relative to a plain step of the target, so that a machine that slows down as a whole changes none of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from omnidraft.models.language_model import LanguageModel
    from omnidraft.verification.round import Round

MEMORY = 64  # observations over which a cost is averaged
LEVEL_MEMORY = 8  # rounds over which the present speed of the machine is averaged
STALL = 3.0  # times the expected cost: a longer round, in which the machine did something else, is cut to that
PREFILL = 8  # tokens that the drafter reads in a round beyond one for each step, from which on it is a prefill
PRIOR_COST = 0.1  # cost of a draft step, or of one more verified token, before any is measured

PASS_SIZES = (1, 2, 3, 5, 9)  # tokens per timed forward pass of the target
CONTEXT = 64  # tokens in the KV caches before it
STEPS = 4  # consecutive draft steps that are timed
LAPS = 5  # at least
SECONDS = 5.0  # after which no further lap begins


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Seconds of a forward pass of the target, by its number of tokens, and of a draft step."""

    target: Mapping[int, float]
    drafter: float
    context: int
    laps: int


def time_passes(
    target: LanguageModel, drafter: LanguageModel, clock: Callable[[], float] = time.perf_counter
) -> PassTimes:
    """Time forward passes of both models in turns, after one warm-up lap.

    Medians are taken of each pass's share of its lap, because the speed of a shared machine varies over time.
    """
    context = max(1, min(CONTEXT, target.context - PASS_SIZES[-1], drafter.context - STEPS))
    sizes = [size for size in PASS_SIZES if context + size <= target.context]
    read, drafts = (model.new_sequence() for model in (target, drafter))
    for each in (read, drafts):
        each.crop(0)
        each.forward(_ids(context, each.model), 1)
    before = _ids(context, target)
    laps: list[list[float]] = []
    began = clock()
    while len(laps) <= LAPS or clock() - began <= SECONDS:
        lap = []
        for size in sizes:
            ids, start = _ids(size, target), clock()
            read.forward(ids, size)
            lap.append(clock() - start)
            read.crop(context)
            if read.length < context:  # a hybrid's crop has taken more with it
                read.forward(before[read.length :], 0)
        ids, start = _ids(STEPS, drafter), clock()
        for token in ids:
            drafts.forward([token], 1)
        lap.append((clock() - start) / STEPS)
        drafts.crop(context)
        laps.append(lap)
    taken = np.array(laps[1:])  # (L, sizes + 1)
    whole = taken.sum(1, keepdims=True)
    *seconds, step = (np.median(taken / whole, axis=0) * np.median(whole)).tolist()
    return PassTimes(target=dict(zip(sizes, seconds, strict=True)), drafter=step, context=context, laps=len(taken))


def _ids(count: int, model: LanguageModel) -> list[int]:
    """Distinct token ids: equal ones would use a single expert of a mixture of experts."""
    return [(7919 * place + 1) % model.vocab_size for place in range(count)]


class Linear:
    """y = weights · x with no weight below 0, tracked by normalized least mean squares."""

    def __init__(self, *weights: float) -> None:
        self.weights, self.seen = list(weights), 1.0

    def __call__(self, *x: float) -> float:
        return sum(weight * each for weight, each in zip(self.weights, x, strict=True))

    def of(self, count: float) -> float:
        """Total cost of `count` items, where the weights are those of the first and of each further item."""
        return self(*first_and_more(count))

    def next(self, count: int) -> float:
        """Marginal cost of item `count` + 1."""
        return self.weights[min(1, count)]

    def learn(self, y: float, *x: float) -> None:
        """Update with an observation; a shorter `x` has less weight."""
        square = sum(each * each for each in x)
        self.seen = min(MEMORY, self.seen + min(1.0, square))
        step = (y - self(*x)) / self.seen / max(1.0, square)
        self.weights = [max(0.0, weight + step * each) for weight, each in zip(self.weights, x, strict=True)]

    def state(self) -> list[float]:
        """Weights and the number of observations, to restore."""
        return [*self.weights, self.seen]

    def resume(self, state: Sequence[float]) -> None:
        """Restore a `state`."""
        *self.weights, self.seen = state


class CostModel:
    """Costs of draft steps, verified draft tokens and the drafter's prefill, in the target's plain steps of one row."""

    def __init__(self, row: float = 0.0) -> None:
        self.rows = Linear(row)  # of a row beside the first, in a pass of several
        self.steps = Linear(PRIOR_COST, PRIOR_COST)  # of the first and of each further step of the drafter
        self.tokens = Linear(PRIOR_COST, PRIOR_COST)  # of the first and of each further draft token verified
        self.prefill = Linear(PRIOR_COST / PREFILL)  # of a token of the context that the drafter has yet to read
        # over the latest rounds: seconds of the target, first_and_more draft tokens, and rows beside the first
        self._mean = [0.0, 0.0, 0.0, 0.0]
        self._seen = 0
        self._met: set[int] = set()

    @classmethod
    def profiled(cls, passes: PassTimes) -> CostModel:
        """The cost model of timed forward passes."""
        costs, (plain, *others) = cls(), passes.target.values()
        costs.steps.weights = [passes.drafter / plain] * 2
        more = [size - 2 for size in passes.target][1:]
        slope, start = (
            np.polyfit(more, np.divide(others, plain) - 1, 1) if len(others) > 1 else (PRIOR_COST, PRIOR_COST)
        )
        costs.tokens.weights = [max(0.0, float(start)), max(0.0, float(slope))]
        return costs

    @property
    def seconds(self) -> float:
        """Current seconds of a plain step of one row; 0 before the first."""
        seconds, *tokens, rows = self._mean
        return seconds / (1 + self.tokens(*tokens) + self.rows(rows))

    def learn(self, record: Round, *, first: bool, rows: int = 1) -> None:
        """Update with a round of several rows; the `first` of a request includes the target's prefill."""
        drafted, passes = len(record.draft) + record.counts.again, record.counts.draft_passes
        new = drafted not in self._met  # libraries prepare for the first pass of each shape
        self._met.add(drafted)
        if not first and not new and record.finish != "stop":
            self._learn_target(drafted, rows - 1, record.times.verify_s + record.times.overhead_s)
        if not passes or not self.seconds:
            return
        cost, prefill = record.times.draft_s / self.seconds, record.counts.draft_read - passes
        expected = self.steps.of(passes)
        if prefill >= PREFILL:
            self.prefill.learn(min(max(0.0, cost - expected), STALL * self.prefill(prefill)), prefill)
        else:
            self.steps.learn(min(cost, STALL * max(0.5, expected)), *first_and_more(passes))

    def _learn_target(self, drafted: int, beside: int, seconds: float) -> None:
        x = (*first_and_more(drafted), float(beside))
        if plain := self.seconds:
            seconds = min(seconds, STALL * plain * (1 + self.tokens(*x[:2]) + self.rows(beside)))
            # deviations from the average, so that a phase in which the machine is slower moves no weight
            mean, *means = self._mean
            *tokens, rows = (now - before for now, before in zip(x, means, strict=True))
            longer, of_tokens = (seconds - mean) / plain, self.tokens(*tokens)
            self.tokens.learn(longer - self.rows(rows), *tokens)
            self.rows.learn(longer - of_tokens, rows)
        self._seen = min(LEVEL_MEMORY, self._seen + 1)
        observed = zip((seconds, *x), self._mean, strict=True)
        self._mean = [mean + (now - mean) / self._seen for now, mean in observed]

    def state(self) -> list[float]:
        """Relative costs, to restore; the current speed is not among them."""
        return [*self.steps.state(), *self.tokens.state(), *self.prefill.state()]

    def resume(self, state: Sequence[float]) -> None:
        """Restore a `state`."""
        for model, at in ((self.steps, 0), (self.tokens, 3), (self.prefill, 6)):
            model.resume(state[at : at + len(model.state())])


def first_and_more(count: float) -> tuple[float, float]:
    """Split a count into the first item and the number of further ones."""
    return min(1.0, count), max(0.0, count - 1)
