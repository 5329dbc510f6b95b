"""Turns of one stream or of several: who reads how much of a prompt, who decodes a round, in joint passes.

In a turn, streams whose prompt is read decode a round.  Prompts are read in chunks that those can wait for, the one
with the least left to read first.  Drafts come before the one pass of each target.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from omnidraft.decoding.lane import Lane
from omnidraft.decoding.passes import Behind, Work, forward_by_model
from omnidraft.decoding.request import Request
from omnidraft.decoding.round import Verified
from omnidraft.draft_length.batch_goodput import SHORTEST_S, BatchCosts
from omnidraft.verification.round import Round

CHUNK_S = 0.15  # seconds that chunks of prompts add to a pass that others wait for
DRAFTERS_S = 0.1  # seconds that drafters read long texts for, in a turn of several streams
# ids of a chunk: before it is known how long they take, and where nobody waits; fewer take as long.  With 8, reading a
# prompt takes 6 % longer than with 16, and with 64 as long
FIRST, LEAST = 16, 8
EVERY = 8  # turns after which one has no chunk of a prompt, so that the cost of rounds is measured
AGING = 64  # ids of a prompt that count as read for each turn since it came


@dataclass(frozen=True, kw_only=True)
class Step:
    """Result of a turn for one stream: the text of a round, None at the end, or an error.

    Of one that `waits` the prompt is not read yet.
    """

    text: str | None = None
    error: Exception | None = None
    waits: bool = False


class Turning(Protocol):
    """A stream as its turns see it."""

    lane: Lane
    request: Request
    records: list[Round]

    def enter(self) -> Step | None:
        """Begin a turn, until `leave`; return the last step where there is none."""

    def work(self, chunk: int) -> Work[Verified | None]:
        """Return the reads of the next round, or of the next `chunk` ids of the prompt."""

    def take(self, work: Work[Verified | None]) -> Step:
        """Add the result of the work to the answer."""

    def leave(self) -> None:
        """End the turn."""

    def abandon(self) -> None:
        """End the answer after an incomplete round."""


def step_together(streams: Sequence[Turning]) -> list[Step]:
    """A turn of each of several streams, in joint passes of the models that they share; an error is one stream's own.

    After an interruption all are ended.
    """
    steps, going = dict[int, Step](), dict[int, Turning]()
    try:
        for at, stream in enumerate(streams):
            if (step := stream.enter()) is None:
                going[at] = stream
            else:
                steps[at] = step
        chunks = chunks_of(going)
        rows = Counter(going[at].lane.batch for at, chunk in chunks.items() if not chunk)
        for batch in {going[at].lane.batch for at in chunks}:
            if batch is not None:
                batch.rows = max(1, rows[batch])
        read = {at: chunk or _behind(going[at]) for at, chunk in chunks.items() if not going[at].records}
        works = {at: going[at].work(chunk) for at, chunk in chunks.items()}
        seconds = run_rounds(list(works.values()))
        began = time.perf_counter()
        taken = {at: going[at].take(work) for at, work in works.items()}
        _measure([(going[at], step, read.get(at, 0)) for at, step in taken.items()], seconds, began)
        steps |= {at: taken.get(at, Step(waits=True)) for at in going}
    except BaseException:
        for stream in going.values():
            stream.abandon()
        raise
    finally:
        for stream in going.values():
            stream.leave()
    return [steps[at] for at in range(len(streams))]


# ------------------------------------------------------------ how much of a prompt


def chunks_of(streams: Mapping[int, Turning]) -> dict[int, int]:
    """The work of each stream in this turn: 0 for a round, else ids of its prompt; those that wait have none."""
    chunks = {at: 0 for at, each in streams.items() if each.records}
    batches = {streams[at].lane.batch for at in chunks}
    measuring = {batch for batch in batches if batch is not None and batch.unmeasured >= EVERY}
    room = dict[int, int]()
    for at in sorted((at for at in streams if at not in chunks), key=lambda at: _rank(streams[at])):
        lane, behind = streams[at].lane, _behind(streams[at])
        if lane.batch in measuring:
            continue
        most = _longest_chunk(lane, alone=len(streams) == 1)
        left = room.setdefault(id(lane.target.model), most)
        if behind <= left:
            chunks[at] = 0
        elif left == most or (lane.target.model.rows_independent and left >= LEAST):
            chunks[at] = left
        room[id(lane.target.model)] = left - chunks.get(at, 0) if chunks.get(at) else max(0, left - behind)
    return chunks


def _longest_chunk(lane: Lane, *, alone: bool) -> int:
    """Ids of a prompt to read in a turn at most: as many as others, or who cancels the request, can wait for."""
    model, batch = lane.target.model, lane.batch
    if batch is None:
        return model.chunk
    if not model.rows_independent:
        # where logits depend on how a prompt is cut, its chunks are the same whoever waits
        return model.chunk if batch.most == 1 else min(model.chunk, model.shared_chunk)
    count = int(CHUNK_S / batch.prompt_id_s) if batch.prompt_id_s else FIRST
    return min(model.chunk, max(FIRST if alone else LEAST, count))


def _behind(stream: Turning) -> int:
    return stream.lane.behind(stream.request)


def _rank(stream: Turning) -> int:
    """Priority of the prompt, lowest first: the ids left, less some for each turn waited."""
    return _behind(stream) - AGING * stream.request.turns


# ------------------------------------------------------------ joint passes


@dataclass
class Seconds:
    """Seconds of `run_rounds`: of all drafts, and of the pass of each target."""

    drafts: float
    targets: dict[int, float]  # by the id of the model


def run_rounds(works: Sequence[Work[Any]]) -> Seconds:
    """Take each to the end of its round: one read of its target, after the reads of its draft.

    Beside others drafters read no more of long texts than can be waited for, and rounds go on without them.
    """
    began, read = time.perf_counter(), 0
    while drafting := [each for each in works if each.asked is not None and not each.verifies]:
        if len(works) > 1:
            seconds = time.perf_counter() - began
            read += _limit(drafting, int(read * (DRAFTERS_S - seconds) / max(seconds, SHORTEST_S)) if read else FIRST)
        forward_by_model([each for each in drafting if each.asked is not None and not each.verifies])
    drafted = time.perf_counter()
    return Seconds(drafted - began, forward_by_model([each for each in works if each.verifies]))


def _limit(works: Sequence[Work[Any]], room: int) -> int:
    """Limit the chunks of long texts to `room` ids together; return their number."""
    read = 0
    for each in works:
        if each.asked is not None and not each.asked.keep:
            if room - read < LEAST:
                each.fail(Behind())
            else:
                each.asked = replace(each.asked, ids=each.asked.ids[: room - read])
                read += len(each.asked.ids)
    return read


def _measure(taken: Sequence[tuple[Turning, Step, int]], seconds: Seconds, began: float) -> None:
    """Update the batches with the cost of the turn: of each stream its step, and the ids read of its prompt."""
    rest_s = time.perf_counter() - began
    for batch, model in {stream.lane.batch: stream.lane.target.model for stream, _, _ in taken}.items():
        taken_s = seconds.targets.get(id(model))
        if batch is None or taken_s is None:
            continue
        of_batch = [each for each in taken if each[0].lane.batch is batch]
        if ids := sum(read for _, _, read in of_batch):
            batch.learn_prompt(ids, taken_s)
        elif records := [stream.records[-1] for stream, step, _ in of_batch if step.text is not None]:
            _learn(batch, records, seconds.drafts, taken_s + rest_s)


def _learn(batch: BatchCosts, records: Sequence[Round], draft_s: float, verify_s: float) -> None:
    """Update a batch with a turn in which all its streams decoded."""
    batch.learn(
        rows=len(records),
        emitted=sum(len(record.emitted) for record in records),
        proposed=sum(len(record.proposals) for record in records),
        passes=sum(record.counts.draft_passes for record in records),
        read=sum(record.counts.draft_read for record in records),
        draft_s=draft_s,
        verify_s=verify_s,
    )
