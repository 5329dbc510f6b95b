"""Temperature, top-k, top-p and min-p on a row of logits, without sorting or copying a whole vocabulary.

What is kept is what the processors of `transformers` keep, in their order; where their rounding could decide
otherwise, they are left to decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.floating[Any]]
Probs = npt.NDArray[np.floating[Any]]

LARGEST_SETS = (256, 4096, 32768)  # how many of the likeliest tokens are tried as those that hold top-p
MARGIN = 1e-5  # of probability or relative score: closer than this to an edge, rounding decides


@dataclass(frozen=True)
class Truncation:
    """The tokens that sampling is restricted to; 0, 1 and 0 switch the three off.  Not for greedy decoding."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @property
    def cuts(self) -> bool:
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def law(self, row: Row) -> Probs | None:
        """Probabilities (V,) of a row of finite logits (V,); None where rounding decides what is kept."""
        highest = row.max()
        if not np.isfinite(highest):
            return None
        whole = 0.0
        if self.top_p < 1 and self.top_k == 0:  # the mass of all tokens, in that of the likeliest
            scaled = (row - highest) / row.dtype.type(self.temperature)
            whole = float(np.exp(scaled, out=scaled).sum(dtype=np.float64))
        chosen = self._likeliest(row, float(highest), whole)
        if chosen is None:
            return None
        scores = row[chosen] / row.dtype.type(self.temperature)
        weights = np.exp(scores - scores.max(), dtype=np.float64)
        if self.top_k > 0:
            edge = kth_largest(scores, self.top_k)
            weights[scores < edge] = 0.0
        if self.top_p < 1 and not _keep_top_p(scores, weights, whole or weights.sum(), self.top_p):
            return None
        if self.min_p > 0:
            relative = weights / weights.max()
            if (np.abs(relative / self.min_p - 1) < MARGIN).any():
                return None
            weights[relative < self.min_p] = 0.0
        probs = np.zeros(len(row))
        probs[chosen] = weights / weights.sum()
        return probs

    def _likeliest(self, row: Row, highest: float, whole: float) -> npt.NDArray[np.intp] | None:
        """Ids, in ascending order, of tokens among which all the kept ones are."""
        if self.top_k > 0:
            edge = kth_largest(row, self.top_k)
            # tokens that only the division by the temperature makes equal to the k-th are kept as well
            return np.flatnonzero(row >= edge - MARGIN * max(1.0, abs(edge)))
        if self.top_p < 1:
            for size in LARGEST_SETS:
                chosen = np.flatnonzero(row >= kth_largest(row, size))
                mass = np.exp((row[chosen] - highest) / self.temperature, dtype=np.float64).sum()
                if mass > (self.top_p + 2 * MARGIN) * whole:
                    return chosen
            return None
        return np.flatnonzero(row >= highest + self.temperature * math.log(self.min_p) - 1.0)


def kth_largest(row: Row, k: int) -> float:
    """The k-th largest of a row of scores (V,), the smallest where there are fewer."""
    if k >= len(row):
        return float(row.min())
    # Each of k groups whose maximum reaches the k-th largest maximum has an entry at least so large: the k largest
    # entries of the row are all among those.
    groups = min(len(row), max(8 * k, 1024))
    rows = len(row) // groups
    highest = row[: rows * groups].reshape(rows, groups).max(axis=0)
    largest = row[row >= np.partition(highest, -k)[-k]]
    return float(np.partition(largest, -k)[-k])


def _keep_top_p(scores: Row, weights: Probs, whole: float, p: float) -> bool:
    """Set to 0 the weights (n,) that top-p drops, `whole` being all tokens' sum; False where rounding decides."""
    order = np.argsort(scores, kind="stable")
    below = 1 - (weights.sum() - np.cumsum(weights[order])) / whole  # of a token and all less likely ones
    first = min(int(np.searchsorted(below, 1 - p, side="right")), len(order) - 1)  # the first that is kept
    near = np.abs(below[max(0, first - 1) : first + 1] - (1 - p)).min() < MARGIN
    tied = first > 0 and scores[order[first - 1]] == scores[order[first]] and weights[order[first]] > 0
    if near or tied:
        return False
    weights[order[:first]] = 0.0
    return True
