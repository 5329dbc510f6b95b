"""Verification by equality: a proposal is kept while it is the token that the target gives there.

The target's token is its greedy one, or is drawn from its distribution by a random number that is a function of seed
and place alone.  So drafts decide nothing but the time: greedy or sampled, the text is the same with any draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omnidraft.verification.trie_walk import STOP, Symbol, Walk

NextToken = Callable[[int], int]
"""The target's token after the first i proposals; called once for each token that is emitted, in order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of verifying a draft."""

    emitted: tuple[int, ...]  # accepted proposals, then a correction, completion or bonus token
    accepted: int  # proposals accepted
    symbols_accepted: int
    refused: Symbol | None  # the first symbol not accepted


def verify_equal(proposals: Sequence[int], next_token: NextToken, *, ended: bool) -> Outcome:
    """Keep proposals while they are the target's tokens; `ended` says that the last one ends the text."""
    emitted, accepted = [next_token(0)], 0
    for token in proposals:
        if emitted[-1] != token:
            break
        accepted += 1
        if accepted == len(proposals) and ended:
            break
        emitted.append(next_token(accepted))
    return Outcome(tuple(emitted), accepted, accepted, None)


def verify_walk(walk: Walk, next_token: NextToken) -> Outcome:
    """Keep the proposals of a finished walk while they are the target's tokens, and name the first symbol refused."""
    accepted = 0
    while accepted < len(walk.tokens):
        token = next_token(accepted)
        if token != walk.tokens[accepted]:
            return rejected(walk, _first_refused(walk, accepted, token), token)
        accepted += 1
    if walk.ended:
        return Outcome(tuple(walk.tokens), accepted, len(walk.symbols), None)
    token = next_token(accepted)
    refused = _first_refused(walk, accepted, token)
    if refused < len(walk.symbols):
        return rejected(walk, refused, token)
    return Outcome((*walk.tokens, token), accepted, refused, None)


def rejected(walk: Walk, position: int, token: int) -> Outcome:
    """The outcome of a walk whose symbol at a position is refused; `token` stands in its place."""
    symbol = walk.symbols[position]
    return Outcome((*walk.tokens[: symbol.index], token), symbol.index, position, symbol)


def _first_refused(walk: Walk, index: int, token: int) -> int:
    """Position of the first symbol of target token `index` that does not lead to `token`."""
    for position, symbol in enumerate(walk.symbols):
        if symbol.index < index:
            continue
        if symbol.child >= 0 and token in walk.cache.tokens(symbol.child):
            continue
        if symbol.symbol == STOP and token == walk.cache.token_at(symbol.node):
            continue
        return position
    return len(walk.symbols)
