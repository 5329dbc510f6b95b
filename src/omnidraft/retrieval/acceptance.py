"""Acceptance probability of copied tokens, by where they were found and for how long the text has been the same."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

EDGES = (3, 4, 5, 7, 11, 21)  # tokens that match, between the bins
PRIOR = 1.0, 1.5  # tokens accepted, and seen: two of three, so that copies are tried where verification is dear, too
HALVED = 1024  # rounds after which earlier observations count half: what has failed is tried again in the end


class CopyAcceptance:
    """Counts of copied tokens that the target accepted; a token is counted where all before it were accepted.

    A copied token extends the match that it was found by, so that the bin of the token at place i after a match of n
    tokens is that of n + i.  Sources are numbered from 0.
    """

    def __init__(self, sources: int) -> None:
        self._seen = [[0.0] * (len(EDGES) + 1) for _ in range(sources)]
        self._accepted = [[0.0] * (len(EDGES) + 1) for _ in range(sources)]
        self._rounds = 0

    def chances(self, source: int, length: int, count: int) -> list[float]:
        """For each of `count` tokens after a match of `length`: acceptance probability given those before."""
        bins = [bisect_right(EDGES, length + place) for place in range(count)]
        seen, accepted = self._seen[source], self._accepted[source]
        return [(accepted[at] + PRIOR[0]) / (seen[at] + PRIOR[1]) for at in bins]

    def learn(self, source: int, length: int, outcomes: Sequence[bool]) -> None:
        """Take in whether each copied token after a match was accepted, up to the first that was not."""
        for place, outcome in enumerate(outcomes):
            at = bisect_right(EDGES, length + place)
            self._seen[source][at] += 1
            self._accepted[source][at] += outcome

    def next_round(self) -> None:
        """Count a round, with or without copied tokens."""
        self._rounds += 1
        if self._rounds % HALVED == 0:
            for counts in (*self._seen, *self._accepted):
                counts[:] = [count / 2 for count in counts]
