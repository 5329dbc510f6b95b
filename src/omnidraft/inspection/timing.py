"""Measured step times of two models on this machine, and the acceptance from which drafting pays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from omnidraft.models.language_model import LanguageModel

SIZES = (1, 2, 4, 8, 16)  # tokens per forward pass of the target
LENGTHS = (1, 2, 4, 8)  # draft tokens per round
CONTEXT = 64  # tokens in the KV caches
DRAFTED = 4  # consecutive draft steps
LAPS, FEWEST = 21, 5
SECONDS = 20.0  # no further lap begins after that, if there are at least FEWEST
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds of a forward pass of the target, by its number of tokens, and of a draft step."""

    target: Mapping[int, float]
    drafter: float
    context: int
    laps: int

    def cost(self, length: int, ratio: float = 1.0) -> float:
        """Cost of a round of `length` draft tokens, in target steps.

        `ratio` is target tokens per draft token; 1 + ratio * length tokens are verified.  Times are interpolated
        linearly between the measured sizes, and extrapolated beyond them.
        """
        sizes, seconds = list(self.target), list(self.target.values())
        verified = 1 + ratio * length
        if verified > sizes[-1] and len(sizes) > 1:
            slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            verify = seconds[-1] + max(0.0, slope) * (verified - sizes[-1])
        else:
            verify = float(np.interp(verified, sizes, seconds))
        return (length * self.drafter + verify) / seconds[0]


def expected(acceptance: float, length: int, ratio: float = 1.0) -> float:
    """Expected target tokens of a round, where each draft token is accepted with this probability given those before.

    For ratio 1 it is (1 - a^(k + 1)) / (1 - a).
    """
    return 1 + ratio * sum(acceptance**position for position in range(1, length + 1))


def break_even(cost: float, length: int, ratio: float = 1.0) -> float | None:
    """The acceptance at which a round that costs `cost` target steps emits as many tokens, by bisection.

    0 where a round costs at most one step; None where accepting everything is not enough.
    """
    if cost <= 1:
        return 0.0
    if cost > expected(1.0, length, ratio):
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if expected(middle, length, ratio) >= cost else (middle, high)
    return high


def measure(target: LanguageModel, drafter: LanguageModel, clock: Callable[[], float] = time.perf_counter) -> Steps:
    """Time forward passes of both models in turns, after one warm-up lap.

    Medians are taken of each pass's share of its lap, because the speed of a shared machine varies over time.
    """
    context = max(1, min(CONTEXT, target.context - SIZES[-1], drafter.context - DRAFTED))
    sizes = [size for size in SIZES if context + size <= target.context]
    for model in (target, drafter):
        model.crop(0)
        model.forward(_ids(context, model), 1)
    laps: list[list[float]] = []
    began = clock()
    while len(laps) <= LAPS and (len(laps) <= FEWEST or clock() - began <= SECONDS):
        lap = []
        for size in sizes:
            ids, start = _ids(size, target), clock()
            target.forward(ids, size)
            lap.append(clock() - start)
            target.crop(context)
        ids, start = _ids(DRAFTED, drafter), clock()
        for token in ids:
            drafter.forward([token], 1)
        lap.append((clock() - start) / DRAFTED)
        drafter.crop(context)
        laps.append(lap)
    taken = np.array(laps[1:])  # (L, sizes + 1)
    whole = taken.sum(1, keepdims=True)
    *seconds, step = (np.median(taken / whole, axis=0) * np.median(whole)).tolist()
    return Steps(target=dict(zip(sizes, seconds, strict=True)), drafter=step, context=context, laps=len(taken))


def _ids(count: int, model: LanguageModel) -> list[int]:
    """Distinct token ids: equal ones would use a single expert of a mixture of experts."""
    return [(7919 * place + 1) % model.vocab_size for place in range(count)]
