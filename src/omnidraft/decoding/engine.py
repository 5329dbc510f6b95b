"""The decoding loop, on token ids: draft, verify, commit; one frozen record per round.

A round costs one forward pass of the target: the last token of the round before rides along with the proposals.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from omnidraft.config import Drafting, Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.counts import Counts
from omnidraft.decoding.batched_passes import Behind, Pace, Passes, run
from omnidraft.decoding.drafter import AttachedDrafter, common
from omnidraft.decoding.proposals import Proposer, counted_draft, propose
from omnidraft.draft_length.batch_goodput import BatchCosts
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, make_policy
from omnidraft.errors import CONTEXT_LENGTH, PromptError
from omnidraft.models.language_model import LanguageModel, Read, check_ids, copies
from omnidraft.verification.drawn import Outcome
from omnidraft.verification.round import Draft, Round, RoundCounts, RoundTimes, TokenLogprobs
from omnidraft.verification.sampling import Processing, Processor, Sampler, TargetDistribution, softmax
from omnidraft.verification.sparse_probs import SparseProbs, sparse

if TYPE_CHECKING:
    import torch

__all__ = ["Engine", "Extras", "Request", "Verified"]
BEHIND = "the drafter still reads the prompt"
OFF = "off, as the request asks"
NO_DRAFTER = "no drafter"
SCORED = 64  # tokens of a prompt whose logits are held at a time


@dataclass(frozen=True, kw_only=True)
class Extras:
    """Further options of a request.

    `scores` are log-probabilities of the prompt's tokens, which is then read anew.  `marks` are special tokens whose
    text is part of the answer's.  The others say how it is drafted, within what the engine does: at most `longest`
    tokens a round, and by whom.
    """

    scores: bool = False
    marks: frozenset[int] = frozenset()
    longest: int | None = None
    drafter: bool = True
    counts: bool = True


NOTHING_ELSE = Extras()
AGAIN = "the target reads alone what it has to read again"


@dataclass(kw_only=True)
class Request(Pace):
    """The state of one request: its ids so far, and how tokens are drawn for it.

    Where it is to `stop` while a long prompt is read, the round ends with `Stopped`.
    """

    ids: list[int]  # prompt and committed tokens
    prompt: int  # ids of the prompt
    end: int  # most ids there may be
    sampling: Sampling
    processing: Processing
    draw: Sampler
    lazy: bool  # the caller's processors may keep state: each is to see only ids that stay
    logprobs: int | None = None  # where set, records hold log-probabilities, and of this many tokens at each place
    # of the prompt's tokens but the first, where they are asked for: then each part is read with all its logits
    scores: list[TokenLogprobs] | None = None
    extras: Extras = NOTHING_ELSE
    policy_s: float = 0.0  # seconds of the policy since the last record
    read_s: float = 0.0  # seconds of reading parts of the text since then
    finish: str | None = None

    @property
    def open(self) -> bool:
        return self.finish is None and len(self.ids) < self.end


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A round before its commit: `emitted` are the tokens it adds, of which the caller may keep fewer."""

    emitted: tuple[int, ...]  # cut at the end of text and at the length asked for
    finish: str | None
    draft: Draft
    outcome: Outcome
    logits: torch.Tensor  # (n + 1, V_p) after the last committed token and after each of n proposals
    again: int = 0  # committed tokens that the target read once more
    times: RoundTimes


class Engine:
    """Decodes with a target model; drafts with an attached drafter and its counts, or with counts alone.

    `eos` are the target's token ids that end a text.  With `draft_length` 0 the same loop is plain decoding.  Both
    models hold the state of one request at a time.  With `keeps` that state outlives the request: the next one reads
    only what follows the beginning that they have in common.  `batch` is what passes with other engines' requests cost.
    """

    def __init__(
        self,
        target: LanguageModel,
        eos: Sequence[int],
        attached: AttachedDrafter | None = None,
        drafting: Drafting | None = None,
        policy: DraftLengthPolicy | None = None,
        *,
        batch: BatchCosts | None = None,
        keeps: bool = False,
    ) -> None:
        self.target = target.new_sequence()
        self.eos = frozenset(eos)
        self.drafting = drafting or Drafting(draft_length=0)
        self.attached = attached
        self.teacher_temperature: float | None = None  # where one is set, records hold target distributions at it
        counts = self.drafting.counts
        if attached is None:
            self.drafting.check_alone()
        self.counts = Counts() if counts else None  # of drafter tokens, of target tokens without a drafter
        head = None if attached is None else attached.head
        self.policy: DraftLengthPolicy = policy or make_policy(self.drafting, head, batch)
        self.batch = batch
        self._proposer = _make_proposer(attached, self.eos, self.drafting) if attached else None
        self._longest = attached.longest if attached else 1
        self.keeps = keeps
        self._ids: Sequence[int] = ()  # of the last request: the target's cache holds a beginning of them

    def rounds(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        draw: Sampler,
        processors: Sequence[Processor] = (),
    ) -> Generator[Round]:
        """Decode a request of target tokens to its end, a record at a time; arguments and errors are those of `begin`.

        Whoever ends answers by their text calls `begin`, then `verify` and `commit` for each round.
        """
        request = self.begin(prompt, max_new_tokens, sampling, draw, processors)
        while request.open:
            yield self.commit(request, self.verify(request))

    def begin(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        draw: Sampler,
        processors: Sequence[Processor] = (),
        logprobs: int | None = None,
        memory: AnswerMemory | None = None,
        extras: Extras = NOTHING_ELSE,
    ) -> Request:
        """Start a request for up to `max_new_tokens` tokens; the one before is dropped.

        Drafts count the answers in `memory`, too, where it is given and there are counts; a complete answer is added.

        `processors` are applied to the logits after those that `sampling` asks for.  They may keep state: with any
        given, symbols are settled one by one.  Raises PromptError for an empty or over-long prompt or foreign ids;
        `verify` raises NumericsError for unusable logits.
        """
        self.check(prompt)
        # at least one id is read, for its logits
        self.target.crop(min(self.common(prompt), len(prompt) - 1) if self.keeps and not extras.scores else 0)
        began = time.perf_counter()
        # a text may be one token longer than the context
        coming = min(max_new_tokens, self.target.model.context + 1 - len(prompt))
        unread = prompt
        if self.attached is None:
            if self.counts is not None:
                self.counts.start(prompt, coming, memory)
        else:
            self.attached.drafter.counts = self.counts if extras.counts else None  # another may have drafted with it
            self.attached.drafter.network = extras.drafter
            unread = self.attached.start(prompt, keep=self.keeps, new_tokens=2 * coming, memory=memory)
        self.policy.open(unread, max_new_tokens)
        self._ids = ids = list(prompt)
        return Request(
            ids=ids,
            prompt=len(prompt),
            end=len(prompt) + max_new_tokens,
            sampling=sampling,
            processing=Processing.of(sampling, processors, len(prompt), self.eos),
            draw=draw,
            lazy=bool(processors),
            logprobs=logprobs,
            scores=[] if extras.scores else None,
            extras=extras,
            policy_s=time.perf_counter() - began,
        )

    def check(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt that is empty, or that the target has no rows or no room for."""
        if not prompt:
            raise PromptError("the prompt is empty: give at least one token")
        if len(prompt) > (most := self.target.model.context):
            # in words by which clients that read no code know that they are to shorten the conversation
            size = f"{len(prompt)} tokens > {most} maximum"
            why = f"the prompt is too long: {size}; the target's maximum context length is {most} tokens: shorten it"
            raise PromptError(why, code=CONTEXT_LENGTH)
        check_ids(prompt, self.target.model.vocab_size)

    def common(self, prompt: Sequence[int]) -> int:
        """Number of leading ids of a prompt that the target's cache holds."""
        return common(self._ids[: self.target.length], prompt)

    def copy(self, other: Engine, length: int) -> None:
        """Copy the cache of the first `length` ids of another engine's text; none if caches cannot be copied."""
        self.release()
        if copies(self.target) and length <= other.target.length:
            self.target.copy(other.target, length)
            self._ids = other._ids[:length]

    def release(self) -> None:
        """Drop the text and the KV cache of the last request."""
        self._ids = ()
        self.target.crop(0)
        if self.attached is not None:
            self.attached.release()
        self.end()

    def end(self) -> None:
        """Drop the state of the last request, but keep the caches that the next one may continue."""
        if self.counts is not None:
            self.counts.start((), 0, None)

    # ------------------------------------------------------------ one round

    def verify(self, request: Request) -> Verified:
        """Draft, and verify the draft with one forward pass of the target; call `commit` next.

        Raises Stopped where the request is to stop; what was read stays in the caches, and the round did not happen.
        """
        return run(self.verifying(request), request)

    def behind(self, request: Request) -> int:
        """Number of ids of a request that the target has yet to read."""
        return len(request.ids) - self.target.length

    def read_part(self, request: Request, count: int) -> Passes[None]:
        """Read `count` more ids of the prompt, but not all."""
        began, start = time.perf_counter() - request.waited_s, self.target.length
        if request.scores is None:
            yield Read(self.target, request.ids[start : start + count], 0)
        else:  # fewer, as all their logits are held
            part = request.ids[start : start + min(count, SCORED)]
            logits = yield Read(self.target, part, len(part))
            following = request.ids[start + 1 : start + 1 + len(part)]
            request.scores += TokenLogprobs.of(logits, following, request.logprobs or 0)
        request.read_s += time.perf_counter() - request.waited_s - began

    def verifying(self, request: Request) -> Passes[Verified]:
        """`verify` as a generator of reads; a long prompt is read in parts."""
        while len(request.ids) - self.target.length > self.target.model.chunk:
            yield from self.read_part(request, self.target.model.chunk)
        while request.scores is not None and len(request.scores) < request.prompt - 1:
            yield from self.read_part(request, self.behind(request) - 1)
        # on a clock that stands still while the request waits for reads of others
        began = time.perf_counter() - request.waited_s
        again = self.behind(request) - 1 if len(request.ids) > request.prompt else 0
        try:
            draft = yield from self.propose(request)
        except Behind:
            draft = Draft(no_draft_reason=BEHIND, read=self.attached.drafter.read if self.attached else 0)
        drafted = time.perf_counter() - request.waited_s

        # the ids that the target has not seen yet, and the proposals (nothing follows an end of text)
        fed = list(draft.proposals[:-1] if draft.ended else draft.proposals)
        logits = yield Read(self.target, request.ids[self.target.length :] + fed, len(fed) + 1)
        verified = time.perf_counter() - request.waited_s

        target = TargetDistribution(logits, request.ids, fed, request.processing)
        outcome = draft.verify(target, request.draw, greedy=request.sampling.greedy, lazy=request.lazy)
        emitted, finish = self._until_end(outcome.emitted, request)
        times = RoundTimes(
            draft_s=drafted - began,
            verify_s=verified - drafted + request.read_s,
            overhead_s=time.perf_counter() - request.waited_s - verified,
            policy_s=request.policy_s,
        )
        return Verified(
            emitted=emitted, finish=finish, draft=draft, outcome=outcome, logits=logits, again=again, times=times
        )

    def commit(self, request: Request, verified: Verified, kept: int | None = None) -> Round:
        """Add a round's tokens to the request; with `kept`, the answer ends after the first `kept` of them.

        KV caches, n-gram cache, counts, teacher and policy are told of the tokens that stay and of no others.
        """
        began, times = time.perf_counter(), verified.times
        emitted = verified.emitted if kept is None else verified.emitted[:kept]
        draft, outcome = verified.draft.cut(verified.outcome, len(emitted))
        whole = outcome is verified.outcome
        self.target.crop(len(request.ids) + min(outcome.accepted, len(verified.logits) - 1))
        request.ids += emitted
        request.finish = verified.finish if kept is None else "stop"
        failed = draft.false_merge(outcome)
        self._follow(request, emitted, failed)
        record = Round(
            emitted=emitted,
            draft=tuple(draft.tokens),
            proposals=tuple(draft.proposals),
            finish=request.finish,
            no_draft_reason=draft.no_draft_reason,
            teacher=self._teacher(verified.logits, len(emitted)),
            logprobs=() if request.logprobs is None else TokenLogprobs.of(verified.logits, emitted, request.logprobs),
            counts=RoundCounts(
                accepted=outcome.accepted,
                symbols=draft.symbols if whole else outcome.symbols_accepted,
                symbols_accepted=outcome.symbols_accepted,
                ngrams_proposed=self._ngrams(draft.proposals) if draft.proposals else 0,
                ngrams_accepted=self._ngrams(draft.proposals[: outcome.accepted]) if outcome.accepted else 0,
                false_merges=int(failed is not None),
                draft_accepted=draft.tokens_in(outcome.symbols_accepted),
                counted=min(draft.counted, len(draft.tokens)),  # of a draft that was cut, its beginning
                draft_passes=draft.passes,
                draft_read=draft.read,
                again=verified.again,
            ),
            times=replace(times, overhead_s=times.overhead_s + time.perf_counter() - began),
        )
        began = time.perf_counter()
        self.policy.learn(record)
        request.policy_s, request.read_s = time.perf_counter() - began, 0.0
        return record

    def propose(self, request: Request) -> Passes[Draft]:
        """A draft no longer than could be emitted, and none where the context may run out whatever is drawn."""
        target, asked = self.target.model, request.extras
        alone = target.hybrid and not self.policy.rereads(self.behind(request) - 1)
        if target.no_drafts is not None or alone:
            return Draft(no_draft_reason=target.no_drafts or AGAIN)
        used = len(request.ids)
        most = self.drafting.longest if asked.longest is None else min(self.drafting.longest, asked.longest)
        room = min(most, request.end - used - 1, target.context - used)
        if room <= 0 or (self.attached is None and not asked.counts):
            return Draft(no_draft_reason=OFF if most == 0 else NO_DRAFTER if room > 0 else None)
        if self.attached is None and self.counts is not None:
            return counted_draft(self.counts, request.ids, room, self.policy, self.eos)
        if self.attached is None or self._proposer is None:
            return Draft(no_draft_reason=self.policy.no_draft_reason)
        length = min(room, self.attached.drafter.model.context // 2, (target.context - used) // self._longest)
        if length <= 0:
            return Draft()
        own = self.drafting.drafter_temperature
        temperature = request.sampling.temperature if own is None else own
        return (yield from self._proposer(self.attached, length, temperature, request.draw, self.policy))

    def _follow(self, request: Request, emitted: Sequence[int], false_merge: int | None) -> None:
        """Tell drafter and counts of committed tokens, which end a complete answer where the request is finished."""
        if self.attached is not None:
            self.attached.commit(emitted, false_merge)
            if request.finish is not None:
                self.attached.keep()
        elif self.counts is not None:
            self.counts.follow(request.ids, len(request.ids) - len(emitted))
            if request.finish is not None:
                self.counts.keep(request.ids)

    def _until_end(self, emitted: Sequence[int], request: Request) -> tuple[tuple[int, ...], str | None]:
        """The emitted tokens up to the end of text or the length asked for, and why decoding ends if it does."""
        kept = tuple(emitted[: request.end - len(request.ids)])
        length = len(request.ids) + len(kept)
        for position, token in enumerate(kept):
            if token in self.eos:
                return kept[: position + 1], "eos"
        if length >= request.end:
            return kept, "length"
        return kept, "context" if length > self.target.model.context else None

    def _teacher(self, logits: torch.Tensor, count: int) -> tuple[SparseProbs, ...]:
        """The target's own distributions at the first `count` rows, whatever the request is sampled with."""
        if self.teacher_temperature is None:
            return ()
        return tuple(map(sparse, softmax(logits[:count], self.teacher_temperature)))

    def _ngrams(self, tokens: Sequence[int]) -> int:
        return 0 if self.attached is None else self.attached.ngrams(tokens)


def _make_proposer(attached: AttachedDrafter, eos: Collection[int], drafting: Drafting) -> Proposer | None:
    """The proposer of `drafting.mode`; None where it can propose nothing, for want of shared tokens."""
    if drafting.rejection:
        from omnidraft.decoding import rejection  # for comparison alone

        return rejection.make_proposer(attached, eos, drafting)
    return partial(propose, eos=eos)
