"""Exact verification of a draft in another vocabulary: acceptance and residual.  Pure array code.

Each symbol of a walk has a law Q under the drafter and a law P under the target, both over the options of one trie
node.  Block verification accepts or rejects the symbols of a round jointly (Sun et al. 2024, Algorithm 2, a
symbol standing for a token); token verification settles them one by one (Leviathan et al. 2023).  Both leave the
emitted tokens with exactly the target's law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.trie import ROOT, Probs
from omnidraft.verification.sampling import Sampler
from omnidraft.verification.walk import DEAD, STOP, Symbol, Walk

LOOKS = 3  # at most, for a correction
LARGE = 32  # target tokens below a node from which on a residual is worth avoiding
Law = Callable[[int], Probs]
"""p after the first i proposals, (V_p,) float64 summing to 1; asked lazily and in order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What verification made of a walk."""

    emitted: tuple[int, ...]  # accepted proposals, then a correction, completion or bonus token
    accepted: int  # proposals accepted
    symbols_accepted: int
    refused: Symbol | None  # the first symbol not accepted


# ---------------------------------------------------------------- the two laws of a symbol


def _drafter_root(cache: NgramCache, q: Probs, after: int) -> Probs:
    """q (V_q,), or after an implied STOP at node `after`: everything but its active children, renormalized."""
    if after < 0:
        return q
    rest = q.copy()
    rest[cache.table.symbol[cache.children(after)]] = 0.0
    total = rest.sum(dtype=np.float64)
    return rest / total if total > 0 else rest


def drafter_probability(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs]) -> float:
    """Q of a symbol, from the recorded vectors that the draft tokens were drawn from."""
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
class _Residual:
    """norm(max(0, a·P − Q)) over the options of a node: its active children, then tokens that stand alone."""

    children: Ints  # nodes
    alone: Ints  # target tokens: the one that ends here, or at the root those outside the trie
    weights: Probs  # (children + alone,)

    @property
    def total(self) -> float:
        return float(self.weights.sum())


def _residual(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs], p: Probs, weight: float) -> _Residual:
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
    return _Residual(children, alone, excess)


def _inside(cache: NgramCache, p: Probs, node: int, draw: Sampler) -> int:
    """A token of p inside a node's interval; at the root, of the whole p."""
    if node == ROOT:
        return draw(p)
    tokens = cache.tokens(node)
    return int(tokens[draw(p[tokens])])


def _correct(cache: NgramCache, residual: _Residual, p: Probs, draw: Sampler) -> int:
    option = draw(residual.weights)
    if option < len(residual.children):
        return _inside(cache, p, int(residual.children[option]), draw)
    return int(residual.alone[option - len(residual.children)])


def _corrected(cache: NgramCache, symbol: Symbol, qs: Sequence[Probs], p: Probs, draw: Sampler) -> int:
    """A token of norm(max(0, P − Q)) at a refused symbol's node.

    Under a large node it is looked for first: a token of p whose symbol is kept with probability max(0, 1 − Q/P) has
    that law, and one look is all it takes on average over accepted and refused symbols.
    """
    if symbol.node == ROOT and symbol.position >= 0 and len(p) >= LARGE:
        for _ in range(LOOKS):
            token = draw(p)
            child = cache.root_child(token)
            if child < 0:
                return token
            other = replace(symbol, symbol=int(cache.table.symbol[child]), child=child)
            big_p, big_q = target_probability(cache, other, p), drafter_probability(cache, other, qs)
            keep = max(0.0, 1 - big_q / big_p) if big_p > 0 else 0.0
            if keep == 1 or (keep > 0 and draw(np.array([keep, 1 - keep])) == 0):
                return token
    return _correct(cache, _residual(cache, symbol, qs, p, 1.0), p, draw)


# ---------------------------------------------------------------- verification


def _all_accepted(walk: Walk, law: Law, draw: Sampler) -> Outcome:
    accepted = len(walk.tokens)
    emitted = list(walk.tokens)
    if not walk.ended:
        emitted.append(_inside(walk.cache, law(accepted), walk.node, draw))
    return Outcome(tuple(emitted), accepted, len(walk.symbols), None)


def _rejected(walk: Walk, position: int, token: int) -> Outcome:
    symbol = walk.symbols[position]
    return Outcome((*walk.tokens[: symbol.index], token), symbol.index, position, symbol)


def verify_token(walk: Walk, qs: Sequence[Probs], law: Law, draw: Sampler) -> Outcome:
    """Settle the symbols of a finished walk one by one: accept with min(1, P/Q), else draw from the residual.

    `qs` holds for each draft token the (V_q,) vector it was drawn from.  The law of a prefix is asked only once the
    prefix has been accepted, so that stateful processors see what plain decoding would show them.
    """
    cache = walk.cache
    for position, symbol in enumerate(walk.symbols):
        p = law(symbol.index)
        big_p, big_q = target_probability(cache, symbol, p), drafter_probability(cache, symbol, qs)
        accept = min(1.0, big_p / big_q) if big_q > 0 else float(big_p > 0)
        if accept < 1 and draw(np.array([accept, 1 - accept])) == 1:
            return _rejected(walk, position, _corrected(cache, symbol, qs, p, draw))
    return _all_accepted(walk, law, draw)


def verify_block(walk: Walk, qs: Sequence[Probs], law: Law, draw: Sampler) -> Outcome:
    """Accept or reject the symbols of a finished walk jointly; never fewer tokens than one by one.

    With a₀ = 1 and aᵢ₊₁ = min(1, aᵢ·Pᵢ/Qᵢ), the whole draft is accepted with probability aₙ; failing that, going
    back from its end, symbol i is where the draft is cut with probability hᵢ = m/(m + 1 − aᵢ), m being the mass of
    max(0, aᵢ·Pᵢ − Qᵢ), and the correction is drawn from that residual.
    """
    cache, symbols = walk.cache, walk.symbols
    ratios = [1.0]
    for symbol in symbols:
        if ratios[-1] == 0:
            break
        big_p = target_probability(cache, symbol, law(symbol.index))
        big_q = drafter_probability(cache, symbol, qs)
        ratio = ratios[-1] * big_p / big_q if big_q > 0 else float(big_p > 0)
        ratios.append(1.0 if ratio > 1 - 1e-12 else ratio)
    accept = ratios[-1] if len(ratios) == len(symbols) + 1 else 0.0
    if accept == 1 or (accept > 0 and draw(np.array([accept, 1 - accept])) == 0):
        return _all_accepted(walk, law, draw)
    for position in reversed(range(min(len(ratios), len(symbols)))):
        ratio = ratios[position]
        if ratio == 0:
            continue
        symbol = symbols[position]
        if ratio == 1:
            return _rejected(walk, position, _corrected(cache, symbol, qs, law(symbol.index), draw))
        # m is at most aᵢ, and so is hᵢ: with probability 1 − aᵢ nothing is cut here, and no residual is needed
        lazy = int(cache.table.hi[symbol.node] - cache.table.lo[symbol.node]) >= LARGE
        if lazy and draw(np.array([ratio, 1 - ratio])) == 1:
            continue
        p = law(symbol.index)
        residual = _residual(cache, symbol, qs, p, ratio)
        cut = residual.total / (residual.total + 1 - ratio)
        if lazy:
            cut = min(1.0, cut / ratio)
        if cut == 1 or (cut > 0 and draw(np.array([cut, 1 - cut])) == 0):
            return _rejected(walk, position, _correct(cache, residual, p, draw))
    raise AssertionError("the first symbol has ratio 1, so the draft is cut there at the latest")


def verify_greedy(walk: Walk, best: Callable[[int], int]) -> Outcome:
    """The same with a one-hot p: proposals are accepted while they are the target's own greedy tokens.

    `best(i)` is the greedy token after i proposals, asked lazily and in order.
    """
    accepted = 0
    while accepted < len(walk.tokens):
        token = best(accepted)
        if token != walk.tokens[accepted]:
            return _rejected(walk, _first_refused(walk, accepted, token), token)
        accepted += 1
    if walk.ended:
        return Outcome(tuple(walk.tokens), accepted, len(walk.symbols), None)
    token = best(accepted)
    refused = _first_refused(walk, accepted, token)
    if refused < len(walk.symbols):
        return _rejected(walk, refused, token)
    return Outcome((*walk.tokens, token), accepted, refused, None)


def _first_refused(walk: Walk, index: int, token: int) -> int:
    """Position of the first symbol of target token `index` that is not on the way to `token`."""
    for position, symbol in enumerate(walk.symbols):
        if symbol.index < index:
            continue
        if symbol.child >= 0 and token in walk.cache.tokens(symbol.child):
            continue
        if symbol.symbol == STOP and token == walk.cache.token_at(symbol.node):
            continue
        return position
    return len(walk.symbols)
