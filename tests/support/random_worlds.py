"""Vocabularies that nobody chose, and what the package must agree with on them.

`Plain` says by loops over spellings what the package says by intervals, nodes and counters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.verification.walk import STOP, Symbol, Walk
from support.table_models import Ids, Shape, World, make_world, seeded

WORDS = [bytes(word) for length in (1, 2, 3, 4) for word in itertools.product(b"ab", repeat=length)]


def decomposition(word: bytes, tokens: list[bytes | None]) -> Ids:
    """The target tokens that write `word`, the longest first; empty where there are none."""
    if not word:
        return ()
    for length in range(len(word), 0, -1):
        if word[:length] in tokens:
            rest = decomposition(word[length:], tokens)
            if rest or length == len(word):
                return (tokens.index(word[:length]), *rest)
    return ()


def random_shape(seed: int) -> Shape:
    """Vocabularies in which much is nested in one another; small ones are no simpler here, so nothing is shrunk."""
    rng = seeded("shape", seed)
    words = [WORDS[i] for i in rng.integers(len(WORDS), size=4)]
    nested = [word[:end] for word in words for end in range(1, len(word)) if rng.random() < 0.5]
    target: list[bytes | None] = [*([None] * rng.integers(3)), *words, *nested][:7]
    target = [target[i] for i in rng.permutation(len(target))]
    first = next(i for i, data in enumerate(target) if data)
    target[0], target[first] = target[first], target[0]  # the prompt is text
    drafter: list[bytes | None] = [b"a", b"b", *[data for data in (None, b"z") if rng.random() < 0.5]]
    over_long = {WORDS[i] for i in rng.integers(2, len(WORDS), size=rng.integers(3))}
    long = {word: decomposition(word, target) for word in sorted(over_long)}
    return Shape(
        (*drafter, *long),
        tuple(target),
        drafter.index(None) if None in drafter else None,
        int(rng.integers(1, len(target))) if rng.random() < 0.7 else None,  # with bytes or without
        {word: tokens for word, tokens in long.items() if tokens},
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    seed = draw(st.integers(0, 10_000))
    return make_world("random", seed, draw(st.sampled_from([0.0, 0.3])), random_shape(seed))


@st.composite
def caches(draw: st.DrawFn, world: World) -> NgramCache:
    """A cache that has seen some rounds, with whatever they left active."""
    bound = draw(st.one_of(st.none(), st.none(), st.integers(1, 3)))
    eviction, seed = draw(st.sampled_from(["lfu", "lru"])), draw(st.sampled_from(["vocabulary", "vocabulary", "empty"]))
    cache = NgramCache(world.table, seed=seed, bound=bound, eviction=eviction)
    for emitted, false_merge in draw(rounds(world)):
        cache.observe(emitted, false_merge)
    return cache


def rounds(world: World) -> st.SearchStrategy[list[tuple[list[int], int | None]]]:
    """What rounds show a cache: emitted tokens, and perhaps a false merge."""
    token = st.integers(0, world.vocab.size - 1)
    return st.lists(st.tuples(st.lists(token, max_size=3), st.one_of(st.none(), token)), max_size=12)


def active(cache: NgramCache) -> set[int]:
    """The active n-grams."""
    return set(np.flatnonzero(cache.active & (np.diff(cache.table.offsets) > 1)).tolist())


def random_probs(size: int, *key: object) -> Probs:
    rng = seeded("law", *key)
    result: Probs = rng.dirichlet([0.7] * size)
    result[rng.random(size) < 0.2] = 0
    result[0] += 1e-3
    result /= result.sum()
    return result


def walked(cache: NgramCache, eos: Sequence[int], draft: Sequence[int], finish: bool = True) -> Walk:
    """The walk of as much of a draft as it takes."""
    walk = Walk(cache, eos)
    for token in draft:
        if not walk.read(token):
            break
    if finish:
        walk.finish()
    return walk


@st.composite
def drafts(draw: st.DrawFn, world: World) -> list[int]:
    return draw(st.lists(st.sampled_from([0, 1, 0, 1, *range(world.drafter_vocab.size)]), min_size=2, max_size=6))


class Plain:
    """The active part of a cache as a dictionary of spellings."""

    def __init__(self, cache: NgramCache) -> None:
        table = cache.table
        self.size = table.target_size
        self.drafter_size = table.drafter_size
        self.spelling = {t: tuple(table.spelling(t).tolist()) for t in range(self.size)}
        self.token = {self.spelling[t]: t for t in range(self.size) if cache.active[t]}
        self.long = {
            d: tuple(table.long_flat[table.long_offsets[d] : table.long_offsets[d + 1]].tolist())
            for d in range(self.drafter_size)
        }
        self.path: dict[int, Ids] = {0: ()}
        for node in range(len(table.lo)):
            for child in range(table.first[node], table.first[node + 1]):
                self.path[child] = (*self.path[node], int(table.symbol[child]))

    def under(self, path: Ids) -> set[int]:
        return {t for spelling, t in self.token.items() if spelling[: len(path)] == path}

    def options(self, path: Ids) -> list[int]:
        """The drafter tokens that can follow."""
        return sorted({self.spelling[t][len(path)] for t in self.under(path) if len(self.spelling[t]) > len(path)})

    def mass(self, p: Probs, path: Ids) -> float:
        return float(sum(p[t] for t in self.under(path)))

    def proposes(self, draft: int) -> int:
        """The root symbol that a drafter token proposes, or -1."""
        if draft in self.options(()):
            return draft
        tokens = self.long[draft]
        return self.spelling[tokens[0]][0] if tokens and set(tokens) <= set(self.token.values()) else -1

    # ------------------------------------------------------------ distributions, by symbol; at the root, by token too

    def target_distribution(self, p: Probs, path: Ids) -> dict[Any, float]:
        result: dict[Any, float] = {d: self.mass(p, (*path, d)) for d in self.options(path)}
        if not path:
            return result | {("alone", t): float(p[t]) for t in range(self.size) if t not in self.token.values()}
        if path in self.token:
            result[STOP] = float(p[self.token[path]])
        total = sum(result.values())
        return {option: mass / total if total else 0.0 for option, mass in result.items()}

    def drafter_distribution(self, symbol: Symbol, q: Probs) -> dict[Any, float]:
        path = self.path[symbol.node]
        if path:
            result: dict[Any, float] = {d: float(q[d]) for d in self.options(path)}
            return result | {STOP: max(0.0, 1.0 - sum(result.values()))}
        excluded = self.options(self.path[symbol.after]) if symbol.after >= 0 else []
        total = sum(q[d] for d in range(self.drafter_size) if d not in excluded)
        result = dict.fromkeys(self.options(()), 0.0)
        for draft in range(self.drafter_size):
            if draft not in excluded and self.proposes(draft) >= 0 and total > 0:
                result[self.proposes(draft)] += float(q[draft] / total)
        return result
