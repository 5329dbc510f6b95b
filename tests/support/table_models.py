"""Table models small enough to enumerate: worlds of a drafter of 2-4 tokens and a target of 4-7.

The distributions of both depend on the whole input.  `enumeration` takes every choice that an engine makes on them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs, SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, Vocab
from omnidraft.config import Drafting
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
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

    def engine(self, cache: NgramCache | None = None, **drafting: object) -> Engine:
        """An engine whose n-grams, unless a cache is given, are those that its mode starts from and keeps."""
        settings = Drafting(**{"draft_length": 4} | drafting)  # type: ignore[arg-type]
        translator = DrafterContext(self.table, self.vocab, self.drafter_vocab, self.speller)
        if cache is None:
            seed = "empty" if settings.mode == "intersection" else settings.ngram_seed
            cache = NgramCache(self.table, seed=seed, frozen=True)
        pair = AttachedDrafter(drafter=Drafter(self.drafter), context=translator, cache=cache)
        return Engine(self.target, self.vocab.eos, pair, settings)


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
