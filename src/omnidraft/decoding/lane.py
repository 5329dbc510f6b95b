"""A lane: the place of one request at a time on a target and its drafter, and whose turn it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from omnidraft.config import Drafting, Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.counts import Counts
from omnidraft.decoding.drafter import AttachedDrafter
from omnidraft.decoding.proposals import Proposer, propose
from omnidraft.decoding.request import NOTHING_ELSE, Extras, Request
from omnidraft.draft_length.batch_goodput import BatchCosts
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, make_policy
from omnidraft.errors import CONTEXT_LENGTH, OmniDraftError, PromptError
from omnidraft.models.forks import ForkLock
from omnidraft.models.language_model import NO_LIMIT, LanguageModel, check_ids, copies
from omnidraft.models.prefix_cache import PrefixCache, circle_of, common, shares
from omnidraft.verification.sampling import Processing, Processor, Sampler

if TYPE_CHECKING:
    from omnidraft.verification.round import Round

LOOK_S = 0.02  # seconds between looks at whether a waiting request still has its lane


class Pausable(Protocol):
    """Background work, which pauses while a request is decoded."""

    def pause(self) -> None:
        """A request is being decoded."""

    def resume(self) -> None:
        """It is done."""


class Turns:
    """The turns of the requests of one lane, one request at a time; a later request takes the lane over.

    Lanes of the same weights have a lock in common: whoever holds it uses the models.
    """

    def __init__(self) -> None:
        self.lock = ForkLock()
        self.background: list[Pausable] = []  # trainers of the drafter, for all its targets
        self._still = threading.Event()  # set while background work stands still
        self._request: object = None

    def beside(self) -> Turns:
        """The turns of another lane on the same weights, with caches of its own."""
        other = Turns()
        other.lock, other.background, other._still = self.lock, self.background, self._still
        return other

    def take(self, request: object) -> None:
        """Give the lane to a request; the one before ends."""
        with self.lock:
            self._request = request
            self.resume()

    def pause(self) -> None:
        """Pause background work; `begin` does so in each turn."""
        self._still.set()
        for each in self.background:
            each.pause()

    def resume(self) -> None:
        """Resume background work until the next turn of any request."""
        self._still.clear()
        for each in self.background:
            each.resume()

    def begin(self, request: object) -> None:
        """Begin a turn of a request, with the lock, until `end`; background work stands still.

        Raises OmniDraftError where a later request has the lane, at once: that may hold the lock for long.
        """
        while not self.lock.acquire(timeout=LOOK_S):
            self.check(request)
        try:
            if self._request is not request:
                self.check(request)
            if not self._still.is_set():
                self.pause()
        except BaseException:
            self.lock.release()
            raise

    def end(self) -> None:
        """End the turn."""
        self.lock.release()

    def check(self, request: object) -> None:
        """Raise OmniDraftError where a later request has the lane."""
        if self._request is not request:
            # the models now hold the later request: going on would continue that one
            raise OmniDraftError("another request was begun on the same models: read a stream to its end first")


class Learning(Protocol):
    """What a drafter learns from answers."""

    def load_weights(self, attached: AttachedDrafter | None) -> None:
        """Draft with the latest learned weights."""

    def teach(self, records: list[Round], attached: AttachedDrafter | None) -> None:
        """Learn from the rounds of a complete answer."""


def too_long(tokens: int, most: int) -> PromptError:
    """The error for a prompt of so many tokens, or more, where the target holds `most`.

    In words by which clients that read no code know that they are to shorten the conversation.
    """
    size = f"{tokens} tokens > {most} maximum"
    why = f"the prompt is too long: {size}; the target's maximum context length is {most} tokens: shorten it"
    return PromptError(why, code=CONTEXT_LENGTH)


class Lane:
    """The place of one request at a time on a target model, and on an attached drafter or its counts.

    `eos` are the target's token ids that end a text.  With `draft_length` 0 decoding is plain.  With `keeps` the caches
    outlive a request: the next one reads only what follows the beginning that they have in common; a round that fails
    leaves them empty.  With a `prefix_cache` they go there instead, for all lanes that have it in common.  Several
    lanes on the same weights have their lock, by `turns`, and the cost of joint passes, `batch`, in common.  Where
    `teacher_temperature` is set, records hold target distributions at it.
    """

    def __init__(  # noqa: PLR0913  all that lanes may differ in
        self,
        target: LanguageModel,
        eos: Collection[int],
        attached: AttachedDrafter | None = None,
        drafting: Drafting | None = None,
        policy: DraftLengthPolicy | None = None,
        *,
        turns: Turns | None = None,
        batch: BatchCosts | None = None,
        keeps: bool = False,
        learning: Learning | None = None,
        teacher_temperature: float | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self.target = target.new_sequence()
        self.prefix_cache = prefix_cache if shares(self.target) else None
        self.eos = frozenset(eos)
        self.attached = attached
        self.drafting = drafting or Drafting(draft_length=0)
        if attached is None:
            self.drafting.check_alone()
        self.counts = Counts() if self.drafting.counts else None  # of drafter tokens, of target tokens without one
        head = None if attached is None else attached.head
        self.policy: DraftLengthPolicy = policy or make_policy(self.drafting, head, batch)
        self.proposer = _make_proposer(attached, self.eos, self.drafting) if attached else None
        self.longest_draft = self.drafting.longest  # draft tokens
        self.longest_spelled = attached.longest if attached else 1  # target tokens that a draft token may stand for
        self.turns, self.batch, self.keeps = turns or Turns(), batch, keeps
        self.learning, self.teacher_temperature = learning, teacher_temperature
        self._ids: Sequence[int] = ()  # of the last request: the target's cache holds a beginning of them

    def request(
        self,
        prompt: Sequence[int],
        max_new_tokens: int,
        sampling: Sampling,
        draw: Sampler,
        processors: Sequence[Processor] = (),
        *,
        logprobs: int | None = None,
        memory: AnswerMemory | None = None,
        extras: Extras = NOTHING_ELSE,
    ) -> Request:
        """A request for up to `max_new_tokens` tokens after a prompt, to `begin`.

        Drafts count the answers in `memory`, too, where it is given and there are counts; a complete answer is added.
        `processors` are applied to the logits after those that `sampling` asks for.  They may keep state: with any
        given, symbols are settled one by one.  Raises PromptError for an empty or over-long prompt or foreign ids.
        """
        self.check(prompt)
        return Request(
            ids=list(prompt),
            prompt=len(prompt),
            end=len(prompt) + max_new_tokens,
            sampling=sampling,
            processing=Processing(sampling, processors, len(prompt), self.eos),
            draw=draw,
            lazy=bool(processors),
            logprobs=logprobs,
            scores=[] if extras.scores else None,
            memory=memory,
            extras=extras,
        )

    def check(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt that is empty, or that the target has no rows or no room for."""
        if not prompt:
            raise PromptError("the prompt is empty: give at least one token")
        if len(prompt) > (most := self.target.model.context):
            raise too_long(len(prompt), most)
        check_ids(prompt, self.target.model.vocab_size)

    def begin(self, request: Request) -> None:
        """Begin a request: the caches keep no more than what they have in common with its prompt."""
        began, prompt, memory = time.perf_counter(), request.ids, request.memory
        # at least one id is read, for its logits
        self.target.crop(min(self.common(prompt), len(prompt) - 1) if self.keeps and request.scores is None else 0)
        request.cached = self.target.length
        self.adopt(request)
        # a text may be one token longer than the context
        coming = min(request.end, self.target.model.context + 1) - len(prompt)
        unread: Sequence[int] = prompt
        if self.attached is None:
            if self.counts is not None:
                self.counts.start(prompt, coming, memory)
        else:
            drafter = self.attached.drafter
            drafter.counts = self.counts if request.extras.counts else None  # another may have drafted with it
            drafter.network = request.extras.drafter
            drafter.prefix_cache, drafter.circle = self.prefix_cache, request.extras.circle
            unread = self.attached.start(prompt, keep=self.keeps, new_tokens=2 * coming, memory=memory)
        window = self.attached.drafter.window if self.attached else NO_LIMIT
        self.policy.open(unread, request.end - len(prompt), window)
        self._ids = prompt
        request.policy_s = time.perf_counter() - began

    def behind(self, request: Request) -> int:
        """Number of ids of a request that the target has yet to read."""
        return len(request.ids) - self.target.length

    def adopt(self, request: Request) -> None:
        """Take over what lanes have read of the prompt, where that is more than this one has."""
        target = self.target
        if (
            self.prefix_cache is None
            or not shares(target)
            or request.scores is not None
            or target.length % target.block
        ):
            return
        blocks, length = self.prefix_cache.find(self._circle(request), request.ids, target)
        if length > (before := target.length):
            target.adopt(blocks, length, before)
            target.crop(min(length, len(request.ids) - 1))
            request.cached += target.length - before

    def share(self, request: Request, before: int) -> None:
        """Let other lanes have the blocks that were filled since the target had read `before` ids of a prompt."""
        target = self.target
        if self.prefix_cache is None or not shares(target) or request.scores is not None:
            return
        if target.length // target.block > before // target.block:
            self.prefix_cache.add(self._circle(request), request.ids, target)

    def _circle(self, request: Request) -> bytes:
        return circle_of(self.target.model.identity, request.extras.circle)

    def end(self, request: Request | None = None) -> None:
        """Drop the state of the last request, but keep the caches that the next one may continue."""
        if request is not None and self.prefix_cache is not None and shares(self.target):
            if request.scores is None:
                self.prefix_cache.add(self._circle(request), request.ids, self.target, end=True)
            if self.attached is not None:
                self.attached.drafter.put_away()
            self.release()
        elif self.counts is not None:
            self.counts.start((), 0, None)

    def release(self) -> None:
        """Drop the text and the KV caches of the last request, too."""
        self._ids = ()
        self.target.crop(0)
        if self.attached is not None:
            self.attached.release()
        self.end()

    # ------------------------------------------------------------ the caches, between requests

    def common(self, prompt: Sequence[int]) -> int:
        """Number of leading ids of a prompt that the target's cache holds."""
        return common(self._ids[: self.target.length], prompt)

    def copy(self, other: Lane, length: int) -> None:
        """Copy the target's cache of the first `length` ids of another lane's text; none if caches cannot be copied.

        An open stream of this lane ends with an error.
        """
        with self.turns.lock:
            self.turns.take(object())
            self.release()
            if copies(self.target) and length <= other.target.length:
                self.target.copy(other.target, length)
                self._ids = other._ids[:length]

    def clear(self) -> None:
        """Empty the KV caches; an open stream ends with an error."""
        with self.turns.lock:
            self.turns.take(object())
            self.release()

    @property
    def nbytes(self) -> int:
        """Current memory of the KV caches of target and drafter, in bytes."""
        return self.target.nbytes + (self.attached.drafter.sequence.nbytes if self.attached else 0)


def _make_proposer(attached: AttachedDrafter, eos: Collection[int], drafting: Drafting) -> Proposer | None:
    """The proposer of `drafting.mode`; None where it can propose nothing, for want of shared tokens."""
    if drafting.rejection:
        from omnidraft.decoding import rejection  # for comparison alone

        return rejection.make_proposer(attached, eos, drafting)
    return partial(propose, eos=eos)
