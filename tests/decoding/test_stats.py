"""What rounds add up to."""

from __future__ import annotations

import pytest

from omnidraft.decoding.stats import Stats
from omnidraft.verification.round import Round, RoundCounts, RoundTimes

ROUNDS = [
    Round(
        emitted=(5, 6, 7),
        draft=(1, 2, 3, 4),
        proposals=(5, 6, 9),
        counts=RoundCounts(accepted=2, counted=3, symbols=4, symbols_accepted=3, ngrams_proposed=1, false_merges=1),
        times=RoundTimes(draft_s=0.5, verify_s=1.0, overhead_s=0.25),
    ),
    Round(
        emitted=(8,),
        draft=(1,),
        proposals=(4,),
        finish="eos",
        counts=RoundCounts(symbols=1, ngrams_proposed=1, ngrams_accepted=1),
        times=RoundTimes(draft_s=0.25, verify_s=1.5, overhead_s=0.25, policy_s=0.25),
    ),
]


def test_counts_times_and_ratios() -> None:
    stats = Stats.of(iter(ROUNDS))
    assert stats.as_dict() == {
        "rounds": 2, "tokens": 4, "drafted": 5, "proposed": 4, "accepted": 2, "counted": 3,
        "symbols": 5, "symbols_accepted": 3, "ngrams_proposed": 2, "ngrams_accepted": 1, "false_merges": 1,
        "rounds_without_draft": 0, "no_draft_reason": None,
        "draft_s": 0.75, "verify_s": 2.5, "overhead_s": 0.5, "policy_s": 0.25, "seconds": 4.0, "tokens_per_s": 1.0,
        "draft_length": 2.5, "acceptance_rate": 0.5, "symbol_acceptance_rate": pytest.approx(0.6),
        "block_efficiency": 2.0,
    }  # fmt: skip


def test_no_rounds_are_no_error() -> None:
    assert set(Stats.of([]).as_dict().values()) == {0, None}


def test_the_reason_that_came_up_most() -> None:
    one, two = (Round(emitted=(8,), no_draft_reason=reason) for reason in ("one", "two"))
    first, other = Stats.of([ROUNDS[0], one, two, two]), Stats.of([one] * 3)
    assert (first.rounds_without_draft, first.no_draft_reason) == (3, "two")
    assert Stats.sum([first, other, Stats.of(ROUNDS)]).rounds_without_draft == 6
    assert Stats.sum([first, other, other]).no_draft_reason == "one"
