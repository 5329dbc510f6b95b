"""Stop policies: how far a draft goes, decided each time before a token is drawn, never after.

Fixed          so many tokens
Confidence     until a token was drawn that the drafter gave little probability
Entropy        until the bound on acceptance that the drafter's entropy gives is low
HeadThreshold  until the acceptance head thinks that the draft will hardly be accepted as a whole

`goodput.Goodput` goes on while that pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch

from omnidraft.draft_length.acceptance_head import Head, bound, spread

if TYPE_CHECKING:
    from omnidraft.verification.round import Round
    from omnidraft.verification.walk import Walk

UNSURE = "the drafter is too unsure of the next token"


class DraftLengthPolicy(Protocol):
    """Decides how far drafts go; told of texts and rounds as they come.

    A token that was drawn is verified, whatever is decided later: a decision may depend on all that was drawn before
    and on the law that the next token would be drawn from, but not on that token.
    """

    @property
    def no_draft_reason(self) -> str | None:
        """Why the present round has no draft, a phrase, where it has none."""

    def open(self, prompt: Sequence[int], new_tokens: int) -> None:
        """A text begins, whose prompt has these drafter tokens, and which asks for so many target tokens."""

    def begin(self, walk: Walk | None) -> bool:
        """Whether to draft in this round, where the draft is read by `walk`."""

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        """Whether to draw a token from these logits (V_q,), made of the hidden state (H,) where that is known."""

    def steps(self, token: int) -> bool:
        """Whether to make another step of the drafter after this token, drawn from the logits seen last."""

    def learn(self, record: Round) -> None:
        """What became of the round."""


class Fixed:
    """Drafts as far as is allowed."""

    no_draft_reason: str | None = None

    def open(self, prompt: Sequence[int], new_tokens: int) -> None:
        """No text is unlike another."""

    def begin(self, walk: Walk | None) -> bool:  # noqa: ARG002
        self.no_draft_reason = None
        return True

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:  # noqa: ARG002
        return True

    def steps(self, token: int) -> bool:  # noqa: ARG002
        return True

    def learn(self, record: Round) -> None:
        """There is nothing to learn."""


class Confidence(Fixed):
    """Ends a draft after a token whose probability is below `threshold`, as transformers' assisted generation does."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._logits: torch.Tensor | None = None

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:  # noqa: ARG002
        self._logits = logits / (temperature or 1.0)
        return True

    def steps(self, token: int) -> bool:
        return self._logits is None or float(torch.softmax(self._logits, -1)[token]) >= self._threshold


class Entropy(Fixed):
    """Ends a draft where 1 − √(γ·H) is below `threshold`, H being the entropy of the next law in nats, γ = 0.2.

    That is AdaEDL's bound on the acceptance of a token of the target's own vocabulary.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:  # noqa: ARG002
        sure = bound(spread(logits, temperature)[0]) >= self._threshold
        self.no_draft_reason = None if sure else UNSURE
        return sure


class HeadThreshold(Fixed):
    """Ends a draft where the chance that all of it is accepted would fall below `threshold`.

    That is 1 − γ of the paper's Eq. 7.  As long as the head is untrained, this is `Entropy`.
    """

    def __init__(self, threshold: float, head: Head) -> None:
        self._threshold, self._head = threshold, head
        self._untrained = Entropy(threshold)
        self._reach = 1.0

    def begin(self, walk: Walk | None) -> bool:
        self._reach = 1.0
        return super().begin(walk)

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        if not self._head.trained:
            sure = self._untrained.draws(logits, temperature, hidden)
        else:
            self._reach *= self._head.chance(logits, hidden, temperature)
            sure = self._reach >= self._threshold
        self.no_draft_reason = None if sure else UNSURE
        return sure
