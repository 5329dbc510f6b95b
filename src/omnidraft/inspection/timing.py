"""What steps of two models cost on this machine, and from which acceptance on drafting with them pays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from omnidraft.models.language_model import LanguageModel

SIZES = (1, 2, 4, 8, 16)  # tokens of a pass of the target
LENGTHS = (1, 2, 4, 8)  # draft tokens of a round
CONTEXT = 64  # tokens in the caches
DRAFTED = 4  # steps of the drafter in a row
LAPS, FEWEST = 21, 5
SECONDS = 20.0  # after which no further lap begins, once there are enough
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Seconds of a pass of the target, by its tokens, and of a step of the drafter."""

    target: Mapping[int, float]
    drafter: float
    context: int
    laps: int

    def cost(self, length: int, ratio: float = 1.0) -> float:
        """Of a round with so many draft tokens, in steps of the target alone.

        `ratio` is target tokens in a draft token: that many are verified for each, and one more.  Between the sizes
        that were measured, and beyond them, costs lie on a line.
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
    """Target tokens of a round, each draft token being accepted with this probability if those before it are.

    One for one it is (1 - a^(k + 1)) / (1 - a).
    """
    return 1 + ratio * sum(acceptance**position for position in range(1, length + 1))


def break_even(cost: float, length: int, ratio: float = 1.0) -> float | None:
    """The acceptance at which a round that costs so many steps of the target brings as many tokens.

    0 where it costs no more than the one token that it brings anyway; None where even accepting everything is less.
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
    """Time passes of both, which take turns; the first lap does not count.

    What is compared are shares of laps: machines are now slower, now faster, as others use them.
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
    """Different tokens: a mixture of experts would read one expert for equal ones."""
    return [(7919 * place + 1) % model.vocab_size for place in range(count)]
