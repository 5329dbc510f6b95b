"""Drafts that are drawn, and verified by rejection sampling: for comparison with the default.

exact         `verification` "block" or "token": a walk through the trie of spellings, as by default
intersection  drafter tokens masked to those that are target tokens too
paper         Algorithm 1 with Eq. 2 of arXiv 2507.02659, which is not exact
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from omnidraft.config import Drafting
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.passes import Passes
from omnidraft.decoding.proposals import Proposer, TrieDraft, propose
from omnidraft.draft_length.simple_policies import DraftLengthPolicy
from omnidraft.verification.drawn import Outcome
from omnidraft.verification.rejection.paper import DirectMap, Proposal, merge, verify_paper
from omnidraft.verification.rejection.symbols import verify_block, verify_token
from omnidraft.verification.round import Draft
from omnidraft.verification.sampling import Sampler, TargetDistribution


def make_proposer(attached: AttachedDrafter, eos: Collection[int], drafting: Drafting) -> Proposer | None:
    """The proposer of `drafting.mode`; None where it can propose nothing, for want of shared tokens."""
    if drafting.mode == "exact":
        return partial(propose, eos=eos, drawn=partial(RejectionDraft, block=drafting.verification == "block"))
    direct = DirectMap(attached.cache)
    if not direct.mapped.any():
        return None
    if drafting.mode == "paper":
        return partial(propose_as_in_paper, eos=eos, direct=direct)
    return partial(propose, eos=eos, allowed=direct.mapped, drawn=partial(RejectionDraft, block=False))


@dataclass(frozen=True, kw_only=True)
class RejectionDraft(TrieDraft):
    """A draft whose tokens were drawn; `block` accepts or rejects its symbols jointly."""

    block: bool

    def verify(self, target: TargetDistribution, draw: Sampler, *, greedy: bool, lazy: bool) -> Outcome:
        if greedy:
            return super().verify(target, draw, greedy=greedy, lazy=lazy)
        verify = verify_block if self.block and not lazy else verify_token
        return verify(self.walk, self.vectors, target.probs, draw)


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
