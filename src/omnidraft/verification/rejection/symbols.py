"""Exact verification of a draft in another vocabulary.  Pure array code.

Each symbol of a walk has a distribution Q under the drafter and P under the target, both over the options of one trie
node.  Block verification accepts or rejects the symbols of a round jointly (Sun et al. 2024, Algorithm 2, a symbol
standing for a token); token verification settles them one by one (Leviathan et al. 2023).  Either way the emitted
tokens have exactly the target's distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from omnidraft.alignment.spelling_table import Probs
from omnidraft.verification.drawn import Outcome, rejected
from omnidraft.verification.rejection.residual import (
    correction,
    drafter_probability,
    draw_from,
    draw_inside,
    residual_at,
    target_probability,
    thinned,
)
from omnidraft.verification.sampling import Sampler
from omnidraft.verification.trie_walk import Walk

PrefixProbs = Callable[[int], Probs]
"""p after the first i proposals, (V_p,) float64 summing to 1; called lazily and in order."""


def _all_accepted(walk: Walk, p_after: PrefixProbs, draw: Sampler) -> Outcome:
    accepted = len(walk.tokens)
    emitted = list(walk.tokens)
    if not walk.ended:
        emitted.append(draw_inside(walk.cache, p_after(accepted), walk.node, draw))
    return Outcome(tuple(emitted), accepted, len(walk.symbols), None)


def verify_token(walk: Walk, qs: Sequence[Probs], p_after: PrefixProbs, draw: Sampler) -> Outcome:
    """Verify the symbols of a finished walk one by one: accept with min(1, P/Q), else draw from the residual.

    `qs` holds for each draft token the (V_q,) vector it was drawn from.  `p_after` is called for a prefix only once the
    prefix has been accepted, so that stateful processors see what plain decoding would show them.
    """
    cache = walk.cache
    for position, symbol in enumerate(walk.symbols):
        p = p_after(symbol.index)
        big_p, big_q = target_probability(cache, symbol, p), drafter_probability(cache, symbol, qs)
        accept = min(1.0, big_p / big_q) if big_q > 0 else float(big_p > 0)
        if accept < 1 and draw(np.array([accept, 1 - accept])) == 1:
            return rejected(walk, position, correction(cache, symbol, qs, p, draw))
    return _all_accepted(walk, p_after, draw)


def verify_block(walk: Walk, qs: Sequence[Probs], p_after: PrefixProbs, draw: Sampler) -> Outcome:
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
        big_p = target_probability(cache, symbol, p_after(symbol.index))
        big_q = drafter_probability(cache, symbol, qs)
        ratio = ratios[-1] * big_p / big_q if big_q > 0 else float(big_p > 0)
        ratios.append(1.0 if ratio > 1 - 1e-12 else ratio)
    accept = ratios[-1] if len(ratios) == len(symbols) + 1 else 0.0
    if accept == 1 or (accept > 0 and draw(np.array([accept, 1 - accept])) == 0):
        return _all_accepted(walk, p_after, draw)
    for position in reversed(range(min(len(ratios), len(symbols)))):
        ratio = ratios[position]
        if ratio == 0:
            continue
        symbol = symbols[position]
        if ratio == 1:
            return rejected(walk, position, correction(cache, symbol, qs, p_after(symbol.index), draw))
        bound = thinned(cache, symbol, ratio, draw)
        if bound == 0:
            continue
        p = p_after(symbol.index)
        residual = residual_at(cache, symbol, qs, p, ratio)
        cut = residual.total / (residual.total + 1 - ratio)
        cut = min(1.0, cut / bound)
        if cut == 1 or (cut > 0 and draw(np.array([cut, 1 - cut])) == 0):
            return rejected(walk, position, draw_from(cache, residual, p, draw))
    raise AssertionError("the first symbol has ratio 1, so the draft is cut there at the latest")
