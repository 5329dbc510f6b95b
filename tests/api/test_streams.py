"""Streams, threads and logits processors: one request at a time on the models, and nothing left of it afterwards."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.errors import OmniDraftError
from support.compilers import needs_the_8_bit_step

PROMPT = "hello world"


def run(*work: Callable[[], object]) -> None:
    """Do these at once, each in a thread of its own."""
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.medium
def test_texts_of_several_threads_are_made_one_after_the_other(model: OmniDraft) -> None:
    prompts = ["hello world", "the world was", "don't", "ing 10"]
    expected = [model.generate(prompt, max_new_tokens=16).token_ids for prompt in prompts]
    found: dict[int, Any] = {}

    def answer(number: int) -> None:
        found[number] = model.generate(prompts[number % len(prompts)], max_new_tokens=16).token_ids

    run(*(partial(answer, number) for number in range(8)))
    assert [found[number] for number in range(8)] == expected * 2


@pytest.mark.medium
def test_streams_of_two_threads_are_never_mixed(model: OmniDraft) -> None:
    whole = model.generate(PROMPT, max_new_tokens=60).text
    errors, texts = [], []
    barrier = threading.Barrier(4)

    def read_it() -> None:
        barrier.wait()
        try:
            texts.append("".join(model.stream(PROMPT, max_new_tokens=60)))
        except OmniDraftError as error:
            errors.append(str(error))

    run(*[read_it] * 4)
    assert len(errors) + len(texts) == 4
    assert texts, "the one that began last is read to its end"
    assert set(texts) == {whole}
    assert all("another request was begun" in error for error in errors)


def test_a_stream_that_was_overtaken_says_so(model: OmniDraft) -> None:
    first = model.stream(PROMPT, max_new_tokens=24)
    begun = next(first)
    model.generate("another", max_new_tokens=4)
    with pytest.raises(OmniDraftError, match="another request was begun"):
        list(first)
    assert (first.result.text, first.result.finish_reason) == (begun, "interrupted")


def test_a_text_begun_inside_another_one_ends_that_one(model: OmniDraft) -> None:
    def meddling(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        model.generate("the world", max_new_tokens=2)
        return scores

    with pytest.raises(OmniDraftError, match="another request was begun"):
        model.generate(PROMPT, max_new_tokens=8, logits_processor=[meddling])
    assert model.generate(PROMPT, max_new_tokens=8).finish_reason == "length"


@pytest.mark.medium
@pytest.mark.parametrize(("dtype", "keeps"), [("int8", True), ("float32", False)])
def test_the_next_request_reads_what_is_new_to_it(target: Path, drafter: Path, dtype: str, *, keeps: bool) -> None:
    """Where logits do not depend on what a pass reads at once; elsewhere answers could change."""
    needs_the_8_bit_step()
    options: dict[str, Any] = {"dtype": dtype, "profile": None, "draft_length": 4, "reuse_answers": "nothing"}
    model, fresh = (omnidraft.load(target, drafter, **options) for _ in range(2))
    prompt = model.encode(PROMPT)
    answer = model.generate(prompt, max_new_tokens=8).token_ids
    longer = [*prompt, *answer, *prompt]
    # the last token of an answer is not read
    assert model.lane.common(longer) == (len(prompt) + len(answer) - 1 if keeps else 0)
    for asked in (longer, prompt[:1], prompt):
        expected = fresh.generate(asked, max_new_tokens=8).token_ids
        fresh.lane.release()
        assert model.generate(asked, max_new_tokens=8).token_ids == expected
        assert (model.lane.common(prompt) > 0) == keeps


def test_a_logits_processor_decides_what_may_be_said(model: OmniDraft) -> None:
    allowed = model.encode("world")[-1]

    def only(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert ids.shape[0] == 1
        masked = torch.full_like(scores, -torch.inf)
        masked[:, allowed] = scores[:, allowed]
        return masked

    for sampling in ({}, {"temperature": 1.0}):
        answer = model.generate(PROMPT, max_new_tokens=8, logits_processor=[only], **sampling)
        assert answer.token_ids == (allowed,) * 8


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"repetition_penalty": 1.3}])
def test_a_logits_processor_may_write_into_its_scores(
    steady: OmniDraft, sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    banned = list(steady.generate(PROMPT, max_new_tokens=8, **sampling).token_ids)

    def aside(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor(banned), -1e9)

    def in_place(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, banned] = -1e9
        return scores

    # the target's own distributions are recorded, as where they are learned from
    monkeypatch.setattr(steady.lane, "teacher_temperature", 1.0)
    found = []
    for processor in (aside, in_place):
        stream = steady.stream(PROMPT, max_new_tokens=8, logits_processor=[processor], **sampling)
        list(stream)
        found.append([(record.emitted, [dist.tokens.tolist() for dist in record.teacher]) for record in stream.rounds])
    assert found[0] == found[1]
    learned = {token for _, recorded in found[1] for ids in recorded for token in ids}
    assert learned & {*banned}, "the teacher is without the processor"


@pytest.mark.parametrize("ending", ["closed", "with", "left", "read"])
def test_a_stream_lets_go_of_its_state(model: OmniDraft, ending: str) -> None:
    gc.disable()  # what is left is let go of at once, not when cycles are collected
    try:
        stream = model.stream(PROMPT, max_new_tokens=40)
        next(stream)
        assert model.lane.target.length > 0
        if ending == "closed":
            stream.close()
        elif ending == "with":
            with stream:
                next(stream)
        elif ending == "read":
            list(stream)
        elif ending == "left":
            for _ in stream:
                break
        del stream
        assert model.lane.target.length == 0
    finally:
        gc.enable()
    assert model.lane.attached is not None
    assert model.lane.attached.drafter.sequence.length == 0


@pytest.mark.slow
def test_a_stream_that_was_overtaken_leaves_the_later_one_alone(model: OmniDraft) -> None:
    whole = model.generate(PROMPT, max_new_tokens=40).text
    earlier = model.stream("the world", max_new_tokens=40)
    next(earlier)
    later = model.stream(PROMPT, max_new_tokens=40)
    pieces = [next(later)]
    earlier.close()
    del earlier
    gc.collect()
    pieces += later
    assert "".join(pieces) == whole


def test_a_stream_is_closed_by_another_thread(model: OmniDraft) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waiting(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        begun.set()
        assert go_on.wait(60)
        return scores

    stream = model.stream(PROMPT, max_new_tokens=100, logits_processor=[waiting])
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(stream))
    reader.start()
    assert begun.wait(60)
    with pytest.raises(OmniDraftError, match="being read already"):
        next(stream)
    stream.close()
    go_on.set()
    reader.join(60)
    assert not reader.is_alive()
    result = stream.result
    assert (result.stats.rounds, result.finish_reason, result.text) == (1, "interrupted", "".join(pieces))
    assert list(stream) == []
    assert model.lane.target.length == 0


def test_a_closed_stream_waits_for_no_later_text(model: OmniDraft) -> None:
    read, later = threading.Event(), threading.Event()
    alive: list[bool] = []

    def in_a_round(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        read.set()
        assert later.wait(60)
        return scores

    def holding(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        reader.join(10)
        alive.append(reader.is_alive())
        return scores

    stream = model.stream(PROMPT, max_new_tokens=100, logits_processor=[in_a_round])
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(stream))
    reader.start()
    assert read.wait(60)
    stream.close()
    assert list(stream) == [], "and it is no error to read it, while another thread is at it"
    later.set()
    model.generate("the world", max_new_tokens=1, logits_processor=[holding])
    assert alive == [False]
    assert len(pieces) <= 1


def test_a_stream_that_is_closed_before_its_turn_ends_quietly(model: OmniDraft) -> None:
    stream = model.stream(PROMPT, max_new_tokens=40)
    found: list[list[str]] = []
    reader = threading.Thread(target=lambda: found.append(list(stream)))
    assert model.adaptive is not None
    with model.adaptive.shared.turns.lock:
        reader.start()
        reader.join(0.1)  # it waits for the models
        stream.close()
        model.stream("the world")
        reader.join(10)
        assert found == [[]]


def test_a_stream_that_its_own_processor_reads_or_closes(model: OmniDraft) -> None:
    def closing(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        with pytest.raises(OmniDraftError, match="being read already"):
            next(stream)
        stream.close()
        return scores

    stream = model.stream(PROMPT, max_new_tokens=40, logits_processor=[closing])
    list(stream)
    assert (stream.result.stats.rounds, model.lane.target.length) == (1, 0)


@pytest.mark.parametrize("ending", ["left", "overtaken"])
def test_background_work_stands_still_while_a_stream_is_open(model: OmniDraft, trainer: Any, ending: str) -> None:
    stream = model.stream(PROMPT, max_new_tokens=40)
    assert trainer.runs(), "nothing is decoded yet"
    next(stream)
    assert not trainer.runs()
    if ending == "overtaken":
        other = model.stream(PROMPT)
        assert trainer.runs(), "nobody can go on with the one before"
        next(other)
        stream.close()
        assert not trainer.runs()
        other.close()
    else:
        del stream
    assert trainer.runs()
