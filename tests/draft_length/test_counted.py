"""Policies with counts: where a token of the counts alone is trusted, and what is learned of it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from draft_length.test_simple_policies import Told, made
from omnidraft.counts.counts import Guess
from omnidraft.draft_length.acceptance import COUNTED, Acceptance
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.goodput_policy import MEASURED, NO_MATCH, PLAIN_EVERY, TOO_DEAR, TOO_SHORT, UNSURE, Goodput
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, Fixed, HeadThreshold

LONGEST = 8
LIKELY, FLAT = torch.tensor([9.0, 0.0]), torch.zeros(2)
LOW = torch.log(torch.tensor([0.9, 0.1]))


def guess(chance: float, best: int = 0) -> Guess:
    return Guess({best: 1.0}, best, chance, 0)


def measured(*, step: float = 0.1, row: float = 0.05, rate: float = 1.0, alone: bool = False) -> Goodput:
    """A policy that knows a machine and a drafter, `rate` of whose drafts are right, within a request."""
    policy = Goodput(LONGEST, alone=alone)
    policy.open(range(10), 10**6)
    for turn in range(200):
        drafted = turn % 3
        policy.begin(None)
        for _ in range(0 if alone else drafted):
            policy.should_draw(LIKELY, 0.0, None)
        right = drafted if turn % 20 < 20 * rate else 0
        passes = 0 if alone else drafted
        counts = {"draft_accepted": right, "draft_passes": passes, "draft_read": passes}
        policy.learn(made(drafted, right + 1, counts, None, draft_s=step * passes, verify_s=1 + row * drafted))
    return policy


# ---------------------------------------------------------------- policies that weigh no costs


@pytest.mark.parametrize("policy", [Fixed(), HeadThreshold(0.5, Head()), HeadThreshold(0.5, Told())])
def test_they_trust_the_counts_from_a_chance_of_nine_in_ten(policy: DraftLengthPolicy) -> None:
    assert policy.begin(None, 0.9)
    assert [policy.should_use_counts(chance) for chance in (0.0, 0.89, 0.9, 1.0)] == [False, False, True, True]


def test_without_a_drafter_a_fixed_length_trusts_them_always() -> None:
    policy = Fixed(alone=True)
    assert policy.begin(None)
    assert policy.should_use_counts(0.0)


def test_the_reach_of_a_draft_counts_tokens_of_the_counts() -> None:
    policy = HeadThreshold(0.85, Told())  # of LOW it thinks .9
    for trusted, draws in ((False, True), (True, False)):
        assert policy.begin(None)
        assert policy.should_use_counts(0.91 if trusted else 0.1) is trusted
        assert policy.should_draw(LOW, 1.0, None) is draws
        assert policy.no_draft_reason == (None if draws else UNSURE)


# ---------------------------------------------------------------- goodput beside a drafter


def trusts(policy: Goodput, chance: float, *before: float) -> bool:
    """Whether a token is trusted after others of the counts."""
    assert policy.begin(None, chance)
    assert all(policy.should_use_counts(each) for each in before)
    return policy.should_use_counts(chance)


def test_counts_are_trusted_where_a_step_would_not_add_what_it_costs() -> None:
    slow, fast = measured(step=0.6, row=0.02), measured(step=0.02, row=0.02)
    assert trusts(slow, 0.8)
    assert not trusts(fast, 0.8), "the network finds most of what the counts miss"
    assert trusts(fast, 0.9999), "where they miss nothing there is nothing to find"
    chances = [chance / 50 for chance in range(51)]
    for policy in (slow, fast, measured(step=0.2)):
        found = [trusts(policy, chance) for chance in chances]
        assert found == sorted(found), "from some chance on"


@pytest.mark.medium
def test_a_bad_network_is_asked_less() -> None:
    good, bad = measured(step=0.15, row=0.02), measured(step=0.15, row=0.02, rate=0.5)
    for policy in (good, bad):
        policy._tokens = policy._time  # noqa: SLF001  at the same goodput
    least = [next(c for c in range(1001) if trusts(policy, c / 1000)) for policy in (good, bad)]
    assert least[1] < least[0]


def test_a_token_that_does_not_pay_is_not_trusted() -> None:
    policy = measured(step=0.6, row=0.3)
    assert trusts(policy, 0.95)
    assert not trusts(policy, 0.1)
    assert trusts(policy, 0.75)
    assert not trusts(policy, 0.75, 0.9, 0.6, 0.6), "all before it has to be accepted, too"


def test_an_exploration_is_of_the_network() -> None:
    policy = measured(step=0.1)
    for _ in range(PLAIN_EVERY):
        policy.learn(made(1, 2, None, None, draft_s=0.1, verify_s=1.05))
        if policy._rounds % PLAIN_EVERY == 0:  # noqa: SLF001
            break
    assert policy.begin(None, 1.0)
    assert not policy.should_use_counts(1.0)
    assert policy.should_draw(FLAT, 0.0, None)
    assert policy.should_use_counts(1.0)


def test_tokens_of_the_counts_are_not_learned_as_scores() -> None:
    acceptance, same = Acceptance(), Acceptance()
    for one, bins in ((acceptance, [COUNTED, 3, COUNTED, 5]), (same, [3, 5])):
        for _ in range(20):
            one.learn(bins, 3 if COUNTED in bins else 1)
    assert acceptance.state() == same.state()
    policy = measured(step=0.6)
    before = policy.acceptance.state()
    assert trusts(policy, 0.95, 0.95)
    policy.learn(made(2, 1, {"draft_accepted": 0, "draft_passes": 0, "draft_read": 0}, None, verify_s=1.1))
    assert policy.acceptance.state() == before


def test_a_guess_makes_a_score_surer_only_where_it_may() -> None:
    """Of (1 − w) network + w counts: where both put one token first, either may be right."""
    scores = []
    for told in (None, guess(0.6, 0), guess(0.6, 1)):
        policy = Goodput(LONGEST, Told())
        policy.open((), 100)
        met: list[float] = []
        policy.acceptance.meet = lambda score, met=met: met.append(score) or 0  # type: ignore[method-assign, misc]
        policy.begin(None)
        policy.should_draw(LOW, 1.0, None, told)
        scores += met
    assert scores == pytest.approx([0.9, 1 - 0.1 * 0.4, 0.6], abs=1e-6)


def test_where_the_drafter_is_too_dear_the_counts_draft_alone() -> None:
    policy = measured(step=2.0, rate=0.0)
    while policy._explores():  # noqa: SLF001
        policy.begin(None)
        policy.learn(made(1, 1, {"draft_accepted": 0}, None, draft_s=2.0, verify_s=1.05))
    assert not policy.begin(None)
    assert policy.no_draft_reason == TOO_DEAR
    assert policy.begin(None, 0.5)
    assert policy.should_use_counts(0.5), "a little is better than nothing"
    assert not policy.should_step(0), "no step of the drafter follows"
    assert not policy.begin(None, 0.01)


def test_where_the_drafter_has_too_much_to_read_the_counts_draft_alone() -> None:
    policy = measured(step=0.1)
    policy.costs.prefill.weights = [0.5]
    policy.open(range(4000), 3)
    policy._budget = 0.0  # noqa: SLF001  no exploration goes on
    assert not policy.begin(None)
    assert policy.no_draft_reason == TOO_SHORT
    policy.learn(made(verify_s=1.0))
    assert policy.begin(None, 0.9)
    assert policy.should_use_counts(0.9)
    assert not policy.should_step(0)


def test_no_decision_depends_on_a_drawn_token() -> None:
    found = []
    for drawn in (0, 1):
        policy, decisions = measured(step=0.3), []
        for chances in ((0.1, 0.99, 0.4), (0.95, 0.2, 0.2), (0.3, 0.3, 0.99)):
            decisions.append(policy.begin(None, chances[0]))
            for chance, logits in zip(chances, (LIKELY, LOW, FLAT), strict=True):
                decisions.append(policy.should_use_counts(chance))
                if not decisions[-1]:
                    decisions += [policy.should_step(drawn), policy.should_draw(logits, 1.0, None, guess(chance))]
        found.append(decisions)
    assert found[0] == found[1]
    assert set(found[0]) == {False, True}


# ---------------------------------------------------------------- goodput without a drafter


def test_nothing_is_drafted_before_a_plain_step_is_measured() -> None:
    policy = Goodput(LONGEST, alone=True)
    policy.open(range(10), 100)
    assert not policy.begin(None, 0.9)
    assert policy.no_draft_reason == MEASURED
    for _ in range(2):  # the first one has the prefill in it
        policy.learn(made(verify_s=1.0))
    assert policy.begin(None, 0.9)
    assert policy.no_draft_reason is None


def test_without_a_drafter_the_reason_is_told() -> None:
    policy = measured(row=0.1, alone=True)
    for chance, reason in ((0.0, NO_MATCH), (0.01, TOO_DEAR), (0.9, None)):
        assert policy.begin(None, chance) is (reason is None)
        assert policy.no_draft_reason == reason
    assert policy.should_use_counts(0.9)
    assert not policy.should_step(0)


def test_no_more_is_drafted_than_pays() -> None:
    policy = measured(row=0.2, alone=True)
    policy.begin(None, 0.9)
    assert [policy.should_use_counts(chance) for chance in (0.9, 0.8, 0.01)] == [True, True, False]


def test_plain_steps_are_still_measured_while_all_is_counted() -> None:
    policy, plain = measured(alone=True), []
    for turn in range(3 * PLAIN_EVERY):
        drafts = policy.begin(None, 0.95)
        if not drafts:
            assert policy.no_draft_reason == MEASURED
            plain.append(turn)
        drafted = 4 * drafts
        counts = {"draft_accepted": drafted, "draft_passes": 0, "draft_read": 0}
        policy.learn(made(drafted, drafted + 1, counts, None, verify_s=1 + 0.05 * drafted))
    assert [later - turn for turn, later in pairwise(plain)] == [PLAIN_EVERY + 1] * (len(plain) - 1)
    assert len(plain) in (2, 3)


def test_costs_and_gain_are_learned_from_counted_tokens() -> None:
    policy = measured(row=0.02, alone=True)
    assert policy.begin(None, 0.3)
    for turn in range(300):
        drafted = turn % 4
        counts = {"draft_accepted": drafted, "draft_passes": 0, "draft_read": 0}
        policy.learn(made(drafted, drafted + 1, counts, None, verify_s=1 + drafted))
    assert policy.costs.tokens.of(3) > 0.5
    assert policy.gain.of(2) == pytest.approx(2, abs=0.1)
    assert not policy.begin(None, 0.3)
