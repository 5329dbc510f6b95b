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


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundCounts:
    """Counts of one round: acceptance by proposal, by symbol of the walk and by draft token, and drafter passes."""

    accepted: int = 0  # proposals
    symbols: int = 0  # of the walk
    symbols_accepted: int = 0
    ngrams_proposed: int = 0
    ngrams_accepted: int = 0
    false_merges: int = 0  # the walk merged on where the target's token ended, or ended where it went on
    draft_accepted: int = 0  # draft tokens accepted with every symbol that was read from them
    draft_passes: int = 0  # forward passes of the drafter
    draft_read: int = 0  # tokens fed to the drafter in these passes


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Seconds of one round, by part; the first round of a request holds the prefill of both models."""

    draft_s: float = 0.0  # drafter passes and sampling, with the translation of the tokens since the last draft
    verify_s: float = 0.0  # the target's forward pass
    overhead_s: float = 0.0  # acceptance and commit
    policy_s: float = 0.0  # the draft-length policy since the record before; at first with the prompt's translation

    @property
    def total(self) -> float:
        return self.draft_s + self.verify_s + self.overhead_s + self.policy_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Result of one round; tokens after the end of the answer count for nothing, here and in `counts`."""

    emitted: tuple[int, ...]  # target tokens, cut at the end of the answer and at the length asked for
    draft: tuple[int, ...] = ()  # draft tokens
    proposals: tuple[int, ...] = ()  # target tokens put to the target
    finish: str | None = None  # "eos", "stop", "length" or "context" on the last round
    no_draft_reason: str | None = None  # a phrase, where the draft-length policy wanted no draft
    teacher: tuple[SparseProbs, ...] = ()  # target distributions at each emitted token, where they are asked for
    counts: RoundCounts = RoundCounts()
    times: RoundTimes = RoundTimes()


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
    no_draft_reason: str | None = None

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
