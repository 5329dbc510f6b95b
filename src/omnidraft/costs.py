"""What a round costs on this machine, in steps of the target alone, from what rounds have cost.

Machines are now slower, now faster, as others use them.  So each observation is set against the rounds just before it,
and costs are medians of such ratios: what slows everything alike changes none of them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omnidraft.engine import Round

KEPT = 31  # observations of each kind
RECENT = 5  # rounds that tell how fast the machine is at present
SETTLED = 64  # rounds after which the costs of verifying are looked at only now and then
LOOK_EVERY = 8  # rounds
AGE = 400  # rounds after which one of a pass of the target says nothing any more
FRESH = 3  # observations of each kind that are kept where all is to be looked at anew
ENOUGH = 3  # of them say something
SHORT = 8  # tokens that the drafter reads in about the time of one
LEAST = 1e-9  # seconds: clocks may stand still
SLOPE = 0.04  # of verifying one more token, as long as nothing is known


class Costs:
    """Of a draft step, of reading a token of the prompt, and of verifying, what goes with each included.

    The unit is a step of the target alone, which takes `second` seconds at present.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds of a step of the target, as each round tells
        self._first: deque[float] = deque(maxlen=KEPT)  # steps of drafts; the first reads what is new of the text
        self._later: deque[float] = deque(maxlen=KEPT)
        self._read: deque[float] = deque(maxlen=KEPT)
        self._verify: dict[int, deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.seconds = 0.0  # what a step of the target alone takes at present; 0 as long as that is not known
        self._rounds = 0
        self._met: set[int] = set()  # numbers of tokens that were verified
        self._table: list[float] = []  # of verifying 1, 2, … tokens

    def learn(self, record: Round, *, first: bool) -> None:
        """Take in a round; the `first` of a text has the target's pass over the prompt in it."""
        verified, seconds = len(record.proposals) + 1, max(LEAST, record.verify_s + record.translate_s)
        self._rounds += 1
        new = verified not in self._met  # the first pass over so many tokens takes longer: libraries prepare for it
        self._met.add(verified)
        if not first and not new and record.finish != "stop":  # of which not all that was verified is told
            seen = self._verify[verified]
            if verified == 1 or len(seen) >= ENOUGH:
                self._recent.append(seconds / self.verify(verified))
                self.seconds = statistics.median(self._recent)
            if self._recent:
                seen.append((self._rounds, seconds / (self.seconds or 1.0)))
            if self._rounds < SETTLED or self._rounds % LOOK_EVERY == 0:
                self._table = []
        if record.draft_passes and self.seconds:
            drafting, later = record.draft_s / self.seconds, record.draft_passes - 1
            if self.reads(record):
                if self._first:
                    rest = drafting - later * self.steps[1]
                    self._read.append(max(0.0, rest) / (record.draft_read - later))
            elif not later:
                self._first.append(drafting)
            else:
                own = self.steps[0] if len(self._first) >= ENOUGH else drafting / record.draft_passes
                self._later.append(max(0.0, drafting - own) / later)
                if len(self._first) < ENOUGH:
                    self._first.append(own)

    def fade(self) -> None:
        """Let what comes count more."""
        kinds: list[deque[Any]] = [self._first, self._later, self._read, *self._verify.values()]
        for seen in kinds:
            while len(seen) > FRESH:
                seen.popleft()
        self._table = []

    @staticmethod
    def reads(record: Round) -> bool:
        """Whether the drafter read a text in this round, beside its steps."""
        return record.draft_read - record.draft_passes >= SHORT

    @property
    def known(self) -> bool:
        """Whether it is known what decoding without drafts costs."""
        return len(self._verify[1]) >= ENOUGH

    @property
    def steps(self) -> tuple[float, float]:
        """Of the first step of a draft, and of a later one; none as long as none was seen."""
        first = statistics.median(self._first) if self._first else 0.0
        return first, min(first, statistics.median(self._later)) if self._later else first

    def reading(self, tokens: int) -> float:
        """Of the drafter's reading so many tokens; those of as many steps at most."""
        return statistics.median(self._read) * tokens if self._read else self.steps[1] * tokens / SHORT

    def verify(self, tokens: float) -> float:
        """Of the target's pass over so many tokens, 1 or more, and of all that a round does beside drafting.

        Between whole numbers, those of the line between them.
        """
        below = math.floor(tokens)
        if len(self._table) <= below:
            self._table = self._fitted(2 * below + 1)
        return self._table[below - 1] + (tokens - below) * (self._table[below] - self._table[below - 1])

    def _fitted(self, longest: int) -> list[float]:
        """Medians where there are enough observations, lines between them, never less for more."""
        late = {
            m: [cost for at, cost in seen if m == 1 or self._rounds - at <= AGE] for m, seen in self._verify.items()
        }
        if all(len(costs) < ENOUGH for m, costs in late.items() if m > 1):  # no drafts since
            late = {m: [cost for _, cost in seen] for m, seen in self._verify.items()}
        known = _rising({m: costs for m, costs in late.items() if len(costs) >= ENOUGH})
        at = sorted(known)
        if not at:
            return [1.0 + SLOPE * m for m in range(longest)]
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
        return [cost / costs[0] for cost in costs]


def _rising(seen: dict[int, list[float]]) -> dict[int, float]:
    """Medians, neighbors that fall instead of rising being replaced by their mean, weighted by their numbers."""
    blocks: list[tuple[float, int, list[int]]] = []  # median, observations, and which they are for
    for m in sorted(seen):
        block = (statistics.median(seen[m]), len(seen[m]), [m])
        while blocks and blocks[-1][0] >= block[0]:
            value, count, members = blocks.pop()
            total = count + block[1]
            block = ((value * count + block[0] * block[1]) / total, total, members + block[2])
        blocks.append(block)
    return {m: value for value, _, members in blocks for m in members}
