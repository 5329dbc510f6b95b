"""Acceptance from which drafting pays, by a cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from omnidraft.draft_length.cost_model import CostModel

LENGTHS = (1, 2, 4, 8)  # draft tokens per round
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The acceptance from which rounds of one draft length pay."""

    text: str | None  # whose ratio it is; None: one target token per draft token
    ratio: float  # target tokens per draft token
    length: int  # draft tokens
    cost: float  # of a round, in target steps
    acceptance: float | None  # of each draft token; None: never
    best: float  # speedup where everything is accepted


def break_evens(costs: CostModel, ratios: Mapping[str | None, float]) -> tuple[BreakEven, ...]:
    """The break-even at each of LENGTHS for each text, whose target tokens per draft token are given."""
    return tuple(
        BreakEven(
            text=text,
            ratio=ratio,
            length=length,
            cost=(cost := 1 + costs.steps.of(length) + costs.tokens.of(ratio * length)),
            acceptance=acceptance_at(cost, length, ratio),
            best=(1 + ratio * length) / cost,
        )
        for text, ratio in ratios.items()
        for length in LENGTHS
    )


def acceptance_at(cost: float, length: int, ratio: float = 1.0) -> float | None:
    """The acceptance at which a round emits as many tokens as it costs target steps, by bisection.

    Each draft token is accepted with that probability where those before it are.  0 where a round costs at most one
    step; None where accepting everything is not enough.
    """
    if cost <= 1:
        return 0.0
    if cost > 1 + ratio * length:
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        emitted = 1 + ratio * sum(middle**position for position in range(1, length + 1))
        low, high = (low, middle) if emitted >= cost else (middle, high)
    return high
