"""Acceptance probability of draft tokens, calibrated by score: a Beta estimate per bin, shifted for each request."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.78, 0.86, 0.92, 0.97)  # between the bins of the score
CENTERS = [(low + high) / 2 for low, high in pairwise((0.0, *EDGES, 1.0))]
BINS = len(CENTERS)
DISCOUNT = 0.99  # of earlier observations of a bin, with each new one
STRENGTH = 4.0  # observations that the prior of a bin, its center, is worth
REQUEST = 8.0  # tokens of a request that the average of all requests is worth
VARIANCE = 0.05  # between requests, of the shift of the log-odds
FIRST, LATER = 0, 1  # the first token of a draft, and all others


class Acceptance:
    """Acceptance estimates of a drafter for a target, over all requests and for the present one."""

    def __init__(self) -> None:
        self._accepted = [STRENGTH * center for center in CENTERS]
        self._seen = [STRENGTH] * BINS
        self._met = [[1.0] * BINS, [1.0] * BINS]  # how often bins come up, discounted
        self.start_request()

    def start_request(self) -> None:
        """Forget what only holds for the request before."""
        self._own = [[0.0] * BINS, [0.0] * BINS]
        self._shift, self._precision, self._odds = 0.0, 1 / VARIANCE, 1.0

    def meet(self, score: float, kind: int) -> int:
        """Count a token of that score; its bin."""
        place = bisect_right(EDGES, score)
        met = self._met[kind] = [DISCOUNT * each for each in self._met[kind]]
        met[place] += 1
        self._own[kind][place] += 1
        return place

    def probability(self, place: int) -> float:
        """Acceptance probability of a token of a bin in the present request."""
        mean = self._accepted[place] / self._seen[place]
        return mean * self._odds / (mean * self._odds + 1 - mean)

    def learn(self, place: int, *, accepted: bool) -> None:
        """Take in whether a token of a bin was accepted."""
        thought = self.probability(place)
        self._precision += thought * (1 - thought)
        self._shift += (accepted - thought) / self._precision
        self._odds = math.exp(self._shift)
        self._accepted[place] = DISCOUNT * self._accepted[place] + accepted
        self._seen[place] = DISCOUNT * self._seen[place] + 1

    def expected(self, kind: int) -> list[tuple[float, float]]:
        """Frequency and acceptance probability of each bin among the next tokens of the present request."""
        met, own = self._met[kind], self._own[kind]
        scale, total = REQUEST / sum(met), REQUEST + sum(own)
        return [((scale * met[b] + own[b]) / total, self.probability(b)) for b in range(BINS)]

    def mean(self, kind: int) -> float:
        """Acceptance probability of the next token, before its score is known."""
        return sum(share * probability for share, probability in self.expected(kind))

    @property
    def error(self) -> float:
        """Standard error of the mean acceptance in the present request, relative to it."""
        mean = max(1e-3, self.mean(FIRST))
        return math.sqrt((1 - mean) / (mean * (REQUEST + sum(self._own[FIRST]))))

    def fade(self, seen: float) -> None:
        """Let new observations count more: earlier ones are worth `seen` of them at most."""
        for place, weight in enumerate(self._seen):
            kept = min(1.0, seen / weight)
            self._seen[place], self._accepted[place] = kept * weight, kept * self._accepted[place]
        self._met = [[min(1.0, seen / sum(met)) * each for each in met] for met in self._met]

    def state(self) -> list[float]:
        """Estimates that hold for all requests."""
        return [*self._accepted, *self._seen, *self._met[0], *self._met[1]]

    def resume(self, state: list[float]) -> None:
        """Go on from a `state`."""
        self._accepted, self._seen = state[:BINS], state[BINS : 2 * BINS]
        self._met = [state[2 * BINS : 3 * BINS], state[3 * BINS :]]
        self.start_request()
