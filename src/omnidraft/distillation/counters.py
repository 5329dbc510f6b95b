"""What a trainer did, counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What a trainer did since it was made."""

    answers: int = 0
    updates: int = 0
    steps: int = 0
    dropped: int = 0  # batches whose loss or gradient was not finite
    rolled_back: int = 0  # updates that raised the held-out loss
    paused: int = 0  # updates that waited for memory
    held_out_loss: float = math.nan  # after the last update


def plus(counters: Counters, **more: int) -> Counters:
    """The counters with so many more."""
    return replace(counters, **{name: getattr(counters, name) + count for name, count in more.items()})
