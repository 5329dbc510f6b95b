"""The draft of the highest value: which steps and draws pay, by costs, chances and how often each chance comes up.

Worked out from the end of the longest draft to its beginning.  Pure array code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
GRID = np.exp(np.linspace(np.log(1e-3), 0.0, 33))  # probabilities that a draft is accepted so far


@dataclass(frozen=True, eq=False)
class Plan:
    """From which probability on that the draft so far is accepted a step, and then a draw, pays at each length."""

    step: Floats  # (K,) before the law of the next token is known; above 1: never
    draw: Floats  # (K,) with that token
    tokens: float  # target tokens that a round gains by it, on average
    seconds: float  # that it costs


def make_plan(step_s: float, verify_s: Floats, chances: Floats, weights: Floats, each: float, rate: float) -> Plan:
    """The plan that gains most over `rate` target tokens a second.

    `verify_s` (K + 1,) is the target's pass with a draft of 0 … K tokens, each of which makes up `each` target
    tokens; `chances` (B,) of acceptance come up with `weights` (B,).
    """
    longest = len(verify_s) - 1
    weights = weights / weights.sum()
    after = GRID[:, None] * chances  # (G, B) with the next token
    value = tokens = seconds = np.zeros(len(GRID))
    step, draw = np.full(longest, 2.0), np.full(longest, 2.0)
    logs, after_logs = np.log(GRID), np.log(np.maximum(after, GRID[0]))
    for length in reversed(range(longest)):
        longer = verify_s[length + 1] - verify_s[length]
        drawn = GRID * each - rate * longer + value  # (G,) by the probability with that token
        draw[length] = _from(drawn)
        pays = after >= draw[length]  # (G, B)
        gained = np.where(pays, after * each + np.interp(after_logs, logs, tokens), 0.0) @ weights
        spent = step_s + np.where(pays, longer + np.interp(after_logs, logs, seconds), 0.0) @ weights
        step[length] = _from(gained - rate * spent)
        made = step[length] <= GRID
        tokens, seconds = np.where(made, gained, 0.0), np.where(made, spent, 0.0)
        value = tokens - rate * seconds
    return Plan(step, draw, float(tokens[-1]), float(seconds[-1]))


def _from(gains: Floats) -> float:
    """The probability from which on the gain, which rises with it, is positive; 2 where it nowhere is."""
    positive = np.flatnonzero(gains > 0)
    if not len(positive):
        return 2.0
    at = int(positive[0])
    if at == 0:
        return 0.0
    share = gains[at] / (gains[at] - gains[at - 1])
    return float(GRID[at] - share * (GRID[at] - GRID[at - 1]))
