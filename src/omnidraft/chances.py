"""How often draft tokens are accepted, in bins of what was thought of them; each remembers what came lately."""

from __future__ import annotations

import math
from itertools import pairwise

EDGES = (0.97, 0.92, 0.86, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # between the bins of what the head thinks
MEMORY = 0.99  # of what was observed, with each new observation of the same kind
GUESS = 4.0  # observations that the first guess of a chance is worth


class Chance:
    """How often something happened lately, beginning with a guess."""

    def __init__(self, guess: float) -> None:
        self.yes, self.seen = guess * GUESS, GUESS

    def learn(self, *, happened: bool) -> None:
        self.yes = self.yes * MEMORY + happened
        self.seen = self.seen * MEMORY + 1

    def fade(self, weight: float) -> None:
        """Let what comes count more."""
        scale = min(1.0, weight / self.seen)
        self.yes, self.seen = self.yes * scale, self.seen * scale

    @property
    def value(self) -> float:
        return self.yes / self.seen

    @property
    def hopeful(self) -> float:
        """What it may well be: a standard error more."""
        value = self.value
        return min(1.0, value + math.sqrt(value * (1 - value) / self.seen))


def believed() -> list[Chance]:
    """The chances of all bins, as long as what is thought is all that is known."""
    return [Chance((above + below) / 2) for above, below in pairwise((1.0, *EDGES, 0.0))]
