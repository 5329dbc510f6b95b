"""Acceptance probability of draft tokens, calibrated by score: a Beta estimate per bin, shifted for each request."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.78, 0.86, 0.92, 0.97)  # between the bins of the score
CENTERS = [(low + high) / 2 for low, high in pairwise((0.0, *EDGES, 1.0))]
BINS = len(CENTERS)
DISCOUNT = 0.99  # of earlier observations of a bin, with each new one
STRENGTH = 4.0  # observations that the prior of a bin, its center, is worth
COUNTED = -1  # in place of a bin: a token of the counts alone, whose chance is measured elsewhere
VARIANCE = 0.05  # between requests, of the shift of the log-odds


class Acceptance:
    """Acceptance estimates of a drafter for a target, over all requests and for the present one.

    `bins` holds for each bin its share of the draft tokens and their acceptance probability in the present request;
    `mean` is the acceptance probability of a token whose score is not known.
    """

    def __init__(self) -> None:
        # of each bin, discounted: tokens judged, tokens accepted, and tokens met
        self._seen, self._accepted = [STRENGTH] * BINS, [STRENGTH * center for center in CENTERS]
        self._met = [1.0] * BINS
        self.start_request()

    def start_request(self) -> None:
        """Reset what only holds for the last request."""
        self._shift, self._precision = 0.0, 1 / VARIANCE
        self._estimate()

    def _estimate(self) -> None:
        odds, met = math.exp(self._shift), sum(self._met)
        means = [accepted / seen for accepted, seen in zip(self._accepted, self._seen, strict=True)]
        shifted = [mean * odds / (mean * odds + 1 - mean) for mean in means]
        self.bins = [(times / met, probability) for times, probability in zip(self._met, shifted, strict=True)]
        self.mean = sum(share * probability for share, probability in self.bins)

    def meet(self, score: float) -> int:
        """Count a token of this score; return its bin."""
        place = bisect_right(EDGES, score)
        self._met = [DISCOUNT * times for times in self._met]
        self._met[place] += 1
        return place

    def probability(self, place: int) -> float:
        """Acceptance probability of a token of a bin in the present request."""
        return self.bins[place][1]

    def learn(self, places: Sequence[int], accepted: int) -> None:
        """Update with draft tokens in these bins, of which the first `accepted` were accepted."""
        for at, place in enumerate(places):
            if place == COUNTED:
                continue
            outcome, expected = at < accepted, self.probability(place)
            self._precision += expected * (1 - expected)
            self._shift += (outcome - expected) / self._precision
            self._seen[place] = DISCOUNT * self._seen[place] + 1
            self._accepted[place] = DISCOUNT * self._accepted[place] + outcome
        self._estimate()

    def fade(self) -> None:
        """Make all earlier observations of a bin worth no more than its prior."""
        kept = [min(1.0, STRENGTH / weight) for weight in self._seen]
        self._seen = [each * weight for each, weight in zip(kept, self._seen, strict=True)]
        self._accepted = [each * weight for each, weight in zip(kept, self._accepted, strict=True)]

    def state(self) -> list[float]:
        """Estimates that hold for all requests."""
        return [*self._seen, *self._accepted, *self._met]

    def resume(self, state: Sequence[float]) -> None:
        """Restore a `state`."""
        self._seen, self._accepted, self._met = (list(state[at : at + BINS]) for at in range(0, 3 * BINS, BINS))
        self.start_request()
