"""The draft of the highest value: which steps and draws pay, by costs, chances and how often each chance comes up.

Worked out from the end of the longest draft to its beginning.  Pure array code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
ROUNDS = 3  # of making a plan anew, each for a better rate
GRID = np.exp(np.linspace(np.log(1e-3), 0.0, 33))  # probabilities that a draft is accepted so far
SPACING = float(np.log(GRID[1] / GRID[0]))
LEAST = 1e-9  # in place of a chance of nothing
CLOSE = 1e-3  # what makes no difference
NEVER = 2.0  # in place of such a probability
LITTLE = 0.01  # steps of the target that a round would gain: too little to be believed


@dataclass(frozen=True, eq=False)
class Plan:
    """From which probability on that the draft so far is accepted a step, and then a draw, pays at each length."""

    step: Floats  # (K,) before the law of the next token is known; NEVER: never
    draw: Floats  # (K, B) once it is known which chance the next token has
    tokens: float  # target tokens that a round gains by it, on average
    steps: float  # that it costs, on average
    chances: Floats  # (B,) that it was made with
    brings: Floats  # (B,) target tokens that drawing a first token brings, with what follows
    costs: Floats  # (B,) steps that this costs
    start: float  # steps until it is known which chance that token has
    alone: tuple[float, float]  # what a single token brings where it is accepted, and what it costs
    blind: bool = False  # whether a single token gains more, whose chance nobody asks for

    def expected(self, shares: Floats, chances: Floats, first: float) -> tuple[float, float]:
        """Target tokens that a round gains in a text whose first draft tokens are such, and the steps that it costs.

        How often each chance comes up (B,), what chances there are (B,), and that of a token of which nobody asks.
        Draws are those of the plan.
        """
        if self.blind:
            return first * self.alone[0], self.alone[1]
        brings = self.brings * (chances / np.maximum(self.chances, LEAST))
        drawn = shares * (self.draw[0] <= 1)
        return float(drawn @ brings), self.start + float(drawn @ self.costs)


def saved(tokens: float, steps: float) -> float:
    """What a round that gains so many tokens for so many steps saves of each step of the target alone."""
    return (tokens - steps) / (1 + tokens)


@dataclass(frozen=True, eq=False)
class Known:
    """What a plan is made of; costs are in steps of the target alone."""

    step: tuple[float, float]  # of the drafter, the first one in a draft and a later one
    verify: Floats  # (K + 1,) the target's pass with a draft of 0 … K tokens
    chances: Floats  # (B,) of acceptance
    weights: Floats  # (2, B) how often each comes up for the first token of a draft, and for a later one
    worth: Floats  # (K,) target tokens that the first, second, … accepted draft token brings
    asking: float = 0.0  # what it takes to learn which chance a token has
    first: float = 0.0  # the chance of a first token as long as that is not known


def make_plan(known: Known, rate: float) -> Plan:
    """The plan that gains most over `rate` target tokens in a step of the target alone.

    Where it promises more than that rate, it is made anew for what it promises.  A plan that is `blind` draws a first
    token whatever its chance is.
    """
    plan = _for_rate(known, rate)
    for _ in range(ROUNDS):
        promised = float((1 + plan.tokens) / (known.verify[0] + plan.steps))
        if promised <= rate * 1.001:
            break
        rate = promised
        plan = _for_rate(known, rate)
    worth, steps = plan.alone
    tokens = known.first * worth
    if tokens - rate * steps > max(LITTLE, plan.tokens - rate * plan.steps):
        plan.step[0], plan.draw[0] = 0.0, 0.0
        plan = replace(plan, tokens=tokens, steps=steps, blind=True)
    return plan


def _for_rate(known: Known, rate: float) -> Plan:
    longest, bins = len(known.verify) - 1, len(known.chances)
    after = GRID[:, None] * known.chances  # (G, B) with the next token
    # where these lie on the grid, whose logarithms are evenly spaced; below it nothing is to be had
    place = np.maximum(0.0, np.log(np.maximum(after, GRID[0]) / GRID[0]) / SPACING)
    below = np.minimum(place.astype(np.intp), len(GRID) - 2)
    share = place - below

    def then(values: Floats) -> Floats:
        result: Floats = values[below] * (1 - share) + values[below + 1] * share
        return result

    tokens = spent = value = np.zeros(len(GRID))
    brings = costs = np.zeros((len(GRID), bins))
    settled, last = False, (math.nan, math.nan)
    step, draw = np.full(longest, NEVER), np.full((longest, bins), NEVER)
    for length in reversed(range(longest)):
        weights = known.weights[min(length, 1)] / known.weights[min(length, 1)].sum()
        longer, worth = float(known.verify[length + 1] - known.verify[length]), float(known.worth[length])
        if settled and length and max(abs(longer - last[0]), abs(worth - last[1])) < CLOSE:
            step[length], draw[length] = step[length + 1], draw[length + 1]
            continue
        brings = after * worth + then(tokens)
        costs = longer + then(spent)
        draw[length] = _from(brings - rate * costs)
        pays = GRID[:, None] >= draw[length]  # (G, B)
        gained = (pays * brings) @ weights
        cost = known.step[min(length, 1)] + known.asking + (pays * costs) @ weights
        step[length : length + 1] = _from((gained - rate * cost)[:, None])
        made = step[length] <= GRID
        tokens, spent = made * gained, made * cost
        before, value = value, tokens - rate * spent
        settled, last = bool(length < longest - 1 and np.abs(value - before).max() < CLOSE), (longer, worth)
    return Plan(
        step=step,
        draw=draw,
        tokens=float(tokens[-1]),
        steps=float(spent[-1]),
        chances=known.chances,
        brings=brings[-1],  # of the last length that was looked at, which is the first one
        costs=costs[-1],
        start=known.step[0] + known.asking,
        alone=(float(known.worth[0]), known.step[0] + float(known.verify[1] - known.verify[0])),
    )


def _from(gains: Floats) -> Floats:
    """The probabilities from which on gains (G, N) are positive to the end of the grid; NEVER where not at its end."""
    count, columns = len(GRID), np.arange(gains.shape[1])
    at = count - np.argmax(gains[::-1] <= 0, axis=0)  # the first of the positive ones at the end
    at = np.where((gains > 0).all(axis=0), 0, at)
    inside = np.clip(at, 1, count - 1)
    low, high = gains[inside - 1, columns], gains[inside, columns]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = GRID[inside] - high / (high - low) * (GRID[inside] - GRID[inside - 1])
    return np.where(at == 0, 0.0, np.where(at == count, NEVER, found))
