"""Which stop policy settings ask for."""

from __future__ import annotations

from omnidraft.config import Drafting
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.goodput import Goodput
from omnidraft.draft_length.policy import Confidence, DraftLengthPolicy, Entropy, Fixed, HeadThreshold


def make_policy(drafting: Drafting, head: Head | None = None) -> DraftLengthPolicy:
    """The stop policy that these settings ask for; `head` is the acceptance head beside the drafter."""
    threshold = 0.4 if drafting.threshold is None else drafting.threshold
    if drafting.draft_length == "goodput" and drafting.longest:
        return Goodput(drafting.longest, head)
    if drafting.draft_length == "head":
        return HeadThreshold(threshold, head or Head())
    if drafting.draft_length == "confidence":
        return Confidence(threshold)
    return Entropy(threshold) if drafting.draft_length == "entropy" else Fixed()
