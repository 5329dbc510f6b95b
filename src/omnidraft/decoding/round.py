"""A round: propose tokens, verify them with one pass of the target, commit those that stay.

It costs one forward pass of the target: the last token of the round before rides along with the proposals.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omnidraft.decoding.lane import Lane
from omnidraft.decoding.passes import Behind, Passes
from omnidraft.decoding.proposals import counted_draft
from omnidraft.decoding.request import Request
from omnidraft.models.language_model import Read
from omnidraft.verification.drawn import Outcome
from omnidraft.verification.round import Draft, Round, RoundCounts, RoundTimes, TokenLogprobs
from omnidraft.verification.sampling import TargetDistribution, softmax
from omnidraft.verification.sparse_probs import SparseProbs, sparse

if TYPE_CHECKING:
    import torch

SCORED = 64  # tokens of a prompt whose logits are held at a time
# why a round has no draft
BEHIND = "the drafter still reads the prompt"
OFF = "off, as the request asks"
NO_DRAFTER = "no drafter"
AGAIN = "the target reads alone what it has to read again"


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


def read_chunk(lane: Lane, request: Request, count: int) -> Passes[None]:
    """Read `count` more ids of the prompt, but not all."""
    began, start = time.perf_counter() - request.waited_s, lane.target.length
    if request.scores is None:
        yield Read(lane.target, request.ids[start : start + count], 0)
    else:  # fewer, as all their logits are held
        chunk = request.ids[start : start + min(count, SCORED)]
        logits = yield Read(lane.target, chunk, len(chunk))
        following = request.ids[start + 1 : start + 1 + len(chunk)]
        request.scores += TokenLogprobs.of(logits, following, request.logprobs or 0)
    lane.share(request, start)
    request.read_s += time.perf_counter() - request.waited_s - began


def verify(lane: Lane, request: Request) -> Passes[Verified]:
    """Propose, and verify the proposals with one pass of the target; a long prompt is read in chunks before.

    Where it is `Stopped`, what was read stays in the caches, and the round did not happen.  Raises NumericsError for
    unusable logits.
    """
    while (behind := lane.behind(request)) > lane.target.model.chunk:
        yield from read_chunk(lane, request, lane.target.model.chunk)
    while request.scores is not None and len(request.scores) < request.prompt - 1:
        yield from read_chunk(lane, request, lane.behind(request) - 1)
    # on a clock that stands still while the request waits for reads of others
    began = time.perf_counter() - request.waited_s
    again = behind - 1 if len(request.ids) > request.prompt else 0
    try:
        draft = yield from propose(lane, request)
    except Behind:
        draft = Draft(no_draft_reason=BEHIND, read=lane.attached.drafter.read if lane.attached else 0)
    drafted = time.perf_counter() - request.waited_s

    # the ids that the target has not seen yet, and the proposals (nothing follows an end of text)
    fed = list(draft.proposals[:-1] if draft.ended else draft.proposals)
    logits = yield Read(lane.target, request.ids[lane.target.length :] + fed, len(fed) + 1)
    verified = time.perf_counter() - request.waited_s

    target = TargetDistribution(logits, request.ids, fed, request.processing)
    outcome = draft.verify(target, request.draw, greedy=request.sampling.greedy, lazy=request.lazy)
    emitted, finish = _until_end(lane, request, outcome.emitted)
    times = RoundTimes(
        draft_s=drafted - began,
        verify_s=verified - drafted + request.read_s,
        overhead_s=time.perf_counter() - request.waited_s - verified,
        policy_s=request.policy_s,
    )
    return Verified(
        emitted=emitted, finish=finish, draft=draft, outcome=outcome, logits=logits, again=again, times=times
    )


def propose(lane: Lane, request: Request) -> Passes[Draft]:
    """A draft no longer than could be emitted, and none where the context may run out whatever is drawn."""
    target, asked, attached = lane.target.model, request.extras, lane.attached
    alone = target.hybrid and not lane.policy.rereads(lane.behind(request) - 1)
    if target.no_drafts is not None or alone:
        return Draft(no_draft_reason=target.no_drafts or AGAIN)
    used, longest = len(request.ids), lane.longest_draft
    most = longest if asked.longest is None else min(longest, asked.longest)
    room = min(most, request.end - used - 1, target.context - used)
    if room <= 0 or (attached is None and not asked.counts):
        return Draft(no_draft_reason=OFF if most == 0 else NO_DRAFTER if room > 0 else None)
    if attached is None and lane.counts is not None:
        return counted_draft(lane.counts, request.ids, room, lane.policy, lane.eos)
    if attached is None or lane.proposer is None:
        return Draft(no_draft_reason=lane.policy.no_draft_reason)
    length = min(room, attached.drafter.window // 2, (target.context - used) // lane.longest_spelled)
    if length <= 0:
        return Draft()
    temperature = lane.drafting.drafter_temperature
    if temperature is None:
        temperature = request.sampling.temperature
    return (yield from lane.proposer(attached, length, temperature, request.draw, lane.policy))


def commit(lane: Lane, request: Request, verified: Verified, kept: int | None = None) -> Round:
    """Add a round's tokens to the request; with `kept`, the answer ends after the first `kept` of them.

    KV caches, n-gram cache, counts, teacher and policy are told of the tokens that stay and of no others.
    """
    began, times = time.perf_counter(), verified.times
    emitted = verified.emitted if kept is None else verified.emitted[:kept]
    draft, outcome = verified.draft.cut(verified.outcome, len(emitted))
    whole = outcome is verified.outcome
    lane.target.crop(len(request.ids) + min(outcome.accepted, len(verified.logits) - 1))
    request.ids += emitted
    request.finish = verified.finish if kept is None else "stop"
    failed = draft.false_merge(outcome)
    _follow(lane, request, emitted, failed)
    record = Round(
        emitted=emitted,
        draft=tuple(draft.tokens),
        proposals=tuple(draft.proposals),
        finish=request.finish,
        no_draft_reason=draft.no_draft_reason,
        teacher=()
        if lane.teacher_temperature is None
        else _teacher(verified.logits[: len(emitted)], lane.teacher_temperature),
        logprobs=() if request.logprobs is None else TokenLogprobs.of(verified.logits, emitted, request.logprobs),
        counts=RoundCounts(
            accepted=outcome.accepted,
            symbols=draft.symbols if whole else outcome.symbols_accepted,
            symbols_accepted=outcome.symbols_accepted,
            ngrams_proposed=_ngrams(lane, draft.proposals) if draft.proposals else 0,
            ngrams_accepted=_ngrams(lane, draft.proposals[: outcome.accepted]) if outcome.accepted else 0,
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
    lane.policy.learn(record)
    request.policy_s, request.read_s = time.perf_counter() - began, 0.0
    return record


def _until_end(lane: Lane, request: Request, emitted: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
    """The emitted tokens up to the end of text or the length asked for, and why decoding ends if it does."""
    kept = tuple(emitted[: request.end - len(request.ids)])
    length = len(request.ids) + len(kept)
    for position, token in enumerate(kept):
        if token in lane.eos:
            return kept[: position + 1], "eos"
    if length >= request.end:
        return kept, "length"
    return kept, "context" if length > lane.target.model.context else None


def _follow(lane: Lane, request: Request, emitted: Sequence[int], false_merge: int | None) -> None:
    """Tell drafter and counts of committed tokens, which end a complete answer where the request is finished."""
    if lane.attached is not None:
        lane.attached.commit(emitted, false_merge)
        if request.finish is not None:
            lane.attached.keep()
    elif lane.counts is not None:
        lane.counts.follow(request.ids, len(request.ids) - len(emitted))
        if request.finish is not None:
            lane.counts.keep(request.ids)


def _teacher(logits: torch.Tensor, temperature: float) -> tuple[SparseProbs, ...]:
    """The target's own distributions at these rows, whatever the request is sampled with."""
    return tuple(map(sparse, softmax(logits, temperature)))


def _ngrams(lane: Lane, tokens: Sequence[int]) -> int:
    """Number of target tokens among these that are n-grams of the drafter."""
    return 0 if lane.attached is None else lane.attached.ngrams(tokens)
