"""Requests that are stopped while their prompt is read: at once, and the models go on from what was read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.passes import Stopped
from omnidraft.models.language_model import Read
from omnidraft.models.native.model import NativeModel
from omnidraft.models.transformers_model import TransformersModel
from support.compilers import needs_the_8_bit_step
from support.lanes import sampler
from support.models import Constant
from support.reads import watch
from support.rounds import begun, verified

pytestmark = pytest.mark.usefixtures("home")
PART = 8  # tokens
PROMPT = "hello world, the world was hello " * 8


@pytest.fixture(params=["float32", "int8"])
def model(request: pytest.FixtureRequest, target: Path, drafter: Path) -> OmniDraft:
    needs_the_8_bit_step()  # of the drafter
    return omnidraft.load(target, drafter, dtype=request.param, profile=None, draft_length=4)


@pytest.fixture(autouse=True)
def parts(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Models read a few tokens at once; a list that grows by the number of each pass of the target."""
    found: list[int] = []

    def counted(read: Read) -> None:
        if read.sequence.model is model.target.lm:
            found.append(len(read.ids))

    for kind in (TransformersModel, NativeModel):
        monkeypatch.setattr(kind, "chunk", PART)
    watch(monkeypatch, type(model.target.lm), counted)
    return found


@pytest.mark.medium
def test_a_prompt_is_not_read_on_and_what_was_read_is_kept(model: OmniDraft, parts: list[int]) -> None:
    ids = model.encode(PROMPT)
    expected = model.generate(ids, max_new_tokens=12).token_ids
    assert len(ids) > 8 * PART
    (lane,) = model.lanes(1)
    parts.clear()
    stream = lane.stream(ids, max_new_tokens=12, should_stop=lambda: len(parts) == 3)
    assert stream.step() is None
    assert parts == [PART] * 3
    assert (stream.result.text, stream.result.finish_reason) == ("", "interrupted")
    assert stream.step() is None
    assert lane.common(ids) == 3 * PART
    parts.clear()
    again = lane.stream(ids, max_new_tokens=12)
    again.step()
    assert sum(parts) < len(ids)
    "".join(again)
    assert again.result.token_ids == expected
    assert model.generate(PROMPT, max_new_tokens=12, should_stop=lambda: True).finish_reason == "interrupted"
    assert model.generate(PROMPT, max_new_tokens=12).token_ids == expected


@pytest.mark.medium
def test_the_drafters_reading_is_stopped_too(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    read_by_it: list[int] = []

    def counted(read: Read) -> None:
        if read.sequence.model is drafts:
            read_by_it.append(len(read.ids))

    assert model.lane.attached is not None
    drafts = model.lane.attached.drafter.model
    expected = model.generate(PROMPT, max_new_tokens=12).token_ids
    watch(monkeypatch, NativeModel, counted)
    (lane,) = model.lanes(1)
    stream = lane.stream(PROMPT, max_new_tokens=12, should_stop=lambda: len(read_by_it) == 2)
    assert stream.step() is None
    assert read_by_it == [PART] * 2
    again = lane.stream(PROMPT, max_new_tokens=12)
    "".join(again)
    assert again.result.token_ids == expected


@pytest.mark.medium
def test_a_stream_closed_by_another_thread_reads_no_further(
    model: OmniDraft, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def closing(read: Read) -> None:
        if read.sequence.model is model.target.lm and len(parts) == 2:
            thread = threading.Thread(target=stream.close)
            thread.start()
            thread.join()

    watch(monkeypatch, type(model.target.lm), closing)
    stream = model.stream(PROMPT, max_new_tokens=12)
    assert list(stream) == []
    assert parts == [PART] * 3


@pytest.mark.medium
def test_an_interrupt_leaves_the_models_usable(
    model: OmniDraft, parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model.generate(PROMPT, max_new_tokens=12).token_ids
    reading = "_read" if model.target.lm.precision == "float32" else "_read_joint"
    inner = getattr(type(model.target.lm), reading)

    def interrupted(*arguments: Any) -> Any:
        found = inner(*arguments)
        if len(parts) == 3:
            raise KeyboardInterrupt
        return found

    model.lane.release()  # the prompt is to be read again
    parts.clear()
    with monkeypatch.context() as patch:
        patch.setattr(type(model.target.lm), reading, interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, max_new_tokens=12)
    assert parts == [PART] * 3
    assert model.generate(PROMPT, max_new_tokens=12).token_ids == expected


@pytest.mark.medium
@pytest.mark.parametrize(
    ("count", "expected"),
    [(5, [(5, 1)]), (8, [(8, 1)]), (9, [(8, 0), (1, 1)]), (16, [(8, 0), (8, 1)]), (20, [(8, 0), (8, 0), (4, 1)])],
)
def test_parts_are_those_of_the_model(
    count: int, expected: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the time that each takes is of the round."""
    found: list[tuple[int, int]] = []
    clock = SimpleNamespace(perf_counter=lambda: float(sum(map(sum, found))))
    monkeypatch.setattr("omnidraft.decoding.round.time", clock)

    class Noted(Constant):
        chunk = PART

        def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
            found.append((len(ids), keep))
            return super().forward(ids, keep)

    noted = Noted(9, 1)
    for stopped in (False, True):
        lane = Lane(noted, ())
        request = begun(lane, [3] * count, 1, Sampling(), sampler())
        request.stop = lambda stopped=stopped: stopped  # type: ignore[misc]
        if stopped and len(expected) > 1:
            with pytest.raises(Stopped):
                verified(lane, request)
            assert found == expected[:1]
        else:
            outcome = verified(lane, request)
            assert outcome.emitted == (1,)
            assert found == expected
            assert outcome.times.verify_s == sum(map(sum, expected))
        found.clear()
