"""The n-gram cache: what a walk sees of it, what it learns and forgets, and its state, saved and resumed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.cache_study import BoundedCache
from omnidraft.alignment.ngram_cache import FALSE_MERGES_BEFORE_OFF, NgramCache
from omnidraft.alignment.spelling_table import ROOT
from omnidraft.errors import ModelError
from support.table_models import (
    EVICTIONS,
    Plain,
    World,
    active,
    cache_of,
    caches,
    make_world,
    random_probs,
    rounds,
    worlds,
)

# In the world "nested" the n-grams are ab 1, aba 2 and abab 3.


def is_ngram(world: World) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    table = world.table
    result: np.ndarray[tuple[int], np.dtype[np.bool_]] = (np.diff(table.offsets) > 1) & (table.node >= 0)
    return result


# ---------------------------------------------------------------- what a walk sees


@pytest.mark.medium
@settings(max_examples=60)
@given(st.data())
def test_the_trie_is_that_of_the_active_tokens(data: st.DataObject) -> None:
    """After any rounds: children, ends, leaves, masses and proposers, as counted anew from the spellings."""
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    plain, table = Plain(cache), cache.table
    p, q = random_probs(world.vocab.size, "p"), random_probs(world.drafter_vocab.size, "q")
    assert set(cache.outside.tolist()) == set(range(plain.size)) - set(plain.token.values())
    proposals = cache.root_proposals(q)
    for node, path in plain.path.items():
        if not plain.under(path):
            continue
        options, children = plain.options(path), cache.children(node)
        assert table.symbol[children].tolist() == options
        assert cache.token_at(node) == plain.token.get(path, -1)
        assert cache.leaf(node) == (not options)
        assert set(cache.tokens(node).tolist()) == plain.under(path)
        assert cache.mass(p, node) == pytest.approx(plain.mass(p, path), abs=1e-15)
        masses = [plain.mass(p, (*path, d)) for d in options]
        assert cache.child_masses(p, node, children).tolist() == pytest.approx(masses, abs=1e-15)
        for draft in range(plain.drafter_size):  # none to a node without active tokens
            child = cache.child(node, draft)
            assert plain.path.get(child) == ((*path, draft) if draft in options else None)
        if len(path) == 1:
            proposers = {d for d in range(plain.drafter_size) if plain.proposes(d) == path[0]}
            assert set(cache.proposers(node).tolist()) == proposers
            assert proposals[node] == pytest.approx(sum(q[d] for d in proposers))
    for draft in range(plain.drafter_size):
        if table.root[draft] < 0:
            assert tuple(cache.long(draft)) == (plain.long[draft] if plain.proposes(draft) >= 0 else ())


@pytest.mark.medium
@settings(max_examples=60)
@given(st.data())
def test_an_active_set_is_all_single_tokens_and_some_ngrams(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    single = (world.table.node >= 0) & (np.diff(world.table.offsets) == 1)
    assert cache.active[single].all()
    assert not (cache.active & ~single & ~is_ngram(world)).any()
    assert cache.size == len(active(cache))


# ---------------------------------------------------------------- learning and forgetting


class Ledger:
    """The rules of the cache, kept in dictionaries and sorted anew each time."""

    def __init__(self, ngrams: list[int], seed: str, bound: int | None, eviction: str) -> None:
        self.ngrams, self.bound, self.eviction = ngrams, bound, eviction
        self.hits, self.false, self.used = (dict.fromkeys(ngrams, 0) for _ in range(3))
        self.active = set(ngrams[: len(ngrams) if bound is None else bound]) if seed == "vocabulary" else set()
        self.clock = 0

    def pays(self, token: int) -> bool:
        return self.false[token] < FALSE_MERGES_BEFORE_OFF or self.hits[token] >= self.false[token]

    def observe(self, emitted: list[int], false_merge: int | None) -> None:
        self.clock += 1
        for token in emitted:
            if token in self.hits:
                self.hits[token] += 1
                self.used[token] = self.clock
                if self.pays(token):
                    self.active.add(token)
        if false_merge in self.hits:
            assert false_merge is not None
            self.false[false_merge] += 1
            if not self.pays(false_merge):
                self.active.discard(false_merge)

        def worth(token: int) -> tuple[int, int, int]:
            counts = (self.hits[token], self.used[token])
            return (*(counts if self.eviction == "lfu" else counts[::-1]), -token)

        if self.bound is not None:
            self.active = set(sorted(self.active, key=worth, reverse=True)[: self.bound])


@pytest.mark.medium
@settings(max_examples=80)
@given(st.data())
def test_the_bound_holds_and_the_right_ones_are_evicted(data: st.DataObject) -> None:
    world = data.draw(worlds())
    seed, eviction = data.draw(st.sampled_from(["empty", "vocabulary"])), data.draw(EVICTIONS)
    bound = data.draw(st.one_of(st.none(), st.integers(1, 3)))
    cache = cache_of(world.table, seed, bound, eviction)
    ledger = Ledger(np.flatnonzero(is_ngram(world)).tolist(), seed, bound, eviction)
    assert active(cache) == ledger.active
    for emitted, false_merge in data.draw(rounds(world)):
        cache.observe(emitted, false_merge)
        ledger.observe(emitted, false_merge)
        assert bound is None or cache.size <= bound
        assert active(cache) == ledger.active
    for token in ledger.ngrams:
        assert cache.hits[token] == ledger.hits[token]
        assert cache.false_merges[token] == ledger.false[token]
        assert cache.last_use[token] == ledger.used[token]


def test_a_merge_that_does_not_pay_is_switched_off_and_comes_back_when_it_does() -> None:
    cache = NgramCache(make_world("nested").table)
    cache.observe([1, 1])
    for _ in range(FALSE_MERGES_BEFORE_OFF - 1):
        cache.observe([], false_merge=1)
    assert 1 in active(cache)
    cache.observe([], false_merge=1)
    assert 1 not in active(cache)
    for hits in range(3, FALSE_MERGES_BEFORE_OFF):
        cache.observe([1])
        assert 1 not in active(cache), hits
    cache.observe([1])
    assert 1 in active(cache)


def test_a_frozen_cache_learns_nothing() -> None:
    cache = NgramCache(make_world("nested").table, seed="empty", frozen=True)
    cache.observe([1, 2, 3], false_merge=1)
    assert active(cache) == set()
    assert not cache.hits.any()
    assert not cache.false_merges.any()


# ---------------------------------------------------------------- saved and resumed

RECORDS = ("active", "hits", "false_merges", "last_use")


@pytest.mark.medium
@settings(max_examples=60)
@given(st.data())
def test_what_is_resumed_is_what_was_left_off(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    bound, eviction = (cache.bound, cache.eviction) if isinstance(cache, BoundedCache) else (None, "lfu")
    loaded = cache_of(world.table, data.draw(st.sampled_from(["empty", "vocabulary"])), bound, eviction)
    for emitted, false_merge in data.draw(rounds(world)):  # of what it holds now, nothing is left
        loaded.observe(emitted, false_merge)
    loaded.resume(cache.state())
    more = data.draw(rounds(world))
    for emitted, false_merge in [([], None), *more]:  # and both go on alike
        for each in (cache, loaded):
            each.observe(emitted, false_merge)
        for name in RECORDS:
            assert np.array_equal(getattr(cache, name), getattr(loaded, name)), name
        for node in range(len(world.table.lo)):
            assert np.array_equal(cache.children(node), loaded.children(node))
        assert np.array_equal(cache.outside, loaded.outside)


def test_an_ngram_without_a_record_stays_off() -> None:
    table = make_world("nested").table
    cache = BoundedCache(table, 2, "lfu")  # ab and aba
    for _ in range(FALSE_MERGES_BEFORE_OFF):
        cache.observe([], false_merge=1)
    loaded = BoundedCache(table, 2, "lfu")
    loaded.resume(cache.state())
    assert active(loaded) == active(cache) == {2}


def test_a_smaller_bound_holds_from_the_start() -> None:
    table = make_world("nested").table
    cache = NgramCache(table)
    cache.observe([2, 2, 3])
    small = BoundedCache(table, 1, "lfu")
    small.resume(cache.state())
    assert active(small) == {2}
    assert len(small.tokens(ROOT)) == 3 + 1  # tokens of one drafter token, the end of the text among them


def test_a_state_is_of_its_own() -> None:
    cache = NgramCache(make_world("nested").table, seed="empty")
    cache.observe([1, 2])
    state = cache.state()
    before = {name: array.copy() for name, array in state.items()}
    cache.observe([1, 2], false_merge=1)
    assert all(np.array_equal(state[name], before[name]) for name in state)
    assert all(array.dtype == np.int32 for array in state.values())


@pytest.mark.parametrize(
    "bad",
    [
        *[{name: None} for name in (*RECORDS, "clock", "token", "seed")],
        {"token": [1, 99]},
        {"token": [-1, 2]},
        {"token": [0, 2]},  # no n-gram
        {"hits": [1]},
        {"seed": [7]},
        {"clock": []},
    ],
    ids=str,
)
def test_a_state_that_does_not_fit_changes_nothing(bad: dict[str, list[int] | None]) -> None:
    good, cache = (NgramCache(make_world("nested").table, seed="empty") for _ in range(2))
    good.observe([1, 2])
    cache.observe([3])
    state = {name: array for name, array in good.state().items() if name not in bad}
    state |= {name: np.array(values, np.int32) for name, values in bad.items() if values is not None}
    before = {record: getattr(cache, record).copy() for record in RECORDS}
    with pytest.raises(ModelError, match="n-gram cache"):
        cache.resume(state)
    for record in RECORDS:
        assert np.array_equal(getattr(cache, record), before[record]), record
    assert active(cache) == {3}
