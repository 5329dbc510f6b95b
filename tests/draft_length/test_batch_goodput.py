"""What a pass of several rows costs, on a scripted clock: measurements hold while the number of rows changes."""

from __future__ import annotations

import random

import pytest

from omnidraft.draft_length.batch_goodput import BatchCosts, RowGoodput
from omnidraft.draft_length.cost_model import PRIOR_COST

ROW, TOKEN, STEP, PLAIN_S = 0.15, 0.12, 0.1, 0.01  # in plain steps of one row, and seconds of one


def measured(rows: list[int], passes: int = 600, accepted: float = 0.5, batch: BatchCosts | None = None) -> BatchCosts:
    """Costs of passes with these numbers of rows in turns, of which each drafts up to two tokens."""
    draw, batch = random.Random(1), batch or BatchCosts(PRIOR_COST)
    for number in range(passes):
        batch.rows = count = rows[number * len(rows) // passes]
        proposed = sum(draw.randint(0, 2) for _ in range(count))
        batch.learn(
            rows=count,
            emitted=count + round(accepted * proposed),
            proposed=proposed,
            passes=proposed,
            read=proposed,
            draft_s=PLAIN_S * STEP * proposed,
            verify_s=PLAIN_S * (1 + ROW * (count - 1) + TOKEN * proposed),
        )
    return batch


def test_a_row_and_a_draft_token_have_costs_of_their_own() -> None:
    batch = measured([1, 8, 3, 1, 5, 8, 2, 6] * 3)
    costs = batch.costs
    assert costs.seconds == pytest.approx(PLAIN_S, rel=0.1)
    assert costs.rows(1) == pytest.approx(ROW, rel=0.25)
    assert costs.tokens.next(1) == pytest.approx(TOKEN, rel=0.25)
    batch.rows = 8
    assert batch.rate == pytest.approx(8 / (1 + 7 * ROW), rel=0.2)


def test_of_a_single_row_the_costs_are_those_of_a_request_alone() -> None:
    batch = measured([1])
    assert batch.costs.rows.weights == [PRIOR_COST], "nothing was to be learned of others"
    assert batch.rate == 1
    assert batch.costs.tokens.of(1) == pytest.approx(TOKEN, rel=0.25)


def test_goodput_follows_the_rows_of_the_pass_at_once() -> None:
    """As what drafts brought in earlier passes counts by the row."""
    batch = measured([8], accepted=1.0)
    assert batch.goodput > 1.04 * batch.rate
    eight = batch.goodput
    batch.rows = 1
    assert batch.goodput == pytest.approx(eight * (1 + batch.costs.rows(7)) / 8)
    assert measured([8], accepted=0.0).goodput == pytest.approx(8 / (1 + 7 * PRIOR_COST)), "no less than without drafts"


def test_costs_beside_many_rows_are_not_those_beside_few() -> None:
    """A token is hidden behind the reading of the weights beside one row, and limited by arithmetic beside four."""
    draw, batch, costs = random.Random(1), BatchCosts(PRIOR_COST), {1: 0.02, 4: 0.3}
    for number in range(600):
        batch.rows = rows = (1, 4)[number // 150 % 2]
        proposed = draw.randint(0, 2 * rows)
        seconds = PLAIN_S * (1 + ROW * (rows - 1) + costs[rows] * proposed)
        batch.learn(rows=rows, emitted=rows, proposed=proposed, passes=0, read=0, draft_s=0.0, verify_s=seconds)
    batch.rows = 1
    beside_few = batch.costs.tokens.next(1)
    assert beside_few == pytest.approx(costs[1], abs=0.03)
    batch.rows = 4
    assert batch.costs.tokens.next(1) > 8 * beside_few
    batch.rows = 1
    assert batch.costs.tokens.next(1) == beside_few, "at once"


def test_the_more_rows_the_more_a_draft_has_to_gain() -> None:
    batch = measured([1, 8])
    wanted = []
    for rows in (1, 2, 4, 8):
        batch.rows = rows
        policy = RowGoodput(16, None, batch)
        policy.open([], 100)
        wanted.append(next((chance / 100 for chance in range(100) if policy._pays(chance / 100)), 1.0))  # noqa: SLF001
    assert wanted == sorted(wanted)
    assert wanted[0] < 0.3
    assert wanted[-1] > 0.4


def test_an_id_of_a_prompt_takes_what_it_adds_to_a_pass() -> None:
    """Not what the rows beside it take, nor what the machine did once in a pass."""
    batch = BatchCosts()
    assert batch.prompt_id_s == 0
    for _ in range(40):
        batch.learn(rows=1, emitted=1, proposed=0, passes=0, read=0, draft_s=0.0, verify_s=0.3)
    for count in range(1, 81):
        batch.learn_prompt(count, 0.3 + 0.005 * count)
    assert batch.prompt_id_s == pytest.approx(0.005, rel=0.05)
    assert batch.unmeasured == 80
    batch.learn_prompt(40, 100.0)
    assert batch.prompt_id_s < 0.01
    batch.learn(rows=1, emitted=1, proposed=0, passes=0, read=0, draft_s=0.0, verify_s=0.3)
    assert batch.unmeasured == 0
