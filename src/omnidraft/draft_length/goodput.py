"""Goodput policy: drafting goes on while the expected gain in target tokens exceeds goodput times cost.

Goodput is in target tokens per plain step of the target (SmartSpec, arXiv 2406.14066).  One more draft token gains
survival × acceptance probability × target tokens per draft token, and costs a step of the drafter and a longer
verification; a threshold on survival is what SpecDec++ (arXiv 2405.19715) finds optimal.  The same test at length 0
turns drafting off.  Then it is explored with exponential back-off, each time until a given loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.draft_length.acceptance import FIRST, LATER, Acceptance
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.cost_model import PREFILL, STALL, CostModel, Line

if TYPE_CHECKING:
    from omnidraft.verification.round import Round
    from omnidraft.verification.walk import Walk

LENGTHS = 1, 2, 0, 1, 4, 0  # shortest drafts of an exploration, in turns; 0 measures a plain step
TRIAL = 3.0  # plain steps that an exploration may lose, beside the drafter's prefill
FIRST_TRIAL = 6.0  # likewise the first one
INTERVALS = 256, 2048  # rounds to the next exploration: at first, and at most
HOPE = 0.5  # standard errors by which a request may be better than it is thought to be
FRESH = 12.0  # observations that earlier ones are worth in an exploration
PLAIN_EVERY = 48  # rounds after which one has no draft, to measure a plain step
GOODPUT_DISCOUNT = 0.97  # of a round, with each later one
LENGTH_MEMORY = 8.0  # answers over which the length of answers is averaged
RECHECK = 16  # rounds without a draft after which the test is made again

MEASURED = "a step of the target alone is measured"
TOO_SHORT = "the drafter would have more to read than it could save"
TOO_DEAR = "drafts cost more than they bring"
UNSURE = "the drafter is too unsure of the next token"


class Goodput:
    """Drafts up to `longest` tokens while one more pays, and none where none does; learns over all requests."""

    def __init__(self, longest: int, head: Head | None = None) -> None:
        self.no_draft_reason: str | None = None
        self.costs, self.acceptance = CostModel(), Acceptance()
        self.gain = Line(1.0, 1.0)  # target tokens of a draft, by accepted draft tokens beyond the first
        self._longest, self._head = longest, head or Head()
        self._version, self._trained = self._head.version, self._head.trained
        self._tokens, self._time = 1.0, 1.0  # of the latest rounds
        self._length = 64.0  # of the latest answers, in target tokens
        self._trial, self._turn = FIRST_TRIAL, 0  # plain steps that the present exploration may still lose; its rounds
        self._since, self._interval = 0, INTERVALS[0]  # rounds since the last exploration, and between two
        self._since_plain = 0
        self._prompt = self._asked = self._said = 0  # of the present request
        self._first = self._unread = True
        self._wait = 0  # rounds for which the decision not to draft holds
        self._walk: Walk | None = None
        self._bins: list[int] = []  # of the present draft
        self._survival = 1.0
        self._forced = 0  # shortest draft of an exploration

    # ------------------------------------------------------------ decisions

    def open(self, prompt: Sequence[int], new_tokens: int) -> None:
        """Start a request."""
        if self._said:
            self._length += (self._said - self._length) / LENGTH_MEMORY
        self._prompt, self._asked, self._said = len(prompt), new_tokens, 0
        self._first = self._unread = True
        self._wait = 0
        self.acceptance.start_request()

    def begin(self, walk: Walk | None) -> bool:
        """Whether a first draft token pays."""
        if self._wait > 0:
            self._wait -= 1
            return False
        self._walk, self._bins, self._survival = walk, [], 1.0
        self._notice_weights()
        self.no_draft_reason, self._forced = self._obstacle(), 0
        if self.no_draft_reason in (TOO_DEAR, TOO_SHORT):
            if self._trial <= 0 and self._due():
                self._trial, self._since = TRIAL + self._prefill, 0
                self._interval = min(2 * self._interval, INTERVALS[1])
                self.acceptance.fade(FRESH)
                self.costs.fade(FRESH)
            if self._trial > self._prefill and not self._first:
                self._turn += 1
                self._forced = LENGTHS[self._turn % len(LENGTHS)]
                self.no_draft_reason = None if self._forced else MEASURED
            else:
                self._wait = RECHECK * (not self._first)
        return self.no_draft_reason is None

    def _obstacle(self) -> str | None:
        """Why drafting does not pay in this round, if so."""
        if not self.costs.seconds or (self._since_plain >= PLAIN_EVERY and not self._first):
            return MEASURED
        gain, cost = self._draft_value()
        gain *= 1 + HOPE * self.acceptance.error
        saved = gain - self.goodput * cost
        if saved <= 0:
            return TOO_DEAR
        return TOO_SHORT if self._too_short(saved / (1 + gain)) else None

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        """Whether drawing a token pays, its distribution being known."""
        length = len(self._bins)
        place = self.acceptance.meet(self._head.chance(logits, hidden, temperature), LATER if length else FIRST)
        survival = self._survival * self.acceptance.probability(place)
        if length >= self._forced and not self._unfinished:
            longer = self.costs.verifying(length + 1) - self.costs.verifying(length)
            if survival * self._worth(length) + self._future(survival, length + 1) <= self.goodput * longer:
                self.no_draft_reason = UNSURE
                return False
        self._bins.append(place)
        self._survival = survival
        return True

    def steps(self, token: int) -> bool:  # noqa: ARG002
        """Whether another step of the drafter pays, before its distribution is known."""
        length = len(self._bins)
        if length >= self._longest:
            return False
        return length < self._forced or self._unfinished or self._step_value(self._survival, length) > 0

    def _step_value(self, survival: float, length: int) -> float:
        """Target tokens that one more step gains beyond what its time is worth."""
        worth = survival * self._worth(length)
        longer = self.goodput * (self.costs.verifying(length + 1) - self.costs.verifying(length))
        gain = sum(share * max(0.0, worth * p - longer) for share, p in self.acceptance.expected(LATER))
        return gain - self.goodput * self.costs.steps.slope

    def _future(self, survival: float, length: int) -> float:
        """Likewise for all steps that follow a token, at the average acceptance probability."""
        mean, total = self.acceptance.mean(LATER), 0.0
        cost = self.goodput * (self.costs.steps.slope + self.costs.row)
        for _ in range(length, self._longest):
            survival *= mean
            if (net := survival * self.gain.slope - cost) <= 0:
                break
            total += net
        return total

    def _draft_value(self) -> tuple[float, float]:
        """Expected target tokens and cost of a draft."""
        mean, r = self.acceptance.mean(LATER), self.gain.slope
        per_token = self.costs.steps.slope + self.costs.row
        gain, cost = 0.0, self.costs.drafting(1)
        for share, p in self.acceptance.expected(FIRST):
            more, spent, survival = p * self._worth(0), self.costs.verifying(1), p
            for _ in range(1, self._longest):
                survival *= mean
                if survival * r <= self.goodput * per_token:
                    break
                more, spent = more + survival * r, spent + per_token
            if more > self.goodput * spent:
                gain, cost = gain + share * more, cost + share * spent
        return gain, cost

    def _worth(self, length: int) -> float:
        """Target tokens that the draft token after so many brings where it is accepted."""
        return self.gain.slope if length else self.gain(0)

    def _too_short(self, saved: float) -> bool:
        """Whether the drafter's prefill costs more than `saved` per target token over the rest of the request."""
        rest = min(self._asked - self._said, max(self._length - self._said, self._said))
        return self._unread and saved * rest <= self._prefill

    def _due(self) -> bool:
        """Whether it is time for an exploration."""
        return self._since >= self._interval * (1 + self._prefill / TRIAL)

    @property
    def _prefill(self) -> float:
        """Cost of the drafter's prefill, where it has not read this request."""
        return self.costs.prefill * (self._prompt + self._said) if self._unread else 0.0

    def _notice_weights(self) -> None:
        """Explore soon after the drafter or its head has learned."""
        if self._version != self._head.version:
            self._version, self._interval = self._head.version, INTERVALS[0]
            if self._trained != self._head.trained:
                self._trained, self.acceptance = self._head.trained, Acceptance()

    @property
    def _unfinished(self) -> bool:
        """Whether the draft so far ends inside a target token, and would lose what is inside."""
        walk = self._walk
        return walk is not None and walk.node != 0 and walk.cache.token_at(walk.node) < 0

    # ------------------------------------------------------------ measurements

    @property
    def goodput(self) -> float:
        """Target tokens per plain step of the target at present; plain decoding has 1."""
        return max(1.0, self._tokens / self._time)

    def learn(self, record: Round) -> None:
        """Take in what a round cost, and which of its draft tokens were accepted."""
        self.costs.learn(record, first=self._first)
        self._since += 1
        self._said += len(record.emitted)
        self._since_plain = self._since_plain + 1 if record.draft or self._first else 0
        if record.counts.draft_passes:
            self._trial -= self._prefill if self._trial > 0 else 0.0
            self._unread = False
        if not self._first and self.costs.seconds and record.counts.draft_read - record.counts.draft_passes < PREFILL:
            self._learn_goodput(record)
        self._first = False
        accepted = record.counts.draft_accepted
        for at, place in enumerate(self._bins[: min(accepted + 1, len(record.draft))]):
            self.acceptance.learn(place, accepted=at < accepted)
        if accepted and record.finish is None:
            self.gain.learn(accepted - 1, len(record.emitted) - 1)
        self._bins = []

    def _learn_goodput(self, record: Round) -> None:
        """Track goodput, and what the present exploration has lost against plain decoding."""
        tokens, spent = len(record.emitted), record.times.draft_s + record.times.verify_s + record.times.overhead_s
        spent = min(spent / self.costs.seconds, STALL * tokens)
        self._tokens = GOODPUT_DISCOUNT * self._tokens + tokens
        self._time = GOODPUT_DISCOUNT * self._time + spent
        if record.counts.draft_passes and self._trial > 0:
            self._trial = min(FIRST_TRIAL, self._trial - spent + tokens)

    def state(self) -> npt.NDArray[np.float64]:
        """Measurements of this target and drafter, to go on from in another process: a vector."""
        own = [self._length, self._trial, self._interval, self._since]
        return np.array([*own, *self.gain.state(), *self.costs.state(), *self.acceptance.state()])

    def resume(self, state: npt.NDArray[np.float64]) -> None:
        """Go on from a `state`; one of another shape or with values that are not finite is left alone."""
        if state.shape != self.state().shape or not np.isfinite(state).all():
            return
        numbers = state.tolist()
        self._length, self._trial = numbers[:2]
        self._interval, self._since = (int(number) for number in numbers[2:4])
        self.gain.resume(numbers[4:9])
        costs = 9 + len(self.costs.state())
        self.costs.resume(numbers[9:costs])
        self.acceptance.resume(numbers[costs:])
