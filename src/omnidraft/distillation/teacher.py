"""What the target teaches: its laws, carried over to the drafter's tokens through the trie (design §6).

A lesson is one text as the drafter reads it, with what the target says about the tokens of its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.trie import ROOT, Probs, SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.verification.sparse_probs import (
    NONE,
    Floats,
    SparseProbs,
    best_symbol,
    masses_after,
    masses_below,
    root_masses,
)


@dataclass(frozen=True, eq=False)
class Arrays:
    """Laws over drafter tokens for N positions of a text, with E entries in all; `losses.Laws` as arrays."""

    positions: Ints  # (N,) the law is that of the token after this one
    rows: Ints  # (E,)
    symbols: Ints  # (E,)
    probs: Floats  # (E,)
    rest: Floats  # (N,) of p, where not coarse: what no draft can propose, which the law leaves out
    coarse: npt.NDArray[np.bool_]  # (N,)
    best: Ints  # (N,) the symbol that a greedy target goes on with, or losses.OTHER or NONE


@dataclass(frozen=True, eq=False)
class Tokens:
    """Single drafter tokens that follow N positions of a text, with weights; `losses.Labels` as arrays."""

    positions: Ints  # (N,)
    symbols: Ints  # (N,)
    weights: Floats  # (N,)


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """A text in drafter tokens and what the target says about it; no `labels`: for the marginal loss."""

    ids: Ints  # (T,)
    laws: Arrays
    labels: Tokens | None = None

    @property
    def positions(self) -> int:
        """Terms of the loss."""
        return len(self.laws.positions) + (0 if self.labels is None else len(self.labels.positions))

    @property
    def first(self) -> int:
        """The first position that has a law or a label."""
        given = [self.laws.positions] if self.labels is None else [self.laws.positions, self.labels.positions]
        return int(np.concatenate(given).min())

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        parts: list[Any] = [self.laws, *([] if self.labels is None else [self.labels])]
        return int(self.ids.nbytes + sum(getattr(part, f.name).nbytes for part in parts for f in fields(part)))


@dataclass(frozen=True, eq=False)
class Trace:
    """What a target said, as a trainer is told of it: a copy of everything, so that it can go to another process."""

    prompt: tuple[int, ...]  # drafter tokens
    tokens: tuple[int, ...]  # of the target
    written: tuple[tuple[int, ...], ...]  # each of them in drafter tokens
    laws: tuple[SparseProbs, ...]  # of the target at each of them


# ---------------------------------------------------------------- lessons


def lesson(cache: NgramCache, answer: Trace, learning: Learning, settings: TrainerSettings) -> TrainingExample:
    """What an answer teaches, for the loss that is learned by."""
    if learning.loss == "hybrid":
        return hybrid_lesson(
            cache, answer.prompt, answer.tokens, answer.written, answer.laws, weight=settings.ngram_weight
        )
    return marginal_lesson(cache, answer.prompt, answer.tokens, answer.written, answer.laws)


class _Rows:
    """Laws in the making."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._rest: list[float] = []
        self._coarse: list[bool] = []
        self._best: list[int] = []
        self._symbols: list[Ints] = []
        self._probs: list[Probs] = []

    def add(
        self,
        position: int,
        best: int,
        symbols: Ints,
        masses: Probs,
        rest: float = 0.0,
        *,
        coarse: bool = False,
        lost: float = 0.0,
    ) -> None:
        """A law in proportion to these masses; nothing where there are none."""
        total = float(masses.sum()) + rest
        if total > 0:
            self.add_as_is(position, best, symbols, masses / total, rest / total if coarse else lost, coarse=coarse)

    def add_as_is(
        self, position: int, best: int, symbols: Ints, probs: Probs, rest: float = 0.0, *, coarse: bool = False
    ) -> None:
        self._best.append(best)
        self._positions.append(position)
        self._rest.append(rest)
        self._coarse.append(coarse)
        self._symbols.append(symbols)
        self._probs.append(probs)

    def arrays(self) -> Arrays:
        lengths = [len(symbols) for symbols in self._symbols]
        return Arrays(
            positions=np.array(self._positions, np.int32),
            rows=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
            symbols=np.concatenate([np.empty(0, np.int32), *self._symbols]).astype(np.int32),
            probs=np.concatenate([np.empty(0), *self._probs]).astype(np.float32),
            rest=np.array(self._rest, np.float32),
            coarse=np.array(self._coarse, np.bool_),
            best=np.array(self._best, np.int32),
        )


def marginal_lesson(
    cache: NgramCache,
    prompt: Sequence[int],
    tokens: Sequence[int],
    written: Sequence[Sequence[int]],
    laws: Sequence[SparseProbs],
) -> TrainingExample:
    """The law r of every drafter position of an answer.

    `prompt` are drafter tokens; `tokens` the answer's target tokens, `written` each of them in drafter tokens, and
    `laws` the target's law at each.
    """
    rows = _Rows()
    for i, start in _starts(prompt, written):
        best = best_symbol(cache, laws[i])
        if i > 0 and written[i - 1]:
            before = int(cache.table.node[tokens[i - 1]])
            if best != NONE and before >= 0 and cache.child(before, best) >= 0:  # the walk would go on into that token
                best = NONE
            law = masses_after(cache, laws[i - 1], tokens[i - 1], laws[i])
        else:
            law = root_masses(cache, laws[i])
        lost = max(0.0, 1 - float(laws[i].probs[cache.active[laws[i].tokens]].sum(dtype=np.float64)))
        rows.add(start - 1, best, *law, lost=lost)
        if not cache.active[tokens[i]]:
            continue
        node = ROOT
        for depth, symbol in enumerate(written[i][:-1], start=1):
            node = cache.child(node, symbol)
            children = cache.table.symbol[cache.children(node)]
            below, inside, stop = masses_below(cache, laws[i], node, depth)
            masses = np.zeros(len(children))  # children that the target gives nothing are no STOP either
            masses[np.searchsorted(children, below)] = inside
            best = best_symbol(cache, laws[i], node, depth)
            rows.add(start + depth - 1, best, children, masses, stop, coarse=True)
    return TrainingExample(_text(prompt, written), rows.arrays())


def hybrid_lesson(
    cache: NgramCache,
    prompt: Sequence[int],
    tokens: Sequence[int],
    written: Sequence[Sequence[int]],
    laws: Sequence[SparseProbs],
    weight: float | None,
) -> TrainingExample:
    """What the paper's loss needs; `weight` is λ, None the probability that the target gave the token."""
    table = cache.table
    rows = _Rows()
    labels: list[tuple[int, int, float]] = []
    for i, start in _starts(prompt, written):
        token, law = tokens[i], laws[i]
        if table.node[token] < 0:
            continue
        if len(written[i]) == 1:
            direct = _is_direct(table, law.tokens)
            rows.add_as_is(start - 1, NONE, table.flat[table.offsets[law.tokens[direct]]], law.probs[direct])
        elif cache.active[token]:
            own = float(law.probs[law.tokens == token].sum()) if weight is None else weight
            labels += [(start - 1 + depth, symbol, own) for depth, symbol in enumerate(written[i])]
    at, following, shares = zip(*labels, strict=True) if labels else ((), (), ())
    made = Tokens(np.array(at, np.int32), np.array(following, np.int32), np.array(shares, np.float32))
    return TrainingExample(_text(prompt, written), rows.arrays(), made)


def shared_tokens(table: SpellingTable) -> npt.NDArray[np.bool_]:
    """Which drafter tokens (V_q,) are a target token of their own: the vocabulary of direct mapping."""
    shared = np.zeros(table.drafter_size, np.bool_)
    direct = np.flatnonzero(_is_direct(table, np.arange(table.target_size, dtype=np.int32)))
    shared[table.flat[table.offsets[direct]]] = True
    return shared


def _is_direct(table: SpellingTable, tokens: Ints) -> npt.NDArray[np.bool_]:
    direct: npt.NDArray[np.bool_] = (table.node[tokens] >= 0) & (table.offsets[tokens + 1] - table.offsets[tokens] == 1)
    return direct


def _starts(prompt: Sequence[int], written: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """The target tokens that the drafter sees, and where each begins in the drafter's text."""
    start = len(prompt)
    for i, symbols in enumerate(written):
        if symbols and start > 0:
            yield i, start
        start += len(symbols)


def _text(prompt: Sequence[int], written: Sequence[Sequence[int]]) -> Ints:
    return np.array([*prompt, *(symbol for symbols in written for symbol in symbols)], np.int32)
