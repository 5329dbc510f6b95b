"""How often guesses were right, by their kind: length of the match, share of the best token, number of tokens."""

from __future__ import annotations

from bisect import bisect_right

from omnidraft.counts.token_index import MATCH_LENGTHS, VISITED

SHARE_EDGES = 0.35, 0.55, 0.75, 0.999  # between the classes of the share of the most frequent continuation
OCCURRENCE_EDGES = 2, 3, 5, VISITED + 1  # between those of the number of occurrences
GUESS_KINDS = len(MATCH_LENGTHS) * (len(SHARE_EDGES) + 1) * (len(OCCURRENCE_EDGES) + 1)
PRIOR_GUESSES = 0.5, 2.0  # guesses of a kind that were right, and all, before any was made
GUESS_DISCOUNT = 0.998  # of earlier guesses of a kind, with each new one


class HitRates:
    """Hit rates of guesses, one for each of GUESS_KINDS kinds."""

    def __init__(self) -> None:
        self._right, self._seen = [PRIOR_GUESSES[0]] * GUESS_KINDS, [PRIOR_GUESSES[1]] * GUESS_KINDS
        self.rates = [PRIOR_GUESSES[0] / PRIOR_GUESSES[1]] * GUESS_KINDS

    def learn(self, kind: int, *, right: bool) -> None:
        """Update the hit rate of a kind with one guess."""
        self._right[kind] = GUESS_DISCOUNT * self._right[kind] + right
        self._seen[kind] = GUESS_DISCOUNT * self._seen[kind] + 1
        self.rates[kind] = self._right[kind] / self._seen[kind]


def kind_of(level: int, share: float, number: int) -> int:
    """The kind of a guess: place of its length among MATCH_LENGTHS, share of its best, number of occurrences."""
    of_level = level * (len(SHARE_EDGES) + 1) + bisect_right(SHARE_EDGES, share)
    return of_level * (len(OCCURRENCE_EDGES) + 1) + bisect_right(OCCURRENCE_EDGES, number)
