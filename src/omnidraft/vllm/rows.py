"""Drafts for the rows of a batch that another engine verifies; a row is known by its tokens, as it has no name.

The engine verifies by its own tokens alone: a proposal stands for a distribution of one point, so drafts are the
drafter's likeliest tokens, whatever the request is sampled with, and what is emitted stays exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.passes import run_batched
from omnidraft.decoding.request import Request
from omnidraft.decoding.round import Verified, commit, propose
from omnidraft.draft_length.batch_goodput import BatchCosts
from omnidraft.models.language_model import SingleSequence
from omnidraft.models.prefix_cache import common
from omnidraft.verification.drawn import Outcome
from omnidraft.verification.round import Draft, Round, RoundTimes
from omnidraft.vllm.pair import RemotePair, fits

UNSEEN = 32  # steps without a row after which it counts as ended
IDLE = 8  # KV caches of the drafter that are kept for texts to come
TAIL_IDS = 64  # tokens by which a row is known where it was a step ago
UNKNOWN = -1  # in place of a target token that the engine did not give
Ids = npt.NDArray[np.integer[Any]]


class RemoteTarget(SingleSequence):
    """In place of the target's weights: a `LanguageModel` that only says how many ids it takes."""

    length = 0  # of a cache, which the engine elsewhere keeps

    def __init__(self, vocab_size: int, context: int) -> None:
        self.vocab_size, self.context = vocab_size, context

    def crop(self, length: int) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Emitted:
    """Tokens that the engine has emitted for a row, in place of the target's distributions."""

    tokens: Sequence[int]

    def best(self, place: int) -> int:
        """The token at a place, where a proposal stood."""
        return self.tokens[place] if place < len(self.tokens) else UNKNOWN


@dataclass(kw_only=True, eq=False)
class Row:
    """A request as it comes along: its tokens, and the draft that is being verified."""

    lane: Lane
    request: Request
    seen: int  # the step in which it came last
    draft: Draft = field(default_factory=Draft)
    ended: bool = False  # by the tokens that came last, unless the engine goes on all the same

    def begins(self, text: Ids, *, tail: int | None = None) -> bool:
        """True if a text begins with the row's tokens, of which the last `tail` are compared, or all."""
        ids = self.request.ids
        end = ids if tail is None else ids[-tail:]
        return len(ids) <= len(text) and bool(np.array_equal(end, text[len(ids) - len(end) : len(ids)]))

    def settle(self, emitted: tuple[int, ...]) -> Round:
        """Update with the engine's verification of the draft, or of its beginning."""
        target, count = cast("Any", Emitted(emitted)), len(emitted)  # greedy verification asks for `best` alone
        draft, outcome = self.draft, self.draft.verify(target, _never, greedy=True, lazy=False)
        if outcome.emitted[:count] == emitted:
            draft, outcome = draft.cut(outcome, count)
        else:
            draft, outcome = Draft(), Outcome(emitted, 0, 0, None)
        self.ended = not self.lane.eos.isdisjoint(emitted)
        nothing = torch.empty(count + 1, 0)
        verified = Verified(
            emitted=emitted, finish=None, draft=draft, outcome=outcome, logits=nothing, times=RoundTimes()
        )
        return commit(self.lane, self.request, verified)


class Rows:
    """Drafts for up to `most` rows at a time; `propose` is what an engine calls after each of its steps."""

    def __init__(
        self,
        pair: RemotePair,
        drafting: Drafting,
        *,
        context: int,
        most: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rounds: list[Round] = []  # of the last step
        self.batch = BatchCosts()
        self._pair, self._drafting, self._most, self._clock = pair, drafting, max(1, most), clock
        self._target = RemoteTarget(pair.vocab.size, context)
        self._rows: list[Row] = []
        self._places: dict[int, Row] = {}  # of the last step
        self._bare: set[int] = set()  # places of the last step with tokens and no row
        self._idle: list[Lane] = []
        self._step = 0
        self._left: float | None = None  # when the last drafts were handed over
        self._drafted_s = 0.0  # that they took

    def propose(self, sampled: Sequence[Sequence[int]], lengths: Sequence[int] | Ids, table: Ids) -> list[list[int]]:
        """The drafts of all rows, none for a row without new tokens.

        `sampled` are the new tokens of each row, which are the last of the first `lengths[i]` ids of row i of `table`
        (rows, tokens) by now.
        """
        began = self._clock()
        self._step += 1
        before, bare = self._places, self._bare
        self._places = self._rows_of(sampled, lengths, table)
        self._bare = {at for at, new in enumerate(sampled) if new} - set(self._places)
        known = {at for at, row in self._places.items() if before.get(at) is row} | (bare & self._bare)
        plain = len(known) == len(sampled)
        drafts = [row.draft for row in self._places.values()]
        self.rounds = [row.settle(tuple(sampled[place])) for place, row in self._places.items()]
        if plain and self._left is not None:  # else prompts were read in this step
            self.batch.learn(
                rows=len(sampled),
                emitted=sum(map(len, sampled)),
                proposed=sum(len(draft.proposals) for draft in drafts),
                passes=sum(draft.passes for draft in drafts),
                read=sum(draft.read for draft in drafts),
                draft_s=self._drafted_s,
                verify_s=began - self._left,
            )
        self.batch.rows = max(1, len(sampled))
        drafting = [row for row in self._places.values() if self._drafts(row)]
        for row, draft in zip(drafting, run_batched([propose(row.lane, row.request) for row in drafting]), strict=True):
            row.draft = draft
        proposals: list[list[int]] = [[] for _ in sampled]
        for place, row in self._places.items():
            proposals[place] = list(row.draft.proposals[: self._drafting.longest])  # one may stand for several
        self._left = self._clock()
        self._drafted_s = self._left - began
        self._retire()
        return proposals

    def __len__(self) -> int:
        """Number of rows that are remembered."""
        return len(self._rows)

    def _drafts(self, row: Row) -> bool:
        """True if a row is to be drafted for."""
        row.draft = Draft()
        return row.request.open and not row.ended

    # ------------------------------------------------------------ which row is which

    def _rows_of(self, sampled: Sequence[Sequence[int]], lengths: Sequence[int] | Ids, table: Ids) -> dict[int, Row]:
        """The row at each place that has new tokens, and room for more; new ones are begun."""
        places = [at for at, new in enumerate(sampled) if new and int(lengths[at]) < self._target.context]
        texts = {at: table[at, : int(lengths[at]) - len(sampled[at])] for at in places}
        rows: dict[int, Row] = {}
        for at in places:
            row = self._places.get(at)
            if row is not None and len(row.request.ids) == len(texts[at]) and row.begins(texts[at], tail=TAIL_IDS):
                rows[at] = row
        free = [row for row in self._rows if row not in rows.values()]
        for at in places:
            if at not in rows and (row := self._longest(free, texts[at])) is not None:
                rows[at] = row
                free.remove(row)
                if missed := texts[at][len(row.request.ids) :].tolist():  # in steps that nobody was told of
                    row.draft = Draft()
                    row.settle(tuple(missed))
        for row in rows.values():
            row.seen = self._step
        for at in places:
            if at not in rows and (row := self._begin(texts[at].tolist())) is not None:
                rows[at] = row
        return dict(sorted(rows.items()))

    def _longest(self, rows: Sequence[Row], text: Ids) -> Row | None:
        """The row that is furthest in a text, and not so far behind that the text is another request's."""
        most = self._drafting.longest + 1
        known = [row for row in rows if len(text) - len(row.request.ids) <= most and row.begins(text)]
        return max(known, key=lambda row: len(row.request.ids), default=None)

    def _begin(self, prompt: list[int]) -> Row | None:
        """A new row; None without a prompt, for ids that are no text (images, say), and where there are too many."""
        if not prompt or not fits(prompt, self._pair.vocab):
            return None
        if len(self._rows) >= self._most and not self._idle:
            oldest = min(self._rows, key=lambda row: row.seen)
            if oldest.seen == self._step:
                return None
            self._end(oldest)
        lane = self._lane(prompt)
        request = lane.request(prompt, self._target.context + 1 - len(prompt), Sampling(), _never)
        lane.begin(request)
        row = Row(lane=lane, request=request, seen=self._step)
        self._rows.append(row)
        return row

    def _lane(self, prompt: Sequence[int]) -> Lane:
        """A lane without a row: of several, the one whose drafter has read most of a prompt."""
        if self._idle:
            drafted = self._pair.attached.context.prompt(prompt) if len(self._idle) > 1 else ()
            best = max(self._idle, key=lambda lane: _read(lane, drafted))
            self._idle.remove(best)
            return best
        attached = replace(self._pair.attached, drafter=Drafter(self._pair.shared.model))
        return Lane(self._target, self._pair.vocab.eos, attached, self._drafting, batch=self.batch, keeps=True)

    def _retire(self) -> None:
        """End rows that are gone: at once after an end of text, else after a while, as they may be preempted."""
        for row in list(self._rows):
            if self._step - row.seen >= (1 if row.ended else UNSEEN):
                self._end(row)

    def _end(self, row: Row) -> None:
        self._rows.remove(row)
        self._places = {at: other for at, other in self._places.items() if other is not row}
        row.lane.end()
        self._idle = [*self._idle, row.lane][-IDLE:]


def _read(lane: Lane, tokens: Sequence[int]) -> int:
    """Number of leading tokens of a text that a lane's drafter has read."""
    return 0 if lane.attached is None else common(lane.attached.drafter.text, tokens)


def _never(_: object) -> int:
    """In place of a sampler: nothing is drawn."""
    raise NotImplementedError
