"""Table models small enough to enumerate: worlds of a drafter of 2-4 tokens and a target of 4-7, given or random.

The distributions of both depend on the whole input.  `enumeration` takes every choice that a lane makes on them;
`Plain` restates with loops over spellings what the package computes with intervals, nodes and counters.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from experiments.cache_study import BoundedCache
from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs, SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, Vocab
from omnidraft.config import Drafting
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.verification.trie_walk import STOP, Symbol, Walk
from support.models import InputFunction

PROMPT = 0  # worlds start from this target token
Ids = tuple[int, ...]


def seeded(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))


class TableModel(InputFunction):
    """A language model whose next-token distribution is a seeded function of its whole input."""

    def __init__(self, vocab_size: int, seed: object, zero: float = 0.0, sharp: float = 0.7) -> None:
        super().__init__(vocab_size, context=1000)
        self._seed, self._zero, self._sharp = seed, zero, sharp
        self._rows: dict[Ids, torch.Tensor] = {}

    def row(self, ids: Ids) -> torch.Tensor:
        if ids not in self._rows:
            with np.errstate(divide="ignore"):
                self._rows[ids] = torch.from_numpy(np.log(self.probs(ids)))
        return self._rows[ids]

    def probs(self, ids: Ids) -> Probs:
        rng = seeded(self._seed, ids)
        probs = rng.dirichlet([self._sharp] * self.vocab_size)
        kept = probs * (rng.random(self.vocab_size) >= self._zero)
        probs = kept if kept.sum() > 0 else probs
        result: Probs = probs / probs.sum()
        return result


class Greedy(Speller):
    """Writes the longest known bytes that fit, then the next; of equal ones the lowest id."""

    def __init__(self, known: Vocab | dict[bytes, Ids]) -> None:
        if isinstance(known, Vocab):
            known = {data: (i,) for i, data in reversed(list(enumerate(known.tokens))) if data is not None}
        self._known = known

    def spell_many(self, texts: Sequence[bytes]) -> list[Ids | None]:
        return [self._greedy(data) for data in texts]

    def _greedy(self, data: bytes) -> Ids | None:
        ids: Ids = ()
        while data:
            size = next((n for n in range(len(data), 0, -1) if data[:n] in self._known), None)
            if size is None:
                return None
            ids, data = (*ids, *self._known[data[:size]]), data[size:]
        return ids


def vocabulary(*tokens: bytes | None, eos: Ids = ()) -> Vocab:
    return Vocab(tokens, len(tokens), None, eos, {}, fingerprint=f"{tokens} {eos}")


def table_of(drafter: Vocab, target: Vocab) -> SpellingTable:
    return build_table(drafter, target, Greedy(drafter), Greedy(target))


@dataclass(frozen=True)
class Shape:
    """The two vocabularies of a world: bytes of each token, None for one without."""

    drafter: tuple[bytes | None, ...]
    target: tuple[bytes | None, ...]
    drafter_eos: int | None = None
    target_eos: int | None = None
    long: dict[bytes, Ids] = field(default_factory=dict)  # what over-long drafter tokens stand for


SHAPES = {
    # nested a / ab; bba, whose inner node bb ends no token; a token without bytes; a duplicate of ab; an
    # end-of-text pair; a drafter token that nothing starts with
    "full": Shape((b"a", b"b", None, b"z"), (b"a", b"b", b"ab", b"bba", None, None, b"ab"), 2, 4),
    "nested": Shape((b"a", b"b", None), (b"a", b"ab", b"aba", b"abab", b"b", None), 2, 5),
    # no token "a": the node at depth one ends nothing
    "inner": Shape((b"a", b"b", None), (b"ab", b"aab", b"b", b"ba", None), 2, 4),
    # a node where a token ends and two ways go on
    "wide": Shape((b"a", b"b", None), (b"a", b"aa", b"ab", b"b", b"aba", None), 2, 5),
    "tiny": Shape((b"a", b"b"), (b"a", b"b", b"ab", b"ba")),
    # a text ends with a token of two letters, which is also the beginning of another
    "written end": Shape((b"a", b"b"), (b"a", b"b", b"ab", b"aba"), target_eos=2),
    # two target ids per spelling, and padding: an id past the tokenizer's end
    "duplicate": Shape((b"a", b"b"), (b"a", b"b", b"ab", b"ab", b"a", None)),
    # drafter tokens longer than any target token
    "long": Shape((b"a", b"b", b"aab", b"abb"), (b"a", b"b", b"ab", b"ba"), long={b"aab": (0, 2), b"abb": (2, 1)}),
    # the same where the first token that they stand for can go on, and their last ends the text of a node
    "long nested": Shape(
        (b"a", b"b", b"bab", b"aba"), (b"a", b"ab", b"b", b"bb"), long={b"bab": (2, 1), b"aba": (1, 0)}
    ),
}


def make_vocab(tokens: tuple[bytes | None, ...], eos: int | None, name: str) -> Vocab:
    special = {i: f"<{i}>" for i, data in enumerate(tokens) if data is None}
    ends = () if eos is None else (eos,)
    return Vocab(tokens=tokens, size=len(tokens), bos=None, eos=ends, special=special, fingerprint=name)


@dataclass
class World:
    """A drafter, a target and their table."""

    target: TableModel
    drafter: TableModel
    vocab: Vocab
    drafter_vocab: Vocab
    table: SpellingTable
    speller: Greedy

    def lane(self, cache: NgramCache | None = None, **drafting: object) -> Lane:
        """A lane whose n-grams, unless a cache is given, are those that its mode starts from and keeps.

        It has no counts unless asked to: their hit rates outlive a request, as those of an enumeration must not.
        Drafts are drawn unless asked otherwise: the best ones alone would leave out most of what can happen.
        """
        usual = {"draft_length": 4, "reuse_answers": "nothing", "verification": "block"}
        settings = Drafting(**usual | drafting)  # type: ignore[arg-type]
        translator = DrafterContext(self.table, self.vocab, self.drafter_vocab, self.speller)
        if cache is None:
            seed = "empty" if settings.mode == "intersection" else settings.ngram_seed
            cache = NgramCache(self.table, seed=seed, frozen=True)
        pair = AttachedDrafter(drafter=Drafter(self.drafter), context=translator, cache=cache)
        return Lane(self.target, self.vocab.eos, pair, settings)


def make_world(name: str, seed: int = 0, zero: float = 0.0, shape: Shape | None = None) -> World:
    """`zero`: the share of the tokens that each distribution gives no probability."""
    shape = shape or SHAPES[name]
    target = make_vocab(shape.target, shape.target_eos, f"target {name}")
    drafter = make_vocab(shape.drafter, shape.drafter_eos, f"drafter {name}")
    letters: dict[bytes, Ids] = {data: (i,) for i, data in enumerate(shape.drafter) if data and len(data) == 1}
    speller = Greedy(letters)
    table = build_table(drafter, target, speller, Greedy(shape.long))
    models = (
        TableModel(len(shape.target), ("p", name, seed), zero),
        TableModel(len(shape.drafter), ("q", name, seed), zero),
    )
    return World(*models, target, drafter, table, speller)


ACTIVE = ("all", "none", "random")


def frozen_cache(world: World, active: str, seed: int = 0) -> NgramCache:
    """A cache that stays as it is, with all n-grams active, none, or some but not all where there are two."""
    cache = NgramCache(world.table, seed="empty" if active == "none" else "vocabulary", frozen=True)
    if active == "random":
        ngrams = np.flatnonzero(np.diff(world.table.offsets) > 1)
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(ngrams)[: rng.integers(1, max(2, len(ngrams)))]
        kept = cache.active.copy()
        kept[chosen] = False
        cache._set_active(kept)
    return cache


# ---------------------------------------------------------------- a drafter that knows something


class Canonical(TableModel):
    """A target that seldom begins a token with what would have continued the last one, as tokenizers have it."""

    table: SpellingTable
    split = 0.02

    def probs(self, ids: Ids) -> Probs:
        probs = super().probs(ids) + 1e-6
        node = int(self.table.node[ids[-1]])
        if node >= 0:
            goes_on = self.table.symbol[self.table.first[node] : self.table.first[node + 1]]
            for token in range(self.vocab_size):
                spelling = self.table.spelling(token)
                if len(spelling) and spelling[0] in goes_on:
                    probs[token] *= self.split
        result: Probs = probs / probs.sum()
        return result


class Follower(TableModel):
    """A drafter with the distribution of the target's own output, over all ways to read it, and noise."""

    target: TableModel
    table: SpellingTable
    noise = 1.0

    def probs(self, ids: Ids) -> Probs:
        weights = np.zeros(self.vocab_size)
        start = self._spelling(PROMPT)
        assert ids[: len(start)] == start
        # whole tokens, the rest of the text, their probability
        readings: list[tuple[Ids, Ids, float]] = [((PROMPT,), ids[len(start) :], 1.0)]
        while readings:
            tokens, rest, weight = readings.pop()
            for token, p in enumerate(self.target.probs(tokens)):
                spelling = self._spelling(token)
                if spelling and spelling == rest[: len(spelling)]:
                    readings.append(((*tokens, token), rest[len(spelling) :], weight * p))
                elif spelling[: len(rest)] == rest and spelling != rest:
                    weights[spelling[len(rest)]] += weight * p
        weights = weights / max(weights.sum(), 1e-300) + 1e-4
        weights *= np.exp(self.noise * seeded(self._seed, "noise", ids).normal(size=self.vocab_size))
        result: Probs = weights / weights.sum()
        return result

    def _spelling(self, token: int) -> Ids:
        return tuple(self.table.spelling(token).tolist())


def correlated_world(name: str, seed: int = 0) -> World:
    """A world whose drafter follows its target, more or less."""
    world = make_world(name, seed)
    target = Canonical(world.vocab.size, ("p", name, seed), sharp=0.3)
    drafter = Follower(world.drafter_vocab.size, ("q", name, seed))
    target.table = drafter.table = world.table
    drafter.target = target
    world.target, world.drafter = target, drafter
    return world


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


EVICTIONS = st.sampled_from(["lfu", "lru"])


def cache_of(table: SpellingTable, seed: str, bound: int | None, eviction: str) -> NgramCache:
    """A new cache, which has a bound or none."""
    return NgramCache(table, seed=seed) if bound is None else BoundedCache(table, bound, eviction, seed=seed)


@st.composite
def caches(draw: st.DrawFn, world: World) -> NgramCache:
    """A cache that has seen some rounds, with whatever they left active."""
    bound = draw(st.one_of(st.none(), st.none(), st.integers(1, 3)))
    cache = cache_of(world.table, draw(st.sampled_from(["vocabulary", "vocabulary", "empty"])), bound, draw(EVICTIONS))
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
