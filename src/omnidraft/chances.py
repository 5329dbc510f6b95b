"""How often draft tokens are accepted, in bins of what was thought of them; each remembers what came lately."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise

import numpy as np

EDGES = (0.97, 0.92, 0.86, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # between the bins of what the head thinks
FALLING = [-edge for edge in EDGES]
MEMORY = 0.99  # of what was observed, with each new observation of the same kind
GUESS = 4.0  # observations that the first guess of a chance is worth


class Chance:
    """How often something happened lately, beginning with a guess."""

    def __init__(self, guess: float) -> None:
        self.yes, self.seen = guess * GUESS, GUESS

    def learn(self, *, happened: float, times: float = 1.0) -> None:
        """Take in so many observations, in so many of which it happened."""
        kept = MEMORY**times
        self.yes = self.yes * kept + happened
        self.seen = self.seen * kept + times

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
        return _hopeful(self.value, self.seen)


class Chances:
    """Those of all bins, as what is thought has it as long as no more is known; and how often tokens of each come up.

    Of tokens whose bin nobody asked for only the number is kept, and how many were accepted, until it is wanted.
    """

    def __init__(self) -> None:
        self.bins = [Chance((above + below) / 2) for above, below in pairwise((1.0, *EDGES, 0.0))]
        self.met = np.ones((2, len(self.bins)))  # for the first token of a draft, and for later ones
        self._yes, self._no = 0, 0  # of first tokens of no known bin

    def meet(self, likely: float, length: int) -> int:
        """The bin of a token that is thought to be so likely, after so many others of a draft."""
        place = bisect_left(FALLING, -likely)
        met = self.met[min(length, 1)]
        met *= MEMORY
        met[place] += 1
        return place

    def learn(self, place: int, *, happened: bool) -> None:
        self.bins[place].learn(happened=happened)

    def learn_blindly(self, *, happened: bool) -> None:
        """Take in what became of a first token of no known bin."""
        self._yes += happened
        self._no += not happened

    def fade(self, weight: float) -> None:
        """Let what comes count more."""
        for each in self.bins:
            each.fade(weight)

    def first(self) -> float:
        """That of a first token, whichever its bin."""
        weights, values = self.met[0] / self.met[0].sum(), np.array([each.value for each in self.bins])
        if count := self._yes + self._no:  # of no known bin: that many of each as come up, and all more or less likely
            share, thought = self._yes / count, float(weights @ values)
            told = values * share / thought if share < thought else 1 - (1 - values) * (1 - share) / (1 - thought)
            for each, times, value in zip(self.bins, (count * weights).tolist(), told.tolist(), strict=True):
                each.learn(happened=times * value, times=times)
            self._yes = self._no = 0
            values = np.array([each.value for each in self.bins])
        return float(weights @ values)

    def thought(self, *, hope: bool) -> tuple[list[float], float]:
        """The chance in each bin, and that of a first token; with `hope` what they may well be."""
        first = self.first()
        if not hope:
            return [each.value for each in self.bins], first
        return [each.hopeful for each in self.bins], _hopeful(first, sum(each.seen for each in self.bins))


def _hopeful(value: float, seen: float) -> float:
    return min(1.0, value + math.sqrt(value * (1 - value) / seen))
