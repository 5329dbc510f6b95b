"""Drafts without a drafter: the target tokens that the counts say come next, kept while the target says the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from omnidraft.counts.counts import Counts
from omnidraft.counts.token_index import LONGEST
from omnidraft.draft_length.policy import DraftLengthPolicy
from omnidraft.verification.rejection_sampling import Outcome, verify_equal
from omnidraft.verification.round import Draft
from omnidraft.verification.sampling import Sampler, TargetDistribution


@dataclass(frozen=True, kw_only=True)
class CountedDraft(Draft):
    """Proposals of which none was drawn: each is its own draft token and symbol."""

    eos: Collection[int]

    def verify(self, target: TargetDistribution, draw: Sampler, *, greedy: bool, lazy: bool) -> Outcome:  # noqa: ARG002
        def next_token(place: int) -> int:
            return target.best(place) if greedy else draw(target.probs(place))

        return verify_equal(self.proposals, next_token, self.eos)


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
    if not tokens:
        return Draft()
    return CountedDraft(tokens=tokens, proposals=tokens, ended=tokens[-1] in eos, counted=len(tokens), eos=eos)
