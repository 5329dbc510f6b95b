"""Table models small enough to enumerate, and the enumeration of what an engine does on them.

A world has a drafter of 2-4 tokens and a target of 4-7, both with laws that depend on the whole history.  The laws
of rounds are enumerated through the engine itself: its one source of randomness, the `Draw`, is replaced by a driver
that takes every choice in turn.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from omnidraft.config import Drafting, Sampling
from omnidraft.context import Translator
from omnidraft.drafter import Drafter
from omnidraft.engine import Engine, Pair, Round
from omnidraft.ngrams import NgramCache
from omnidraft.sampling import Probs
from omnidraft.spelling import SpellingTable, build_table
from omnidraft.vocab import Vocab

R = TypeVar("R")
Law = dict[tuple[int, ...], float]
PROMPT = 0  # worlds start from this target token


class TableModel:
    """A language model whose next-token law is a seeded function of its whole input."""

    def __init__(self, vocab_size: int, seed: object, zero: float = 0.0, sharp: float = 0.7) -> None:
        self.vocab_size = vocab_size
        self.context = 1000
        self._seed, self._zero, self._sharp = seed, zero, sharp
        self._ids: list[int] = []
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def length(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self._ids)

    def crop(self, length: int) -> None:
        del self._ids[length:]

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        assert len(ids) >= keep >= 1
        self._ids += ids
        end = len(self._ids)
        return torch.stack([self.row(tuple(self._ids[: end - keep + i + 1])) for i in range(keep)])

    def law(self, ids: tuple[int, ...]) -> Probs:
        probs: Probs = torch.softmax(self.row(ids), dim=-1).numpy()
        return probs

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        if ids not in self._known:
            rng = np.random.default_rng(zlib.crc32(repr((self._seed, ids)).encode()))
            law = rng.dirichlet([self._sharp] * self.vocab_size)
            kept = law * (rng.random(self.vocab_size) >= self._zero)
            law = kept if kept.sum() > 0 else law
            with np.errstate(divide="ignore"):
                self._known[ids] = torch.from_numpy(np.log(law / law.sum()))
        return self._known[ids]


class LetterSpeller:
    """Spells bytes letter by letter, with the drafter tokens of one byte."""

    def __init__(self, tokens: dict[bytes, tuple[int, ...]]) -> None:
        self._tokens = tokens

    def spell(self, data: bytes) -> tuple[int, ...] | None:
        if data in self._tokens:
            return self._tokens[data]
        letters = [self._tokens.get(data[i : i + 1]) for i in range(len(data))]
        return None if None in letters else tuple(t for letter in letters if letter for t in letter)

    def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
        return [self.spell(text) for text in texts]


@dataclass(frozen=True)
class Shape:
    """The two vocabularies of a world: bytes of each token, None for one without."""

    drafter: tuple[bytes | None, ...]
    target: tuple[bytes | None, ...]
    drafter_eos: int | None = None
    target_eos: int | None = None
    long: dict[bytes, tuple[int, ...]] = field(default_factory=dict)  # what over-long drafter tokens stand for


SHAPES = {
    # nested a / ab / aba; bba, whose inner node bb ends no token; a token without bytes; a duplicate of ab;
    # an end-of-text pair; a drafter token that nothing starts with
    "full": Shape((b"a", b"b", None, b"z"), (b"a", b"b", b"ab", b"bba", None, None, b"ab"), 2, 4),
    "nested": Shape((b"a", b"b", None), (b"a", b"ab", b"aba", b"abab", b"b", None), 2, 5),
    # no token "a": the node at depth one ends nothing
    "inner": Shape((b"a", b"b", None), (b"ab", b"aab", b"b", b"ba", None), 2, 4),
    "tiny": Shape((b"a", b"b"), (b"a", b"b", b"ab", b"ba")),
    # two target ids per spelling, and padding: an id past the tokenizer's end
    "duplicate": Shape((b"a", b"b"), (b"a", b"b", b"ab", b"ab", b"a", None)),
    # drafter tokens longer than any target token
    "long": Shape((b"a", b"b", b"aab", b"abb"), (b"a", b"b", b"ab", b"ba"), long={b"aab": (0, 2), b"abb": (2, 1)}),
    # the same, and a token that both starts no spelling and competes for a root symbol with an n-gram's first
    "long nested": Shape(
        (b"a", b"b", b"bab", b"aba"), (b"a", b"ab", b"b", b"bb"), long={b"bab": (2, 1), b"aba": (1, 0)}
    ),
}


def make_vocab(tokens: tuple[bytes | None, ...], eos: int | None, name: str) -> Vocab:
    special = {i: f"<{i}>" for i, data in enumerate(tokens) if data is None}
    return Vocab(
        tokens=tokens, size=len(tokens), bos=None, eos=() if eos is None else (eos,), special=special, fingerprint=name
    )


@dataclass
class World:
    """A drafter, a target and their table."""

    shape: Shape
    target: TableModel
    drafter: TableModel
    vocab: Vocab
    drafter_vocab: Vocab
    table: SpellingTable
    speller: LetterSpeller

    def engine(self, cache: NgramCache | None = None, **drafting: object) -> Engine:
        settings = Drafting(**drafting)  # type: ignore[arg-type]
        translator = Translator(self.table, self.vocab, self.drafter_vocab, self.speller)  # type: ignore[arg-type]
        cache = cache or NgramCache(self.table)
        pair = Pair(drafter=Drafter(self.drafter), translator=translator, cache=cache)
        return Engine(self.target, self.vocab.eos, pair, settings)


def make_world(name: str, seed: int, zero: float = 0.0) -> World:
    shape = SHAPES[name]
    target = make_vocab(shape.target, shape.target_eos, f"target {name}")
    drafter = make_vocab(shape.drafter, shape.drafter_eos, f"drafter {name}")
    letters = {data: (i,) for i, data in enumerate(shape.drafter) if data is not None and len(data) == 1}
    speller = LetterSpeller(letters)
    table = build_table(drafter, target, speller, LetterSpeller(shape.long))  # type: ignore[arg-type]
    models = (
        TableModel(len(shape.target), ("p", name, seed), zero),
        TableModel(len(shape.drafter), ("q", name, seed), zero),
    )
    return World(shape, *models, target, drafter, table, speller)


def random_cache(world: World, seed: int) -> NgramCache:
    """A frozen cache with a random half of the n-grams active."""
    rng = np.random.default_rng(seed)
    cache = NgramCache(world.table, seed="vocabulary", frozen=True)
    ngrams = np.diff(world.table.offsets) > 1
    cache._set_active(cache.active & (~ngrams | (rng.random(len(ngrams)) < 0.5)))
    return cache


# ---------------------------------------------------------------- enumeration


def enumerate_draws(run: Callable[[Callable[[Probs], int]], R]) -> Iterator[tuple[float, R]]:
    """Call `run` once for every sequence of choices it can make; yields the probability and result of each."""
    path: list[list[tuple[int, float]]] = []  # for each choice, the options still to take; the last one is current
    while True:
        position, probability = 0, 1.0

        def draw(weights: Probs) -> int:
            nonlocal position, probability
            if position == len(path):
                assert weights.min() >= 0
                total = weights.sum()
                path.append([(int(i), float(weights[i] / total)) for i in np.flatnonzero(weights)])
            option, chance = path[position][-1]
            position += 1
            probability *= chance
            return option

        result = run(draw)
        yield probability, result
        while path and len(path[-1]) == 1:
            path.pop()
        if not path:
            return
        path[-1].pop()


def round_law(
    engine: Engine, context: tuple[int, ...], sampling: Sampling, seen: Callable[[Round], None] | None = None
) -> Law:
    """The law of the tokens that one round emits after `context`."""
    law: Law = {}

    def run(draw: Callable[[Probs], int]) -> Round:
        return next(engine.rounds([PROMPT, *context], 100, sampling, draw))

    for probability, record in enumerate_draws(run):
        law[record.emitted] = law.get(record.emitted, 0.0) + probability
        if seen is not None:
            seen(record)
    return law


def first_tokens(round_of: Callable[[tuple[int, ...]], Law], count: int, eos: Sequence[int]) -> Law:
    """The joint law of the first `count` tokens, over as many rounds as that takes."""
    result: Law = {}
    todo: Law = {(): 1.0}
    while todo:
        context, mass = todo.popitem()
        for emitted, probability in round_of(context).items():
            tokens = context + emitted
            end = len(tokens) >= count or tokens[-1] in eos
            into, key = (result, tokens[:count]) if end else (todo, tokens)
            into[key] = into.get(key, 0.0) + mass * probability
    return result


def plain_law(world: World, sampling: Sampling) -> Callable[[tuple[int, ...]], Law]:
    """The target's own next-token law."""

    def next_token(context: tuple[int, ...]) -> Law:
        row = world.target.row((PROMPT, *context))
        if sampling.greedy:
            return {(int(row.argmax()),): 1.0}
        probs = torch.softmax(row / sampling.temperature, dim=-1).tolist()
        return {(token,): p for token, p in enumerate(probs) if p > 0}

    return next_token


def distance(a: Law, b: Law) -> float:
    """Total variation."""
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())


def deviation(
    world: World,
    engine: Engine,
    count: int,
    sampling: Sampling | None = None,
    seen: Callable[[Round], None] | None = None,
) -> float:
    """Total variation between the engine's and the target's joint law of the first `count` tokens."""
    sampling = sampling or Sampling(temperature=1.0)
    ours = first_tokens(lambda c: round_law(engine, c, sampling, seen), count, world.vocab.eos)
    assert abs(sum(ours.values()) - 1) < 1e-9
    return distance(ours, first_tokens(plain_law(world, sampling), count, world.vocab.eos))
