"""The target's laws, and what they say about drafter tokens: carried over through the trie (design §6)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.trie import ROOT, Probs

SHARE = 0.999  # of the probability is kept, if so many tokens suffice
MOST = 512  # tokens of a law
OTHER, NONE = -1, -2  # in place of a drafter token: all without an entry, and not one
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SparseProbs:
    """The likely tokens of a law of the target."""

    tokens: Ints  # (K,)
    probs: Floats  # (K,)


def sparse(p: Probs) -> SparseProbs:
    """Keep the tokens of p (V_p,) that hold SHARE of it, and no more than MOST; without sorting the vocabulary."""
    least = 1e-3
    while True:
        tokens = np.flatnonzero(p > least)
        if p[tokens].sum(dtype=np.float64) >= SHARE or len(tokens) >= MOST or least < 1e-9:
            break
        least /= 8
    if len(tokens) > MOST:
        tokens = tokens[np.argpartition(p[tokens], -MOST)[-MOST:]]
    return SparseProbs(tokens.astype(np.int32), p[tokens].astype(np.float32))


def root_law(cache: NgramCache, law: SparseProbs) -> tuple[Ints, Probs]:
    """The drafter tokens that begin the target's next token, ascending, and the mass of p under each."""
    active = cache.active[law.tokens]
    begins = cache.table.flat[cache.table.offsets[law.tokens[active]]]
    return _grouped(begins, law.probs[active])


def law_below(cache: NgramCache, law: SparseProbs, node: int, depth: int) -> tuple[Ints, Probs, float]:
    """The symbols after a node `depth` symbols deep, the mass of p under each, and that of the token that ends here."""
    table = cache.table
    ranks = table.lo[table.node[law.tokens]]
    under = cache.active[law.tokens] & (ranks >= table.lo[node]) & (ranks < table.hi[node])
    tokens, probs = law.tokens[under], law.probs[under]
    ends = table.node[tokens] == node
    symbols, masses = _grouped(table.flat[table.offsets[tokens[~ends]] + depth], probs[~ends])
    return symbols, masses, float(probs[ends].sum(dtype=np.float64))


def law_after(cache: NgramCache, before: SparseProbs, token: int, law: SparseProbs) -> tuple[Ints, Probs]:
    """r of the drafter token after target token `token`, of law `before`; `law` is that of the next target token.

    The walk goes on below the node where the token ends as `before` says; the rest is shared out as `law` says
    among the drafter tokens that would not.
    """
    node = int(cache.table.node[token])
    symbols, masses = root_law(cache, law)
    if node < 0 or not cache.active[token] or cache.leaf(node):
        return symbols, masses
    below, inside, stop = law_below(cache, before, node, len(cache.table.spelling(token)))
    others = ~_among(symbols, cache.table.symbol[cache.children(node)])
    symbols, masses = symbols[others], masses[others]
    total, rest = inside.sum() + stop, masses.sum()
    if not total > 0:  # not among what was kept of `before`
        return symbols, masses
    scale = stop / rest if rest > 0 else 0.0
    return np.concatenate([below, symbols]), np.concatenate([inside, masses * scale])


def best_symbol(cache: NgramCache, law: SparseProbs, node: int = ROOT, depth: int = 0) -> int:
    """The symbol that a greedy target goes on with after a node `depth` symbols deep.

    OTHER where its token ends there, NONE where it has no token below.
    """
    table = cache.table
    nodes = table.node[law.tokens]
    ranks = table.lo[nodes]
    below = nodes >= 0
    below &= (ranks >= table.lo[node]) & (ranks < table.hi[node])
    # of a node's tokens one is certain to come; at the root the best may be one that no draft can propose
    known = np.flatnonzero(below) if node != ROOT else np.arange(len(nodes))
    if not len(known):
        return NONE
    best = known[law.probs[known].argmax()]
    if not below[best] or not cache.active[law.tokens[best]]:
        return NONE
    token = int(law.tokens[best])
    return OTHER if table.node[token] == node else int(table.flat[table.offsets[token] + depth])


def _among(symbols: Ints, known: Ints) -> npt.NDArray[np.bool_]:
    """Which symbols are in `known`, which is ascending and not empty; numpy's own sorts both."""
    found: npt.NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, symbols), len(known) - 1)] == symbols
    return found


def _grouped(symbols: Ints, probs: Floats) -> tuple[Ints, Probs]:
    distinct, places = np.unique(symbols, return_inverse=True)
    masses: npt.NDArray[np.float64] = np.bincount(places, weights=probs, minlength=len(distinct)).astype(np.float64)
    return distinct, masses
