"""The goodput policy weighs copied tokens against the drafter's, and learns what they cost."""

from __future__ import annotations

import pytest
import torch

from draft_length.test_policy import made
from omnidraft.draft_length.goodput import MEASURED, NO_MATCH, PLAIN_EVERY, TOO_DEAR, Goodput
from omnidraft.retrieval.acceptance import CopyAcceptance
from omnidraft.verification.round import Round, RoundCounts, RoundTimes

LONGEST = 8
SURE, HOPELESS = [0.9] * 6, [0.05] * 6
LOGITS = torch.tensor([9.0, 0.0])


def copy(tokens: int, accepted: int, seconds: float) -> Round:
    """The record of a round with a copy."""
    counts = RoundCounts(accepted=accepted, retrieved_accepted=accepted)
    proposals = (1,) * tokens
    times = RoundTimes(verify_s=seconds)
    return Round(emitted=(1,) * (accepted + 1), proposals=proposals, retrieved=tokens, counts=counts, times=times)


def measured(*, step: float = 0.1, row: float = 0.05, rate: float = 1.0) -> Goodput:
    """A policy that knows a machine and a drafter, `rate` of whose drafts are right, within a request."""
    policy = Goodput(LONGEST)
    policy.open(range(10), 10**6)
    for turn in range(200):
        drafted = turn % 3
        policy.begin(None)
        for _ in range(drafted):
            policy.draws(LOGITS, 0.0, None)
        right = drafted if turn % 20 < 20 * rate else 0
        counts = {"draft_accepted": right, "draft_passes": drafted, "draft_read": drafted}
        policy.learn(made(drafted, right + 1, counts, None, draft_s=step * drafted, verify_s=1 + row * drafted))
    return policy


def test_nothing_is_copied_before_a_plain_step_is_measured() -> None:
    policy = Goodput(LONGEST)
    policy.open(range(10), 100)
    assert policy.copies(SURE, alone=True) == 0
    assert policy.no_draft_reason == MEASURED
    for _ in range(2):  # the first one has the prefill in it
        policy.learn(made(verify_s=1.0))
    assert policy.copies(SURE, alone=True) == len(SURE)
    assert policy.no_draft_reason is None


def test_what_gains_more_than_the_drafter_is_copied() -> None:
    slow = measured(step=0.6)
    assert slow.copies(SURE, alone=False) == len(SURE)
    fast = measured(step=0.02, row=0.02)
    assert fast.begin(None), "the drafter pays"
    assert fast.copies([0.5], alone=False) == 0
    assert fast.copies([0.5], alone=True) == 1, "without a drafter a little is better than nothing"


def test_copies_are_weighed_against_nothing_where_the_drafter_does_not_pay() -> None:
    policy = measured(step=2.0, rate=0.0)
    assert not policy.begin(None)
    assert policy.copies([0.3], alone=False) == 1
    fast = measured(step=0.02, row=0.02)
    assert fast.copies([0.5], alone=False) == 0
    fast.open(range(4000), 3)  # it would have more to read than it could save
    assert fast.copies([0.5], alone=False) == 1


def test_no_more_is_copied_than_pays() -> None:
    policy = measured(row=0.2)
    assert policy.copies([0.9, 0.8, 0.01, 0.9], alone=True) == 2
    assert policy.copies([0.4, 0.1, 0.999, 0.999], alone=True) == 1


def test_what_has_failed_is_not_copied_and_the_reason_is_told() -> None:
    policy = measured(row=0.1)
    assert policy.copies(HOPELESS, alone=True) == 0
    assert policy.no_draft_reason == TOO_DEAR
    assert policy.copies((), alone=True) == 0
    assert policy.no_draft_reason == NO_MATCH


def test_plain_steps_are_still_measured_while_all_is_copied() -> None:
    policy, plain = measured(), []
    for turn in range(3 * PLAIN_EVERY):
        tokens = policy.copies(SURE, alone=True)
        if not tokens:
            assert policy.no_draft_reason == MEASURED
            plain.append(turn)
        policy.learn(copy(tokens, tokens, 1 + 0.05 * tokens))
    assert len(plain) in (2, 3)


def test_costs_are_learned_from_copied_tokens() -> None:
    policy = measured(row=0.02)
    assert policy.copies([0.3] * 6, alone=True) > 0
    for turn in range(300):
        tokens = turn % 4
        policy.learn(copy(tokens, 0, 1 + tokens))
    assert policy.costs.tokens.of(3) > 0.5
    assert policy.copies([0.3] * 6, alone=True) == 0


def test_copied_tokens_are_no_gain_of_the_drafter_s() -> None:
    """Of a round's tokens only those count for a draft token that the draft made."""
    policy = measured()
    before = policy.gain.of(2)
    for _ in range(100):
        counts = RoundCounts(accepted=7, retrieved_accepted=5, draft_accepted=2, draft_passes=2, draft_read=2)
        times = RoundTimes(draft_s=0.2, verify_s=1.4)
        policy.learn(Round(emitted=(1,) * 8, draft=(1, 1), proposals=(1,) * 7, retrieved=5, counts=counts, times=times))
    assert policy.gain.of(2) == pytest.approx(before, abs=0.1)


def test_a_draft_is_extended_as_far_as_it_is_likely_to_be_accepted() -> None:
    policy = measured(row=0.25, rate=0.7)
    policy.begin(None)
    assert policy.draws(LOGITS, 0.0, None)
    assert policy.extends(SURE) > 0
    assert policy.extends(HOPELESS) == 0
    chances = [policy.goodput * 0.25 + 0.05]
    assert policy.copies(chances, alone=True) == 1
    assert policy.extends(chances) == 0, "a copy is judged only where the draft before it is accepted"


def test_a_copy_is_tried_where_verification_is_dear() -> None:
    """With the first token verified at .55 and each further one at .3 of a plain step, an even chance would not pay."""
    policy = Goodput(LONGEST)
    policy.open(range(10), 100)
    for _ in range(2):
        policy.learn(made(verify_s=1.0))
    policy.costs.tokens.weights = [0.55, 0.3]
    assert policy.copies(CopyAcceptance(2).chances(0, 8, LONGEST), alone=True) > 0
    assert policy.copies([0.5] * LONGEST, alone=True) == 0


def test_what_the_drafter_reads_after_copies_is_charged() -> None:
    """Rounds without the drafter leave it behind: what it reads then counts in goodput, and is weighed beforehand."""
    policy = measured(step=0.1)
    policy.costs.prefill.weights = [0.5]
    for _ in range(5):
        policy.learn(copy(4, 3, 1.2))
    before = policy.goodput
    assert policy.begin(None), "there are many tokens to come"
    counts = {"draft_accepted": 1, "draft_passes": 1, "draft_read": 21}
    policy.learn(made(1, 2, counts, None, draft_s=10.0, verify_s=1.0))
    assert policy.goodput < before - 0.05
    policy.open(range(10), 24)
    policy.learn(made(verify_s=1.0))
    for _ in range(5):
        policy.learn(copy(4, 3, 1.2))
    assert not policy.begin(None), "three tokens are left, and twenty would have to be read"
