"""How often draft tokens are accepted, in bins of what was thought of them; each remembers what came lately."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import pairwise

import numpy as np

EDGES = (0.97, 0.92, 0.86, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # between the bins of what the head thinks
FALLING = [-edge for edge in EDGES]
MEMORY = 0.99  # of what was observed, with each new observation of the same kind
LEAST = 1e-9  # in place of a chance of nothing
GUESS = 4.0  # observations that the first guess of a chance is worth


class Chance:
    """How often something happened lately, beginning with a guess."""

    def __init__(self, guess: float) -> None:
        self.yes, self.seen = guess * GUESS, GUESS

    def learn(self, *, happened: float, times: float = 1.0) -> None:
        """Take in so many observations, in that share of which it happened."""
        kept = MEMORY**times
        gained = (1 - kept) / (1 - MEMORY)  # each makes those before it count less
        self.yes = self.yes * kept + happened * gained
        self.seen = self.seen * kept + gained

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
        self._settle()
        for each in self.bins:
            each.fade(weight)

    def first(self) -> float:
        """That of a first token, whichever its bin."""
        self._settle()
        return sum(share * each.value for share, each in zip(self._shares(), self.bins, strict=True))

    def _shares(self) -> list[float]:
        """How often first tokens are of each bin."""
        shares: list[float] = (self.met[0] / self.met[0].sum()).tolist()
        return shares

    def _settle(self) -> None:
        """Take in those of no known bin: as many of each as come up, all of them more likely than thought, or less."""
        if count := self._yes + self._no:
            shares, happened = self._shares(), self._yes / count
            thought = sum(share * each.value for share, each in zip(shares, self.bins, strict=True))
            for share, each in zip(shares, self.bins, strict=True):
                if happened < thought:
                    told = each.value * happened / thought
                else:
                    told = 1 - (1 - each.value) * (1 - happened) / max(1 - thought, LEAST)
                each.learn(happened=min(max(told, 0.0), 1.0), times=count * share)
            self._yes = self._no = 0

    def thought(self, *, hope: bool) -> tuple[list[float], float]:
        """The chance in each bin, and that of a first token; with `hope` what they may well be."""
        first = self.first()
        if not hope:
            return [each.value for each in self.bins], first
        return [each.hopeful for each in self.bins], _hopeful(first, sum(each.seen for each in self.bins))


def _hopeful(value: float, seen: float) -> float:
    return min(1.0, value + math.sqrt(max(0.0, value * (1 - value)) / seen))
