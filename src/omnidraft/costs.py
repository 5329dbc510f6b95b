"""What a round costs on this machine, from what rounds have cost: medians of the last few of each kind."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnidraft.engine import Round

KEPT = 31  # observations of each kind
AGE = 400  # rounds after which one of a pass of the target says nothing any more
FRESH = 3  # observations of each kind that are kept where all is to be looked at anew
ENOUGH = 3  # of them say something
SHORT = 8  # tokens that the drafter reads in about the time of one
SLOPE = 0.04  # of verifying one more token, in those of one, as long as nothing is known


class Costs:
    """Seconds of a draft step, of reading a token of the prompt, and of verifying, what goes with each included."""

    def __init__(self) -> None:
        self._step: deque[float] = deque(maxlen=KEPT)
        self._read: deque[float] = deque(maxlen=KEPT)
        self._verify: dict[int, deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=KEPT))
        self._rounds = 0
        self._table: list[float] = []  # of verifying 1, 2, … tokens

    def learn(self, record: Round, *, first: bool) -> None:
        """Take in a round; the `first` of a text has the target's pass over the prompt in it."""
        if record.draft_passes:
            caught_up = record.draft_read - record.draft_passes + 1
            if not self.reads(record):
                self._step.append(record.draft_s / record.draft_passes)
            elif self._step:
                rest = record.draft_s - (record.draft_passes - 1) * self.step
                self._read.append(max(0.0, rest) / caught_up)
        self._rounds += 1
        if not first:
            self._verify[len(record.proposals) + 1].append((self._rounds, record.verify_s + record.translate_s))
            self._table = []

    def fade(self) -> None:
        """Let what comes count more."""
        kinds: list[deque[Any]] = [self._step, self._read, *self._verify.values()]
        for seen in kinds:
            while len(seen) > FRESH:
                seen.popleft()

    @staticmethod
    def reads(record: Round) -> bool:
        """Whether the drafter read a text in this round, beside its steps."""
        return record.draft_read - record.draft_passes >= SHORT

    @property
    def known(self) -> bool:
        """Whether it is known what decoding without drafts costs."""
        return len(self._verify[1]) >= ENOUGH

    @property
    def step(self) -> float:
        """Seconds of one draft step; none as long as none was seen."""
        return statistics.median(self._step) if self._step else 0.0

    def reading(self, tokens: int) -> float:
        """Seconds that the drafter takes to read so many tokens; those of as many steps at most."""
        return statistics.median(self._read) * tokens if self._read else self.step * tokens / SHORT

    def verify(self, tokens: float) -> float:
        """Seconds of the target's pass over so many tokens, 1 or more, and of all that a round does beside drafting.

        Between whole numbers, those of the line between them.
        """
        below = math.floor(tokens)
        if len(self._table) <= below:
            self._table = self._fitted(2 * below + 1)
        return self._table[below - 1] + (tokens - below) * (self._table[below] - self._table[below - 1])

    def _fitted(self, longest: int) -> list[float]:
        """Medians where there are enough observations, lines between them, never less for more."""
        late = {
            m: [seconds for at, seconds in seen if m == 1 or self._rounds - at <= AGE]
            for m, seen in self._verify.items()
        }
        if all(len(seconds) < ENOUGH for m, seconds in late.items() if m > 1):  # no drafts since
            late = {m: [seconds for _, seconds in seen] for m, seen in self._verify.items()}
        known = {m: statistics.median(seconds) for m, seconds in late.items() if len(seconds) >= ENOUGH}
        if not known:
            return [0.0] * longest
        at = sorted(known)
        least = 0.0
        for m in at:
            least = known[m] = max(least, known[m])
        slope = SLOPE * known[at[0]]
        if len(at) > 1:
            slope = (known[at[-1]] - known[at[0]]) / (at[-1] - at[0])
        costs = []
        for m in range(1, longest + 1):
            below, above = max((k for k in at if k <= m), default=None), min((k for k in at if k >= m), default=None)
            if below is None:
                costs.append(known[at[0]])
            elif above is None:
                costs.append(known[below] + slope * (m - below))
            else:
                share = (m - below) / (above - below) if above > below else 0.0
                costs.append(known[below] + share * (known[above] - known[below]))
        return costs
