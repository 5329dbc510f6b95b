"""Drafts for rows that are verified elsewhere: the same as in our own loop, whatever becomes of the rows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from omnidraft import OmniDraft
from omnidraft.config import Drafting
from omnidraft.draft_length.batch_goodput import BatchCosts
from omnidraft.vllm import rows as rows_module
from omnidraft.vllm.pair import RemotePair, load_pair
from omnidraft.vllm.rows import Rows
from support.assembling import load_with
from support.batches import WIDTH, Asked, Batch
from support.lanes import generate

LENGTH = 4
COUNT = 40  # tokens of an answer
TEXTS = ("def count(items):\n    return", "Question: 2 + 3 = 5.", "The first of them", "import os\n\n\ndef name(")


@cache
def local() -> OmniDraft:
    """The target whose answers are known, in the local loop with the same fixed draft length."""
    options = {"draft_length": LENGTH, "profile": None, "drafter_temperature": 0.0, "reuse_answers": "nothing"}
    return load_with("zoo:target-a", "zoo:drafter", dtype="float32", **options)


@cache
def remote() -> RemotePair:
    return load_pair("zoo:target-a", "zoo:drafter", Drafting(), "cpu", pytest.fail)


@cache
def answer(text: str, count: int) -> tuple[int, ...]:
    model = local()
    return tuple(generate(model.target.lm, model.encode(text), count, tuple(model.vocab.eos)))


def asked(texts: tuple[str, ...] = TEXTS, count: int = COUNT) -> list[Asked]:
    return [Asked(local().encode(text), list(answer(text, count))) for text in texts]


def make(drafting: Drafting | None = None, **options: Any) -> Batch:
    drafting = drafting or Drafting(draft_length=LENGTH, reuse_answers="nothing")
    settings: dict[str, Any] = {"context": WIDTH, "most": 8} | options
    return Batch(Rows(remote(), drafting, **settings), drafting.longest)


@pytest.mark.slow
def test_what_a_row_gets_does_not_depend_on_the_others() -> None:
    requests = asked()
    make().run(requests)
    assert all(max(map(len, each.proposed)) == LENGTH for each in requests)
    assert sum(each.accepted for each in requests) > 0.1 * COUNT * len(requests)
    (alone,) = asked(TEXTS[:1])
    make().run([alone])
    assert alone.proposed == requests[0].proposed


@pytest.mark.medium
def test_a_draft_is_what_the_local_loop_proposes_after_the_same_tokens() -> None:
    (each,) = asked(TEXTS[:1])
    batch = make()
    batch.step([each])
    with local().stream([*each.prompt, *each.answer[:1]], max_new_tokens=COUNT) as stream:
        next(stream)
        assert tuple(each.draft) == stream.rounds[0].proposals


@pytest.mark.medium
def test_rows_that_move_wait_or_are_preempted_are_known_by_their_tokens() -> None:
    plain, moved = asked(), asked()
    make().run(plain)
    batch, turn = make(), itertools.count()
    while left := [each for each in moved if not each.done]:
        step = next(turn)
        places = left[step % len(left) :] + left[: step % len(left)]
        waiting = places[-1:] if step % 3 == 0 and len(places) > 1 else []
        if step % 5 == 4 and len(places) > 1:  # out of the batch for a step, its draft with it
            places[0].draft = []
            places = places[1:]
            waiting = []
        for each in waiting:
            each.draft = []
        batch.step(places, waiting)
    assert [each.out for each in moved] == [each.out for each in plain]
    assert sum(each.accepted for each in moved) >= 0.6 * sum(each.accepted for each in plain)
    assert len(batch.rows) <= 8


@pytest.mark.medium
@pytest.mark.parametrize("verified", [0, 1])
def test_drafts_that_were_not_verified_change_nothing(verified: int) -> None:
    (each,) = asked(TEXTS[:1])
    batch = make()
    while not each.done:
        batch.step([each], verified=lambda _: verified)
    (again,) = asked(TEXTS[:1])
    fresh = make()
    fresh.step([again])
    again.out = each.out - 1  # a row that comes in the middle of its answer
    again.draft = []
    other = make()
    other.step([again])
    assert again.draft == each.proposed[-1]


def test_equal_prompts_are_two_rows() -> None:
    one, other = asked((TEXTS[0], TEXTS[0]))
    batch = make()
    batch.run([one, other])
    assert one.proposed == other.proposed
    assert len(batch.rows) == 2


def test_a_full_row_and_one_that_has_ended_get_no_draft() -> None:
    (full,) = asked(TEXTS[:1])
    context = len(full.prompt) + COUNT
    batch = make(context=context)
    while not full.done:
        batch.step([full])
        assert len(full.prompt) + full.out + len(full.draft) <= context
    assert any(full.proposed)
    assert not full.proposed[-1]
    (ended,) = asked(TEXTS[:1])
    ended.answer = [*ended.answer[:3], *local().vocab.eos[:1]]
    batch = make()
    batch.run([ended])
    assert ended.done
    assert not ended.proposed[-1]


@pytest.mark.medium
def test_more_rows_than_are_kept_take_the_places_of_those_that_came_last() -> None:
    requests = asked()
    batch = make(most=2)
    for pair in (requests[:2], requests[2:], requests[:2]):
        for _ in range(3):
            batch.step(pair)
    assert len(batch.rows) == 2
    assert all(draft for each in requests for draft in each.proposed)


def test_of_more_rows_than_allowed_the_first_get_drafts() -> None:
    requests = asked()
    batch = make(most=2)
    for _ in range(3):
        batch.step(requests)
    assert [[bool(draft) for draft in each.proposed] for each in requests] == [[True] * 3] * 2 + [[False] * 3] * 2


@pytest.mark.medium
def test_ids_that_are_no_text_get_no_draft() -> None:
    foreign, plain = asked(TEXTS[:2])
    foreign.prompt = [*foreign.prompt, remote().vocab.size + 5]
    batch = make()
    batch.run([foreign, plain])
    assert not any(foreign.proposed)
    assert any(plain.proposed)


@pytest.mark.medium
def test_a_batch_with_dear_drafts_gets_none() -> None:
    """Costs are of the clock: a draft token that delays eight rows by half a step of the target pays for none."""
    now = [0.0]
    drafting = Drafting(max_draft_length=LENGTH, reuse_answers="nothing")
    batch = Batch(Rows(remote(), drafting, context=WIDTH, most=8, clock=lambda: now[0]), LENGTH)
    requests = asked(TEXTS * 2)
    while left := [each for each in requests if not each.done]:
        batch.step(left)
        now[0] += 1.0 + 0.5 * sum(len(each.draft) for each in left)
    drafts = [draft for each in requests for draft in each.proposed[15:]]
    assert sum(map(bool, drafts)) < 0.15 * len(drafts)


def test_the_first_step_of_a_batch_costs_what_every_other_does() -> None:
    batch = BatchCosts()
    for number in range(200):
        passes = 8 + number % 5
        batch.learn(rows=8, emitted=8, proposed=0, passes=passes, read=passes, draft_s=0.02 * passes, verify_s=1.0)
    assert batch.costs.steps.weights == pytest.approx([0.02, 0.02], rel=0.05)


@pytest.mark.medium
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("before", [0, 200])
def test_rows_with_cheap_drafts_get_them(rows: int, before: int) -> None:
    """Whatever is drafted, a step takes as long; `before` tokens stand in front of each prompt."""
    now = [0.0]
    drafting = Drafting(max_draft_length=LENGTH, reuse_answers="nothing")
    batch = Batch(Rows(remote(), drafting, context=WIDTH, most=8, clock=lambda: now[0]), LENGTH)
    requests = asked(TEXTS[:1] * rows, 100)
    for each in requests:
        each.prompt = (each.prompt * before)[:before] + each.prompt
    while left := [each for each in requests if not each.done]:
        batch.step(left)
        now[0] += 1.0
    drafts = [draft for each in requests for draft in each.proposed[15:]]
    assert sum(map(bool, drafts)) > 0.5 * len(drafts)


@pytest.mark.medium
def test_a_row_without_a_draft_stops_no_other() -> None:
    now = [0.0]
    drafting = Drafting(max_draft_length=LENGTH, reuse_answers="nothing")
    batch = Batch(Rows(remote(), drafting, context=WIDTH, most=8, clock=lambda: now[0]), LENGTH)
    foreign, plain = asked((TEXTS[0], TEXTS[0]), 60)
    foreign.prompt = [*foreign.prompt, remote().vocab.size + 5]
    while not plain.done:
        batch.step([each for each in (foreign, plain) if not each.done])
        now[0] += 1.0
    assert sum(map(bool, plain.proposed[15:])) > 0.5 * len(plain.proposed[15:])


@pytest.mark.medium
def test_steps_that_are_not_told_of_are_made_up_for() -> None:
    (plain,), (each,) = asked(TEXTS[:1]), asked(TEXTS[:1])
    batch = make()
    make().run([plain])
    while not each.done:
        each.draft = []
        if each.out % 5 == 3:
            each.step()  # and nobody is asked for a draft
        batch.step([each])
    assert len(batch.rows) == 1
    assert all(each.proposed[:-1])


def test_text_that_repeats_itself_is_drafted_from_counts() -> None:
    drafting = Drafting(max_draft_length=LENGTH)
    ticks = itertools.count()  # drafting takes time, too
    batch = Batch(Rows(remote(), drafting, context=WIDTH, most=8, clock=lambda: float(next(ticks))), LENGTH)
    (each,) = asked(TEXTS[:1])
    each.prompt = each.prompt + each.answer * 2
    each.answer = each.answer * 2
    counted = 0
    while not each.done:
        batch.step([each])
        counted += sum(record.counts.counted for record in batch.rows.rounds)
    assert counted > 10
    assert each.accepted > 10


def test_a_row_that_stays_away_is_ended_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "UNSEEN", 3)
    gone, stays = asked(TEXTS[:2])
    batch = make()
    batch.step([gone, stays])
    for left in (2, 2, 1, 1):
        batch.step([stays])
        assert len(batch.rows) == left


def test_the_pair_knows_the_tokenizers_alone() -> None:
    pair = remote()
    assert pair.vocab.size == local().vocab.size
    assert replace(Drafting(), draft_length=LENGTH).longest == LENGTH
