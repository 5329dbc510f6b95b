"""When a drafter is tried that does not seem to pay, and for how long: trials may lose little of the time there is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from omnidraft.draft_length.cost_model import Costs
    from omnidraft.draft_length.tokens_per_draft import Worth
    from omnidraft.verification.round import Round

Kind = tuple[int, tuple[int, ...]]  # rounds of a trial, and draft tokens of these, in turns
# At the beginning nobody knows yet what the drafter is worth, or costs: no draft token, to compare with.
FIRST_TRIAL: Kind = 36, (0, 4, 1, 0, 2, 1)
LATER_TRIAL: Kind = 5, (2,)
VAIN_TRIAL: Kind = 2, (1,)  # to show costs alone; the first round reads the prompt
CHANCE = 0.7  # that a text is tried that would have no draft: whatever texts alternate, trials fall in with none
SHARE = 0.01  # of the time of decoding that may be lost to trials
LEARNED_SHARE = 0.015  # that may be lost to those which look at a drafter that has learned
# What is saved up for trials would be lost at once where drafts cease to pay: so it is that of so many texts, or these
# target steps, or two trials, whichever is most.
LATELY, SAVED = 100, 50
STALL = 8.0  # times what a round should cost: where it took longer, the machine was busy with something else


class Trials:
    """Rounds that draft whatever is thought of drafts, and the seconds that such rounds have lost."""

    def __init__(self) -> None:
        self.left = 0  # rounds of the present trial
        self._lengths = FIRST_TRIAL[1]  # of their drafts, in turns
        self._begun = False
        self._spent, self._all = 0.0, 0.0  # seconds lost, and of everything, in the latest texts
        self._random = random.Random(0)  # noqa: S311  an order, not a secret

    @property
    def length(self) -> int:
        """Draft tokens that the present round is to have."""
        return self._lengths[self.left % len(self._lengths)]

    @property
    def first(self) -> bool:
        """Whether the latest trial is the one at the beginning, which may lose what it will."""
        return self._lengths == FIRST_TRIAL[1]

    def begin(self) -> None:
        """Have the first trial, once."""
        if not self._begun:
            self._begun = True
            self.start(FIRST_TRIAL)

    def open(self, costs: Costs, worth: Worth, prompt: int, *, idle: bool, learned: bool) -> Kind | None:
        """The trial that a text is to have, whose prompt has so many tokens, if any.

        `idle`: the text is to have no draft; `learned`: the drafter has, since the latest trial.
        """
        kind = VAIN_TRIAL if in_vain(costs, worth, LATER_TRIAL) else LATER_TRIAL
        steps = costs.reading(prompt) + kind[0] * (round_of(costs, worth, max(kind[1])) - 1)
        if SHARE * self._all > max(SAVED, 2 * steps) * costs.seconds:
            self._spent, self._all = self._spent * (1 - 1 / LATELY), self._all * (1 - 1 / LATELY)
        if (
            self.left
            or not self._begun
            or not (learned or idle)
            or not self.affords(steps * costs.seconds, learned=learned)
        ):
            return None
        return kind if learned or self._random.random() < CHANCE else None

    def start(self, kind: Kind) -> None:
        """Have a trial."""
        self.left, self._lengths = kind

    def affords(self, seconds: float = 0.0, *, learned: bool = False) -> bool:
        """Whether so many seconds more may be lost."""
        return self._spent + seconds <= (LEARNED_SHARE if learned else SHARE) * self._all

    def learn(self, seconds: float) -> None:
        """Take in a round that took so long."""
        self._all += seconds

    def charge(self, record: Round, step: float, *, first: bool, most: float) -> None:
        """Take in what a round that was tried has lost, which makes up for what others lost where it gained.

        What it cost, less what it gained; a target token would have taken `step` seconds.  The `first` round of a text
        has the target's pass over the prompt in it.  More than `most` seconds are not believed.
        """
        lost = record.times.draft_s - (len(record.emitted) - 1) * step
        if not first:
            lost += record.times.verify_s + record.times.overhead_s - step
        self._spent = max(0.0, self._spent + min(lost, most))


def in_vain(costs: Costs, worth: Worth, trial: Kind) -> bool:
    """Whether no draft of a trial pays by the costs alone, not even where all of it is accepted."""
    brought = 1 + np.cumsum(worth.values)[: max(trial[1])]
    return all(bring < round_of(costs, worth, drafted) for drafted, bring in enumerate(brought, 1))


def round_of(costs: Costs, worth: Worth, drafted: int) -> float:
    """Steps of the target alone that a round with so many draft tokens costs at least."""
    first, later = costs.steps
    return first + (drafted - 1) * later + costs.at_least(1 + drafted * worth.each)


def plausible(costs: Costs, worth: Worth, record: Round) -> float:
    """Seconds that a round with a draft can have taken, if the machine did nothing else."""
    return (
        STALL
        * (costs.reading(record.counts.draft_read) + round_of(costs, worth, record.counts.draft_passes))
        * costs.seconds
    )
