"""Stop policies: how far a draft goes, decided each time before a token is drawn, never after.

Fixed       so many tokens
Confidence  until a token was drawn that the drafter gave little probability
Entropy     until the bound on acceptance that the drafter's entropy gives is low

`rate.Rate` goes on while that pays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from omnidraft.engine import Round
    from omnidraft.walk import Walk

SLOPE = 0.2  # γ of the bound by entropy
UNSURE = "the drafter is too unsure of the next token"
LEAST = -80.0  # a score whose weight is nothing, and is finite


class Stopping(Protocol):
    """Decides how far drafts go; told of texts and rounds as they come.

    A token that was drawn is verified, whatever is decided later: a decision may depend on all that was drawn before
    and on the law that the next token would be drawn from, but not on that token.
    """

    @property
    def idle(self) -> str | None:
        """Why the present round has no draft, a phrase, where it has none."""

    def open(self, prompt: int, new_tokens: int) -> None:
        """A text begins, whose prompt has so many drafter tokens, and which asks for so many target tokens."""

    def begin(self, most: int, walk: Walk | None) -> bool:
        """Whether to draft in this round, at most `most` >= 1 tokens, which `walk` reads."""

    def draws(self, logits: torch.Tensor, temperature: float) -> bool:
        """Whether to draw a token from these logits (V_q,)."""

    def steps(self, token: int) -> bool:
        """Whether to make another step of the drafter after this token, drawn from the logits seen last."""

    def learn(self, record: Round) -> None:
        """What became of the round."""


class Fixed:
    """Drafts as far as is allowed."""

    idle: str | None = None

    def open(self, prompt: int, new_tokens: int) -> None:
        """No text is unlike another."""

    def begin(self, most: int, walk: Walk | None) -> bool:  # noqa: ARG002
        return True

    def draws(self, logits: torch.Tensor, temperature: float) -> bool:  # noqa: ARG002
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

    def draws(self, logits: torch.Tensor, temperature: float) -> bool:
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

    def draws(self, logits: torch.Tensor, temperature: float) -> bool:
        sure = 1 - math.sqrt(SLOPE * entropy(logits, temperature)) >= self._threshold
        self.idle = None if sure else UNSURE
        return sure


def entropy(logits: torch.Tensor, temperature: float) -> float:
    """Entropy in nats of what logits (V,) say at a temperature; of a greedy drafter, at 1."""
    # a third of the time that torch takes, which at each draft token counts
    scores = logits.float().cpu().numpy()
    scores = (scores - scores.max()) / (temperature or 1.0)
    scores = np.maximum(scores, LEAST)
    weights = np.exp(scores)
    total = float(weights.sum())
    return max(0.0, math.log(total) - float(weights @ scores) / total)
