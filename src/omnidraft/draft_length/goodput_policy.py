"""Goodput policy: drafting continues while the expected gain in target tokens exceeds goodput times cost.

Goodput is in target tokens per plain step of the target (SmartSpec, arXiv 2406.14066).  One more draft token gains
survival × acceptance probability × target tokens per draft token, and costs a step of the drafter and a longer
verification; a threshold on survival is what SpecDec++ (arXiv 2405.19715) finds optimal.  The same test at length 0
turns drafting off.  Then it is explored with exponential back-off, each time until a given loss.

A token of the counts alone costs no step of the drafter: it is taken where a step would not add as much as it costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.counts.counts import Guess
from omnidraft.draft_length.acceptance import COUNTED, DISCOUNT, Acceptance
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.cost_model import LEVEL_MEMORY, PREFILL, STALL, CostModel, Linear, first_and_more
from omnidraft.models.language_model import NO_LIMIT

if TYPE_CHECKING:
    from omnidraft.verification.round import Round
    from omnidraft.verification.trie_walk import Walk

EXPLORATION = 3.0  # plain steps that an exploration may lose, beside the drafter's prefill; the first one twice that
INTERVALS = 256, 512  # rounds to the next exploration: at first, and at most
EXPLORED_LENGTHS = 1, 2, 0  # shortest drafts of an exploration, in turns; 0 measures a plain step
PLAIN_EVERY = 48  # rounds after which one has no draft, to measure a plain step, and one has a draft in any case

MEASURED = "calibrating"
TOO_SHORT = "the drafter's prefill would take longer than its drafts save"
TOO_DEAR = "drafting would be slower"
NO_MATCH = "no match in earlier text"
UNSURE = "the drafter is too unsure of the next token"


class Goodput:
    """Drafts up to `longest` tokens while one more pays, and none where none does; learns over all requests.

    With `alone` there is no drafter, and all tokens come from the counts.
    """

    def __init__(self, longest: int, head: Head | None = None, *, alone: bool = False) -> None:
        self.no_draft_reason: str | None = None
        self.costs, self.acceptance = CostModel(), Acceptance()
        self.gain = Linear(1.0, 1.0)  # target tokens for the first and for each further draft token accepted
        self._longest, self._head, self._alone = longest, head or Head(), alone
        self._version, self._trained = self._head.version, self._head.trained
        self._tokens = self._time = 1.0  # of the latest rounds
        self._drafts, self._again = 1.0, 0.0  # cost of verifying drafts of late, and of reading tokens again
        self._length = 64.0  # of the latest answers, in target tokens
        self._budget = 2 * EXPLORATION  # plain steps that the present exploration may still lose
        self._rounds, self._interval = 0, INTERVALS[0]  # since the last exploration, and between two
        self._since_plain = 0  # rounds
        # the present request: tokens that the drafter has not read, asked for, and emitted; whether its first round or
        # the drafter's prefill is still to come
        self._behind = self._asked = self._emitted = 0
        self._window = NO_LIMIT
        self._first = self._unread = True
        # the present draft: its walk, the bins of its tokens, their survival, how long an exploration wants it, whether
        # it is of the counts alone, and whether the drafter has made a step
        self._walk: Walk | None = None
        self._bins: list[int] = []
        self._survival, self._forced = 1.0, 0
        self._counts_alone = self._stepped = False
        self._first_gain = 0.0  # net gain of the first step of a draft

    # ------------------------------------------------------------ decisions

    def open(self, prompt: Sequence[int], new_tokens: int, window: int = NO_LIMIT) -> None:
        """Start a request."""
        if self._emitted:
            self._length += (self._emitted - self._length) / LEVEL_MEMORY
        self._behind, self._asked, self._emitted, self._window = len(prompt), new_tokens, 0, window
        self._first = self._unread = True
        self.acceptance.start_request()
        self._first_gain = self._step_gain(1.0, 0)

    def rereads(self, count: int) -> bool:
        """True if reading `count` tokens again costs less than the token that a round without a draft would forgo.

        Where drafts have not paid of late, none is read again beside a draft: its cost is seen best alone.
        """
        if count and self._tokens < self._time:
            return False
        return self.goodput * self.costs.tokens(0.0, count) < 1

    def begin(self, walk: Walk | None, chance: float = 0.0) -> bool:
        """True if a first draft token pays."""
        self._walk, self._bins, self._survival, self._forced = walk, [], 1.0, 0
        self._counts_alone, self._stepped = self._alone, False
        if self._version != self._head.version:  # the drafter or its head has learned
            self._version, self._interval = self._head.version, INTERVALS[0]
            if self._trained != self._head.trained:
                self._trained, self.acceptance = self._head.trained, Acceptance()
        self.no_draft_reason = self._obstacle()
        if self._alone and self.no_draft_reason != MEASURED:
            self.no_draft_reason = None if self._pays(chance) else TOO_DEAR if chance else NO_MATCH
        elif self.no_draft_reason in (TOO_DEAR, TOO_SHORT) and self._pays(chance):
            self._counts_alone, self.no_draft_reason = True, None  # explored is where they have nothing to say
        elif self.no_draft_reason in (TOO_DEAR, TOO_SHORT) and not self._first and self._explores():
            self._forced = EXPLORED_LENGTHS[self._rounds % len(EXPLORED_LENGTHS)]
            self.no_draft_reason = None if self._forced else MEASURED
        elif self._rounds % PLAIN_EVERY == 0:  # a score whose tokens are never drawn would be misjudged for ever
            self._forced = 1
        return self.no_draft_reason is None

    def _obstacle(self) -> str | None:
        """Why a draft of the drafter does not pay in this round, if so."""
        if self._unmeasured:
            return MEASURED
        if self._first_gain <= 0:
            return TOO_DEAR
        rest = min(self._asked - self._emitted, max(self._length - self._emitted, self._emitted))
        # a round emits a token beside those that it gains
        return TOO_SHORT if self._first_gain / (1 + self._first_gain) * rest <= self._prefill else None

    @property
    def _unmeasured(self) -> bool:
        """True if a round without a draft is due, to measure a plain step of the target."""
        return not self.costs.seconds or (self._since_plain >= PLAIN_EVERY and not self._first)

    def _explores(self) -> bool:
        """True to draft although it does not pay: an exploration is due or still running."""
        if self._budget <= 0 and self._rounds >= self._interval * (1 + self._prefill / EXPLORATION):
            self._budget, self._rounds = EXPLORATION + self._prefill, 0
            self._interval = min(2 * self._interval, INTERVALS[1])
            self.acceptance.fade()
        return self._budget > self._prefill

    @property
    def reads_hidden(self) -> bool:
        return self._head.trained

    def should_use_counts(self, chance: float) -> bool:
        """True if a token of the counts alone pays and a step of the drafter would gain less than it costs."""
        length = len(self._bins)
        if length < self._forced or not (self._unfinished or self._pays(chance)):
            return False
        if not self._counts_alone:
            mean = self.acceptance.mean
            missed = self._survival * (1 - chance) * mean
            added = missed * self.gain.next(length) + self._later_gain(missed, length)
            if added > self.goodput * self.costs.steps.next(int(self._stepped)):
                return False
        self._bins.append(COUNTED)
        self._survival *= chance
        return True

    def _pays(self, chance: float) -> bool:
        """True if one more token pays that needs no step and is accepted with this probability."""
        length = len(self._bins)
        return self._survival * chance * self.gain.next(length) > self._verifying(length)

    def should_draw(
        self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None, guess: Guess | None = None
    ) -> bool:
        """True if drawing a token pays, its distribution being known."""
        self._stepped = True
        score = self._head.chance(logits, hidden, temperature)
        if guess is not None:
            score = _mixed(score, guess.chance, same=int(logits.argmax()) == guess.best)
        place, length = self.acceptance.meet(score), len(self._bins)
        survival = self._survival * self.acceptance.probability(place)
        if length >= self._forced and not self._unfinished:
            gain = survival * self.gain.next(length) + self._later_gain(survival, length)
            if gain <= self._verifying(length):
                self.no_draft_reason = UNSURE
                return False
        self._bins.append(place)
        self._survival = survival
        return True

    def should_step(self, token: int) -> bool:  # noqa: ARG002
        """True if another step of the drafter pays, before its distribution is known."""
        length = len(self._bins)
        if length >= self._longest or self._counts_alone:
            return False
        return length < self._forced or self._unfinished or self._step_gain(self._survival, length) > 0

    def _step_gain(self, survival: float, length: int) -> float:
        """Expected net gain of a draft step after `length` tokens: its token is drawn only where that pays."""
        mean, cost = self.acceptance.mean, self._verifying(length)
        worth = survival * self.gain.next(length) + self._later_gain(survival * mean, length) / mean
        gains = sum(share * max(0.0, worth * probability - cost) for share, probability in self.acceptance.bins)
        return gains - self.goodput * self.costs.steps.next(length)

    def _later_gain(self, survival: float, length: int) -> float:
        """Net gain of the tokens that follow the one after `length`, at the mean acceptance probability."""
        cost, total = self.goodput * self.costs.steps.next(1) + self._verifying(1), 0.0
        for _ in range(length + 1, self._longest):
            survival *= self.acceptance.mean
            if (gain := survival * self.gain.next(1)) <= cost:
                break
            total += gain - cost
        return total

    def _verifying(self, length: int) -> float:
        """Target tokens that verifying one more token costs; a hybrid reads accepted ones again after a rejection."""
        return self.goodput * self.costs.tokens.next(length) * (1 + self._again / self._drafts)

    @property
    def _prefill(self) -> float:
        """Cost of what the drafter has to read first: at the start of a request, or after rounds without it."""
        return self.costs.prefill(self._behind) if self._behind >= PREFILL else 0.0

    @property
    def _unfinished(self) -> bool:
        """True if the draft so far ends inside a target token, whose beginning would be lost."""
        walk = self._walk
        return walk is not None and walk.node != 0 and walk.cache.token_at(walk.node) < 0

    # ------------------------------------------------------------ measurements

    @property
    def goodput(self) -> float:
        """Target tokens per plain step of the target at present; plain decoding has 1."""
        return max(1.0, self._tokens / self._time)

    def learn(self, record: Round) -> None:
        """Update with the cost of a round and the draft tokens accepted in it."""
        self._learn_costs(record)
        self._rounds += 1
        self._emitted += len(record.emitted)
        passes, accepted, again = record.counts.draft_passes, record.counts.draft_accepted, record.counts.again
        self._since_plain = self._since_plain + 1 if record.draft or again or self._first else 0
        if record.draft or again:
            drafted, tokens = len(record.draft), self.costs.tokens
            self._drafts = DISCOUNT * self._drafts + tokens.of(drafted)
            self._again = DISCOUNT * self._again + tokens.of(drafted + again) - tokens.of(drafted)
        start = passes > 0 and self._unread  # the drafter's first read of a request, which pays for all that follows
        if start:
            self._budget -= self._prefill if self._budget > 0 else 0.0
            self._unread = False
        unread = 0 if passes else max(0, self._behind - record.counts.draft_read)
        self._behind = min(len(record.emitted) + unread, self._window)
        if not self._first and self.costs.seconds and not start:
            self._learn_goodput(record)
        self._first = False
        if accepted and record.finish is None:
            self.gain.learn(len(record.emitted) - 1, *first_and_more(accepted))
        if passes:
            self.acceptance.learn(self._bins[: min(accepted + 1, len(record.draft))], accepted)
            self._first_gain = self._step_gain(1.0, 0)

    def _learn_costs(self, record: Round) -> None:
        self.costs.learn(record, first=self._first)

    def _learn_goodput(self, record: Round) -> None:
        """Track goodput, and the loss of the current exploration against plain decoding."""
        tokens, times = len(record.emitted), record.times
        spent = min((times.draft_s + times.verify_s + times.overhead_s) / self.costs.seconds, STALL * tokens)
        self._tokens = DISCOUNT * self._tokens + tokens
        self._time = DISCOUNT * self._time + spent
        if (record.counts.draft_passes or record.counts.again) and self._budget > 0:
            self._budget = min(2 * EXPLORATION, self._budget - spent + tokens)

    @property
    def measured(self) -> bool:
        """True once it has seen the cost of a draft and of a plain step."""
        return self.costs.steps.seen > 1 and self.costs.seconds > 0

    def state(self) -> npt.NDArray[np.float64]:
        """Measurements of this target and drafter as a vector, to restore in another process."""
        numbers = [self._length, self._budget, self._interval, self._rounds]
        return np.array([*numbers, *self.gain.state(), *self.costs.state(), *self.acceptance.state()])

    def resume(self, state: npt.NDArray[np.float64]) -> None:
        """Restore a `state`; one of another shape or with values that are not finite is ignored."""
        if state.shape != self.state().shape or not np.isfinite(state).all():
            return
        numbers = iter(state.tolist())
        self._length, self._budget = next(numbers), next(numbers)
        self._interval, self._rounds = int(next(numbers)), int(next(numbers))
        estimates: tuple[Linear | CostModel | Acceptance, ...] = (self.gain, self.costs, self.acceptance)
        for estimate in estimates:
            estimate.resume([next(numbers) for _ in estimate.state()])


def _mixed(score: float, chance: float, *, same: bool) -> float:
    """The score of (1 − w) · network + w · counts at w = `chance`; `same` says whether both put one token first."""
    return 1 - (1 - score) * (1 - chance) if same else max(chance, score * (1 - chance))
