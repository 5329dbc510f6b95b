"""Proposals: how draft tokens become target tokens over the trie of spellings or as in the paper, and are verified.

exact         a walk through the trie of spellings, verified so that the target's distribution is kept (default)
intersection  the same with drafter tokens masked to those that are target tokens too
paper         Algorithm 1 with Eq. 2 of arXiv 2507.02659, which is not exact
counted       without a drafter: the target tokens that the counts say come next, kept while the target says the same
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from omnidraft.config import Drafting
from omnidraft.counts.counts import Counts
from omnidraft.counts.token_index import LONGEST
from omnidraft.decoding.batched_passes import Passes
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.draft_length.simple_policies import DraftLengthPolicy
from omnidraft.verification.paper import DirectMap, Proposal, merge, verify_paper
from omnidraft.verification.rejection_sampling import Outcome, verify_block, verify_greedy, verify_token
from omnidraft.verification.round import Draft
from omnidraft.verification.sampling import Sampler, TargetDistribution
from omnidraft.verification.trie_walk import STOP, Walk

Proposer = Callable[[AttachedDrafter, int, float, Sampler, DraftLengthPolicy], Passes[Draft]]
"""Drafts at most a number of tokens at a temperature, as far as the policy goes, and reads target tokens in them; the
`Draft` knows how to verify them."""


def make_proposer(attached: AttachedDrafter, eos: Collection[int], drafting: Drafting) -> Proposer | None:
    """The proposer of `drafting.mode`; None where it can propose nothing, for want of shared tokens."""
    if drafting.mode == "exact":
        return partial(propose, eos=eos, block=drafting.verification == "block")
    direct = DirectMap(attached.cache)
    if not direct.mapped.any():
        return None
    if drafting.mode == "paper":
        return partial(propose_as_in_paper, eos=eos, direct=direct)
    return partial(propose, eos=eos, block=False, allowed=direct.mapped)


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


# ---------------------------------------------------------------- exact, and intersection


def propose(
    attached: AttachedDrafter,
    length: int,
    temperature: float,
    draw: Sampler,
    policy: DraftLengthPolicy,
    *,
    eos: Collection[int],
    block: bool,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> Passes[Draft]:
    """Read the draft by a walk through the trie; with `allowed` (V_q,) other draft tokens are masked out."""
    walk, guess = Walk(attached.cache, eos), attached.translate()
    if not policy.begin(walk, 0.0 if guess is None else guess.chance):
        return Draft(no_draft_reason=policy.no_draft_reason)
    drafter = attached.drafter
    tokens, vectors = yield from drafter.draft(length, temperature, draw, walk.read, allowed, policy)
    walk.finish()
    return TrieDraft(
        tokens=tokens,
        vectors=vectors,
        proposals=walk.tokens,
        ended=walk.ended,
        counted=drafter.counted,
        passes=drafter.passes,
        read=drafter.read,
        no_draft_reason=None if tokens else policy.no_draft_reason,
        walk=walk,
        block=block,
    )


@dataclass(frozen=True, kw_only=True)
class TrieDraft(Draft):
    """A draft as a walk has read it; `block` accepts or rejects its symbols jointly."""

    walk: Walk
    block: bool

    @property
    def symbols(self) -> int:
        return len(self.walk.symbols)

    def verify(self, target: TargetDistribution, draw: Sampler, *, greedy: bool, lazy: bool) -> Outcome:
        if greedy:
            return verify_greedy(self.walk, target.best)
        verify = verify_block if self.block and not lazy else verify_token
        return verify(self.walk, self.vectors, target.probs, draw)

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


# ---------------------------------------------------------------- the paper's


def propose_as_in_paper(
    attached: AttachedDrafter,
    length: int,
    temperature: float,
    draw: Sampler,
    policy: DraftLengthPolicy,
    *,
    eos: Collection[int],
    direct: DirectMap,
) -> Passes[Draft]:
    """Merge the draft into the longest active n-grams once it is complete."""
    if not policy.begin(None):
        return Draft(no_draft_reason=policy.no_draft_reason)
    drafter = attached.drafter
    attached.translate()
    tokens, vectors = yield from drafter.draft(
        length, temperature, draw, lambda token: int(direct.target[token]) not in eos, direct.mapped, policy
    )
    merged = merge(tokens, attached.cache, direct)
    end = next((i + 1 for i, proposal in enumerate(merged) if proposal.token in eos), len(merged))
    return PaperDraft(
        tokens=tokens,
        vectors=vectors,
        proposals=[proposal.token for proposal in merged[:end]],
        ended=end > 0 and merged[end - 1].token in eos,
        passes=drafter.passes,
        read=drafter.read,
        no_draft_reason=None if tokens else policy.no_draft_reason,
        merged=merged[:end],
        direct=direct,
        eos=eos,
    )


@dataclass(frozen=True, kw_only=True)
class PaperDraft(Draft):
    """A draft whose tokens were merged into proposals, each of which counts as one symbol."""

    merged: Sequence[Proposal]
    direct: DirectMap
    eos: Collection[int]

    def verify(self, target: TargetDistribution, draw: Sampler, *, greedy: bool, lazy: bool) -> Outcome:
        if greedy:
            return super().verify(target, draw, greedy=greedy, lazy=lazy)
        drawn = (self.merged, self.tokens, self.vectors)
        emitted, accepted = verify_paper(*drawn, self.direct, target.probs, draw, self.eos)
        return Outcome(emitted, accepted, accepted, None)

    def tokens_in(self, symbols: int) -> int:
        return sum(proposal.length for proposal in self.merged[:symbols])
