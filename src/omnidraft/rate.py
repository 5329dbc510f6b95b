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
from omnidraft.plan import Known, Plan, make_plan
from omnidraft.stopping import UNSURE
from omnidraft.worth import Worth

if TYPE_CHECKING:
    from omnidraft.engine import Round
    from omnidraft.walk import Walk

PLAN_EVERY = 96  # drafts, or refused tokens of them; more often at first
PLAIN_EVERY = 8, 64  # rounds: one of them without a draft, to know what that costs; the more, the more drafts gain
PLAIN_SHARE = 0.005  # of the time that may be lost to these rounds
ASK_EVERY = 4  # drafts of one token, whose chance need not be known: one is asked for all the same
DRAW_EVERY = 40  # draws that did not seem to pay: one is made all the same
FIRST_ROUNDS = 36  # of a trial at the beginning: nobody knows yet what the drafter is worth, or costs
FIRST_LENGTHS = (0, 4, 1, 0, 2, 1)  # draft tokens of its rounds, in turns; none, to compare with
PROBE_TEXTS = 1  # texts without a draft, after which one is tried again
PROBE_ROUNDS = 5  # rounds of such a trial
PROBE_LENGTHS = (2,)  # draft tokens of such a round
VAIN_ROUNDS = 2  # of a trial that is to show costs alone: the first one reads the prompt
FRESH = 12.0  # what a trial leaves of the weight of earlier observations
SHARE = 0.01  # of the time of decoding that may be lost to trials
LEARNED_SHARE = 0.03  # that may be lost to those which look at a drafter that has learned
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
        self._spent, self._all = 0.0, 0.0  # seconds lost to trials, and of everything
        self._undrafted = 0  # texts since the last draft
        self._since_plain, self._refused = 0, 0  # rounds since the last of the target alone, and refused tokens
        self._prompt, self._asked = 0, 0  # tokens of the present text
        self._said, self._looked = 0, 0  # target tokens of it, and how many there were at the last look
        self._first, self._reads = True, True
        self._quiet: list[Round] = []  # that were not looked at yet
        self._probe = 0  # rounds of a trial that are left
        self._lengths: tuple[int, ...] = FIRST_LENGTHS  # of these
        self._tried = False  # at the beginning
        self._version = self._head.version  # at the last draft or trial
        self._wanted = self._asked_for = False  # whether drafts were possible in the present text, and in this round
        self._plan: Plan | None = None
        self._hoping = False  # whether that is one of chances that may well be, and drafts by it count as trials
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
        self._undrafted += self._wanted
        self._wanted = False
        self._reads = not self.costs.known or self._worth_reading(min(self._length, new_tokens))
        in_vain = self._in_vain(max(PROBE_LENGTHS))
        probe, lengths = (VAIN_ROUNDS, (1,)) if in_vain else (PROBE_ROUNDS, PROBE_LENGTHS)
        steps = self.costs.reading(prompt) + probe * (self._round_of(max(lengths)) - 1)
        learned = self._version != self._head.version
        texts, share = (0, LEARNED_SHARE) if learned else (PROBE_TEXTS, SHARE)
        if self._undrafted > texts and self._affords(steps, share):
            self._version = self._head.version
            self._probe, self._lengths = probe, lengths
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
        self._asks = bool(self._probe) or not self.plan.blind or self._drafts % ASK_EVERY == 0
        return True

    def _obstacle(self) -> str | None:
        if self._probe:
            return None if self._length_of_probe else MEASURED
        if not self.costs.known or (self._since_plain >= self._plain_every and not self._first):
            return MEASURED
        if not self._reads and self._said - self._looked >= AGAIN:
            self._looked = self._said
            # what has gone on for long will go on for as long again
            self._reads = self._worth_reading(min(self._said, self._asked - self._said))
        if self.plan.step[0] > 1:
            return TOO_DEAR
        return None if self._reads else TOO_SHORT

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        """Whether a token of such a law pays, now that its step is made."""
        if not self._asks:
            return True
        logits = logits.cpu()  # a device may still be at work on them, which is part of the step
        began = time.perf_counter()
        length = len(self._bins)
        place = self._chances.meet(self._head.chance(logits, hidden, temperature), length)
        self._asking.append(time.perf_counter() - began)
        if not (self._probe or self._unfinished) and self._reach < self.plan.draw[length, place]:
            self._refused += 1
            self._news += not self._bins  # a step for nothing
            if self._refused % DRAW_EVERY:
                self.idle = UNSURE
                return False
        self._bins.append(place)
        self._reach *= self._chances.bins[place].value
        return True

    def steps(self, token: int) -> bool:  # noqa: ARG002
        """Whether another step pays, before it is known what it will say."""
        if not self._asks:
            return self._unfinished
        length = len(self._bins)
        if length >= self._longest:
            return False
        if self._probe:
            return self._unfinished or length < self._length_of_probe
        return self._unfinished or bool(self._reach >= self.plan.step[length])

    @property
    def plan(self) -> Plan:
        if self._plan is None:
            self._plan, self._hoping = self._made(*self._chances.thought(hope=False)), False
            self._promised = (1 + self._plan.tokens) / (1 + self._plan.steps)
            self._news = 0
            if self._plan.step[0] > 1 and self._affords():
                bold = self._made(*self._chances.thought(hope=True))
                if bold.step[0] <= 1:
                    self._plan, self._hoping = bold, True
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

    def _affords(self, steps: float = 0.0, share: float = SHARE) -> bool:
        """Whether trials may cost so many steps of the target more."""
        return self._spent + steps * self.costs.seconds <= share * self._all

    @property
    def _length_of_probe(self) -> int:
        """Draft tokens that the present round of a trial is to have."""
        return self._lengths[self._probe % len(self._lengths)]

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
        promised = (1 + self.plan.steps) / (1 + self.plan.tokens)  # of a token; the target alone has 1
        return tokens * (1 - promised) > self.costs.reading(self._prompt + self._said)

    # ------------------------------------------------------------ what is known

    @property
    def rate(self) -> float:
        """Target tokens in the time of a step of the target alone at present; one at least, which it makes itself."""
        return max(1.0, self._tokens / self._steps if self._steps > 0 else 0.0)

    def learn(self, record: Round) -> None:
        """Take in what the round cost, and which of its tokens were accepted."""
        if self.idle in GIVEN_UP and not (self._first or self._probe or record.draft_passes):
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
        self._all += record.draft_s if self._first else seconds  # what is spent on prompts buys no trials
        self._reads |= record.draft_passes > 0
        if record.draft:
            self._undrafted = 0
            self._drafts += 1
            self._news += max(1, len(record.draft) - record.draft_accepted)  # what went wrong is news
            self.worth.learn(record)
            accepted = record.draft_accepted
            for length, place in enumerate(self._bins[: min(accepted + 1, len(record.draft))]):
                self._chances.learn(place, happened=length < accepted)
            if not self._asks:
                self._chances.learn_blindly(happened=accepted > 0)
        self._since_plain = 0 if not (self._first or record.proposals) else self._since_plain + 1
        free = self._probe and self._lengths == FIRST_LENGTHS  # there is one of these
        if record.draft_passes and (self._probe or self._hoping) and not free:
            self._charge(record)
        if self._probe and self._asked_for:
            self._probe -= 1
            self._plan = None
        elif not self._first and self.costs.seconds and not self.costs.reads(record):
            self._tokens = 0.98 * self._tokens + len(record.emitted)
            self._steps = 0.98 * self._steps + seconds / self.costs.seconds
        if self.costs.known and not self._tried:
            self._tried, self._probe = True, FIRST_ROUNDS
        elif self._probe and self._lengths == FIRST_LENGTHS and self._in_vain(max(FIRST_LENGTHS)):
            self._probe = 0  # enough is known
        self._first = self._asked_for = False
        self._said += len(record.emitted)

    def _charge(self, record: Round) -> None:
        """Take in what a round of a trial lost: what it cost, less what it gained."""
        lost = record.draft_s - (len(record.emitted) - 1) * self.costs.seconds
        if not self._first:  # whose pass reads the prompt
            lost += record.verify_s + record.translate_s - self.costs.seconds
        self._spent = max(0.0, self._spent + lost)
        if self._hoping and not self._affords():
            self._plan = None
