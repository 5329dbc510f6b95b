"""What draft tokens come to in target tokens, from what rounds have brought."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from omnidraft.draft_length.acceptance import GUESS

if TYPE_CHECKING:
    from omnidraft.verification.round import Round

Floats = npt.NDArray[np.float64]
KEEP = 0.995  # of the weight of what was seen before, with each draft


class Worth:
    """Of each accepted token of a draft, of `longest` at most; later drafts count more."""

    def __init__(self, longest: int) -> None:
        self._made_up, self._drafted = 2.0, 2.0  # target tokens proposed, and draft tokens they were made of
        # of drafts with 0, 1, 2, … accepted tokens: how many there were, and the target tokens that they brought
        self._accepted, self._brought = np.zeros(longest + 1), np.zeros(longest + 1)

    def learn(self, record: Round) -> None:
        """Take in a round that had a draft."""
        self._made_up = KEEP * self._made_up + len(record.proposals)
        self._drafted = KEEP * self._drafted + len(record.draft)
        accepted = record.counts.draft_accepted
        if accepted and record.finish is None:  # else not all that it brought is told
            self._accepted[accepted] = KEEP * self._accepted[accepted] + 1
            self._brought[accepted] = KEEP * self._brought[accepted] + len(record.emitted) - 1

    @property
    def each(self) -> float:
        """Target tokens that a draft token makes up."""
        return self._made_up / self._drafted

    @property
    def values(self) -> Floats:
        """Target tokens (K,) that the first, second, … accepted draft token brings, beside those before it.

        They are not alike: a token that ends inside one of the target's brings nothing as long as the rest is missing.
        """
        each = (self._brought.sum() + GUESS) / (self._accepted @ np.arange(len(self._accepted)) + GUESS)
        brought = [0.0]
        for count, whole in zip(self._accepted[1:], self._brought[1:], strict=True):
            guess = brought[-1] + (each if brought[1:] else 1.0)  # a single token is seldom less than one
            brought.append(max(brought[-1], (whole + GUESS * guess) / (count + GUESS)))
        return np.diff(brought)
