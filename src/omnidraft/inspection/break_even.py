"""Acceptance from which drafting pays, from the cost of forward passes."""

from __future__ import annotations

from dataclasses import dataclass

from omnidraft.draft_length.cost_model import CostModel

LENGTHS = (1, 2, 4, 8)  # draft tokens per round
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The acceptance from which rounds of one draft length pay, with one target token per draft token."""

    length: int  # draft tokens
    cost: float  # of a round, in target steps
    acceptance: float | None  # of each draft token; None: never
    best: float  # speedup if everything is accepted


def break_evens(costs: CostModel) -> tuple[BreakEven, ...]:
    """The break-even at each of LENGTHS."""
    found = []
    for length in LENGTHS:
        cost = 1 + costs.steps.of(length) + costs.tokens.of(length)
        acceptance = acceptance_at(cost, length)
        found.append(BreakEven(length=length, cost=cost, acceptance=acceptance, best=(1 + length) / cost))
    return tuple(found)


def acceptance_at(cost: float, length: int) -> float | None:
    """The acceptance at which a round emits as many tokens as it costs target steps, by bisection.

    Each draft token is accepted with that probability if those before it are.  0 if a round costs at most one step;
    None if accepting everything is not enough.
    """
    if cost <= 1:
        return 0.0
    if cost > 1 + length:
        return None
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        emitted = sum(middle**position for position in range(length + 1))
        low, high = (low, middle) if emitted >= cost else (middle, high)
    return high
