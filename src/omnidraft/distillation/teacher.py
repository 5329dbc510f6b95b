"""Training examples of an answer: the target's distributions, mapped to the drafter's tokens through the trie.

There is a distribution r at every drafter position, under which the walk accepts every draft token.
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
from omnidraft.alignment.spelling_table import ROOT, Probs
from omnidraft.distillation.losses import TeacherDistributions
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

    @property
    def positions(self) -> int:
        """Number of terms in the loss."""
        return len(self.teacher.positions)

    @property
    def nbytes(self) -> int:
        """Memory of the tensors, in bytes."""
        return sum(tensor.nbytes for tensor in (self.ids, *vars(self.teacher).values()))


def exact_example(cache: NgramCache, trace: Trace) -> TrainingExample:
    """The distribution r at every drafter position of an answer."""
    rows: list[TeacherRow] = []
    for i, start in starts(trace):
        rows += _first_row(cache, trace, i, start - 1)
        if cache.active[trace.tokens[i]]:
            rows += _inner_rows(cache, trace.distributions[i], trace.written[i], start)
    return example_of(trace, rows)


_NOTHING = np.empty(0, np.int32)


class TeacherRow(NamedTuple):
    """One distribution of `TeacherDistributions`."""

    position: int
    best: int
    symbols: Ints
    probs: npt.NDArray[np.floating]
    rest: float
    coarse: bool


def _first_row(cache: NgramCache, trace: Trace, i: int, position: int) -> Iterator[TeacherRow]:
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
        yield TeacherRow(position, best, symbols, masses / total, lost, coarse=False)


def _inner_rows(cache: NgramCache, p: SparseProbs, written: Sequence[int], start: int) -> Iterator[TeacherRow]:
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
            yield TeacherRow(start + depth - 1, best, children, masses / total, stop / total, coarse=True)


def example_of(trace: Trace, rows: Sequence[TeacherRow]) -> TrainingExample:
    """The training example of an answer with these distributions."""
    first = min((row.position for row in rows), default=0)
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
    ids = [*trace.prompt, *(symbol for symbols in trace.written for symbol in symbols)]
    return TrainingExample(torch.tensor(ids, dtype=torch.int32), first, teacher)


def starts(trace: Trace) -> Iterator[tuple[int, int]]:
    """Indices of target tokens that have drafter tokens, with the position of the first of these."""
    start = len(trace.prompt)
    for i, symbols in enumerate(trace.written):
        if symbols and start > 0:
            yield i, start
        start += len(symbols)
