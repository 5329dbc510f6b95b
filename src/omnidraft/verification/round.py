"""What a round drafts, and the record of what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from omnidraft.alignment.trie import Probs
from omnidraft.verification.exact import Outcome
from omnidraft.verification.paper import Proposal
from omnidraft.verification.sparse_probs import SparseProbs
from omnidraft.verification.walk import STOP, Walk

StopCheck = Callable[[Sequence[int]], int | None]
"""Told of the tokens a round would emit, in order and once: how many of them stay where the text ends there."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round did; times in seconds.

    Where the text ends inside a round, what comes after its end counts for nothing.
    """

    emitted: tuple[int, ...]  # target tokens, cut at the end of the text and at the length asked for
    draft: tuple[int, ...]  # draft tokens
    proposals: tuple[int, ...]  # target tokens put to the target
    accepted: int  # of the proposals
    symbols: int  # of the walk
    symbols_accepted: int
    ngrams_proposed: int
    ngrams_accepted: int
    false_merges: int  # the walk merged on where the target's token ended, or ended where it went on
    draft_s: float  # with what was said since the last draft, which is written for the drafter
    verify_s: float  # the target's forward pass
    translate_s: float  # all else: acceptance, n-gram cache, what the stop policy and the drafter's prompt take
    finish: str | None  # "eos", "stop", "length" or "context" on the last round
    draft_passes: int = 0  # of the drafter
    draft_read: int = 0  # tokens that these read
    draft_accepted: int = 0  # of the draft tokens, with all that was read from them
    idle: str | None = None  # why there is no draft, a phrase, where the stop policy wants none
    laws: tuple[SparseProbs, ...] = ()  # the target's at each emitted token, where they are asked for


@dataclass(slots=True)
class Draft:
    """The draft of one round as it is put to the target."""

    tokens: list[int] = field(default_factory=list)
    vectors: list[Probs] = field(default_factory=list)
    proposals: list[int] = field(default_factory=list)
    walk: Walk | None = None  # modes exact and intersection
    merged: list[Proposal] = field(default_factory=list)  # mode paper
    ended: bool = False  # the last proposal ends the text
    passes: int = 0  # of the drafter
    read: int = 0  # tokens that these read
    idle: str | None = None  # why there is none, if so

    @property
    def symbols(self) -> int:
        """Of the walk, or where there is none of the proposals."""
        return len(self.proposals) if self.walk is None else len(self.walk.symbols)


def shortened(draft: Draft, outcome: Outcome, count: int) -> tuple[Draft, Outcome]:
    """What a round drafted and what became of it where the text ends with the first `count` of its tokens."""
    walk, accepted = draft.walk, min(outcome.accepted, count)
    symbols = accepted
    if walk is not None:
        symbols = sum(symbol.index < count for symbol in walk.symbols[: outcome.symbols_accepted])
    outcome = Outcome(outcome.emitted[:count], accepted, symbols, None)
    kept = drafts_accepted(draft, outcome)
    proposals, merged = draft.proposals[:count], draft.merged[:count]
    return replace(draft, tokens=draft.tokens[:kept], proposals=proposals, merged=merged), outcome


def drafts_accepted(draft: Draft, outcome: Outcome) -> int:
    """How many draft tokens were accepted with all that was read from them."""
    if draft.walk is not None:
        return draft.walk.drafts_in(outcome.symbols_accepted)
    return sum(proposal.length for proposal in draft.merged[: outcome.accepted])


def false_merge(draft: Draft, outcome: Outcome) -> int | None:
    """The proposal whose merge was wrong: it went on where the target's token ended, or ended where it went on."""
    symbol, walk = outcome.refused, draft.walk
    if symbol is None or walk is None or symbol.node == 0 or symbol.index >= len(walk.tokens):
        return None
    ended_early = symbol.symbol == STOP
    went_on = outcome.emitted[-1] == walk.cache.token_at(symbol.node)
    return walk.tokens[symbol.index] if ended_early or went_on else None
