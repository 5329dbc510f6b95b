"""Interleaved methods: fair order, equal answers, and what is forgotten between repeats."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import LaneMethod, TimedAnswer, drafter_of, interleave, ordered
from omnidraft.config import Sampling
from support.lanes import isolated


class Scripted:
    """A method that answers with as many tokens as its name has letters, and notes its turns."""

    def __init__(self, name: str, log: list[tuple[str, int]]) -> None:
        self.name, self.log = name, log

    def restart(self) -> None:
        pass

    def begin(self, *_: object, **__: object) -> None:
        self.said: list[int] = []

    def advance(self, length: int) -> bool:
        self.log.append((self.name, length))
        self.said = [0] * min(length, len(self.name))
        return len(self.said) >= length

    def end(self) -> TimedAnswer:
        return TimedAnswer(self.said)


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_everyone_has_every_place_alike(count: int) -> None:
    orders = [ordered(list(range(count)), turn) for turn in range(4 * count)]
    for place in range(count):
        assert set(Counter(order[place] for order in orders).values()) == {4}
    follows = {(before, after) for order in orders for before, after in pairwise(order)}
    assert count < 3 or len(follows) > count, "who follows whom changes"


def test_answers_grow_together_and_end_on_their_own() -> None:
    log: list[tuple[str, int]] = []
    methods = [Scripted("a" * length, log) for length in (2, 9, 20)]
    timed = interleave(methods, [1], 12, chunk=4)
    assert [len(each.answer.tokens) for each in timed] == [2, 9, 12]
    assert [length for _, length in log] == [4, 4, 4, 8, 8, 12, 12]
    assert all(each.seconds >= 0 for each in timed)


@pytest.mark.medium
def test_methods_share_nothing_of_an_answer(model: OmniDraft) -> None:
    lengths: tuple[int | str, ...] = (0, 1, 3, "goodput")
    methods = [LaneMethod(str(length), isolated(model, draft_length=length), Sampling()) for length in lengths]
    for prompt in ("hello world", "the world was"):
        timed = interleave(methods, model.encode(prompt), 20)
        assert len({tuple(each.answer.tokens) for each in timed}) == 1
        assert all(each.seconds > 0 for each in timed)


@pytest.mark.medium
def test_draws_are_decided_by_the_seed(model: OmniDraft) -> None:
    method = LaneMethod("one", isolated(model, draft_length=0), Sampling(temperature=1.0))
    ids = model.encode("hello world")
    said = [tuple(interleave([method], ids, 12, seed)[0].answer.tokens) for seed in (1, 2, 1)]
    assert said[0] == said[2] != said[1]


@pytest.mark.medium
def test_measurements_outlive_a_repeat_and_ngrams_do_not(model: OmniDraft) -> None:
    method = LaneMethod("goodput", isolated(model, draft_length="goodput", ngram_seed="empty"), Sampling())
    before = method.lane
    assert before.attached is not None
    before.attached.cache.observe(range(model.vocab.size))
    assert before.attached.cache.size > 0
    method.restart()
    assert method.lane.attached is not None
    assert method.lane.attached.cache.size == 0
    assert method.lane.policy is before.policy
    assert method.lane.target.model is before.target.model


def test_without_a_drafter_there_is_nothing_to_compare(target: Path) -> None:
    with pytest.raises(ValueError, match="needs a drafter"):
        drafter_of(omnidraft.load(target, None, dtype="float32", profile=None))
