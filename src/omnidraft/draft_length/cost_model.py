"""Linear cost model of a round of speculative decoding, tracked online.

Costs are relative to a plain step of the target, so that a machine that slows down as a whole changes none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnidraft.verification.round import Round

MEMORY = 64.0  # observations over which a cost is averaged
LEVEL_MEMORY = 8.0  # rounds over which the present speed of the machine is averaged
STALL = 4.0  # times the expected cost: a longer round, in which the machine did something else, is cut to that
PREFILL = 8  # tokens that the drafter reads in a round beyond one for each step, from which on it is a prefill
PRIOR_SLOPE = 0.1  # of one more draft step or verified draft token, before any is measured


class Line:
    """y = start + slope · x by discounted averages; only deviations of x from its mean move the slope."""

    def __init__(self, start: float, slope: float) -> None:
        self._x, self._y, self._seen = 0.0, start, 0.0
        self._xx, self._xy = 1.0, slope

    @property
    def slope(self) -> float:
        return max(0.0, self._xy / self._xx)

    def __call__(self, x: float) -> float:
        return max(0.0, self._y + self.slope * (x - self._x))

    def learn(self, x: float, y: float) -> None:
        """Take in an observation."""
        if self._seen:
            dx, dy = x - self._x, y - self._y
            kept = 1 - min(1.0, dx * dx) / MEMORY
            self._xx, self._xy = kept * self._xx + dx * dx, kept * self._xy + dx * dy
        self._seen = min(MEMORY, self._seen + 1)
        self._x += (x - self._x) / self._seen
        self._y += (y - self._y) / self._seen

    def fade(self, seen: float) -> None:
        """Make earlier observations worth `seen` new ones at most."""
        self._seen = min(self._seen, seen)

    def state(self) -> list[float]:
        """Averages and sums, to go on from."""
        return [self._x, self._y, self._seen, self._xx, self._xy]

    def resume(self, state: Sequence[float]) -> None:
        """Go on from a `state`."""
        self._x, self._y, self._seen, self._xx, self._xy = state


class CostModel:
    """Linear cost model of rounds, in plain steps of the target, one of which takes `seconds` at present.

    A draft of k tokens adds jump + row · (k − 1) to the target's step: discounted least squares of deviations from the
    average of the latest rounds, so that a phase in which the machine is slower moves neither.
    """

    def __init__(self) -> None:
        self.jump = self.row = PRIOR_SLOPE
        self.steps = Line(PRIOR_SLOPE, PRIOR_SLOPE)  # of the drafter, by steps after the first
        self.prefill = PRIOR_SLOPE / PREFILL  # of a token of the context that the drafter has yet to read
        self._prefills = self._seen = 0.0
        self._drafts = self._more = self._mean = 0.0  # averages of [k > 0], max(0, k − 1) and seconds
        self._xx, self._xz, self._zz, self._xy, self._zy = 1.0, 0.0, 1.0, self.jump, self.row
        self._met: set[int] = set()

    @property
    def seconds(self) -> float:
        """Seconds of a plain step at present; 0 before the first."""
        return self._mean / (1 + self.jump * self._drafts + self.row * self._more)

    def drafting(self, steps: int) -> float:
        """Cost of so many steps of the drafter."""
        return self.steps(steps - 1) if steps else 0.0

    def verifying(self, tokens: int) -> float:
        """Cost that so many draft tokens add to the target's step."""
        return self.jump + self.row * (tokens - 1) if tokens else 0.0

    def learn(self, record: Round, *, first: bool) -> None:
        """Take in a round; the `first` of a request includes the target's prefill."""
        drafted, passes = len(record.draft), record.counts.draft_passes
        new = drafted not in self._met  # libraries prepare for the first pass of each shape
        self._met.add(drafted)
        if not first and not new and record.finish != "stop":
            self._learn_target(drafted, record.times.verify_s + record.times.overhead_s)
        if not passes or not self.seconds:
            return
        cost, prefill = record.times.draft_s / self.seconds, record.counts.draft_read - passes
        if prefill >= PREFILL:
            each = max(0.0, cost - self.drafting(passes)) / prefill
            self._prefills = min(LEVEL_MEMORY, self._prefills + 1)
            self.prefill += (min(each, STALL * self.prefill) - self.prefill) / (self._prefills + 1)
        else:
            self.steps.learn(passes - 1, min(cost, STALL * max(0.5, self.drafting(passes))))

    def _learn_target(self, drafted: int, seconds: float) -> None:
        drafts, more = min(1, drafted), max(0, drafted - 1)
        if plain := self.seconds:
            seconds = min(seconds, STALL * plain * (1 + self.verifying(drafted)))
            x, z, y = drafts - self._drafts, more - self._more, (seconds - self._mean) / plain
            kept = 1 - min(1.0, x * x + z * z) / MEMORY  # rounds alike say nothing about slopes, and leave them
            self._xx, self._xy = kept * self._xx + x * x, kept * self._xy + x * y
            self._zz, self._zy = kept * self._zz + z * z, kept * self._zy + z * y
            self._xz = kept * self._xz + x * z
            det = self._xx * self._zz - self._xz * self._xz
            if det > 1e-6 * self._xx * self._zz:
                self.jump = max(0.0, (self._xy * self._zz - self._zy * self._xz) / det)
                self.row = max(0.0, (self._zy * self._xx - self._xy * self._xz) / det)
        self._seen = min(LEVEL_MEMORY, self._seen + 1)
        self._drafts += (drafts - self._drafts) / self._seen
        self._more += (more - self._more) / self._seen
        self._mean += (seconds - self._mean) / self._seen

    def fade(self, seen: float) -> None:
        """Make earlier observations worth `seen` new ones at most."""
        self.steps.fade(seen)
        kept = min(1.0, seen / max(self._xx, self._zz))
        sums = self._xx, self._xz, self._zz, self._xy, self._zy
        self._xx, self._xz, self._zz, self._xy, self._zy = (kept * each for each in sums)

    def state(self) -> list[float]:
        """Relative costs, to go on from; the present speed is not among them."""
        sums = self._xx, self._xz, self._zz, self._xy, self._zy
        return [self.jump, self.row, self.prefill, self._prefills, *sums, *self.steps.state()]

    def resume(self, state: Sequence[float]) -> None:
        """Go on from a `state`."""
        self.jump, self.row, self.prefill, self._prefills = state[:4]
        self._xx, self._xz, self._zz, self._xy, self._zy = state[4:9]
        self.steps.resume(state[9:])
