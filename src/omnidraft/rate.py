"""The stop policy that goes on drafting while that pays: in target tokens per second, by what was measured so far.

One more draft token is worth the chance that it is accepted, with all before it, times the target tokens that a draft
token makes up.  It costs a step of the drafter and a longer verification.  It pays where that is more, for its time,
than what decoding brings in at present.  The chance is how often tokens were accepted lately of which the acceptance
head thought alike, or as long as that is untrained, whose bound by entropy was alike.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from omnidraft.chances import Chances
from omnidraft.costs import Costs
from omnidraft.head import Head
from omnidraft.plan import Known, Plan, make_plan, saved
from omnidraft.stopping import UNSURE
from omnidraft.trials import FIRST, LATER, VAIN, Trials
from omnidraft.worth import Worth

if TYPE_CHECKING:
    from omnidraft.engine import Round
    from omnidraft.walk import Walk

PLAN_EVERY = 96  # drafts, or refused tokens of them; more often at first
PLAIN_EVERY = 8, 64  # rounds: one of them without a draft, to know what that costs; the more, the more drafts gain
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


class Rate:
    """Drafts while one more token pays, and not at all where none does; what it measured holds for all later texts.

    A draft has at most `longest` tokens.
    """

    def __init__(self, longest: int, head: Head | None = None) -> None:
        self.idle: str | None = None
        self.costs = Costs()
        self._longest = longest
        self._head = head or Head()
        self._trained, self._chances = self._head.trained, Chances()  # which believes the head, until more is known
        self._tokens, self._steps = 0.0, 0.0  # of the latest rounds, without the passes over prompts
        self.worth = Worth(longest)
        self._length = 64.0  # of the latest answers, in tokens
        self.trials = Trials()
        self._since_plain, self._refused = 0, 0  # rounds since the last of the target alone, and refused tokens
        self._prompt, self._asked = 0, 0  # tokens of the present text
        self._said, self._looked = 0, 0  # target tokens of it, and how many there were at the last look
        self._first, self._reads = True, True
        self._quiet: list[Round] = []  # that were not looked at yet
        self._version = self._head.version  # at the last draft or trial
        self._wanted = self._asked_for = False  # whether drafts were possible in the present text, and in this round
        self._drafted = False  # whether there was one in the present text
        self._plan: Plan | None = None
        self._bold = False  # whether that is one of chances that may well be
        self._here = 0  # rounds of the present text in which the drafter was asked
        self._checked: int | None = None  # of these, when it was last looked at whether drafts pay in this text
        self._saves = 0.0  # of each step of the target alone, by drafts; what they lose is less than 0
        self._hoping = False  # whether only by chances that may well be: then drafts count as trials
        self._drafts = self._news = 0  # all, and those since the plan
        self._promised = 1.0  # of the last plan, as `rate`
        self._walk: Walk | None = None
        self._bins: list[int] = []  # of the tokens of the present draft that were asked for
        self._asks = True  # whether it asks for them
        self._asking: list[float] = []  # seconds that each time took
        self._reach = 1.0  # the chance that all of them are accepted

    # ------------------------------------------------------------ what is decided

    def open(self, prompt: int, new_tokens: int) -> None:
        """Decide whether the drafter is to read the prompt, or to be tried again."""
        self._catch_up()
        if self._said:
            self._length += (self._said - self._length) / 8
        self._said = self._looked = 0
        self._first = True
        self._prompt, self._asked = prompt, new_tokens
        idle, self._wanted, self._drafted = self._wanted and not self._drafted, False, False
        self._chances.open()
        self._checked, self._here = None, 0
        self._reads = not self.costs.known or self._worth_reading(min(self._length, new_tokens))
        idle &= not (self._reads and self._saved() > 0)
        rounds, lengths = kind = VAIN if self._in_vain(max(LATER[1])) else LATER
        steps = self.costs.reading(prompt) + rounds * (self._round_of(max(lengths)) - 1)
        if self.trials.due(steps * self.costs.seconds, idle=idle, learned=self._version != self._head.version):
            self._version = self._head.version
            self.trials.start(kind)
            self.costs.fade()
            self._plan = None
            self._chances.fade(FRESH)

    def begin(self, walk: Walk | None) -> bool:
        """Whether a first draft token pays, and reading the text for it."""
        if self._quiet:
            return False  # as before: what happened since is looked at later
        self._wanted = self._asked_for = True
        self._walk, self._bins, self._reach = walk, [], 1.0
        self._asking = []
        if self._trained != self._head.trained:
            self._trained, self._chances = self._head.trained, Chances()
            self._plan = None
        if self._news >= min(PLAN_EVERY, 4 + self._drafts // 4):
            self._plan = None
        self.idle = self._obstacle()
        if self.idle is not None:
            return False
        self._asks = (
            bool(self.trials.left) or not self.plan.blind or self._here < ASK_FIRST or self._drafts % ASK_EVERY == 0
        )
        return True

    def _obstacle(self) -> str | None:
        if self.trials.left:
            return None if self.trials.length else MEASURED
        if not self.costs.known or (self._since_plain >= self._plain_every and not self._first):
            return MEASURED
        if not self._reads and self._said - self._looked >= AGAIN:
            self._looked = self._said
            # what has gone on for long will go on for as long again
            self._reads = self._worth_reading(min(self._said, self._asked - self._said))
        if self._saved() <= 0:
            return TOO_DEAR
        if self._reads:
            return None
        return TOO_DEAR if self._hoping else TOO_SHORT

    def _saved(self) -> float:
        """What drafts save of each step of the target in this text; looked at anew with more drafts, ever less often.

        That is set against the target alone: how fast other texts are decoded makes this one no faster.
        """
        plan, bold = self.plan, self._bold
        if self._checked is None or self._here >= self._checked + max(1, self._checked // CHECKS):
            self._checked, self._hoping = self._here, bold
            self._saves = saved(*plan.round_of(*self._chances.here(hope=bold)))
            if self._saves <= 0 and not bold and self.trials.affords():
                self._hoping = True
                self._saves = saved(*plan.round_of(*self._chances.here(hope=True)))
        return self._saves

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        """Whether a token of such a law pays, now that its step is made."""
        if not self._asks:
            return True
        logits = logits.cpu()  # a device may still be at work on them, which is part of the step
        began = time.perf_counter()
        length = len(self._bins)
        place = self._chances.meet(self._head.chance(logits, hidden, temperature), length)
        self._asking.append(time.perf_counter() - began)
        if not (self.trials.left or self._unfinished) and self._reach < self.plan.draw[length, place]:
            self._refused += 1
            self._news += not self._bins  # a step for nothing
            if self._refused % DRAW_EVERY:
                self.idle = UNSURE
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
        if self.trials.left:
            return self._unfinished or length < self.trials.length
        return self._unfinished or bool(self._reach >= self.plan.step[length])

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self._plan, self._bold = self._made(*self._chances.thought(hope=False)), False
            self._checked = None
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
            weights=self._chances.met,
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
    def _unfinished(self) -> bool:
        """Whether the draft so far ends inside a target token, and would lose what is inside."""
        walk = self._walk
        return walk is not None and walk.node != 0 and walk.cache.token_at(walk.node) < 0

    def _in_vain(self, longest: int) -> bool:
        """Whether no draft of up to so many tokens pays by the costs alone, not even where all of it is accepted."""
        costs = [self._round_of(drafted) for drafted in range(1, min(longest, self._longest) + 1)]
        return bool((1 + np.cumsum(self.worth.values)[: len(costs)] < costs).all())

    def _round_of(self, drafted: int) -> float:
        """What a round with so many draft tokens costs at least."""
        first, later = self.costs.steps
        return first + (drafted - 1) * later + self.costs.at_least(1 + drafted * self.worth.each)

    def _worth_reading(self, tokens: float) -> bool:
        """Whether drafts would save, over so many tokens, more than reading the text so far takes."""
        return tokens * self._saved() > self.costs.reading(self._prompt + self._said)

    # ------------------------------------------------------------ what is known

    @property
    def rate(self) -> float:
        """Target tokens in the time of a step of the target alone at present; one at least, which it makes itself."""
        return max(1.0, self._tokens / self._steps if self._steps > 0 else 0.0)

    def learn(self, record: Round) -> None:
        """Take in what the round cost, and which of its tokens were accepted."""
        if self.idle in GIVEN_UP and not (self._first or self.trials.left or record.draft_passes):
            self._quiet.append(record)
            if len(self._quiet) == QUIET:
                self._catch_up()
        else:
            self._take_in(record)

    def _catch_up(self) -> None:
        quiet, self._quiet = self._quiet, []
        for record in quiet:
            self._take_in(record)

    def _take_in(self, record: Round) -> None:
        seconds = record.draft_s + record.verify_s + record.translate_s
        self.costs.learn(record, first=self._first, asking=self._asking)
        # what is spent on prompts buys no trials
        self.trials.learn(record.draft_s if self._first else seconds)
        self._reads |= record.draft_passes > 0
        self._here += record.draft_passes > 0
        if record.draft:
            self._drafts += 1
            self._drafted = True
            self._news += max(1, len(record.draft) - record.draft_accepted)  # what went wrong is news
            self.worth.learn(record)
            accepted = record.draft_accepted
            for length, place in enumerate(self._bins[: min(accepted + 1, len(record.draft))]):
                self._chances.learn(place, happened=length < accepted)
            if not self._asks:
                self._chances.learn_blindly(happened=accepted > 0)
        self._since_plain = 0 if not (self._first or record.proposals) else self._since_plain + 1
        if record.draft_passes and not (self.trials.left and self.trials.first):
            self._charge(record)
        if self.trials.left and self._asked_for:
            self.trials.left -= 1
            self._plan = None
        elif not self._first and self.costs.seconds and not self.costs.reads(record):
            self._tokens = 0.98 * self._tokens + len(record.emitted)
            self._steps = 0.98 * self._steps + seconds / self.costs.seconds
        if self.costs.known:
            self.trials.begin()
        if self.trials.left and self.trials.first and self._in_vain(max(FIRST[1])):
            self.trials.left = 0  # enough is known
        self._first = self._asked_for = False
        self._said += len(record.emitted)

    def _charge(self, record: Round) -> None:
        """Take in what a round with a draft lost: what it cost, less what it gained."""
        lost = record.draft_s - (len(record.emitted) - 1) * self.costs.seconds
        if not self._first:  # whose pass reads the prompt
            lost += record.verify_s + record.translate_s - self.costs.seconds
        if not (self.trials.left or self._hoping or self.costs.reads(record)):
            lost = min(lost, self.costs.seconds)  # more is the machine's doing
        self.trials.lose(lost)
        if self._hoping and not self.trials.affords():
            self._checked, self._plan = None, None if self._bold else self._plan
