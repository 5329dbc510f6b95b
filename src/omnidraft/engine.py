"""The decoding loop, on token ids: draft, verify, commit; one frozen record per round.

A round costs one forward pass of the target: the last token of the round before rides along with the proposals.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnidraft.config import Drafting, Sampling
from omnidraft.context import Translator
from omnidraft.drafter import Drafter
from omnidraft.errors import ConfigError, PromptError
from omnidraft.head import Head
from omnidraft.laws import SparseLaw, sparse
from omnidraft.models import LanguageModel
from omnidraft.ngrams import NgramCache
from omnidraft.paper import DirectMap, Proposal, merge, verify_paper
from omnidraft.rate import make_stopping
from omnidraft.sampling import Draw, Probs, Processing, Processor, TargetLaw, softmax
from omnidraft.stopping import Fixed, Stopping
from omnidraft.verify import Outcome, verify_block, verify_greedy, verify_token
from omnidraft.walk import STOP, Walk

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Round:
    """What one round did; times in seconds."""

    emitted: tuple[int, ...]  # target tokens, cut at the end of the text and at the length asked for
    draft: tuple[int, ...]  # draft tokens
    proposals: tuple[int, ...]  # target tokens put to the target
    accepted: int  # of the proposals
    symbols: int  # of the walk
    symbols_accepted: int
    ngrams_proposed: int
    ngrams_accepted: int
    false_merges: int  # the walk merged on where the target's token ended, or ended where it went on
    draft_s: float
    verify_s: float  # the target's forward pass
    translate_s: float  # everything else: segmentation, acceptance, n-gram cache, context
    finish: str | None  # "eos", "length" or "context" on the last round
    draft_passes: int = 0  # of the drafter
    draft_read: int = 0  # tokens that these read
    draft_accepted: int = 0  # of the draft tokens, with all that was read from them
    idle: str | None = None  # why there is no draft, a phrase, where the stop policy wants none
    laws: tuple[SparseLaw, ...] = ()  # the target's at each emitted token, where they are asked for


@dataclass(slots=True)
class _Draft:
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


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A drafter made ready for one target: how texts are carried over, and which n-grams are active."""

    drafter: Drafter
    translator: Translator
    cache: NgramCache
    head: Head = field(default_factory=Head)


class Engine:
    """Decodes with a target model, and with a drafter where there is one.

    `eos` are the target's token ids that end a text.  Without a `pair`, or with `draft_len` 0, the same loop is
    plain decoding.
    """

    def __init__(
        self,
        target: LanguageModel,
        eos: Sequence[int],
        pair: Pair | None = None,
        drafting: Drafting | None = None,
        stopping: Stopping | None = None,
    ) -> None:
        self.target = target
        self.eos = frozenset(eos)
        self.pair = pair
        self.drafting = drafting or Drafting(draft_len=0)
        self.stopping: Stopping = stopping or (Fixed() if pair is None else make_stopping(self.drafting, pair.head))
        self.teacher_temperature: float | None = None  # where one is set, records hold the target's laws at it
        if pair is None and self.drafting.longest > 0:
            raise ConfigError(f"draft_len is {self.drafting.longest} without a drafter: give one, or use draft_len=0")
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
        draw: Draw,
        processors: Sequence[Processor] = (),
    ) -> Iterator[Round]:
        """Decode up to `max_new_tokens` after a prompt of target tokens, a record at a time.

        `processors` are applied to the logits after those that `sampling` asks for.  They may keep state: with
        any given, symbols are settled one by one, so that each sees only ids that stay.
        Raises PromptError for an empty or over-long prompt, NumericsError for unusable logits.
        """
        self.check(prompt)
        processing = Processing.of(sampling, processors)
        verification = "token" if processors else self.drafting.verification
        ids = list(prompt)
        end = len(ids) + max_new_tokens
        self.target.crop(0)
        if self.pair is not None:
            text = self.pair.translator.prompt(ids)
            self.pair.drafter.start(text)
            self.stopping.open(len(text), max_new_tokens)
        while max_new_tokens > 0:
            record = self._round(ids, end, sampling, processing, verification, draw)
            ids += record.emitted
            self.stopping.learn(record)
            yield record
            if record.finish is not None:
                return

    def check(self, prompt: Sequence[int]) -> None:
        """Raise PromptError for a prompt that is empty or longer than the target's context."""
        if not prompt:
            raise PromptError("the prompt is empty: give at least one token")
        if len(prompt) > self.target.context:
            raise PromptError(
                f"the prompt has {len(prompt)} tokens; the target's context holds {self.target.context}: shorten it"
            )

    # ------------------------------------------------------------ one round

    def _round(
        self,
        ids: list[int],
        end: int,
        sampling: Sampling,
        processing: Processing,
        verification: str,
        draw: Draw,
    ) -> Round:
        began = time.perf_counter()
        draft = self._propose(self._draft_len(ids, end), sampling, draw)
        drafted = time.perf_counter()

        # one target forward: the ids it has not seen yet, and the proposals (nothing follows an end of text)
        proposals = draft.proposals
        fed = proposals[:-1] if draft.ended else proposals
        logits = self.target.forward(ids[self.target.length :] + fed, keep=len(fed) + 1)
        verified = time.perf_counter()

        law = TargetLaw(logits, ids, fed, processing)
        outcome = self._verify(draft, law, sampling, verification, draw)
        self.target.crop(len(ids) + min(outcome.accepted, len(fed)))
        emitted, finish = self._cut(outcome.emitted, len(ids), end)
        false_merge = self._commit(draft, outcome, emitted)
        laws = self._laws(logits, len(emitted))
        done = time.perf_counter()
        return Round(
            emitted=emitted,
            draft=tuple(draft.tokens),
            proposals=tuple(proposals),
            accepted=outcome.accepted,
            symbols=len(draft.walk.symbols) if draft.walk else len(proposals),
            symbols_accepted=outcome.symbols_accepted,
            ngrams_proposed=self._ngrams(proposals),
            ngrams_accepted=self._ngrams(proposals[: outcome.accepted]),
            false_merges=int(false_merge is not None),
            draft_passes=draft.passes,
            draft_read=draft.read,
            draft_accepted=_accepted(draft, outcome),
            draft_s=drafted - began,
            verify_s=verified - drafted,
            translate_s=done - verified,
            finish=finish,
            idle=None if draft.tokens else draft.idle,
            laws=laws,
        )

    def _laws(self, logits: torch.Tensor, count: int) -> tuple[SparseLaw, ...]:
        """The target's own laws at the first `count` rows, whatever the text is sampled with."""
        if self.teacher_temperature is None:
            return ()
        return tuple(map(sparse, softmax(logits[:count] / self.teacher_temperature)))

    def _draft_len(self, ids: Sequence[int], end: int) -> int:
        """How many tokens to draft: no more than could be emitted, none where the context may run out."""
        if self.pair is None or (self._direct is not None and not self._direct.mapped.any()):
            return 0
        length = min(self.drafting.longest, end - len(ids) - 1, self.pair.drafter.model.context // 2)
        return max(0, min(length, (self.target.context - len(ids)) // self._longest))

    def _propose(self, length: int, sampling: Sampling, draw: Draw) -> _Draft:
        if self.pair is None or length <= 0:
            return _Draft()
        cache, drafter, stopping = self.pair.cache, self.pair.drafter, self.stopping
        walk = Walk(cache, self.eos)
        if not stopping.begin(walk if self.drafting.mode != "paper" else None):
            return _Draft(idle=stopping.idle)
        own = self.drafting.drafter_temperature
        temperature = sampling.temperature if own is None else own
        if self.drafting.mode == "paper" and self._direct is not None:
            direct = self._direct
            tokens, vectors = drafter.draft(
                length, temperature, draw, lambda d: int(direct.target[d]) not in self.eos, direct.mapped, stopping
            )
            merged = merge(tokens, cache, direct)
            proposals = [proposal.token for proposal in merged]
            end = next((i + 1 for i, token in enumerate(proposals) if token in self.eos), len(proposals))
            merged, proposals = merged[:end], proposals[:end]
            ended = bool(proposals) and proposals[-1] in self.eos
            return _Draft(tokens, vectors, proposals, None, merged, ended, drafter.passes, drafter.read, stopping.idle)
        allowed = self._direct.mapped if self._direct else None
        tokens, vectors = drafter.draft(length, temperature, draw, walk.read, allowed, stopping)
        walk.finish()
        return _Draft(tokens, vectors, walk.tokens, walk, [], walk.ended, drafter.passes, drafter.read, stopping.idle)

    def _verify(self, draft: _Draft, law: TargetLaw, sampling: Sampling, verification: str, draw: Draw) -> Outcome:
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

    def _cut(self, emitted: Sequence[int], length: int, end: int) -> tuple[tuple[int, ...], str | None]:
        """What counts of the emitted tokens, and why decoding ends here if it does."""
        kept = list(emitted[: end - length])
        for position, token in enumerate(kept):
            if token in self.eos:
                return tuple(kept[: position + 1]), "eos"
        if length + len(kept) >= end:
            return tuple(kept), "length"
        return tuple(kept), "context" if length + len(kept) > self.target.context else None

    def _commit(self, draft: _Draft, outcome: Outcome, emitted: Sequence[int]) -> int | None:
        """Carry the emitted tokens to the drafter's context and the n-gram cache; the merge that failed, if one did."""
        if self.pair is None:
            return None
        drafter = self.pair.drafter
        drafter.extend(*self.pair.translator.after(drafter.text, drafter.begun, emitted))
        false_merge = _false_merge(draft, outcome)
        self.pair.cache.observe(emitted, false_merge)
        return false_merge

    def _ngrams(self, tokens: Sequence[int]) -> int:
        if self.pair is None:
            return 0
        table = self.pair.cache.table
        return sum(len(table.spelling(token)) > 1 for token in tokens)


def _accepted(draft: _Draft, outcome: Outcome) -> int:
    """How many draft tokens were accepted with all that was read from them."""
    if draft.walk is not None:
        return draft.walk.drafts_in(outcome.symbols_accepted)
    return sum(proposal.length for proposal in draft.merged[: outcome.accepted])


def _false_merge(draft: _Draft, outcome: Outcome) -> int | None:
    """The proposal whose merge was wrong: it went on where the target's token ended, or ended where it went on."""
    symbol, walk = outcome.refused, draft.walk
    if symbol is None or walk is None or symbol.node == 0 or symbol.index >= len(walk.tokens):
        return None
    ended_early = symbol.symbol == STOP
    went_on = outcome.emitted[-1] == walk.cache.token_at(symbol.node)
    return walk.tokens[symbol.index] if ended_early or went_on else None
