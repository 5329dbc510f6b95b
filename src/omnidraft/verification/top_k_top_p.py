"""Temperature, top-k, top-p and min-p on a row of logits, without sorting or copying a whole vocabulary.

It keeps the tokens that the processors of `transformers` keep, applied in their order; where rounding could decide
otherwise, the result is None and the caller runs these processors.  Of equal scores at the edge of top-p the same
number is kept, with the highest ids: top-p does not define which, and torch's sort, which is not stable, takes any.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.floating[Any]]
Probs = npt.NDArray[np.floating[Any]]

LARGEST_SETS = (256, 4096, 32768)  # numbers of likeliest tokens tried as a superset of top-p
MARGIN = 1e-5  # relative distance to min-p below which rounding decides
EXP_ERROR = 5e-6  # relative error of a quotient of two sums of exponentials in torch's float32
SUM_ERROR = 2.0**-25 / 8  # relative error of such a sum, a term: torch adds the smallest first, in eight lanes or more


@dataclass(frozen=True)
class Truncation:
    """Sampling filters; top_k 0, top_p 1 and min_p 0 switch the three off.  Not for greedy decoding."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float

    @property
    def cuts(self) -> bool:
        """True if any filter is on."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def probs(self, row: Row) -> Probs | None:
        """Probabilities (V,) of a row of finite logits (V,); None where rounding decides which tokens are kept."""
        with np.errstate(over="ignore"):  # masked tokens have the lowest finite logits
            scores = row / row.dtype.type(self.temperature)  # before the filters, as in transformers: it rounds
        highest = scores.max()
        if not np.isfinite(highest):
            return None
        likeliest = self._likeliest(scores, highest)
        if likeliest is None:
            return None
        chosen, rest = likeliest
        scores = scores[chosen]
        weights = np.exp(scores - highest, dtype=np.float64)
        if self.top_p < 1:
            margin = _margin(self.top_p, len(chosen), len(chosen) if self.top_k > 0 else len(row))
            kept = _top_p(scores, weights, rest, self.top_p, margin)
            if kept is None:
                return None
            chosen, weights = chosen[kept], weights[kept]
        if self.min_p > 0:
            relative = weights / weights.max()
            if (np.abs(relative / self.min_p - 1) < MARGIN).any():
                return None
            weights[relative < self.min_p] = 0.0
        probs = np.zeros(len(row))
        probs[chosen] = weights / weights.sum()
        return probs

    def _likeliest(self, scores: Row, highest: Any) -> tuple[npt.NDArray[np.intp], float] | None:
        """Ids, ascending, of a superset of the tokens to keep, and the total weight of all others."""
        if self.top_k > 0:
            return np.flatnonzero(scores >= kth_largest(scores, self.top_k)), 0.0
        if self.top_p < 1:
            weights = scores - highest
            np.exp(weights, out=weights)
            whole = float(weights.sum(dtype=np.float64))
            for size in LARGEST_SETS:
                chosen = np.flatnonzero(scores >= kth_largest(scores, size))
                mass = float(weights[chosen].sum(dtype=np.float64))
                if mass > (self.top_p + 2 * _margin(self.top_p, len(chosen), len(scores))) * whole:
                    return chosen, whole - mass
            return None
        return np.flatnonzero(scores >= highest + math.log(self.min_p) - 1.0), 0.0


def kth_largest(row: Row, k: int) -> float:
    """Return the k-th largest of a row of scores (V,), the smallest where there are fewer."""
    if k >= len(row):
        return float(row.min())
    # Each of k groups whose maximum reaches the k-th largest maximum has an entry at least so large: the k largest
    # entries of the row are all among those.
    groups = min(len(row), max(8 * k, 1024))
    rows = len(row) // groups
    highest = row[: rows * groups].reshape(rows, groups).max(axis=0)
    largest = row[row >= np.partition(highest, -k)[-k]]
    return float(np.partition(largest, -k)[-k])


def _margin(p: float, chosen: int, count: int) -> float:
    """Bound the difference between our cumulative sum and torch's near 1 - p, `chosen` of `count` terms above it."""
    below = 1 - p
    return below * (EXP_ERROR + SUM_ERROR * (2 * chosen + below * count))


def _top_p(scores: Row, weights: Probs, rest: float, p: float, margin: float) -> npt.NDArray[np.bool_] | None:
    """Mask of the likeliest (n,) that top-p keeps, `rest` the weight of all others; None where rounding decides."""
    order = np.argsort(scores, kind="stable")
    below = rest + np.cumsum(weights[order])  # weight of a token and all less likely ones
    below /= below[-1]
    last = len(order) - 1  # the likeliest is always kept
    first = min(int(np.searchsorted(below, 1 - p, side="right")), last)
    if (np.abs(below[max(0, first - 1) : min(first + 1, last)] - (1 - p)) < margin).any():
        return None
    kept = np.zeros(len(order), np.bool_)
    kept[order[first:]] = True
    return kept
