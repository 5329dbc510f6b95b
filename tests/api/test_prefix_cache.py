"""Lanes that share what they read, natively and with transformers: answers are those of a fresh model."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft.api import Lane, OmniDraft
from omnidraft.decoding.request import Extras
from omnidraft.decoding.schedule import step_together
from omnidraft.decoding.stream import Stream
from omnidraft.models.language_model import Read
from omnidraft.models.native.step import BLOCK
from omnidraft.models.prefix_cache import WORTH, PrefixCache
from support.compilers import needs_the_8_bit_step
from support.reads import watch

pytestmark = pytest.mark.usefixtures("home")
COUNT = 12
ROOM = 10**9


@pytest.fixture(scope="module", params=["int8", "float32"])
def model(
    target: Path, drafter: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> OmniDraft:
    if request.param == "int8":
        needs_the_8_bit_step()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        options: dict[str, Any] = {
            "dtype": request.param,
            "profile": None,
            "draft_length": 3,
            "reuse_answers": "nothing",
        }
        return omnidraft.load(target, drafter, **options)


def prompt(seed: int, length: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(5, 300) for _ in range(length)]


def asked(lane: Lane, ids: list[int], **options: Any) -> Stream:
    stream = lane.stream(ids, max_new_tokens=COUNT, **options)
    while stream.step() is not None:
        pass
    return stream


def fresh(model: OmniDraft, ids: list[int], **options: Any) -> tuple[int, ...]:
    return asked(model.lanes(1)[0], ids, **options).result.token_ids


@pytest.mark.medium
def test_a_lane_reads_only_what_no_other_has_read(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    watch(
        monkeypatch,
        type(model.target.lm),
        lambda each: read.append(len(each.ids)) if each.sequence.model is model.target.lm else None,
    )
    first, second = model.lanes(2, PrefixCache(ROOM))
    ids = prompt(1, 2 * BLOCK + 100)
    one = asked(first, ids)
    assert sum(read) >= len(ids)
    read.clear()
    other = asked(second, [*ids, 7, 8])
    assert read[0] == 2 + 3, "the new ids, and three proposals"
    assert other.request.cached == len(ids)
    assert other.result.token_ids == fresh(model, [*ids, 7, 8])
    again = asked(first, ids)
    assert again.request.cached == len(ids) - 1, "one is read, for its logits"
    assert again.result.token_ids == one.result.token_ids
    edited = [*ids[: BLOCK + WORTH], 9, *ids[BLOCK + WORTH + 1 :]]
    assert asked(second, edited).request.cached == BLOCK + WORTH, "what comes before an edit is kept"
    assert second.nbytes == first.nbytes == 0, "lanes hold nothing between requests"


@pytest.mark.medium
def test_a_drafter_reads_only_what_no_other_has_read(model: OmniDraft) -> None:
    first, second = model.lanes(2, PrefixCache(ROOM))
    ids = prompt(1, 2 * BLOCK + 100)
    reads = [sum(record.counts.draft_read for record in asked(lane, ids).records) for lane in (first, second)]
    assert reads[0] > 2 * BLOCK
    assert reads[1] < BLOCK


@pytest.mark.medium
def test_who_is_in_another_circle_finds_nothing(model: OmniDraft) -> None:
    first, second = model.lanes(2, PrefixCache(ROOM))
    ids = prompt(2, 2 * BLOCK)
    asked(first, ids, extras=Extras(circle=b"one"))
    other = asked(second, ids, extras=Extras(circle=b"other"))
    assert other.request.cached == 0
    assert sum(record.counts.draft_read for record in other.records) >= BLOCK
    assert asked(second, ids, extras=Extras(circle=b"one")).request.cached == len(ids) - 1


@pytest.mark.medium
def test_what_one_lane_reads_another_takes_over_meanwhile(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    watch(
        monkeypatch,
        type(model.target.lm),
        lambda each: read.append(len(each.ids)) if each.sequence.model is model.target.lm else None,
    )
    ids = prompt(3, 4 * BLOCK)
    endings = [[11, 12], [13, 14, 15], [16, 17, 18, 19]]
    expected = [fresh(model, [*ids, *end]) for end in endings]
    read.clear()
    streams = [
        lane.stream([*ids, *end], max_new_tokens=COUNT)
        for lane, end in zip(model.lanes(3, PrefixCache(ROOM)), endings, strict=True)
    ]
    while any(step.text is not None or step.waits for step in step_together(streams)):
        pass
    assert [stream.result.token_ids for stream in streams] == expected
    assert sum(read) < 2 * len(ids), "not three times"


@pytest.mark.medium
def test_a_prompt_that_is_left_keeps_what_was_read(model: OmniDraft) -> None:
    first, second = model.lanes(2, PrefixCache(ROOM))
    ids = prompt(4, 3 * BLOCK)
    left = False
    stream = first.stream(ids, max_new_tokens=COUNT, should_stop=lambda: left)
    short = second.stream(ids[:4], max_new_tokens=COUNT)
    for _ in range(12):
        step_together([stream, short])
    left = True
    assert stream.step() is None
    stream.close()
    short.close()
    again = asked(second, ids)
    assert again.request.cached > WORTH
    assert again.result.token_ids == fresh(model, ids)


@pytest.mark.medium
def test_the_log_probabilities_of_a_prompt_read_all_of_it(model: OmniDraft) -> None:
    (lane,) = model.lanes(1, PrefixCache(ROOM))
    ids = prompt(5, BLOCK + 40)
    asked(lane, ids)
    scored = asked(lane, ids, logprobs=0, extras=Extras(scores=True))
    assert scored.request.cached == 0
    assert len(scored.prompt_logprobs) == len(ids) - 1


@pytest.mark.medium
def test_a_failed_round_leaves_nothing_of_its_own(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = PrefixCache(ROOM)
    (lane,) = model.lanes(1, kept)
    ids = prompt(6, BLOCK + 40)
    true = Read.checked

    def checked(read: Read, logits: Any) -> Any:
        return true(read, logits * float("nan") if read.sequence is lane.target else logits)

    with monkeypatch.context() as patch:
        patch.setattr(Read, "checked", checked)
        with pytest.raises(omnidraft.errors.NumericsError):
            asked(lane, ids)
    assert lane.nbytes == 0
    assert asked(lane, ids).result.token_ids == fresh(model, ids)


@pytest.mark.medium
def test_an_error_after_an_answer_leaves_the_models_to_others(
    model: OmniDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = model.lanes(2, PrefixCache(ROOM))
    ids = prompt(7, BLOCK + 40)
    true = PrefixCache.add

    def add(self: PrefixCache, *text: Any, end: bool = False) -> None:
        true(self, *text)
        assert not end, "of the answer's end"

    with monkeypatch.context() as patch:
        patch.setattr(PrefixCache, "add", add)
        with pytest.raises(AssertionError, match="of the answer's end"):
            asked(first, ids)
    with ThreadPoolExecutor(1) as pool:  # another thread, which would wait for the lock for ever
        assert pool.submit(second.turns.lock.acquire, timeout=0).result()
        pool.submit(second.turns.lock.release).result()
    assert asked(second, ids).result.token_ids == fresh(model, ids)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("model", "seed"),
    [
        ("int8", 0),
        ("float32", 0),
        *(pytest.param("int8", seed, marks=pytest.mark.slow) for seed in range(1, 12)),
        *(pytest.param("float32", seed, marks=pytest.mark.slow) for seed in range(1, 3)),
    ],
    indirect=["model"],
)
def test_any_history_gives_the_answers_of_a_fresh_model(model: OmniDraft, seed: int) -> None:
    """With edits in the middle, evictions, several lanes at once, answers that are left, and sampled ones."""
    rng, kept = random.Random(seed), PrefixCache(40 * BLOCK * round(model.target.lm.token_bytes))
    lanes = model.lanes(3, kept)
    texts = [prompt(seed * 10 + at, rng.randrange(20, 3 * BLOCK)) for at in range(3)]
    known: dict[tuple[Any, ...], tuple[int, ...]] = {}
    cached = 0
    for _ in range(25):
        going = []
        for lane in rng.sample(lanes, rng.randrange(1, 4)):
            text = list(rng.choice(texts))
            if rng.random() < 0.4:
                text = text[: rng.randrange(1, len(text) + 1)]
            if rng.random() < 0.4:
                text[rng.randrange(len(text))] = 5
            ids = text + [rng.randrange(5, 300) for _ in range(rng.randrange(1, 40))]
            options = {"temperature": rng.choice((0.0, 0.9)), "seed": rng.randrange(2)}
            going.append((ids, options, lane.stream(ids, max_new_tokens=COUNT, **options)))
            texts[rng.randrange(3)] = ids
        left = rng.randrange(1, 30) if rng.random() < 0.2 else 1000
        streams = [stream for *_, stream in going]
        while left and any(step.text is not None or step.waits for step in step_together(streams)):
            left -= 1
        for ids, options, stream in going:
            stream.close()
            key = (tuple(ids), *options.values())
            if key not in known:
                known[key] = fresh(model, ids, **options)
            result = stream.result.token_ids
            assert result == known[key][: len(result)]
            assert len(result) == len(known[key]) or not left
            cached += stream.request.cached > 0
        if rng.random() < 0.2:
            kept.trim(rng.randrange(kept.limit))
            kept.limit = 40 * BLOCK * round(model.target.lm.token_bytes)
    assert cached > 10
