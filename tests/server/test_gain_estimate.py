"""The estimate of the speedup: against rounds at like context lengths, and never above tokens a pass."""

from __future__ import annotations

from itertools import pairwise

import pytest

from omnidraft.server.running.gain_estimate import Estimate
from omnidraft.verification.round import Round, RoundTimes


def step(context: int) -> float:
    """Seconds of a plain step of a target whose attention soon takes longer than its weights."""
    return 0.01 + 0.0001 * context


def made(context: int, tokens: int, *, drafts: bool, dearer: float = 1.0) -> Round:
    times = RoundTimes(verify_s=dearer * step(context))
    return Round(emitted=(1,) * tokens, proposals=(1,) * tokens if drafts else (), times=times)


def test_a_long_prompt_before_a_short_one_makes_it_no_faster() -> None:
    estimate = Estimate()
    for context in range(5000, 5100):
        estimate.measure(made(context, 1, drafts=False), context)
    rounds = [made(100 + 6 * i, 6, drafts=True, dearer=1.5) for i in range(10)]
    assert estimate.speedup(rounds, 100) is None  # nothing is known of short ones
    for context in range(80, 90):
        estimate.measure(made(context, 1, drafts=False), context)
    assert estimate.speedup(rounds, 100) == pytest.approx(4, rel=0.3)
    later = [made(5000 + 6 * i, 6, drafts=True, dearer=1.5) for i in range(10)]
    assert estimate.speedup(later, 5000) == pytest.approx(4, rel=0.1)


def test_it_is_never_above_tokens_a_pass() -> None:
    estimate = Estimate()
    estimate.measure(made(400, 1, drafts=False), 400)  # alike, and slower all the same
    rounds = [made(150, 1, drafts=True), *[made(150, 6, drafts=True)] * 3]
    assert estimate.speedup(rounds, 150) == pytest.approx(19 / 4)


def test_rounds_with_a_draft_and_the_first_one_do_not_count() -> None:
    estimate = Estimate()
    estimate.measure(made(100, 6, drafts=True), 100)
    rounds = [made(100, 6, drafts=True)] * 2
    assert estimate.speedup(rounds, 100) is None
    estimate.measure(made(100, 1, drafts=False), 100)
    slow = Round(emitted=(1,) * 6, proposals=(1,), times=RoundTimes(verify_s=100.0))
    assert estimate.speedup([slow, *rounds], 100) == pytest.approx(6)
    assert estimate.speedup(rounds[:1], 100) is None
    assert estimate.speedup([], 100) is None


def test_the_more_a_draft_costs_the_less_it_gains() -> None:
    estimate = Estimate()
    estimate.measure(made(100, 1, drafts=False), 100)
    found = [estimate.speedup([made(100, 3, drafts=True, dearer=cost)] * 4, 100) for cost in (1.0, 2.0, 4.0)]
    assert all(one is not None and other is not None and one > other for one, other in pairwise(found))
