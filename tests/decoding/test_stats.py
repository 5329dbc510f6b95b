"""What rounds add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from omnidraft.decoding.stats import Stats
from omnidraft.verification.round import Round

ROUNDS = [
    Round(
        emitted=(5, 6, 7), draft=(1, 2, 3, 4), proposals=(5, 6, 9), accepted=2, symbols=4, symbols_accepted=3,
        ngrams_proposed=1, ngrams_accepted=0, false_merges=1, draft_s=0.5, verify_s=1.0, translate_s=0.25, finish=None,
    ),
    Round(
        emitted=(8,), draft=(1,), proposals=(4,), accepted=0, symbols=1, symbols_accepted=0,
        ngrams_proposed=1, ngrams_accepted=1, false_merges=0, draft_s=0.25, verify_s=1.5, translate_s=0.5, finish="eos",
    ),
]  # fmt: skip


def test_counts_times_and_ratios() -> None:
    stats = Stats.of(iter(ROUNDS))
    assert stats.as_dict() == {
        "rounds": 2,
        "tokens": 4,
        "drafted": 5,
        "proposed": 4,
        "accepted": 2,
        "symbols": 5,
        "symbols_accepted": 3,
        "ngrams_proposed": 2,
        "ngrams_accepted": 1,
        "false_merges": 1,
        "rounds_without_draft": 0,
        "idle": None,
        "draft_s": 0.75,
        "verify_s": 2.5,
        "translate_s": 0.75,
        "seconds": 4.0,
        "tokens_per_s": 1.0,
        "acceptance_rate": 0.5,
        "symbol_acceptance_rate": pytest.approx(0.6),
        "block_efficiency": 2.0,
    }


def test_no_rounds_are_no_error() -> None:
    assert set(Stats.of([]).as_dict().values()) == {0, None}


def test_the_reason_that_came_up_most() -> None:
    plain = replace(ROUNDS[1], draft=(), proposals=())
    first = Stats.of([ROUNDS[0], replace(plain, idle="one"), replace(plain, idle="two"), replace(plain, idle="two")])
    other = Stats.of([replace(plain, idle="one")] * 3)
    assert (first.rounds_without_draft, first.idle) == (3, "two")
    assert Stats.sum([first, other, Stats.of(ROUNDS)]).rounds_without_draft == 6
    assert Stats.sum([first, other, other]).idle == "one"
