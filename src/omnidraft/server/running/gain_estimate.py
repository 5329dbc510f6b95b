"""An estimate of what drafting gains, from rounds without a draft that came by themselves."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnidraft.verification.round import Round

MAX_KEPT = 256  # rounds without a draft whose times are kept
LIKE = 1.5, 256  # context lengths are alike within this factor, or this many tokens


class Estimate:
    """Times of a target's rounds without a draft, and the speedup of answers against them."""

    def __init__(self) -> None:
        self._plain: deque[tuple[int, float]] = deque(maxlen=MAX_KEPT)  # tokens before a round, and its seconds

    def measure(self, record: Round, context: int) -> None:
        """Take the time of a round after `context` tokens; it must not be the first of an answer."""
        if not record.proposals:
            self._plain.append((context, record.times.verify_s + record.times.overhead_s))

    def speedup(self, rounds: Sequence[Round], prompt: int) -> float | None:
        """Speedup of an answer's rounds after a prompt of this length in tokens; None where too little is known.

        The first round reads the prompt and does not count.  A step gets slower as the context grows, so the time of a
        token without a draft is the median of the rounds without one at like lengths.  As no round is faster than a
        plain step, the speedup is at most the tokens a pass.
        """
        tokens = [len(record.emitted) for record in rounds]
        seconds, middle = sum(record.times.total for record in rounds[1:]), prompt + sum(tokens) / 2
        like = [taken for length, taken in self._plain if _alike(length, middle)]
        if not like or not seconds:
            return None
        return min(statistics.median(like) * sum(tokens[1:]) / seconds, sum(tokens) / len(tokens))


def _alike(length: float, other: float) -> bool:
    """True of context lengths after which steps take about as long."""
    factor, tokens = LIKE
    return abs(length - other) <= max(tokens, (factor - 1) * min(length, other))
