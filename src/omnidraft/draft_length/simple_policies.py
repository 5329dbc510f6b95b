"""Draft-length policies: each decides before a token is drawn, never after, so that every draft stays exact.

The default is `Goodput`, in `goodput_policy.py`; here are what they share, fixed lengths, and the paper's threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from omnidraft.config import Drafting
from omnidraft.counts.counts import Guess
from omnidraft.draft_length.acceptance_head import Head, bound, spread
from omnidraft.draft_length.batch_goodput import BatchCosts, RowGoodput
from omnidraft.draft_length.goodput_policy import UNSURE, Goodput
from omnidraft.models.language_model import NO_LIMIT

if TYPE_CHECKING:
    from omnidraft.verification.round import Round
    from omnidraft.verification.trie_walk import Walk

REREADS = 16  # committed tokens that a hybrid may read again beside a draft, where no costs are weighed
TRUSTED = 0.9  # chance from which on a policy that weighs no costs has no pass of the drafter


class Fixed:
    """Drafts the maximum number of tokens; with `alone`, from the counts without a drafter.

    A drawn token is always verified.  A decision of any policy may depend on earlier draws and on the distribution that
    the next token would be drawn from, but not on that token (condition 5 of exactness).
    """

    no_draft_reason: str | None = None  # why the current round has no draft, if it has none

    def __init__(self, *, alone: bool = False) -> None:
        self._trusted = 0.0 if alone else TRUSTED

    def open(self, prompt: Sequence[int], new_tokens: int, window: int = NO_LIMIT) -> None:
        """Start a request with a prompt of drafter tokens, for at most `new_tokens` target tokens.

        `window` is the most that the drafter reads before it drafts, in drafter tokens.
        """

    def rereads(self, count: int) -> bool:
        """True to draft if the target then reads `count` committed tokens again beside the draft."""
        return count <= REREADS

    @property
    def reads_hidden(self) -> bool:
        """True if `should_draw` makes something of the hidden state, which takes time to compute."""
        return False

    def begin(self, walk: Walk | None, chance: float = 0.0) -> bool:  # noqa: ARG002
        """True to draft in this round; `walk` segments the draft, `chance` is that of the counts' first token."""
        self.no_draft_reason = None
        return True

    def should_use_counts(self, chance: float) -> bool:
        """True to draw a token from the counts alone; their most frequent token is accepted with this chance."""
        return chance >= self._trusted

    def should_draw(
        self,
        logits: torch.Tensor,  # noqa: ARG002
        temperature: float,  # noqa: ARG002
        hidden: torch.Tensor | None,  # noqa: ARG002
        guess: Guess | None = None,  # noqa: ARG002
    ) -> bool:
        """True to draw a token from logits (V_q,), made of the hidden state (H,) where that is known, and a guess."""
        return True

    def should_step(self, token: int) -> bool:  # noqa: ARG002
        """True to make another step of the drafter after this token, the last one drawn."""
        return True

    def learn(self, record: Round) -> None:
        """Update with the record of the round."""


DraftLengthPolicy = Fixed | Goodput
"""Decides how many tokens to draft in each round."""


class HeadThreshold(Fixed):
    """Ends a draft where the probability that all of it is accepted would fall below `threshold`.

    This is 1 − γ of the paper's Eq. 7.  As long as the head is untrained, a draft ends where AdaEDL's bound on the
    acceptance of the next token is below it: 1 − √(0.2·H), with the entropy H of its distribution in nats.
    """

    def __init__(self, threshold: float, head: Head) -> None:
        super().__init__()
        self._threshold, self._head = threshold, head
        self._reach = 1.0

    @property
    def reads_hidden(self) -> bool:
        return self._head.trained

    def begin(self, walk: Walk | None, chance: float = 0.0) -> bool:
        self._reach = 1.0
        return super().begin(walk, chance)

    def should_use_counts(self, chance: float) -> bool:
        trusted = super().should_use_counts(chance)
        if trusted:
            self._reach *= chance
        return trusted

    def should_draw(
        self,
        logits: torch.Tensor,
        temperature: float,
        hidden: torch.Tensor | None,
        guess: Guess | None = None,  # noqa: ARG002
    ) -> bool:
        if not self._head.trained:
            sure = bound(spread(logits, temperature)[0]) >= self._threshold
        else:
            self._reach *= self._head.chance(logits, hidden, temperature)
            sure = self._reach >= self._threshold
        self.no_draft_reason = None if sure else UNSURE
        return sure


def make_policy(drafting: Drafting, head: Head | None = None, batch: BatchCosts | None = None) -> DraftLengthPolicy:
    """The policy that these settings ask for; `head` is the acceptance head of the drafter, if there is one.

    With `batch` it is for one row of several.
    """
    if drafting.draft_length == "goodput" and batch is not None:
        return RowGoodput(drafting.longest, head, batch, alone=head is None)
    if drafting.draft_length == "goodput":
        return Goodput(drafting.longest, head, alone=head is None)
    if drafting.draft_length == "head" and head is not None:
        return HeadThreshold(0.4 if drafting.threshold is None else drafting.threshold, head)
    return Fixed(alone=head is None)
