"""What a round costs on this machine, in steps of the target alone, from what rounds have cost.

Machines are now slower, now faster, as others use them.  So costs are medians of ratios of what was measured within a
few rounds: what slows everything alike changes none of them.  Of the target's passes, only those over different numbers
of tokens say anything about each other; set against what one of them is thought to cost, an error would confirm itself.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from omnidraft.verification.round import Round

    _Pass = tuple[int, float]  # tokens that the target verified, and seconds with all else but drafting
    _Seen = tuple[int, float, float]  # number of the round, ratio of passes over more tokens to those over less, weight

KEPT = 31  # observations of each kind
WINDOW = 12  # rounds whose passes are compared
RECENT = 5  # rounds that tell how fast the machine is at present
SETTLED = 64  # rounds after which costs are worked out only when they are asked for
HALF = 150.0  # rounds after which a comparison counts half of the latest one
OLD = 0.02  # that it counts at least
FRESH = 3  # observations of each kind that are kept where all is to be looked at anew
ENOUGH = 3  # of them say something
HEAVY = 1.5  # weight of comparisons that say something: two passes against many, or three against three
SHORT = 8  # tokens that the drafter reads in about the time of one
LEAST = 1e-9  # seconds: clocks may stand still
SLOPE = 0.04  # of verifying one more token, as long as nothing is known
GUESS = 1e-3  # weight of that slope beside what was seen


class Costs:
    """Of a draft step, of reading a token of the prompt, and of verifying, what goes with each included.

    The unit is a step of the target alone, which takes `seconds` seconds at present.
    """

    def __init__(self) -> None:
        self._recent: deque[_Pass] = deque(maxlen=RECENT)
        self._window: list[_Pass] = []
        self._alone = 0  # passes over a single token
        self._first: deque[float] = deque(maxlen=KEPT)  # steps of drafts; the first reads what is new of the text
        self._later: deque[float] = deque(maxlen=KEPT)
        self._went_on = False  # whether the latest draft had a later one
        self._read: deque[float] = deque(maxlen=KEPT)
        self._asking: deque[float] = deque(maxlen=KEPT)
        self._verify: dict[tuple[int, int], deque[_Seen]] = defaultdict(lambda: deque(maxlen=KEPT))
        self.seconds = 0.0  # what a step of the target alone takes at present; 0 as long as that is not known
        self.compared = 0  # comparisons made so far
        self._rounds = 0
        self._met: set[int] = set()  # numbers of tokens that were verified
        self._points = {1: 1.0}  # of verifying so many tokens, where that is known
        self._table = [1.0]  # of verifying 1, 2, … tokens, from these
        self._stale = False  # whether there are comparisons that these say nothing of

    def learn(self, record: Round, *, first: bool, asking: Sequence[float] = ()) -> None:
        """Take in a round; the `first` of a text has the target's pass over the prompt in it.

        Each time that the stop policy asked for a chance took so many seconds of the draft's.
        """
        verified, seconds = len(record.proposals) + 1, max(LEAST, record.times.verify_s + record.times.overhead_s)
        self._rounds += 1
        new = verified not in self._met  # the first pass over so many tokens takes longer: libraries prepare for it
        self._met.add(verified)
        if not first and not new and record.finish != "stop":  # of which not all that was verified is told
            self._alone += verified == 1
            if verified in self._points:
                self._recent.append((verified, seconds))
                self.seconds = self._step(self._recent)
            self._window.append((verified, seconds))
            if len(self._window) == WINDOW:
                self._compare()
                if self._rounds < SETTLED:
                    self._work_out()
        if record.counts.draft_passes and self.seconds:
            drafting, later = (
                max(0.0, record.times.draft_s - sum(asking)) / self.seconds,
                record.counts.draft_passes - 1,
            )
            self._asking.extend(seconds / self.seconds for seconds in asking)
            self._went_on = later > 0
            if self.reads(record):
                if self._first:
                    rest = drafting - later * self.steps[1]
                    self._read.append(max(0.0, rest) / (record.counts.draft_read - later))
            elif not later:
                self._first.append(drafting)
            else:
                own = self.steps[0]
                if len(self._first) < ENOUGH or own > drafting:  # which it is no longer
                    own = drafting / record.counts.draft_passes
                    self._first.append(own)
                self._later.append((drafting - own) / later)

    def _compare(self) -> None:
        """Set the passes of the latest rounds against those that were most of them."""
        by_size = defaultdict(list)
        for tokens, seconds in self._window:
            by_size[tokens].append(seconds)
        self._window.clear()
        most = max(by_size, key=lambda tokens: (len(by_size[tokens]), -tokens))
        for tokens in by_size.keys() - {most}:
            pair = less, more = min(tokens, most), max(tokens, most)
            ratio = statistics.median(by_size[more]) / statistics.median(by_size[less])
            weight = len(by_size[less]) * len(by_size[more]) / (len(by_size[less]) + len(by_size[more]))
            self._verify[pair].append((self._rounds, ratio, weight))
            self.compared += 1
            self._stale = True

    def fade(self) -> None:
        """Let what comes count more."""
        for seen_steps, believed in zip((self._first, self._later), self.steps, strict=True):
            if seen_steps and statistics.median(seen_steps) != believed:  # they are of long ago
                seen_steps.clear()
                seen_steps.append(believed)
        kinds: list[deque[Any]] = [self._first, self._later, self._read, self._asking, *self._verify.values()]
        for seen in kinds:
            while len(seen) > FRESH:
                seen.popleft()
        self._stale = True

    @staticmethod
    def reads(record: Round) -> bool:
        """Whether the drafter read a text in this round, beside its steps."""
        return record.counts.draft_read - record.counts.draft_passes >= SHORT

    @property
    def known(self) -> bool:
        """Whether it is known what decoding without drafts costs."""
        return self._alone >= ENOUGH

    @property
    def steps(self) -> tuple[float, float]:
        """Of the first step of a draft, and of a later one; none as long as none was seen."""
        first = statistics.median(self._first) if self._first else 0.0
        later = statistics.median(self._later) if self._later else first
        if later > first:  # one of them is of long ago
            return (later, later) if self._went_on else (first, first)
        return first, later

    @property
    def asking(self) -> float:
        """Of asking what the chance of a token is."""
        return statistics.median(self._asking) if self._asking else 0.0

    def reading(self, tokens: int) -> float:
        """Of the drafter's reading so many tokens; a guess until it was seen `ENOUGH` times, as machines may stall."""
        return tokens * (statistics.median(self._read) if len(self._read) >= ENOUGH else self.steps[1] / SHORT)

    def verify(self, tokens: float) -> float:
        """Of the target's pass over so many tokens, 1 or more, and of all that a round does beside drafting.

        Between whole numbers, those of the line between them.
        """
        self._work_out()
        below = math.floor(tokens)
        if len(self._table) <= below:
            self._table = _drawn(self._points, 2 * below + 1)
        return self._table[below - 1] + (tokens - below) * (self._table[below] - self._table[below - 1])

    def at_least(self, tokens: float) -> float:
        """`verify`, but for more tokens than ever were compared what the most of those cost: more is a guess."""
        self._work_out()
        return self.verify(min(tokens, max(self._points)))

    def _step(self, passes: Iterable[_Pass]) -> float:
        """Seconds of a step of the target alone, as these passes tell."""
        return statistics.median(seconds / self._points[tokens] for tokens, seconds in passes if tokens in self._points)

    def _work_out(self) -> None:
        """Find what suits all comparisons best, late ones most of all; never less for more tokens."""
        if self._stale:
            latest = max((seen[-1][0] for seen in self._verify.values()), default=0)
            pairs, heavy = {}, Counter({1: HEAVY})
            for pair, seen in self._verify.items():
                pairs[pair] = _median([(x, weight * max(OLD, 0.5 ** ((latest - at) / HALF))) for at, x, weight in seen])
                heavy.update(dict.fromkeys(pair, sum(weight for _, _, weight in seen)))
            points = _rising({tokens: cost for tokens, cost in _solved(pairs).items() if heavy[tokens] >= HEAVY})
            self._points = {tokens: cost / points[1] for tokens, cost in points.items()}
            self._table = _drawn(self._points, max(len(self._table), *self._points))
            self._stale = False


def _median(seen: list[tuple[float, float]]) -> tuple[float, float]:
    """The median of ratios by their weights, and the sum of these."""
    ratios = sorted(seen)
    sums = list(accumulate(weight for _, weight in ratios))
    half = sums[-1] / 2 * (1 - LEAST)
    middle = bisect_left(sums, half)
    other = middle + math.isclose(sums[middle], half, rel_tol=4 * LEAST)  # just half of them are below
    return (ratios[middle][0] + ratios[other][0]) / 2, sums[-1]


def _solved(pairs: dict[tuple[int, int], tuple[float, float]]) -> dict[int, tuple[float, float]]:
    """Costs of so many tokens in relation to one, and their weights: least squares of the logarithms of ratios."""
    sizes = sorted({1}.union(*pairs))
    place = {tokens: number for number, tokens in enumerate(sizes)}
    guess = np.log1p(SLOPE * (np.array(sizes) - 1))
    matrix, wanted = GUESS * np.eye(len(sizes)), GUESS * guess
    matrix[0, 0] = 1e9  # the unit
    weights = dict.fromkeys(sizes, 0.0) | {1: float(KEPT)}
    for (less, more), (ratio, weight) in pairs.items():
        at, to = place[less], place[more]
        matrix[[at, to], [at, to]] += weight
        matrix[[at, to], [to, at]] -= weight
        wanted[at] -= weight * math.log(ratio)
        wanted[to] += weight * math.log(ratio)
        weights[less] += weight
        weights[more] += weight
    costs = np.exp(np.linalg.solve(matrix, wanted)).tolist()
    return {tokens: (cost, weights[tokens]) for tokens, cost in zip(sizes, costs, strict=True)}


def _drawn(known: dict[int, float], longest: int) -> list[float]:
    """Costs of 1, 2, … tokens in relation to the first, on lines through those that are known."""
    at, sizes = sorted(known), np.arange(1, longest + 1)
    slope = (known[at[-1]] - known[1]) / (at[-1] - 1) if len(at) > 1 else SLOPE
    costs = np.interp(sizes, at, [known[m] for m in at]) + slope * np.maximum(0, sizes - at[-1])
    drawn: list[float] = costs.tolist()
    return drawn


def _rising(seen: dict[int, tuple[float, float]]) -> dict[int, float]:
    """Costs with their weights, neighbors that fall instead of rising being replaced by their mean."""
    blocks: list[tuple[float, float, list[int]]] = []  # cost, weight, and which they are for
    for m in sorted(seen):
        block = (*seen[m], [m])
        while blocks and blocks[-1][0] >= block[0]:
            value, weight, members = blocks.pop()
            total = weight + block[1]
            block = ((value * weight + block[0] * block[1]) / total, total, members + block[2])
        blocks.append(block)
    return {m: value for value, _, members in blocks for m in members}
