"""The stop policy that goes on drafting while that pays: in target tokens per second, by what was measured so far.

One more draft token is worth the chance that it is accepted, with all before it, times the target tokens that a draft
token makes up.  It costs a step of the drafter and a longer verification.  It pays where that is more, for its time,
than what decoding brings in at present.  The chance is how often tokens were accepted lately of which the acceptance
head thought alike, or as long as that is untrained, whose bound by entropy was alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from omnidraft.draft_length.acceptance import FIRST, LATER, OPENING, Chances
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.cost_model import Costs
from omnidraft.draft_length.exploration import FIRST_TRIAL, Kind, Trials, in_vain, plausible
from omnidraft.draft_length.plan import Known, Plan, make_plan, saved
from omnidraft.draft_length.policy import UNSURE
from omnidraft.draft_length.request_state import BEGINNING, Present
from omnidraft.draft_length.tokens_per_draft import Worth

if TYPE_CHECKING:
    from omnidraft.verification.round import Round
    from omnidraft.verification.walk import Walk

PLAN_EVERY = 96  # drafts, or refused tokens of them; more often at first
PLAIN_EVERY = 16, 64  # rounds: one of them without a draft, to know what that costs; the more, the more drafts gain
PLAIN_SHARE = 0.005  # of the time that may be lost to these rounds
ASK_EVERY = 4  # drafts of one token, whose chance need not be known: one is asked for all the same
DRAW_EVERY = 40  # draws that did not seem to pay: one is made all the same
ASK_FIRST = 8  # drafts of a text whose chances are asked for in any case, to know what kind of text it is
CHECKS = 3  # one new draft for so many in a text is a reason to look anew whether they pay in it
FRESH = 12.0  # what a trial leaves of the weight of earlier observations
QUIET = 16  # rounds of a text that does not draft whose records are looked at together: each is cold by itself
AGAIN = 32  # tokens after which a text that was thought too short is looked at again

MEASURED = "a step of the target alone is measured"
TOO_SHORT = "the drafter would have more to read than it could save"
TOO_DEAR = "drafts cost more than they bring"
GIVEN_UP = TOO_SHORT, TOO_DEAR  # which change with the next text at the earliest, or after long


class Goodput:
    """Drafts while one more token pays, and not at all where none does; what it measured holds for all later texts.

    A draft has at most `longest` tokens.
    """

    def __init__(self, longest: int, head: Head | None = None) -> None:
        self.no_draft_reason: str | None = None
        self.costs = Costs()
        self._longest = longest
        self._head = head or Head()
        self._trained, self._chances = self._head.trained, Chances()  # which believes the head, until more is known
        self.worth, self.trials = Worth(longest), Trials()
        self._tokens, self._steps = 0.0, 0.0  # of the latest rounds, without the passes over prompts
        self._length = 64.0  # of the latest answers, in tokens
        self._since_plain, self._refused = 0, 0  # rounds since the last of the target alone, and refused tokens
        self._text = Present()
        self._quiet: list[Round] = []  # that were not looked at yet
        self._version = self._head.version  # at the last trial
        self._due: Kind | None = None  # the trial that the present text is to have
        self._asked_for = False  # whether a draft is possible in the present round
        self._plan: Plan | None = None
        self._bold = False  # whether that is made for chances as they may well be
        self._drafts = self._news = 0  # all, and those since the plan
        self._promised, self._compared = 1.0, 0  # of the last plan: `rate`, and comparisons of costs
        self._walk: Walk | None = None
        self._bins: list[int] = []  # of the tokens of the present draft that were asked for
        self._asks = True  # whether it asks for them
        self._asking: list[float] = []  # seconds that each time took
        self._reach = 1.0  # the chance that all of them are accepted

    # ------------------------------------------------------------ what is decided

    def open(self, prompt: Sequence[int], new_tokens: int) -> None:
        """Decide whether the drafter is to read the prompt, or to be tried again."""
        self._catch_up()
        if self.no_draft_reason in GIVEN_UP and self._compared != self.costs.compared:
            self._plan = None  # a trial has shown what was not known
        before, self._text = self._text, Present(len(prompt), new_tokens)
        self._length += (before.said - self._length) / 8 if before.said else 0.0
        self._chances.open(prompt)
        self._asked_for = False
        length, known = min(self._length, new_tokens), self.costs.known
        self._text.brief = length < 2 * BEGINNING
        self._text.reads = not known or self._worth_reading(length)
        learned = self._version != self._head.version
        # that its beginning is drafted says nothing of the rest
        idle = known and not (self._text.reads and self._saving(self.plan, opening=self._text.brief)[0] > 0)
        self._due = self.trials.open(self.costs, self.worth, len(prompt), idle=idle, learned=learned)

    def begin(self, walk: Walk | None) -> bool:
        """Whether a first draft token pays, and reading the text for it."""
        if self._quiet:
            return False  # as before: what happened since is looked at later
        self._asked_for = True
        if self._due is not None:
            self._try(self._due)
        self._walk, self._bins, self._asking, self._reach = walk, [], [], 1.0
        if self._trained != self._head.trained:
            self._trained, self._chances = self._head.trained, self._chances.anew()
            self._plan = None
        if self._news >= min(PLAN_EVERY, 4 + self._drafts // 4):
            self._plan = None
        self.no_draft_reason = self._obstacle()
        if self.no_draft_reason is not None:
            return False
        # no plan is made where none is needed: that would be time of the draft
        few = self._text.opening or self._chances.known_here < ASK_FIRST or self._drafts % ASK_EVERY == 0
        self._asks = self._trying or few or not self.plan.blind
        return True

    def _try(self, trial: Kind) -> None:
        """Begin a trial, which looks at everything anew: what was observed so far counts less."""
        self.trials.start(trial)
        self._due, self._plan, self._version = None, None, self._head.version
        self.costs.fade()
        self._chances.fade(FRESH)

    def _obstacle(self) -> str | None:
        if self._trying:
            return None if self.trials.length else MEASURED
        if not self.costs.known or (self._since_plain >= self._plain_every and not self._text.first):
            return MEASURED
        if not self._text.reads and self._text.said - self._text.looked >= AGAIN:
            self._text.looked = self._text.said
            # what has gone on for long will go on for as long again
            self._text.reads = self._worth_reading(min(self._text.said, self._text.asked - self._text.said))
        if not self._pays_here():
            return TOO_DEAR
        if self._text.reads:
            return None
        return TOO_DEAR if self._text.hoping else TOO_SHORT  # what may just pay is not what is short

    def _pays_here(self) -> bool:
        """Whether drafts pay in this text, or in its opening; looked at anew with more drafts, ever less often."""
        plan, text = self.plan, self._text
        if text.checked is None or text.rounds >= text.checked + max(1, text.checked // CHECKS):
            text.checked = text.rounds
            saves, text.hoping = self._saving(plan, opening=text.opening)
            text.pays = saves > 0
        return text.pays

    def _saving(self, plan: Plan, *, opening: bool) -> tuple[float, bool]:
        """What drafts save of each step of the target in this text, less than 0 where they lose; and if so by hope.

        That is set against the target alone: how fast other texts are decoded makes this one no faster.
        """
        saves, hope = saved(*plan.expected(*self._chances.here(opening=opening, hope=self._bold))), self._bold
        if saves <= 0 and not hope and self.trials.affords():
            saves, hope = saved(*plan.expected(*self._chances.here(opening=opening, hope=True))), True
        return saves, hope

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        """Whether a token of such a law pays, now that its step is made."""
        if not self._asks:
            return True
        logits = logits.cpu()  # a device may still be at work on them, which is part of the step
        began = time.perf_counter()
        length = len(self._bins)
        kind = LATER if length else OPENING if self._text.opening else FIRST
        place = self._chances.meet(self._head.chance(logits, hidden, temperature), kind)
        self._asking.append(time.perf_counter() - began)
        if not (self._trying or self._unfinished) and self._reach < self.plan.draw[length, place]:
            self._refused += 1
            self._news += not self._bins  # a step for nothing
            if self._refused % DRAW_EVERY:
                self.no_draft_reason = UNSURE
                return False
        self._bins.append(place)
        self._reach *= self._chances.value(place)
        return True

    def steps(self, token: int) -> bool:  # noqa: ARG002
        """Whether another step pays, before it is known what it will say."""
        if not self._asks:
            return self._unfinished
        length = len(self._bins)
        if length >= self._longest:
            return False
        if self._trying:
            return self._unfinished or length < self.trials.length
        return self._unfinished or bool(self._reach >= self.plan.step[length])

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self._plan, self._bold = self._made(*self._chances.thought(hope=False)), False
            self._text.checked = None
            self._compared = self.costs.compared
            self._promised = (1 + self._plan.tokens) / (1 + self._plan.steps)
            self._news = 0
            if self._plan.step[0] > 1 and self.trials.affords():
                bold = self._made(*self._chances.thought(hope=True))
                if bold.step[0] <= 1:
                    self._plan, self._bold = bold, True
        return self._plan

    def _made(self, chances: list[float], first: float) -> Plan:
        known = Known(
            step=self.costs.steps,
            verify=np.array([self.costs.verify(1 + n * self.worth.each) for n in range(self._longest + 1)]),
            chances=np.array(chances),
            weights=np.array(self._chances.met[:2]),
            worth=self.worth.values,
            asking=self.costs.asking,
            first=first,
        )
        return make_plan(known, max(self.rate, 0.98 * self._promised))

    @property
    def _plain_every(self) -> int:
        """Rounds of which one is without a draft: the less that draft would gain, the more is to be known."""
        fewest, most = PLAIN_EVERY
        return int(min(most, max(fewest, (self._promised - 1) / PLAIN_SHARE)))

    @property
    def _trying(self) -> bool:
        """Whether the present round is of a trial: not where a text begins, which says little, unless it is brief."""
        return self.trials.left > 0 and (self.trials.first or self._text.brief or not self._text.opening)

    @property
    def _unfinished(self) -> bool:
        """Whether the draft so far ends inside a target token, and would lose what is inside."""
        walk = self._walk
        return walk is not None and walk.node != 0 and walk.cache.token_at(walk.node) < 0

    def _worth_reading(self, tokens: float) -> bool:
        """Whether drafts would save, over so many tokens, more than reading the text so far takes."""
        opening = min(tokens, BEGINNING) if self._text.opening else 0.0
        saves = (tokens - opening) * max(0.0, self._saving(self.plan, opening=False)[0])
        if opening:
            saves += opening * max(0.0, self._saving(self.plan, opening=True)[0])
        return saves > self.costs.reading(self._text.prompt + self._text.said)

    # ------------------------------------------------------------ what is known

    @property
    def rate(self) -> float:
        """Target tokens in the time of a step of the target alone at present; one at least, which it makes itself."""
        return max(1.0, self._tokens / self._steps if self._steps > 0 else 0.0)

    def learn(self, record: Round) -> None:
        """Take in what the round cost, and which of its tokens were accepted."""
        if self.no_draft_reason in GIVEN_UP and not (
            self._text.opening or self.trials.left or record.counts.draft_passes
        ):
            self._quiet.append(record)
            if len(self._quiet) == QUIET:
                self._catch_up()
        else:
            self._take_in(record)

    def _catch_up(self) -> None:
        while self._quiet:
            self._take_in(self._quiet.pop(0))

    def _take_in(self, record: Round) -> None:
        seconds = record.times.draft_s + record.times.verify_s + record.times.overhead_s
        self.costs.learn(record, first=self._text.first, asking=self._asking)
        self.trials.learn(
            record.times.draft_s if self._text.first else seconds
        )  # what is spent on prompts buys no trials
        self._text.reads |= record.counts.draft_passes > 0
        self._text.rounds += record.counts.draft_passes > 0
        if record.draft:
            self._learn_draft(record)
        self._since_plain = 0 if not (self._text.first or record.proposals) else self._since_plain + 1
        if record.counts.draft_passes and (self._text.hoping or (self._trying and not self.trials.first)):
            step = self.costs.seconds / (self.rate if self._trying else 1.0)  # they are in place of what may gain more
            self.trials.charge(record, step, first=self._text.first, most=plausible(self.costs, self.worth, record))
            if self._text.hoping and not self.trials.affords():
                self._text.checked, self._plan = None, None if self._bold else self._plan
        if self._trying and self._asked_for:
            self.trials.left -= 1
            self._plan = None
        elif not self._text.first and self.costs.seconds and not self.costs.reads(record):
            self._tokens = 0.98 * self._tokens + len(record.emitted)
            self._steps = 0.98 * self._steps + seconds / self.costs.seconds
        if self.costs.known:
            self.trials.begin()
        if self.trials.left and self.trials.first and in_vain(self.costs, self.worth, FIRST_TRIAL):
            self.trials.left = 0  # enough is known
        self._text.first = self._asked_for = False
        opening, self._text.said = self._text.opening, self._text.said + len(record.emitted)
        if opening != self._text.opening:
            self._text.checked = None

    def _learn_draft(self, record: Round) -> None:
        """Take in which tokens of a draft were accepted."""
        self._drafts += 1
        self._news += max(1, len(record.draft) - record.counts.draft_accepted)  # what went wrong is news
        self.worth.learn(record)
        accepted = record.counts.draft_accepted
        for length, place in enumerate(self._bins[: min(accepted + 1, len(record.draft))]):
            self._chances.learn(place, happened=length < accepted)
        if not self._asks:
            self._chances.learn_blindly(happened=accepted > 0)
