"""When a drafter is tried that does not seem to pay, and for how long: trials may lose little of the time there is."""

from __future__ import annotations

import random

FIRST = 36, (0, 4, 1, 0, 2, 1)  # rounds, and draft tokens of these in turns: of the trial at the beginning,
# when nobody knows yet what the drafter is worth, or costs; none, to compare with
LATER = 5, (2,)  # of later ones
VAIN = 2, (1,)  # of those that are to show costs alone; their first round reads the prompt
CHANCE = 0.5  # that a text is tried, after one without a draft: whatever texts alternate, trials fall in with none
SHARE = 0.01  # of the time of decoding that may be lost to trials
LEARNED_SHARE = 0.03  # that may be lost to those which look at a drafter that has learned


class Trials:
    """Rounds that draft whatever is thought of drafts, and the seconds that such rounds have lost."""

    def __init__(self) -> None:
        self.left = 0  # rounds of the present trial
        self._lengths: tuple[int, ...] = FIRST[1]  # of their drafts, in turns
        self._begun = False
        self._spent, self._all = 0.0, 0.0  # seconds lost, and of everything
        self._random = random.Random(0)  # noqa: S311  an order, not a secret

    @property
    def length(self) -> int:
        """Draft tokens that the present round is to have."""
        return self._lengths[self.left % len(self._lengths)]

    @property
    def first(self) -> bool:
        """Whether the latest trial is the one at the beginning, which may lose what it will."""
        return self._lengths == FIRST[1]

    def begin(self) -> None:
        """Have the first trial, once."""
        if not self._begun:
            self._begun, self.left = True, FIRST[0]

    def due(self, seconds: float, *, idle: bool, learned: bool) -> bool:
        """Whether to try the drafter in a text, which takes so many seconds.

        `idle`: the text before had no draft; `learned`: the drafter has, since it was tried last.
        """
        if learned:
            return self.affords(seconds, learned=True)
        return idle and self.affords(seconds) and self._random.random() < CHANCE

    def start(self, kind: tuple[int, tuple[int, ...]]) -> None:
        """Have a trial."""
        self.left, self._lengths = kind

    def affords(self, seconds: float = 0.0, *, learned: bool = False) -> bool:
        """Whether so many seconds more may be lost."""
        return self._spent + seconds <= (LEARNED_SHARE if learned else SHARE) * self._all

    def learn(self, seconds: float) -> None:
        """Take in a round that took so long."""
        self._all += seconds

    def lose(self, seconds: float) -> None:
        """Take in what a round lost; where it gained, that makes up for what others lost."""
        self._spent = max(0.0, self._spent + seconds)
