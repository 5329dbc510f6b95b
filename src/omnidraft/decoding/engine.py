"""The decoding loop, on token ids: draft, verify, commit; one frozen record per round.

A round costs one forward pass of the target: the last token of the round before rides along with the proposals.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.translator import Translator
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.policies import make_policy
from omnidraft.draft_length.policy import DraftLengthPolicy, Fixed
from omnidraft.errors import ConfigError, PromptError
from omnidraft.models.language_model import LanguageModel, check_ids
from omnidraft.verification.exact import Outcome, verify_block, verify_greedy, verify_token
from omnidraft.verification.paper import DirectMap, merge, verify_paper
from omnidraft.verification.round import (
    Draft,
    Round,
    RoundCounts,
    RoundTimes,
    StopCheck,
    drafts_accepted,
    false_merge,
    shortened,
)
from omnidraft.verification.sampling import Processing, Processor, Sampler, TargetDistribution, softmax
from omnidraft.verification.sparse_probs import SparseProbs, sparse
from omnidraft.verification.walk import Walk

if TYPE_CHECKING:
    import torch

__all__ = ["AttachedDrafter", "Engine"]


@dataclass(frozen=True, kw_only=True)
class AttachedDrafter:
    """A drafter made ready for one target: how texts are carried over, and which n-grams are active."""

    drafter: Drafter
    translator: Translator
    cache: NgramCache
    head: Head = field(default_factory=Head)


class Engine:
    """Decodes with a target model, and with a drafter where there is one.

    `eos` are the target's token ids that end a text.  Without a `pair`, or with `draft_length` 0, the same loop is
    plain decoding.
    """

    def __init__(
        self,
        target: LanguageModel,
        eos: Sequence[int],
        pair: AttachedDrafter | None = None,
        drafting: Drafting | None = None,
        policy: DraftLengthPolicy | None = None,
    ) -> None:
        self.target = target
        self.eos = frozenset(eos)
        self.pair = pair
        self.drafting = drafting or Drafting(draft_length=0)
        self.policy: DraftLengthPolicy = policy or (Fixed() if pair is None else make_policy(self.drafting, pair.head))
        self._unread: list[int] = []  # committed tokens that are not in the drafter's text yet
        self.teacher_temperature: float | None = None  # where one is set, records hold the target's laws at it
        if pair is None and self.drafting.longest > 0:
            raise ConfigError(
                f"draft_length is {self.drafting.longest} without a drafter: give one, or use draft_length=0"
            )
        direct = self.drafting.mode in ("intersection", "paper")
        self._direct = DirectMap(pair.cache) if pair and direct else None
        # a drafter token may stand for several target tokens; a draft must fit the context whatever is drawn
        self._longest = 1
        if pair is not None:
            offsets = pair.cache.table.long_offsets
            self._longest = int((offsets[1:] - offsets[:-1]).max(initial=1))

    def rounds(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        draw: Sampler,
        processors: Sequence[Processor] = (),
        halt: StopCheck | None = None,
    ) -> Generator[Round]:
        """Decode up to `max_new_tokens` after a prompt of target tokens, a record at a time.

        `processors` are applied to the logits after those that `sampling` asks for.  They may keep state: with
        any given, symbols are settled one by one, so that each sees only ids that stay.  `halt` may end the text.
        Raises PromptError for an empty or over-long prompt or foreign ids, NumericsError for unusable logits.
        """
        self.check(prompt)
        processing = Processing.of(sampling, processors)
        verification = "token" if processors else self.drafting.verification
        ids = list(prompt)
        end = len(ids) + max_new_tokens
        self.target.crop(0)
        began = time.perf_counter()
        if self.pair is not None:
            text = self.pair.translator.prompt(ids)
            self.pair.drafter.start(text)
            self._unread = []
            self.policy.open(text, max_new_tokens)
        policy_s = time.perf_counter() - began
        while max_new_tokens > 0:
            record = self._round(ids, end, sampling, processing, verification, draw, halt, policy_s)
            ids += record.emitted
            began = time.perf_counter()
            self.policy.learn(record)
            policy_s = time.perf_counter() - began
            yield record
            if record.finish is not None:
                return

    def release(self) -> None:
        """Let go of what both models hold of a text."""
        self.target.crop(0)
        self._unread = []
        if self.pair is not None:
            self.pair.drafter.start(())

    def check(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt that is empty, or that the target has no rows or no room for."""
        if not prompt:
            raise PromptError("the prompt is empty: give at least one token")
        if len(prompt) > self.target.context:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens; the target's context holds {self.target.context}: shorten it"
            )
        check_ids(prompt, self.target.vocab_size)

    # ------------------------------------------------------------ one round

    def _round(
        self,
        ids: list[int],
        end: int,
        sampling: Sampling,
        processing: Processing,
        verification: str,
        draw: Sampler,
        halt: StopCheck | None,
        policy_s: float,
    ) -> Round:
        began = time.perf_counter()
        draft = self._propose(self._draft_length(ids, end), sampling, draw)
        drafted = time.perf_counter()

        # one target forward: the ids it has not seen yet, and the proposals (nothing follows an end of text)
        proposals, reason = draft.proposals, None if draft.tokens else draft.no_draft_reason
        fed = proposals[:-1] if draft.ended else proposals
        logits = self.target.forward(ids[self.target.length :] + fed, keep=len(fed) + 1)
        verified = time.perf_counter()

        law = TargetDistribution(logits, ids, fed, processing)
        outcome = self._verify(draft, law, sampling, verification, draw)
        emitted, finish = self._cut(outcome.emitted, len(ids), end, halt)
        symbols = draft.symbols
        if len(emitted) < len(outcome.emitted):
            draft, outcome = shortened(draft, outcome, len(emitted))
            symbols = outcome.symbols_accepted  # what is kept of proposals was accepted
        self.target.crop(len(ids) + min(outcome.accepted, len(fed)))
        failed = self._commit(draft, outcome, emitted)
        teacher = self._teacher(logits, len(emitted))
        done = time.perf_counter()
        return Round(
            emitted=emitted,
            draft=tuple(draft.tokens),
            proposals=tuple(draft.proposals),
            finish=finish,
            no_draft_reason=reason,
            teacher=teacher,
            counts=RoundCounts(
                accepted=outcome.accepted,
                symbols=symbols,
                symbols_accepted=outcome.symbols_accepted,
                ngrams_proposed=self._ngrams(draft.proposals),
                ngrams_accepted=self._ngrams(proposals[: outcome.accepted]),
                false_merges=int(failed is not None),
                draft_accepted=drafts_accepted(draft, outcome),
                draft_passes=draft.passes,
                draft_read=draft.read,
            ),
            times=RoundTimes(
                draft_s=drafted - began, verify_s=verified - drafted, overhead_s=done - verified, policy_s=policy_s
            ),
        )

    def _teacher(self, logits: torch.Tensor, count: int) -> tuple[SparseProbs, ...]:
        """The target's own laws at the first `count` rows, whatever the text is sampled with."""
        if self.teacher_temperature is None:
            return ()
        return tuple(map(sparse, softmax(logits[:count] / self.teacher_temperature)))

    def _draft_length(self, ids: Sequence[int], end: int) -> int:
        """How many tokens to draft: no more than could be emitted, none where the context may run out."""
        if self.pair is None or (self._direct is not None and not self._direct.mapped.any()):
            return 0
        length = min(self.drafting.longest, end - len(ids) - 1, self.pair.drafter.model.context // 2)
        return max(0, min(length, (self.target.context - len(ids)) // self._longest))

    def _propose(self, length: int, sampling: Sampling, draw: Sampler) -> Draft:
        if self.pair is None or length <= 0:
            return Draft()
        cache, drafter, policy = self.pair.cache, self.pair.drafter, self.policy
        walk = Walk(cache, self.eos)
        if not policy.begin(walk if self.drafting.mode != "paper" else None):
            return Draft(no_draft_reason=policy.no_draft_reason)
        if self._unread:
            drafter.extend(*self.pair.translator.after(drafter.text, drafter.begun, self._unread))
            self._unread = []
        own = self.drafting.drafter_temperature
        temperature = sampling.temperature if own is None else own
        if self.drafting.mode == "paper" and self._direct is not None:
            direct = self._direct
            tokens, vectors = drafter.draft(
                length, temperature, draw, lambda d: int(direct.target[d]) not in self.eos, direct.mapped, policy
            )
            merged = merge(tokens, cache, direct)
            proposals = [proposal.token for proposal in merged]
            end = next((i + 1 for i, token in enumerate(proposals) if token in self.eos), len(proposals))
            merged, proposals = merged[:end], proposals[:end]
            ended = bool(proposals) and proposals[-1] in self.eos
            return Draft(
                tokens, vectors, proposals, None, merged, ended, drafter.passes, drafter.read, policy.no_draft_reason
            )
        allowed = self._direct.mapped if self._direct else None
        tokens, vectors = drafter.draft(length, temperature, draw, walk.read, allowed, policy)
        walk.finish()
        return Draft(
            tokens, vectors, walk.tokens, walk, [], walk.ended, drafter.passes, drafter.read, policy.no_draft_reason
        )

    def _verify(
        self, draft: Draft, law: TargetDistribution, sampling: Sampling, verification: str, draw: Sampler
    ) -> Outcome:
        if sampling.greedy:
            if draft.walk is not None:
                return verify_greedy(draft.walk, law.best)
            accepted = 0
            while accepted < len(draft.proposals) and draft.proposals[accepted] == law.best(accepted):
                accepted += 1
            whole = draft.ended and accepted == len(draft.proposals)
            emitted = draft.proposals[:accepted] + ([] if whole else [law.best(accepted)])
            return Outcome(tuple(emitted), accepted, accepted, None)
        if draft.walk is not None:
            block = verification == "block" and self.drafting.mode == "exact"
            return (verify_block if block else verify_token)(draft.walk, draft.vectors, law.probs, draw)
        if draft.merged and self._direct is not None:
            drawn = (draft.merged, draft.tokens, draft.vectors)
            emitted_, accepted = verify_paper(*drawn, self._direct, law.probs, draw, self.eos)
            return Outcome(emitted_, accepted, accepted, None)
        return Outcome((draw(law.probs(0)),), 0, 0, None)

    def _cut(
        self, emitted: Sequence[int], length: int, end: int, halt: StopCheck | None
    ) -> tuple[tuple[int, ...], str | None]:
        """What counts of the emitted tokens, and why decoding ends here if it does."""
        kept, finish = list(emitted[: end - length]), None
        if length + len(kept) >= end:
            finish = "length"
        elif length + len(kept) > self.target.context:
            finish = "context"
        for position, token in enumerate(kept):
            if token in self.eos:
                kept, finish = kept[: position + 1], "eos"
                break
        stay = None if halt is None else halt(kept)
        return (tuple(kept), finish) if stay is None else (tuple(kept[:stay]), "stop")

    def _commit(self, draft: Draft, outcome: Outcome, emitted: Sequence[int]) -> int | None:
        """Carry the emitted tokens to the n-gram cache; the merge that failed, if one did.

        To the drafter they are carried with the next draft: where there is none, nobody reads them.
        """
        if self.pair is None:
            return None
        self._unread += emitted
        failed = false_merge(draft, outcome)
        self.pair.cache.observe(emitted, failed)
        return failed

    def _ngrams(self, tokens: Sequence[int]) -> int:
        if self.pair is None:
            return 0
        table = self.pair.cache.table
        return sum(len(table.spelling(token)) > 1 for token in tokens)
