"""Earlier answers, kept in memory for guesses in later requests of the same user."""

from __future__ import annotations

import hashlib

from omnidraft.counts.hit_rates import HitRates
from omnidraft.counts.token_index import TokenIndex

KEPT_TOKENS = 2**19  # of earlier answers, the latest are kept: in 18 MiB


class AnswerMemory:
    """Earlier answers of one user, in drafter tokens, and the hit rates of guesses: in fixed memory.

    With 0 `tokens`, the rates alone.
    """

    def __init__(self, tokens: int = KEPT_TOKENS) -> None:
        self.keeps = tokens > 0
        self.index, self.rates = TokenIndex(tokens), HitRates()
        self._sampled = 0  # requests so far whose answers were drawn

    def seed_of(self, seed: int) -> int:
        """The seed of the next request's draws, another one for each; of the first as it is.

        Drafts from an answer that was made of the same random numbers would depend on those that are to judge them.
        """
        self._sampled += 1
        if self._sampled == 1:
            return seed
        return int.from_bytes(hashlib.blake2b(f"{seed} {self._sampled}".encode(), digest_size=8).digest())
