"""What turns of several requests take, on a scripted clock: who waits for whom, and what is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.decoding.drafter import TAIL_IDS
from omnidraft.decoding.schedule import CHUNK_S, DRAFTERS_S, EVERY, FIRST, Step, step_together
from omnidraft.decoding.stream import Stream
from omnidraft.models.language_model import Read
from omnidraft.models.native.model import NativeModel
from omnidraft.models.transformers_model import CHUNK_IDS, SHARED_CHUNK, TransformersModel
from support.assembling import load_with
from support.compilers import needs_the_8_bit_step
from support.reads import watch

pytestmark = pytest.mark.usefixtures("home")
PACKAGE = Path(omnidraft.__file__).parent  # folders above it, and beside it, may have its name too
PROMPT = "hello world"
LONG = "hello world, the world was hello " * 60
COUNT, MORE = 400, 150
PASS_S, ID_S = 0.02, 0.005  # of a read, and of each of its ids


class Clock:
    """Seconds, of which reads take as many as `cost` says; those of a joint pass one after the other."""

    def __init__(self, patch: pytest.MonkeyPatch, cost: Callable[[Read], float]) -> None:
        self.now = 0.0
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        for module in ("decoding.round", "decoding.lane", "decoding.passes", "decoding.schedule"):
            patch.setattr(f"omnidraft.{module}.time", clock)

        def taken(read: Read) -> None:
            self.now += cost(read)

        for kind in (NativeModel, TransformersModel):
            watch(patch, kind, after=taken)


def by_length(read: Read) -> float:
    return PASS_S + ID_S * len(read.ids)


def load(target: Path, drafter: Path | None, dtype: str, **options: Any) -> OmniDraft:
    needs_the_8_bit_step()
    own: dict[str, Any] = {"profile": None} if drafter else {}
    return load_with(target, drafter, dtype=dtype, **own, **options)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models count as large ones, of which a CPU reads few ids in a short time."""
    monkeypatch.setattr("omnidraft.models.transformers_model.WORK", 0)


def until(streams: Sequence[Stream], met: Callable[[list[Step]], bool]) -> None:
    while not met(step_together(streams)):
        pass


@pytest.mark.medium
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("dtype", ["int8", "float32"])
@pytest.mark.parametrize("step", ["auto", "transformers"])
def test_an_answer_goes_on_beside_long_prompts(
    target: Path, drafter: Path, dtype: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of targets and drafters of either kind; two long prompts are read, and what they are answered is theirs."""
    model = load(target, drafter, dtype, draft_length=2, drafter_backend=step, reuse_answers="nothing")
    expected = model.generate(LONG, max_new_tokens=MORE).token_ids
    clock = Clock(monkeypatch, by_length)
    running, *reading = (
        lane.stream(prompt, max_new_tokens=count)
        for lane, prompt, count in zip(model.lanes(3), (PROMPT, LONG, LONG), (COUNT, MORE, MORE), strict=True)
    )
    running.step()
    gaps: list[float] = []
    while any(not any(record.draft for record in stream.rounds) for stream in reading):
        began = clock.now
        assert step_together([running, *reading])[0].text is not None
        gaps.append(clock.now - began)
    assert len(gaps) > 10
    # a part of a prompt, a round of three with two steps of the drafter, and what drafters read of long texts
    most = CHUNK_S + 3 * (3 * PASS_S + 6 * ID_S) + DRAFTERS_S + 3 * TAIL_IDS * ID_S
    assert max(gaps[1:]) < most < 512 * ID_S / 2
    for stream in reading:
        "".join(stream)
        assert stream.result.token_ids == expected


@pytest.mark.medium
@pytest.mark.usefixtures("large")
def test_parts_are_the_same_whoever_waits_where_rows_depend_on_each_other(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(target, None, "float32", draft_length=0)
    held: Any = None
    parts: list[int] = []
    watch(monkeypatch, TransformersModel, lambda read: parts.append(len(read.ids)) if read.sequence is held else None)
    found = []
    for beside in (False, True):
        first, other = model.lanes(2)
        running = first.stream(PROMPT, max_new_tokens=COUNT)
        running.step()
        stream = other.stream(LONG, max_new_tokens=1)
        held = other.target
        until([running, stream] if beside else [stream], lambda steps: not steps[-1].waits)
        found.append(list(parts))
        parts.clear()
    assert found[0] == found[1]
    assert max(found[0]) == SHARED_CHUNK


def test_parts_are_of_the_size_that_a_model_can_read_in_time(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(target, None, "float32", draft_length=0).target.lm
    assert model.shared_chunk == CHUNK_IDS, "a small one reads many"
    weights = model.model.num_parameters()
    monkeypatch.setattr("omnidraft.models.transformers_model.WORK", 100 * weights)
    assert TransformersModel(model.model).shared_chunk == 100


@pytest.mark.parametrize(("id_s", "shortest"), [(0.0005, 64), (ID_S, FIRST + 1), (0.1, FIRST)])
def test_a_prompt_that_nobody_waits_for_can_be_cancelled_soon(
    target: Path, monkeypatch: pytest.MonkeyPatch, id_s: float, shortest: int
) -> None:
    model = load(target, None, "int8", draft_length=0)
    clock = Clock(monkeypatch, lambda read: id_s * len(read.ids))
    (lane,) = model.lanes(1)
    stream = lane.stream(LONG, max_new_tokens=1)
    steps: list[tuple[int, float]] = []
    while lane.behind(stream.request) > 100:
        before, began = lane.behind(stream.request), clock.now
        step_together([stream])
        steps.append((before - lane.behind(stream.request), clock.now - began))
    assert steps[0][0] == FIRST, "before it is known how long they take"
    assert len(steps) > 3
    for count, seconds in steps[2:]:
        assert count >= shortest
        assert seconds <= CHUNK_S * 1.001 or count == FIRST


@pytest.mark.medium
def test_costs_are_measured_beside_prompts_that_never_end(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(target, None, "int8", draft_length="goodput")
    Clock(monkeypatch, by_length)
    first, other = model.lanes(2)
    batch = first.batch
    assert batch is not None
    running = first.stream(PROMPT, max_new_tokens=COUNT)
    running.step()
    turns = rounds = 0
    while turns < 6 * EVERY:
        other.clear()
        reading = other.stream(LONG, max_new_tokens=1)
        for _ in range(20):
            step, beside = step_together([running, reading])
            assert step.text is not None
            turns, rounds = turns + 1, rounds + (not beside.waits)
    assert batch.costs.seconds == pytest.approx(PASS_S + ID_S, rel=0.3)


@pytest.mark.medium
def test_a_round_takes_what_its_own_reads_take(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever others read in the turn, and in passes of the same model that are made one after the other."""
    plain = load(target, None, "float32", draft_length=0)
    other = load(target, drafter, "float32", draft_length=3)
    clock = Clock(monkeypatch, lambda _: 1.0)
    streams = [lane.stream(PROMPT, max_new_tokens=24) for lane in (*plain.lanes(2), *other.lanes(2))]
    went = 0.0
    for _ in range(4):
        began = clock.now
        step_together(streams)
        went = max(went, clock.now - began)
    assert went > 6
    for stream in streams[:2]:
        assert [(record.times.draft_s, record.times.verify_s) for record in stream.rounds] == [(0.0, 1.0)] * 4
    for stream in streams[2:]:
        for record in stream.rounds:
            assert record.times.verify_s == 1.0
            assert record.times.overhead_s == 0.0
            # the steps of one drafter in 8 bits are joint passes, and take as long as the reads in them here
            assert record.counts.draft_passes <= record.times.draft_s <= 2 * record.counts.draft_passes


def test_a_token_passes_few_calls(target: Path) -> None:
    """Those of the package from the stream to the step in C, and in all; each is one more to read, and takes time."""
    stream = load(target, None, "int8", draft_length=0).stream(PROMPT, max_new_tokens=COUNT)
    for _ in range(3):
        stream.step()
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and PACKAGE in Path(code.co_filename).parents and not code.co_name.startswith("<"):
            calls.append(code.co_name)

    sys.setprofile(note)
    try:
        stream.step()
    finally:
        sys.setprofile(None)
    assert calls[0] == "step"
    assert calls.index("read_tokens") < 30
    assert len(calls) <= 75
