"""Training examples of an answer: the target's distributions, carried over to the drafter's tokens through the trie.

The exact losses get a distribution r at every drafter position, under which the walk accepts every draft token; the
paper's hybrid loss gets distributions at directly mapped tokens, and the sub-tokens of n-grams as labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.spelling_table import ROOT, Probs, SpellingTable
from omnidraft.distillation.losses import HybridLoss, TeacherDistributions, TokenLabels
from omnidraft.verification.sparse_probs import NONE, SparseProbs, best_symbol, masses_after, masses_below, root_masses

LONGEST = 2048  # drafter tokens of a training example: attention over more would take seconds


@dataclass(frozen=True, eq=False)
class Trace:
    """An answer with the target's distributions: copies of everything, so that it can go to another process."""

    prompt: tuple[int, ...]  # drafter tokens
    tokens: tuple[int, ...]  # target tokens of the answer
    written: tuple[tuple[int, ...], ...]  # each of them in drafter tokens
    distributions: tuple[SparseProbs, ...]  # of the target, at each of them


def trace_of(
    context: DrafterContext,
    prompt: Sequence[int],
    tokens: Sequence[int],
    distributions: Sequence[SparseProbs],
    longest: int,
) -> Trace:
    """The trace of an answer to a prompt of drafter tokens, cut to `longest` drafter tokens, half of them the prompt's.

    `distributions` are the target's at each of the target tokens of the answer.
    """
    room = min(LONGEST, longest)
    prompt = prompt[-(room // 2) :]
    written = [tuple(context.tokens([token])) for token in tokens]
    length, kept = len(prompt), 0
    while kept < len(tokens) and length + len(written[kept]) <= room:
        length += len(written[kept])
        kept += 1
    return Trace(tuple(prompt), tuple(tokens[:kept]), tuple(written[:kept]), tuple(distributions[:kept]))


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """One answer in drafter tokens, with its teacher; positions count from `first`; indices are int32."""

    ids: torch.Tensor  # (T,) prompt and answer
    first: int  # the first position with a term in the loss
    teacher: TeacherDistributions
    labels: TokenLabels  # of the hybrid loss; empty for the others

    @property
    def positions(self) -> int:
        """Number of terms in the loss."""
        return len(self.teacher.positions) + len(self.labels.positions)

    @property
    def nbytes(self) -> int:
        """Memory of the tensors, in bytes."""
        tensors = [self.ids, *vars(self.teacher).values(), *vars(self.labels).values()]
        return sum(tensor.nbytes for tensor in tensors)


def training_example(cache: NgramCache, trace: Trace, loss: str, variant: HybridLoss) -> TrainingExample:
    """The training example of an answer for a loss of `config.Learning`; `cache` has the active n-grams."""
    if loss == "hybrid":
        return hybrid_example(cache, trace, variant.ngram_weight)
    return exact_example(cache, trace)


def exact_example(cache: NgramCache, trace: Trace) -> TrainingExample:
    """The distribution r at every drafter position of an answer."""
    rows: list[_Row] = []
    for i, start in _starts(trace):
        rows += _first_row(cache, trace, i, start - 1)
        if cache.active[trace.tokens[i]]:
            rows += _inner_rows(cache, trace.distributions[i], trace.written[i], start)
    return _example(trace, rows)


def hybrid_example(cache: NgramCache, trace: Trace, weight: float | None) -> TrainingExample:
    """Distributions at directly mapped tokens, and n-grams as labels of weight λ.

    Where `weight` is None, λ is the target's probability of the n-gram's token.
    """
    table = cache.table
    rows: list[_Row] = []
    labels: list[tuple[int, int, float]] = []
    for i, start in _starts(trace):
        token, p = trace.tokens[i], trace.distributions[i]
        if table.node[token] < 0:
            continue
        if len(trace.written[i]) == 1:
            direct = _is_direct(table, p.tokens)
            symbols = table.flat[table.offsets[p.tokens[direct]]]
            rows.append(_Row(start - 1, NONE, symbols, p.probs[direct], 0.0, coarse=False))
        elif cache.active[token]:
            own = float(p.probs[p.tokens == token].sum()) if weight is None else weight
            labels += [(start - 1 + depth, symbol, own) for depth, symbol in enumerate(trace.written[i])]
    return _example(trace, rows, labels)


def shared_tokens(table: SpellingTable) -> npt.NDArray[np.bool_]:
    """The mask (V_q,) of drafter tokens that spell a whole target token: the vocabulary of direct mapping."""
    shared = np.zeros(table.drafter_size, np.bool_)
    direct = np.flatnonzero(_is_direct(table, np.arange(table.target_size, dtype=np.int32)))
    shared[table.flat[table.offsets[direct]]] = True
    return shared


def _is_direct(table: SpellingTable, tokens: Ints) -> npt.NDArray[np.bool_]:
    direct: npt.NDArray[np.bool_] = (table.node[tokens] >= 0) & (table.offsets[tokens + 1] - table.offsets[tokens] == 1)
    return direct


_NOTHING = np.empty(0, np.int32)


class _Row(NamedTuple):
    """One distribution of `TeacherDistributions`."""

    position: int
    best: int
    symbols: Ints
    probs: npt.NDArray[np.floating]
    rest: float
    coarse: bool


def _first_row(cache: NgramCache, trace: Trace, i: int, position: int) -> Iterator[_Row]:
    """The distribution where the i-th target token begins; none where the target's mass cannot be drafted."""
    p = trace.distributions[i]
    best = best_symbol(cache, p)
    symbols: Ints
    masses: Probs
    if i > 0 and trace.written[i - 1]:
        before = trace.tokens[i - 1]
        node = int(cache.table.node[before])
        if best != NONE and node >= 0 and cache.child(node, best) >= 0:  # the walk would continue the token before
            best = NONE
        symbols, masses = masses_after(cache, trace.distributions[i - 1], before, p)
    else:
        symbols, masses = root_masses(cache, p)
    total = float(masses.sum())
    if total > 0:
        lost = max(0.0, 1 - float(p.probs[cache.active[p.tokens]].sum(dtype=np.float64)))
        yield _Row(position, best, symbols, masses / total, lost, coarse=False)


def _inner_rows(cache: NgramCache, p: SparseProbs, written: Sequence[int], start: int) -> Iterator[_Row]:
    """The distributions inside a target token: its continuations, or the end of the token."""
    node = ROOT
    for depth, symbol in enumerate(written[:-1], start=1):
        node = cache.child(node, symbol)
        children = cache.table.symbol[cache.children(node)]
        below, inside, stop = masses_below(cache, p, node, depth)
        masses = np.zeros(len(children))  # a child of probability 0 is an entry, too: it does not mean the end
        masses[np.searchsorted(children, below)] = inside
        total = float(masses.sum()) + stop
        if total > 0:
            best = best_symbol(cache, p, node, depth)
            yield _Row(start + depth - 1, best, children, masses / total, stop / total, coarse=True)


def _example(trace: Trace, rows: Sequence[_Row], labels: Sequence[tuple[int, int, float]] = ()) -> TrainingExample:
    """A training example from its distributions, and labels as position, symbol and weight."""
    first = min([row.position for row in rows] + [position for position, _, _ in labels], default=0)
    lengths = torch.tensor([len(row.symbols) for row in rows], dtype=torch.int64)
    teacher = TeacherDistributions(
        positions=torch.tensor([row.position - first for row in rows], dtype=torch.int32),
        rows=torch.arange(len(rows), dtype=torch.int32).repeat_interleave(lengths),
        symbols=torch.from_numpy(np.concatenate([_NOTHING, *(row.symbols for row in rows)]).astype(np.int32)),
        probs=torch.from_numpy(np.concatenate([_NOTHING, *(row.probs for row in rows)]).astype(np.float32)),
        rest=torch.tensor([row.rest for row in rows], dtype=torch.float32),
        coarse=torch.tensor([row.coarse for row in rows], dtype=torch.bool),
        best=torch.tensor([row.best for row in rows], dtype=torch.int32),
    )
    token_labels = TokenLabels(
        positions=torch.tensor([position - first for position, _, _ in labels], dtype=torch.int32),
        symbols=torch.tensor([symbol for _, symbol, _ in labels], dtype=torch.int32),
        weights=torch.tensor([weight for _, _, weight in labels], dtype=torch.float32),
    )
    ids = [*trace.prompt, *(symbol for symbols in trace.written for symbol in symbols)]
    return TrainingExample(torch.tensor(ids, dtype=torch.int32), first, teacher, token_labels)


def _starts(trace: Trace) -> Iterator[tuple[int, int]]:
    """Indices of target tokens that have drafter tokens, with the position of the first of these."""
    start = len(trace.prompt)
    for i, symbols in enumerate(trace.written):
        if symbols and start > 0:
            yield i, start
        start += len(symbols)
