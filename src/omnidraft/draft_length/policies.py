"""Which stop policy settings ask for."""

from __future__ import annotations

from omnidraft.config import Drafting
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.goodput import Rate
from omnidraft.draft_length.policy import Confidence, Entropy, Fixed, Predicted, Stopping


def make_stopping(drafting: Drafting, head: Head | None = None) -> Stopping:
    """The stop policy that these settings ask for; `head` is the acceptance head beside the drafter."""
    threshold = 0.4 if drafting.threshold is None else drafting.threshold
    if drafting.stopping == "rate" and drafting.longest:
        return Rate(drafting.longest, head)
    if drafting.stopping == "head":
        return Predicted(threshold, head or Head())
    if drafting.stopping == "confidence":
        return Confidence(threshold)
    return Entropy(threshold) if drafting.stopping == "entropy" else Fixed()
