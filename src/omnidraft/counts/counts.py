"""Guesses of the next token from what followed the same tokens before: in the request, and in earlier answers.

Each is as sure as guesses of its kind were right: by length of the match, share of the best token and their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from omnidraft.alignment.spelling_table import Probs
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.hit_rates import HitRates, kind_of
from omnidraft.counts.token_index import BOUNDARY, LONGEST, TokenIndex

OWN_TOKENS = 2**19  # of a request, the latest are indexed


class Guess(NamedTuple):
    """A guess of the next token: the share of each token that followed, and the chance that the guess is right."""

    shares: Mapping[int, float]  # sums to 1
    best: int  # the token of the largest share
    chance: float  # measured probability that it comes next
    kind: int  # of `HitRates`

    def over(self, size: int) -> Probs:
        """The shares as a vector (size,)."""
        return self.mixed(np.zeros(size), 1.0)

    def mixed(self, probs: Probs, weight: float | None = None) -> Probs:
        """(1 − w) · probs + w · shares, (V,), in place of `probs`; w is the chance where no other is given."""
        weight = self.chance if weight is None else weight
        probs *= 1 - weight
        for token, share in self.shares.items():
            probs[token] += weight * share
        return probs


class Counts:
    """Counts of one request's text, and of the answers in a memory, if there is one.

    Only committed text is counted: a guess may follow draft tokens, and none of them is counted.
    """

    def __init__(self) -> None:
        self._own_rates = HitRates()
        self.start((), 0, None)

    def start(self, prompt: Sequence[int], new_tokens: int, memory: AnswerMemory | None) -> None:
        """Begin a request with these tokens, for up to `new_tokens` more."""
        self.memory = memory
        self._rates = self._own_rates if memory is None else memory.rates
        self._own = TokenIndex(min(len(prompt) + new_tokens, OWN_TOKENS))
        self._own.extend(prompt)
        self._begun = self._judged = len(prompt)

    def follow(self, text: Sequence[int], kept: int) -> None:
        """Update with committed text, of which `kept` tokens are known: judge guesses, then count tokens."""
        self._own.drop(max(self._judged, kept) - kept)
        for place in range(kept, len(text)):
            if place >= self._judged and (guess := self.guess(text[max(0, place - LONGEST) : place])) is not None:
                self._rates.learn(guess.kind, right=guess.best == text[place])
            self._own.extend(text[place : place + 1])
        self._judged = len(text)

    def guess(self, text: Sequence[int]) -> Guess | None:
        """Return the guess for the token after `text`, of which LONGEST tokens are read; None without a match.

        Of the lengths that a match may have, that one counts whose best token was right most often.
        """
        followers = self._own.followers(text)
        if self.memory is not None and self.memory.keeps:
            earlier = self.memory.index.followers(text)
            followers = [[*later, *others] for later, others in zip_longest(followers, earlier, fillvalue=())]
        rates, chosen = self._rates.rates, None
        for level, tokens in enumerate(followers):
            counts, most, best = dict[int, int](), 0, -1
            for token in tokens:
                counts[token] = count = counts.get(token, 0) + 1
                if count > most:
                    most, best = count, token
            kind = kind_of(level, most / len(tokens), len(tokens))
            if chosen is None or rates[kind] >= rates[chosen[0]]:
                chosen = kind, best, counts, len(tokens)
        if chosen is None:
            return None
        kind, best, counts, number = chosen
        return Guess({token: count / number for token, count in counts.items()}, best, rates[kind], kind)

    def keep(self, text: Sequence[int]) -> None:
        """Remember a complete answer, the end of `text`, if there is a memory."""
        if self.memory is not None and self.memory.keeps and len(text) > self._begun:
            # with the end of the prompt, which the answer's beginning is found by
            self.memory.index.extend([BOUNDARY, *text[max(0, self._begun - LONGEST) :]])
