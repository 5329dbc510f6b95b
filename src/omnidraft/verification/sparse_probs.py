"""Sparse next-token distributions of the target, and their masses on drafter tokens by the trie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.spelling_table import ROOT, Probs

SHARE = 0.999  # of the probability is kept, in at most MOST tokens
MOST = 512
OTHER, NONE = -1, -2  # in place of a drafter token: any without an entry of its own, and none at all
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SparseProbs:
    """The likely tokens of a distribution of the target."""

    tokens: Ints  # (K,)
    probs: Floats  # (K,)


def sparse(p: Probs) -> SparseProbs:
    """Keep the likeliest tokens of p (V_p,) that hold SHARE of it, at most MOST, without sorting the vocabulary."""
    least = 1e-3
    while True:
        tokens = np.flatnonzero(p > least)
        if p[tokens].sum(dtype=np.float64) >= SHARE or len(tokens) >= MOST or least < 1e-9:
            break
        least /= 8
    if len(tokens) > MOST:
        tokens = tokens[np.argpartition(p[tokens], -MOST)[-MOST:]]
    return SparseProbs(tokens.astype(np.int32), p[tokens].astype(np.float32))


def root_masses(cache: NgramCache, p: SparseProbs) -> tuple[Ints, Probs]:
    """Return the drafter tokens that begin the target's next token, ascending, and the mass of p under each."""
    active = cache.active[p.tokens]
    begins = cache.table.flat[cache.table.offsets[p.tokens[active]]]
    return _grouped(begins, p.probs[active])


def masses_below(cache: NgramCache, p: SparseProbs, node: int, depth: int) -> tuple[Ints, Probs, float]:
    """Return the symbols after a node `depth` symbols deep, the mass of p under each, and of the token ending there."""
    table = cache.table
    ranks = table.lo[table.node[p.tokens]]
    under = cache.active[p.tokens] & (ranks >= table.lo[node]) & (ranks < table.hi[node])
    tokens, probs = p.tokens[under], p.probs[under]
    ends = table.node[tokens] == node
    symbols, masses = _grouped(table.flat[table.offsets[tokens[~ends]] + depth], probs[~ends])
    return symbols, masses, float(probs[ends].sum(dtype=np.float64))


def masses_after(cache: NgramCache, before: SparseProbs, token: int, p: SparseProbs) -> tuple[Ints, Probs]:
    """Return the drafter tokens that may follow target token `token` and r, the mass of the teacher on each.

    `before` is the distribution that `token` was drawn from, `p` that of the next target token.  The drafter tokens
    that continue the spelling of `token` have their mass under `before`; the rest is shared by the others as under p.
    """
    node = int(cache.table.node[token])
    symbols, masses = root_masses(cache, p)
    if node < 0 or not cache.active[token] or cache.leaf(node):
        return symbols, masses
    below, inside, stop = masses_below(cache, before, node, len(cache.table.spelling(token)))
    others = ~_among(symbols, cache.table.symbol[cache.children(node)])
    symbols, masses = symbols[others], masses[others]
    total, rest = inside.sum() + stop, masses.sum()
    if not total > 0:  # no kept token of `before` is below the node
        return symbols, masses
    scale = stop / rest if rest > 0 else 0.0
    return np.concatenate([below, symbols]), np.concatenate([inside, masses * scale])


def best_symbol(cache: NgramCache, p: SparseProbs, node: int = ROOT, depth: int = 0) -> int:
    """Return the next symbol of a greedy target after a node `depth` symbols deep.

    OTHER where its token ends there, NONE where it has no token below the node.
    """
    table = cache.table
    nodes = table.node[p.tokens]
    ranks = table.lo[nodes]
    below = nodes >= 0
    below &= (ranks >= table.lo[node]) & (ranks < table.hi[node])
    # inside a node one of its tokens is certain to come; at the root the best may be one that no draft can propose
    known = np.flatnonzero(below) if node != ROOT else np.arange(len(nodes))
    if not len(known):
        return NONE
    best = known[p.probs[known].argmax()]
    if not below[best] or not cache.active[p.tokens[best]]:
        return NONE
    token = int(p.tokens[best])
    return OTHER if table.node[token] == node else int(table.flat[table.offsets[token] + depth])


def _among(symbols: Ints, known: Ints) -> npt.NDArray[np.bool_]:
    """Mask of the symbols in `known` (ascending, not empty); takes a quarter of the time of numpy.isin."""
    hits: npt.NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, symbols), len(known) - 1)] == symbols
    return hits


def _grouped(symbols: Ints, probs: Floats) -> tuple[Ints, Probs]:
    distinct, places = np.unique(symbols, return_inverse=True)
    masses: npt.NDArray[np.float64] = np.bincount(places, weights=probs, minlength=len(distinct)).astype(np.float64)
    return distinct, masses
