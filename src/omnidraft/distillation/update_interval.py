"""How soon updates follow each other: as often as asked for while they bring something, rarer where they do not."""

from __future__ import annotations

from collections import deque

LOOKED_AT = 8  # updates whose mean gain decides
RAREST = 2  # intervals between updates that bring little


class Pace:
    """`intervals` between updates, by what the last ones gained; `least` is the mean gain that is enough, 0 for any."""

    def __init__(self, least: float) -> None:
        self.intervals = 1
        self._least = least
        self._gains: deque[float] = deque(maxlen=LOOKED_AT)

    def learn(self, gain: float) -> None:
        """Take in the gain of an update, as a share of the loss before it."""
        if self._least == 0:
            return
        self._gains.append(gain)
        if gain > 10 * self._least:  # another task, perhaps
            self.intervals = 1
        elif len(self._gains) == LOOKED_AT and sum(self._gains) < LOOKED_AT * self._least:
            self.intervals = min(RAREST, 2 * self.intervals)
            self._gains.clear()
