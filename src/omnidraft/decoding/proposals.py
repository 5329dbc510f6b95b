"""Proposals: the draft as the walk through the trie of spellings reads it, and as the target is asked about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omnidraft.counts.counts import Counts
from omnidraft.counts.token_index import LONGEST
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.passes import Passes
from omnidraft.draft_length.simple_policies import DraftLengthPolicy
from omnidraft.verification.drawn import Outcome, verify_walk
from omnidraft.verification.round import Draft
from omnidraft.verification.sampling import Sampler, TargetDistribution
from omnidraft.verification.trie_walk import STOP, Walk

Proposer = Callable[[AttachedDrafter, int, float, Sampler, DraftLengthPolicy], Passes[Draft]]
"""Drafts at most a number of tokens at a temperature, as far as the policy goes, and reads target tokens in them; the
`Draft` knows how to verify them."""


def counted_draft(
    counts: Counts, ids: Sequence[int], room: int, policy: DraftLengthPolicy, eos: Collection[int]
) -> Draft:
    """The most frequent continuations of target tokens `ids`, `room` tokens at most, as far as `policy` goes."""
    tokens: list[int] = []
    guess = counts.guess(ids[-LONGEST:])
    if not policy.begin(None, 0.0 if guess is None else guess.chance) or guess is None:
        return Draft(no_draft_reason=policy.no_draft_reason)
    while guess is not None and len(tokens) < room and policy.should_use_counts(guess.chance):
        tokens.append(guess.best)
        if guess.best in eos:
            break
        guess = counts.guess([*ids[-LONGEST:], *tokens][-LONGEST:])
    return Draft(tokens=tokens, proposals=tokens, ended=bool(tokens) and tokens[-1] in eos, counted=len(tokens))


def propose(
    attached: AttachedDrafter,
    length: int,
    temperature: float,
    draw: Sampler,
    policy: DraftLengthPolicy,
    *,
    eos: Collection[int],
    allowed: npt.NDArray[np.bool_] | None = None,
    drawn: Callable[..., TrieDraft] | None = None,
) -> Passes[Draft]:
    """Read the drafter's best tokens by a walk through the trie; with `allowed` (V_q,) others are masked out.

    With `drawn`, the tokens are drawn, and it makes the draft of them.
    """
    walk, guess = Walk(attached.cache, eos), attached.translate()
    if not policy.begin(walk, 0.0 if guess is None else guess.chance):
        return Draft(no_draft_reason=policy.no_draft_reason)
    drafter = attached.drafter
    tokens, vectors = yield from drafter.draft(length, temperature, drawn and draw, walk.read, allowed, policy)
    walk.finish()
    return (drawn or TrieDraft)(
        tokens=tokens,
        vectors=vectors,
        proposals=walk.tokens,
        ended=walk.ended,
        counted=drafter.counted,
        passes=drafter.passes,
        read=drafter.read,
        no_draft_reason=None if tokens else policy.no_draft_reason,
        walk=walk,
    )


@dataclass(frozen=True, kw_only=True)
class TrieDraft(Draft):
    """A draft as a walk has read it."""

    walk: Walk

    @property
    def symbols(self) -> int:
        return len(self.walk.symbols)

    def verify(self, target: TargetDistribution, draw: Sampler, *, greedy: bool, lazy: bool) -> Outcome:  # noqa: ARG002
        return verify_walk(self.walk, target.best if greedy else lambda place: draw(target.probs(place)))

    def symbols_in(self, proposals: int) -> int:
        return sum(symbol.index < proposals for symbol in self.walk.symbols)

    def tokens_in(self, symbols: int) -> int:
        return self.walk.drafts_in(symbols)

    def false_merge(self, outcome: Outcome) -> int | None:
        symbol, walk = outcome.refused, self.walk
        if symbol is None or symbol.node == 0 or symbol.index >= len(walk.tokens):
            return None
        ended_early = symbol.symbol == STOP
        went_on = outcome.emitted[-1] == walk.cache.token_at(symbol.node)
        return walk.tokens[symbol.index] if ended_early or went_on else None
