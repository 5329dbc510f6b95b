"""How often draft tokens are accepted, in bins of what was thought of them; each remembers what came lately."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
EDGES = (0.97, 0.92, 0.86, 0.78, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # between the bins of what the head thinks
FALLING = [-edge for edge in EDGES]
MEMORY = 0.99  # of what was observed, with each new observation of the same kind
# Tokens of drafts: the first of one, a later one, and the first of one where a text begins.
FIRST, LATER, OPENING = range(3)
LEAST = 1e-9  # in place of a chance of nothing
GUESS = 4.0  # observations that the first guess of a chance is worth
EARLIER = 6.0  # tokens of a text that what is expected of it is worth, as to which bins come up
TEXTS = 32  # that are remembered, to tell what a text is like from its prompt
ENDS = 64  # tokens at each end of a prompt that are looked at
NEAR = 4.0  # power of how alike prompts are
PAST = 0.85  # of what a text counts, with each later one
FEW = 4  # tokens of a text that are too few to remember
AVERAGE = 8.0  # tokens that the average of all texts counts beside those of texts like the present one
HOPE = 0.5  # standard errors that the chances of a text may well be better
VARIANCE = 0.05  # between texts: of what is added to the logarithm of the odds of each bin


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
    Texts differ: in which bins come up, and, less, in what becomes of tokens of the same bin.
    """

    def __init__(self) -> None:
        self.bins = [Chance((above + below) / 2) for above, below in pairwise((1.0, *EDGES, 0.0))]
        self.met = [[1.0] * len(self.bins) for _ in range(3)]  # FIRST, LATER, OPENING
        self._yes, self._no = 0, 0  # of first tokens of no known bin
        self._texts: deque[tuple[frozenset[int], list[float]]] = deque(maxlen=TEXTS)  # tokens of prompts, and `_own`
        self._reset()

    def _reset(self, prompt: Sequence[int] = ()) -> None:
        self._prompt = frozenset((*prompt[:ENDS], *prompt[-ENDS:]))
        self._like = self._alike()
        self._own = [0.0] * len(self.bins)  # first tokens of the present text, by bins
        self._shift, self._precision = 0.0, 1 / VARIANCE  # of its odds
        self._odds = 1.0

    def open(self, prompt: Sequence[int]) -> None:
        """A text begins, whose prompt has these tokens."""
        self._settle()
        if self._prompt and self.known_here >= FEW:
            self._texts.append((self._prompt, self._own))
        self._reset(prompt)

    def anew(self) -> Chances:
        """Those of nothing known yet, with the present text begun."""
        new = Chances()
        new.open(tuple(self._prompt))
        return new

    def _alike(self) -> list[float]:
        """First tokens by bins of earlier texts, those with a prompt like the present one before all others.

        Prompts are as alike as the tokens are many that are in both, of those that are in either; what is in all of
        them, as a beginning of text is, says nothing.
        """
        counts = [0.0] * len(self.bins)
        common = self._prompt.intersection(*(prompt for prompt, _ in self._texts))
        shared = [len(self._prompt & prompt - common) / len(self._prompt | prompt) for prompt, _ in self._texts]
        most = max(shared, default=0.0)
        if most == 0:
            return counts
        for age, (near, (_, own)) in enumerate(zip(reversed(shared), reversed(self._texts), strict=True)):
            weight = (near / most) ** NEAR * PAST**age
            counts = [count + weight * each for count, each in zip(counts, own, strict=True)]
        return counts

    @property
    def known_here(self) -> float:
        """First tokens of the present text whose bin is known, beginnings apart."""
        return sum(self._own)

    def meet(self, likely: float, kind: int) -> int:
        """The bin of a token of that kind, FIRST, LATER or OPENING, which is thought to be so likely."""
        place = bisect_left(FALLING, -likely)
        met = self.met[kind] = [MEMORY * each for each in self.met[kind]]
        met[place] += 1
        if kind == FIRST:
            self._own[place] += 1
        return place

    def value(self, place: int) -> float:
        """The chance in a bin, in the present text."""
        return _shifted(self.bins[place].value, self._odds)

    def learn(self, place: int, *, happened: bool) -> None:
        self._tell(self.value(place), float(happened), 1)
        self.bins[place].learn(happened=happened)

    def _tell(self, thought: float, happened: float, times: int) -> None:
        """Take in what became of so many tokens of the present text, which were thought to be so likely."""
        self._precision += times * thought * (1 - thought)
        self._shift += times * (happened - thought) / self._precision
        self._odds = math.exp(self._shift)

    def learn_blindly(self, *, happened: bool) -> None:
        """Take in what became of a first token of no known bin."""
        self._yes += happened
        self._no += not happened

    def fade(self, weight: float) -> None:
        """Let what comes count more."""
        self._settle()
        for each in self.bins:
            each.fade(weight)
        self.met = [_at_most(weight, met) for met in self.met]
        scale = min(1.0, weight / max(LEAST, sum(sum(own) for _, own in self._texts)))
        self._texts = deque(((prompt, [scale * count for count in own]) for prompt, own in self._texts), TEXTS)
        self._like = self._alike()

    def first(self) -> float:
        """That of a first token, whichever its bin, over all texts."""
        self._settle()
        return sum(share * each.value for share, each in zip(self._shares(), self.bins, strict=True))

    def here(self, *, opening: bool, hope: bool) -> tuple[Floats, Floats, float]:
        """Of first tokens of the present text: how often bins come up (B,), their chances (B,), and that of any.

        How texts begin says little of how they go on: what came up in the `opening` counts for openings alone.  With
        `hope` the chances are what they may well be.
        """
        self._settle()
        shares = np.array(self._shares(OPENING) if opening else self._shares_here())
        chances = np.array([self.value(place) for place in range(len(self.bins))])
        first = min(1.0, float(shares @ chances))
        if not hope:
            return shares, chances, first
        seen = sum(self.met[OPENING]) if opening else EARLIER + self.known_here
        more = 1 + HOPE * math.sqrt(first * (1 - first) / seen) / max(first, LEAST)
        return shares, np.minimum(1.0, chances * more), min(1.0, first * more)

    def _shares(self, kind: int = FIRST) -> list[float]:
        """How often tokens of that kind are of each bin."""
        whole = sum(self.met[kind])
        return [each / whole for each in self.met[kind]]

    def _shares_here(self) -> list[float]:
        """`_shares` of the present text, as long as little is known of it those of texts with such prompts."""
        counts = [AVERAGE * share + like for share, like in zip(self._shares(), self._like, strict=True)]
        expected, whole = EARLIER / sum(counts), EARLIER + self.known_here
        return [(expected * count + own) / whole for count, own in zip(counts, self._own, strict=True)]

    def _settle(self) -> None:
        """Take in those of no known bin: as many of each as come up, all of them more likely than thought, or less."""
        if count := self._yes + self._no:
            shares, happened = self._shares_here(), self._yes / count
            self._tell(sum(share * self.value(place) for place, share in enumerate(shares)), happened, count)
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


def _shifted(value: float, odds: float) -> float:
    """A chance whose odds are so many times those of another."""
    return value * odds / (1 - value + value * odds)


def _at_most(weight: float, counts: list[float]) -> list[float]:
    """Counts that come to so much together, or less."""
    scale = min(1.0, weight / max(LEAST, sum(counts)))
    return [scale * count for count in counts]


def _hopeful(value: float, seen: float) -> float:
    return min(1.0, value + math.sqrt(max(0.0, value * (1 - value)) / seen))
