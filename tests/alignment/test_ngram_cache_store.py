"""The n-gram cache's state: what is resumed is what was left off, and what does not fit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.alignment.ngram_cache import FALSE_MERGES_BEFORE_OFF, Ints, NgramCache
from omnidraft.alignment.spelling_table import ROOT
from omnidraft.errors import ModelError
from support.table_models import active, caches, make_world, rounds, worlds

# In the world "nested" the n-grams are ab 1, aba 2 and abab 3.
RECORDS = ("active", "hits", "false_merges", "last_use")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_resumed_is_what_was_left_off(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    loaded = NgramCache(world.table, seed=cache.seed, bound=cache.bound, eviction=cache.eviction)
    loaded.resume(cache.state())
    more = data.draw(rounds(world))
    for emitted, false_merge in [([], None), *more]:  # and both go on alike
        for each in (cache, loaded):
            each.observe(emitted, false_merge)
        for name in RECORDS:
            assert np.array_equal(getattr(cache, name), getattr(loaded, name)), name
        assert np.array_equal(cache._live, loaded._live)
        assert np.array_equal(cache.outside, loaded.outside)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_resuming_takes_nothing_over_from_before(data: st.DataObject) -> None:
    world = data.draw(worlds())
    saved, used = data.draw(caches(world)), data.draw(caches(world))
    used.bound = saved.bound
    used.resume(saved.state())
    for name in RECORDS:
        assert np.array_equal(getattr(used, name), getattr(saved, name)), name


def test_an_ngram_without_a_record_stays_off() -> None:
    table = make_world("nested").table
    cache = NgramCache(table, bound=2)  # ab and aba
    for _ in range(FALSE_MERGES_BEFORE_OFF):
        cache.observe([], false_merge=1)
    loaded = NgramCache(table, bound=2)
    loaded.resume(cache.state())
    assert active(loaded) == active(cache) == {2}


def test_a_smaller_bound_holds_from_the_start() -> None:
    table = make_world("nested").table
    cache = NgramCache(table)
    cache.observe([2, 2, 3])
    small = NgramCache(table, bound=1)
    small.resume(cache.state())
    assert active(small) == {2}
    assert small._live[ROOT] == 3 + 1  # tokens of one drafter token, the end of the text among them


def test_a_state_is_of_its_own() -> None:
    cache = NgramCache(make_world("nested").table, seed="empty")
    cache.observe([1, 2])
    state = cache.state()
    before = {name: array.copy() for name, array in state.items()}
    cache.observe([1, 2], false_merge=1)
    assert all(np.array_equal(state[name], before[name]) for name in state)
    assert all(array.dtype == np.int32 for array in state.values())


@pytest.mark.parametrize("name", ["active", "hits", "false_merges", "last_use", "clock", "token", "seed"])
def test_a_state_with_a_part_missing_changes_nothing(name: str) -> None:
    table = make_world("nested").table
    good = NgramCache(table, seed="empty")
    good.observe([1, 2])
    state = {key: array for key, array in good.state().items() if key != name}
    assert_refused(state)


@pytest.mark.parametrize(
    "bad",
    [
        {"token": [1, 99]},
        {"token": [-1, 2]},
        {"token": [0, 2]},  # no n-gram
        {"hits": [1]},
        {"seed": [7]},
        {"clock": []},
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(bad: dict[str, list[int]]) -> None:
    good = NgramCache(make_world("nested").table, seed="empty")
    good.observe([1, 2])
    assert_refused(good.state() | {name: np.array(values, np.int32) for name, values in bad.items()})


def assert_refused(state: dict[str, Ints]) -> None:
    cache = NgramCache(make_world("nested").table, seed="empty")
    cache.observe([3])
    before = {record: getattr(cache, record).copy() for record in RECORDS}
    with pytest.raises(ModelError, match="n-gram cache"):
        cache.resume(state)
    for record in RECORDS:
        assert np.array_equal(getattr(cache, record), before[record]), record
    assert active(cache) == {3}
