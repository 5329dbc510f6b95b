"""Requests whose rounds are read in joint passes: each is answered as it is alone, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft.api import Lane, OmniDraft
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.round import commit, propose
from omnidraft.decoding.schedule import DRAFTERS_S, Step, step_together
from omnidraft.decoding.stream import Stream
from omnidraft.errors import NumericsError
from omnidraft.models.language_model import Read
from omnidraft.models.native.model import NativeModel
from omnidraft.text.stop_strings import StopStrings
from omnidraft.verification.sampling import Processor
from support.assembling import load_with
from support.compilers import needs_the_8_bit_step
from support.reads import passes_of, watch

pytestmark = pytest.mark.usefixtures("home")
PROMPTS = ("hello world", "the world was hello", "don't", "def ing 10 the", "hello the 10")
COUNT = 24
CHUNK = 8  # ids of a prompt in a pass
LONG = "hello world, the world was hello " * 12
ID_S = 0.004  # of a drafter, where the clock is scripted


@pytest.fixture(scope="module")
def exact(target: Path, tmp_path_factory: pytest.TempPathFactory) -> OmniDraft:
    """A target in 8 bits that drafts for itself, in the one mode in which no answer changes how others are drafted."""
    needs_the_8_bit_step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        options: dict[str, Any] = {"dtype": "int8", "profile": None, "draft_length": 3, "mode": "intersection"}
        return load_with(target, target, warn=pytest.fail, **options)


def banned(*tokens: int) -> Processor:
    """As a grammar: what the text may not go on with depends on how long it is."""

    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, [(each + ids.shape[1]) % scores.shape[1] for each in tokens]] = -torch.inf
        return scores

    return processor


ASKED: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 40, "seed": 3},
    {"temperature": 0.0, "logits_processor": [banned(5, 6, 7)]},
    {"temperature": 0.0, "repetition_penalty": 1.3, "logprobs": 2},
    {"temperature": 1.0, "seed": 8, "top_p": 0.9, "logits_processor": [banned(9)]},
)


def turns_of(streams: Sequence[Stream], each: Callable[[list[Step]], object] = lambda _: None) -> int:
    """Read streams to their ends, a turn after the other; how many that took."""
    left, turns = list(streams), 0
    while left:
        steps = step_together(left)
        turns += 1
        each(steps)
        left = [stream for stream, step in zip(left, steps, strict=True) if step.waits or step.text is not None]
    return turns


@pytest.mark.medium
@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_answer_is_the_one_that_it_is_alone(exact: OmniDraft, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Each with sampling, a memory and a grammar of its own; one ends earlier, one begins later."""
    asked = [{"max_new_tokens": COUNT - 5 * (at == 1), **options} for at, options in enumerate(ASKED[:count])]
    expected = [exact.generate(prompt, **options) for prompt, options in zip(PROMPTS, asked, strict=False)]
    passes = passes_of(monkeypatch)
    lanes = exact.lanes(count)
    for _ in range(2):  # lanes are used again
        streams = [
            lane.stream(prompt, memory=AnswerMemory(), **options)
            for lane, prompt, options in zip(lanes, PROMPTS, asked, strict=False)
        ]
        late = streams[-1:] if count > 1 else []
        early = streams[: len(streams) - len(late)]
        for _ in range(3):
            step_together(early)
        turns_of([*early, *late])
        for stream, answer, options in zip(streams, expected, asked, strict=True):
            found = stream.result
            assert (found.token_ids, found.text, found.finish_reason) == (
                answer.token_ids, answer.text, answer.finish_reason,
            )  # fmt: skip
            if "logprobs" in options:
                assert all(record.logprobs for record in stream.rounds)
        assert sum(stream.result.stats.accepted for stream in streams) > 0
    assert max(reads for _, reads in passes) == count


def test_a_turn_is_one_pass_of_the_target(exact: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    found = passes_of(monkeypatch)
    streams = [lane.stream(prompt, max_new_tokens=COUNT) for lane, prompt in zip(exact.lanes(5), PROMPTS, strict=True)]
    turns = turns_of(streams)
    passes = [reads for model, reads in found if model is exact.target.lm]
    assert max(passes) == 5
    assert turns - 1 <= len(passes) <= turns  # the last one finds that all have ended


@pytest.mark.medium
def test_two_targets_share_the_passes_of_their_drafter(
    exact: OmniDraft, other_target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a pass of its own in a turn; what a drafter of either has learned is its own."""
    other = load_with(other_target, exact, dtype="int8", profile=None, draft_length=3, mode="intersection")
    models = (exact, other, exact, other)
    expected = [model.generate(prompt, max_new_tokens=COUNT) for model, prompt in zip(models, PROMPTS, strict=False)]
    passes = passes_of(monkeypatch)
    lanes = {id(model): iter(model.lanes(2)) for model in (exact, other)}
    streams = [
        next(lanes[id(model)]).stream(prompt, max_new_tokens=COUNT)
        for model, prompt in zip(models, PROMPTS, strict=False)
    ]
    turns_of(streams)
    assert [stream.result.token_ids for stream in streams] == [answer.token_ids for answer in expected]
    assert exact.lane.attached is not None
    read_by = (exact.lane.attached.drafter.model, exact.target.lm, other.target.lm)
    assert [max(reads for one, reads in passes if one is model) for model in read_by] == [4, 2, 2]


# ------------------------------------------------------------ prompts beside answers


@pytest.fixture
def parted(exact: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> OmniDraft:
    """Prompts are read a few ids at a time."""
    monkeypatch.setattr(NativeModel, "chunk", CHUNK)
    return exact


def lanes_of(model: OmniDraft, *prompts: str, **options: Any) -> tuple[list[Lane], list[Stream]]:
    lanes = model.lanes(len(prompts))
    pairs = zip(lanes, prompts, strict=True)
    return lanes, [lane.stream(prompt, max_new_tokens=COUNT, **options) for lane, prompt in pairs]


@pytest.mark.medium
def test_no_answer_waits_for_the_prompt_of_another(parted: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn it has a round, and no more of prompts is read beside it than one part."""
    expected = [parted.generate(prompt, max_new_tokens=COUNT) for prompt in (PROMPTS[0], LONG, LONG[5:])]
    _, (running, *reading) = lanes_of(parted, PROMPTS[0], LONG, LONG[5:])
    assert step_together([running])[0].text is not None
    read: list[int] = []
    watch(monkeypatch, NativeModel, lambda each: read.append(0 if each.keep else len(each.ids)))
    waited = 0
    while len(running.result.token_ids) < COUNT:
        read.clear()
        first, *others = step_together([running, *reading])
        assert first.text is not None
        assert all(step.waits for step in others)
        assert sum(read) <= CHUNK
        waited += 1
    assert waited > 3
    turns_of([running, *reading])
    for stream, answer in zip((running, *reading), expected, strict=True):
        assert stream.result.token_ids == answer.token_ids
    assert reading[0].rounds


def test_the_prompt_with_the_fewest_ids_left_is_read_first(parted: OmniDraft) -> None:
    _, streams = lanes_of(parted, LONG, LONG[5:], PROMPTS[0])
    order: list[int] = []
    while len(order) < len(streams):
        for at, step in enumerate(step_together(streams)):
            if step.text is not None and at not in order:
                order.append(at)
    assert order == [2, 1, 0]


def test_a_long_prompt_is_read_however_many_short_ones_come(parted: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each turn there is another one, of which a part would fill the pass."""
    monkeypatch.setattr("omnidraft.decoding.schedule.AGING", CHUNK)
    short = "the world was hello"
    lane, *others = parted.lanes(3)
    long, turns, come = lane.stream(LONG, max_new_tokens=1), 0, list[Stream]()
    while not long.rounds:
        come = [stream for stream in come if not stream.rounds]
        if len(come) < len(others):
            free = next(each for each in others if all(each is not stream.lane for stream in come))
            free.clear()
            come.append(free.stream(short * 2, max_new_tokens=1))
        step_together([long, *come])
        turns += 1
        assert turns < 4 * len(parted.encode(LONG)) / CHUNK, "it waits for ever"


@pytest.mark.parametrize("calls", [1, 2, 5])
def test_an_error_in_asking_whether_to_stop_is_one_request_s_own(parted: OmniDraft, calls: int) -> None:
    """Asked before each turn, and between the parts of a prompt."""
    expected = parted.generate(PROMPTS[0], max_new_tokens=COUNT).token_ids
    first, other = parted.lanes(2)
    asked: list[int] = []

    def fails() -> bool:
        asked.append(1)
        if len(asked) == calls:
            raise ZeroDivisionError
        return False

    streams = [
        first.stream(PROMPTS[0], max_new_tokens=COUNT),
        other.stream(LONG, max_new_tokens=COUNT, should_stop=fails),
    ]
    errors: list[Exception | None] = []
    turns_of(streams, lambda steps: errors.extend(step.error for step in steps if step.error))
    assert list(map(type, errors)) == [ZeroDivisionError]
    assert streams[0].result.token_ids == expected


def test_a_prompt_whose_client_leaves_is_read_no_further(parted: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parted.generate(PROMPTS[0], max_new_tokens=COUNT)
    (first, lane), left = parted.lanes(2), False
    running = first.stream(PROMPTS[0], max_new_tokens=COUNT)
    running.step()
    reading = lane.stream(LONG, max_new_tokens=COUNT, should_stop=lambda: left)
    for _ in range(3):
        assert step_together([running, reading])[1].waits
    left = True
    ids: list[int] = []
    with monkeypatch.context() as patch:
        watch(patch, NativeModel, lambda each: ids.append(len(each.ids) if each.sequence is held else 0))
        held = reading.lane.target
        assert step_together([running, reading])[1] == Step()
    assert not sum(ids)
    assert reading.result.finish_reason == "interrupted"
    assert lane.common(parted.encode(LONG)) == 3 * CHUNK, "what was read is kept"
    turns_of([running])
    assert running.result.token_ids == expected.token_ids


@pytest.mark.medium
def test_a_drafter_that_is_behind_lets_others_go_on(parted: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads for some time in a turn, and its request has rounds without a draft meanwhile."""
    asked = ((PROMPTS[0], 6 * COUNT), (LONG, COUNT))  # the first one runs on until the drafter has caught up
    expected = [parted.generate(prompt, max_new_tokens=count) for prompt, count in asked]
    pairs = zip(parted.lanes(2), asked, strict=True)
    streams = [lane.stream(prompt, max_new_tokens=count) for lane, (prompt, count) in pairs]
    read: list[int] = []
    assert parted.lane.attached is not None
    drafts = parted.lane.attached.drafter.model
    watch(
        monkeypatch,
        NativeModel,
        lambda each: read.append(len(each.ids) * (each.sequence.model is drafts and not each.keep)),
    )
    clock = SimpleNamespace(perf_counter=lambda: ID_S * sum(read))
    monkeypatch.setattr("omnidraft.decoding.schedule.time", clock)
    most = 0

    def look(steps: list[Step]) -> None:
        nonlocal most
        most = max(most, sum(read) * (len(steps) > 1))  # alone, nobody waits
        read.clear()

    turns_of(streams, look)
    assert CHUNK <= most <= DRAFTERS_S / ID_S
    without = [record.no_draft_reason for record in streams[1].rounds]
    assert "the drafter still reads the prompt" in without
    assert any(record.draft for record in streams[1].rounds)
    assert [stream.result.token_ids for stream in streams] == [answer.token_ids for answer in expected]


# ------------------------------------------------------------ failures


def failing(model: OmniDraft, stream: Stream, how: str, patch: pytest.MonkeyPatch) -> type[Exception]:
    """Have a stream fail in its third round."""
    if how == "the pass":  # each time that the sequence is in it
        watch(patch, NativeModel, lambda each: _fail(each.sequence is stream.lane.target and len(stream.rounds) == 2))
        return MemoryError
    if how == "logits":
        true = Read.checked

        def checked(read: Read, logits: torch.Tensor) -> torch.Tensor:
            if read.sequence is stream.lane.target and len(stream.rounds) == 2:
                logits = logits * torch.nan
            return true(read, logits)

        patch.setattr(Read, "checked", checked)
        return NumericsError
    if how == "ids":

        def proposed(lane: Any, request: Any) -> Any:
            if lane is stream.lane and len(stream.rounds) == 2:
                request.ids[-1] = model.vocab.size + 5
            return propose(lane, request)

        patch.setattr("omnidraft.decoding.round.propose", proposed)
        return omnidraft.errors.PromptError

    def committed(lane: Any, *rest: Any) -> Any:
        _fail(lane is stream.lane and len(stream.rounds) == 2)
        return commit(lane, *rest)

    patch.setattr("omnidraft.decoding.stream.commit", committed)
    return MemoryError


def _fail(now: bool) -> None:
    if now:
        raise MemoryError


@pytest.mark.medium
@pytest.mark.parametrize("how", ["the pass", "logits", "ids", "commit"])
def test_a_request_that_fails_is_alone_with_it(exact: OmniDraft, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    expected = [exact.generate(prompt, max_new_tokens=COUNT) for prompt in PROMPTS[:3]]
    lanes, streams = lanes_of(exact, *PROMPTS[:3])
    errors: list[Exception] = []

    def look(steps: list[Step]) -> None:
        errors.extend(step.error for step in steps if step.error is not None)

    with monkeypatch.context() as patch:
        kind = failing(exact, streams[1], how, patch)
        turns_of(streams, look)
    assert [type(error) for error in errors] == [kind]
    assert [streams[at].result.token_ids for at in (0, 2)] == [expected[at].token_ids for at in (0, 2)]
    assert len(streams[1].rounds) == 2
    assert lanes[1].nbytes == 0, "nothing stays of it"
    again = lanes[1].stream(PROMPTS[1], max_new_tokens=COUNT)
    turns_of([again])
    assert again.result.token_ids == expected[1].token_ids


@pytest.mark.medium
@pytest.mark.parametrize("step", ["feed", "end"])
def test_a_failure_to_write_the_text_is_one_request_s_own(
    exact: OmniDraft, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    expected = [exact.generate(prompt, max_new_tokens=COUNT).token_ids for prompt in PROMPTS[:3]]
    lanes, streams = lanes_of(exact, *PROMPTS[:3])
    texts, true = [stream._text for stream in streams], getattr(StopStrings, step)  # noqa: SLF001

    def write(text: StopStrings, *ids: Any) -> Any:
        _fail(text is texts[1])
        return true(text, *ids)

    errors: list[Exception] = []
    with monkeypatch.context() as patch:
        patch.setattr(StopStrings, step, write)
        turns_of(streams, lambda steps: errors.extend(step.error for step in steps if step.error is not None))
    assert list(map(type, errors)) == [MemoryError]
    assert [streams[at].result.token_ids for at in (0, 2)] == [expected[0], expected[2]]
    assert lanes[1].nbytes == 0, "nothing stays of it"


@pytest.mark.medium
def test_a_pass_that_fails_once_is_made_again_one_by_one(exact: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [exact.generate(prompt, max_new_tokens=COUNT) for prompt in PROMPTS[:3]]
    _, streams = lanes_of(exact, *PROMPTS[:3])
    true, calls = NativeModel._read_joint, 0  # noqa: SLF001

    def failing_once(model: NativeModel, reads: Sequence[Read], *arguments: Any) -> None:
        nonlocal calls
        true(model, reads, *arguments)  # what it wrote to the caches is to count for nothing
        calls += len(reads) == 3
        _fail(calls == 4 and len(reads) == 3)

    monkeypatch.setattr(NativeModel, "_read_joint", failing_once)
    turns_of(streams)
    assert calls > 4
    assert [stream.result.token_ids for stream in streams] == [answer.token_ids for answer in expected]


def test_an_interruption_ends_all(exact: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = exact.generate(PROMPTS[0], max_new_tokens=COUNT)
    lanes, streams = lanes_of(exact, *PROMPTS[:2])
    step_together(streams)

    def interrupt(_: Read) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        watch(patch, NativeModel, interrupt)
        with pytest.raises(KeyboardInterrupt):
            step_together(streams)
    assert step_together(streams) == [Step(), Step()]
    again = lanes[0].stream(PROMPTS[0], max_new_tokens=COUNT)
    turns_of([again])
    assert again.result.token_ids == expected.token_ids
