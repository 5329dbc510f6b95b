"""The draft of a round as put to the target, and the record of the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from omnidraft.alignment.spelling_table import Probs
from omnidraft.verification.drawn import Outcome, verify_equal
from omnidraft.verification.sampling import Sampler, TargetDistribution
from omnidraft.verification.sparse_probs import SparseProbs


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
    counted: int = 0  # draft tokens drawn from the counts alone
    draft_passes: int = 0  # forward passes of the drafter
    draft_read: int = 0  # tokens fed to the drafter in these passes
    again: int = 0  # committed tokens that the target, a hybrid, read once more


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundTimes:
    """Seconds of a round, by what they are spent on; the first round of a request holds the prefill of both models."""

    draft_s: float = 0.0  # drafter passes and sampling, with the translation of the tokens since the last draft
    verify_s: float = 0.0  # the target's forward pass
    overhead_s: float = 0.0  # acceptance and commit
    policy_s: float = 0.0  # the draft-length policy since the record before; at first with the prompt's translation

    @property
    def total(self) -> float:
        return self.draft_s + self.verify_s + self.overhead_s + self.policy_s


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprobs:
    """An emitted token under the target's own distribution: at temperature 1, before penalties and processors."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most probable tokens and theirs, the most probable first

    @classmethod
    def of(cls, logits: torch.Tensor, tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, ...]:
        """Of tokens drawn at the first rows of these logits (T, V), each with the `top` most probable ones."""
        rows = torch.log_softmax(logits[: len(tokens)].float(), -1)
        logprobs = rows.gather(-1, torch.tensor([*tokens], device=rows.device)[:, None])[:, 0]
        best = rows.topk(min(top, rows.shape[-1]), -1)
        tops = [
            tuple(zip(*each, strict=True)) for each in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        rows_of_tokens = zip(tokens, logprobs.tolist(), tops, strict=True)
        return tuple(cls(token=token, logprob=logprob, top=most) for token, logprob, most in rows_of_tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Result of one round; tokens after the end of the answer are not counted, here and in `counts`."""

    emitted: tuple[int, ...]  # target tokens, cut at the end of the answer and at the length asked for
    draft: tuple[int, ...] = ()  # draft tokens
    proposals: tuple[int, ...] = ()  # target tokens put to the target
    finish: str | None = None  # "eos", "stop", "length" or "context" on the last round
    no_draft_reason: str | None = None  # a phrase, where the draft-length policy wanted no draft
    teacher: tuple[SparseProbs, ...] = ()  # target distributions at each emitted token, where they are asked for
    logprobs: tuple[TokenLogprobs, ...] = ()  # of each emitted token, where they are asked for
    counts: RoundCounts = RoundCounts()
    times: RoundTimes = RoundTimes()


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The draft of one round as it is put to the target: of the base class none, or target tokens of the counts alone.

    `symbols` counts the units that verification accepts or rejects: here whole proposals, each of one draft token.
    """

    tokens: Sequence[int] = ()
    vectors: Sequence[Probs] = ()  # (V_q,) for each token: the distribution it was drawn from
    proposals: Sequence[int] = ()  # target tokens
    ended: bool = False  # the last proposal ends the answer
    counted: int = 0  # draft tokens drawn from the counts alone
    passes: int = 0  # forward passes of the drafter
    read: int = 0  # tokens fed to it in these passes
    no_draft_reason: str | None = None

    @property
    def symbols(self) -> int:
        return len(self.proposals)

    def verify(self, target: TargetDistribution, draw: Sampler, *, greedy: bool, lazy: bool) -> Outcome:  # noqa: ARG002
        """Accept or reject the proposals, here none of which was drawn, and emit a token after them.

        `lazy` settles them one by one, for processors that keep state.
        """

        def next_token(place: int) -> int:
            return target.best(place) if greedy else draw(target.probs(place))

        return verify_equal(self.proposals, next_token, ended=self.ended)

    def symbols_in(self, proposals: int) -> int:
        """Symbols of the first `proposals` target tokens."""
        return proposals

    def tokens_in(self, symbols: int) -> int:
        """Draft tokens of which every symbol is among the first `symbols`."""
        return symbols

    def false_merge(self, outcome: Outcome) -> int | None:  # noqa: ARG002
        """The proposal whose merge was wrong: it went on where the target's token ended, or ended where it went on."""
        return None

    def cut(self, outcome: Outcome, count: int) -> tuple[Draft, Outcome]:
        """Return draft and outcome for an answer that ends with the first `count` of the emitted tokens."""
        if count == len(outcome.emitted):
            return self, outcome
        # the token after the accepted ones goes first: all that is kept was accepted
        symbols = min(outcome.symbols_accepted, self.symbols_in(count))
        kept = Outcome(outcome.emitted[:count], count, symbols, None)
        tokens = self.tokens[: self.tokens_in(kept.symbols_accepted)]
        return replace(self, tokens=tokens, proposals=self.proposals[:count]), kept
