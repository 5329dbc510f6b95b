"""Top-k and top-p without sorting a whole vocabulary: what they keep is what the processors of `transformers` keep.

Sorting 152,000 scores takes longer than everything else that is done to a row, and all that is needed is the score
where the kept ones begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Row = npt.NDArray[np.float32]
Processor = Callable[[Any, torch.Tensor], torch.Tensor]

LARGEST_SETS = (256, 4096, 32768)  # how many of the likeliest tokens are tried as those that hold top-p
MARGIN = 1e-5  # closer than this to the edge, the rounding of `transformers` decides


class TopK:
    """A logits processor that keeps the k largest scores, and those equal to the smallest of them."""

    def __init__(self, k: int) -> None:
        from transformers import TopKLogitsWarper

        self._k = k
        self._sorting: Processor = TopKLogitsWarper(top_k=k)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (1, V), the others -inf."""
        if scores.device.type != "cpu" or len(scores) != 1:
            return self._sorting(ids, scores)
        return _from(scores, kth_largest(scores[0].numpy(), self._k))


class TopP:
    """A logits processor that keeps the likeliest tokens of total probability p."""

    def __init__(self, p: float) -> None:
        from transformers import TopPLogitsWarper

        self._p = p
        self._sorting: Processor = TopPLogitsWarper(top_p=p)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores (1, V), the others -inf."""
        edge = None
        if scores.device.type == "cpu" and len(scores) == 1:
            edge = smallest_kept(scores[0].numpy(), self._p)
        if edge is None:
            return self._sorting(ids, scores)
        return _from(scores, edge)


def _from(scores: torch.Tensor, edge: float) -> torch.Tensor:
    return scores.masked_fill(scores < edge, -torch.inf)


def kth_largest(row: Row, k: int) -> float:
    """The k-th largest of a row of scores (V,), the smallest where there are fewer; NaN if one is among them."""
    if k >= len(row):
        return float(row.min())
    # Each of k groups whose maximum reaches the k-th largest maximum has an entry at least so large: the k largest
    # entries of the row are all among those.
    groups = min(len(row), max(8 * k, 1024))
    rows = len(row) // groups
    highest = row[: rows * groups].reshape(rows, groups).max(axis=0)
    if np.isnan(highest).any():
        return float("nan")
    largest = row[row >= np.partition(highest, -k)[-k]]
    return float(np.partition(largest, -k)[-k])


def smallest_kept(row: Row, p: float) -> float | None:
    """The smallest score that top-p keeps of a row (V,); None where rounding decides, or none is finite."""
    probs = np.exp(row - row.max(), dtype=np.float64)
    total = probs.sum()
    if not np.isfinite(total):
        return None
    for size in LARGEST_SETS:
        chosen = row[row >= kth_largest(row, size)]
        mass = np.exp(chosen - row.max(), dtype=np.float64).sum() / total
        if mass > p + MARGIN:
            break
    else:
        return None
    scores = np.sort(chosen)
    weights = np.exp(scores - row.max(), dtype=np.float64) / total
    below = 1 - mass + np.cumsum(weights)  # probability of a token and all less likely ones
    first = int(np.searchsorted(below, 1 - p, side="right"))  # the first that is kept
    first = min(first, len(scores) - 1)
    nearest = np.abs(below[max(0, first - 1) : first + 1] - (1 - p)).min()
    tied = first > 0 and scores[first - 1] == scores[first]
    return None if nearest < MARGIN or tied else float(scores[first])
