"""Lanes: several requests on one set of weights, round by round in turns, with KV caches that outlive an answer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft.api import Lane, OmniDraft
from omnidraft.decoding.stream import Generation, Stream
from omnidraft.errors import ConfigError, NumericsError, OmniDraftError
from omnidraft.models.language_model import Read
from support.assembling import load_with
from support.learning import FAST, adaptive_of, alone
from support.reads import watch

pytestmark = pytest.mark.usefixtures("home")
PROMPTS = ("hello world", "the world was hello", "don't", "def ing 10 the")
COUNT = 24


@pytest.fixture(scope="module")
def twin(target: Path, tmp_path_factory: pytest.TempPathFactory) -> OmniDraft:
    """A target that drafts for itself: all drafts are right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        return omnidraft.load(target, target, dtype="float32", profile=None, draft_length=4, reuse_answers="nothing")


def in_turns(streams: Sequence[Stream]) -> list[Generation]:
    """Read streams round by round in turns, each beginning a round after the one before."""
    open_ones: list[Stream] = []
    waiting = list(streams)
    while waiting or open_ones:
        open_ones += waiting[:1]
        del waiting[:1]
        open_ones = [stream for stream in open_ones if stream.step() is not None]
    return [stream.result for stream in streams]


def read(stream: Stream) -> Generation:
    for _ in stream:
        pass
    return stream.result


def fed_to(model: OmniDraft, patch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by the number of ids of each pass of the target."""
    found: list[int] = []

    def counting(read: Read) -> None:
        if read.sequence.model is model.target.lm:
            found.append(len(read.ids))

    watch(patch, type(model.target.lm), counting)
    return found


# ------------------------------------------------------------ answers


@pytest.mark.medium
@pytest.mark.parametrize("draft_length", [0, 4, "goodput"])
def test_greedy_answers_are_those_of_the_target_alone(target: Path, drafter: Path, draft_length: int | str) -> None:
    model = omnidraft.load(target, drafter, profile=None, draft_length=draft_length)
    lanes = model.lanes(4)
    for turn in range(2):  # lanes are used again, and by other prompts
        prompts = [PROMPTS[(at + turn) % 4] for at in range(4)]
        sizes = (COUNT, 9, 17, COUNT)
        found = in_turns([lanes[i].stream(prompts[i], max_new_tokens=sizes[i]) for i in range(4)])
        for prompt, size, answer in zip(prompts, sizes, found, strict=True):
            assert answer.token_ids == alone(model, prompt, size)
            assert answer.text == model.generate(prompt, max_new_tokens=size).text
    assert model.lane.target.length == 0, "they leave the model's own cache alone"


@pytest.mark.medium
def test_a_seed_gives_the_answer_that_it_gives_alone(target: Path, drafter: Path) -> None:
    # the one mode in which no answer changes how a later one is drafted
    model = load_with(target, drafter, profile=None, draft_length=3, mode="intersection")
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": COUNT, "top_k": 40}
    found = in_turns([lane.stream(PROMPTS[i], seed=i, **options) for i, lane in enumerate(model.lanes(4))])
    for i, answer in enumerate(found):
        assert answer.token_ids == model.generate(PROMPTS[i], seed=i, **options).token_ids
    assert sum(answer.stats.accepted for answer in found) > 0


@pytest.mark.medium
def test_steps_are_rounds_and_complete_the_text(twin: OmniDraft) -> None:
    stream = twin.lanes(1)[0].stream(PROMPTS[0], max_new_tokens=COUNT, stop=twin.generate(PROMPTS[0]).text[12:16])
    pieces = list(iter(stream.step, None))
    assert len(pieces) == len(stream.rounds) < COUNT
    assert "".join(pieces) == stream.result.text
    assert stream.result.finish_reason == "stop"
    assert stream.step() is None
    assert list(stream) == []


@pytest.mark.parametrize("count", [0, -1])
def test_there_is_a_lane_at_least(model: OmniDraft, count: int) -> None:
    with pytest.raises(ConfigError, match="use 1 or more"):
        model.lanes(count)


# ------------------------------------------------------------ what stays in the caches


@pytest.mark.medium
def test_a_second_turn_reads_only_what_is_new(twin: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = twin.lanes(1)[0]
    first = read(lane.stream(PROMPTS[0], max_new_tokens=COUNT))
    begun = twin.encode(PROMPTS[0])
    new = twin.encode(" the world was")[1:]
    ids = [*begun, *first.token_ids, *new]
    held = len(begun) + len(first.token_ids) - 1  # the last token was never fed
    assert lane.common(ids) == held
    assert lane.common([*begun[:-1], begun[-1] + 1]) == len(begun) - 1
    wanted = twin.generate(ids, max_new_tokens=COUNT)
    fed = fed_to(twin, monkeypatch)
    stream = lane.stream(ids, max_new_tokens=COUNT)
    stream.step()
    (record,) = stream.rounds
    assert fed == [len(new) + 1 + len(record.proposals)]
    assert record.counts.draft_read < len(ids) / 2, "nor does the drafter read it all"
    assert read(stream).token_ids == wanted.token_ids
    again = lane.stream(ids[:4], max_new_tokens=COUNT)
    again.step()
    assert fed[-1] == 1 + len(again.rounds[0].proposals), "one token is read in any case"
    assert read(again).token_ids == twin.generate(ids[:4], max_new_tokens=COUNT).token_ids


@pytest.mark.medium
def test_a_lane_that_is_closed_in_the_middle_is_free(model: OmniDraft) -> None:
    lane, beside = model.lanes(2)
    neighbour = beside.stream(PROMPTS[1], max_new_tokens=COUNT)
    with lane.stream(PROMPTS[0], max_new_tokens=COUNT) as stream:
        stream.step()
        neighbour.step()
        stream.step()
    assert stream.result.finish_reason == "interrupted"
    assert stream.step() is None
    for prompt in (PROMPTS[2], PROMPTS[0]):
        assert read(lane.stream(prompt, max_new_tokens=COUNT)).token_ids == alone(model, prompt, COUNT)
    assert read(neighbour).token_ids == alone(model, PROMPTS[1], COUNT)


@pytest.mark.medium
def test_another_request_ends_the_one_on_its_lane_alone(model: OmniDraft) -> None:
    lane, beside = model.lanes(2)
    own, first, neighbour = (each.stream(PROMPTS[0], max_new_tokens=COUNT) for each in (model, lane, beside))
    for stream in (own, first, neighbour):
        stream.step()
    second = lane.stream(PROMPTS[1], max_new_tokens=COUNT)
    second.step()
    with pytest.raises(OmniDraftError, match="another request was begun"):
        first.step()
    assert read(second).token_ids == alone(model, PROMPTS[1], COUNT)
    for stream in (own, neighbour):
        assert read(stream).token_ids == alone(model, PROMPTS[0], COUNT)


@pytest.mark.medium
@pytest.mark.parametrize("step", ["auto", "transformers"])
def test_memory_is_counted_and_given_back(target: Path, drafter: Path, step: str) -> None:
    model = load_with(target, drafter, profile=None, draft_length=4, drafter_backend=step)
    lane, beside = model.lanes(2)
    assert (lane.nbytes, beside.nbytes) == (0, 0)
    stream = lane.stream(PROMPTS[0], max_new_tokens=4)
    read(stream)
    short = lane.nbytes
    ids = stream.result.token_ids
    layer = model.target.lm.model.config
    least = 2 * 4 * layer.num_hidden_layers * layer.hidden_size * len(ids)  # keys and values in float32
    assert short > least / layer.num_attention_heads
    read(lane.stream(PROMPTS[0], max_new_tokens=400))
    assert lane.nbytes > short
    assert beside.nbytes == 0
    open_one = lane.stream(PROMPTS[0], max_new_tokens=COUNT)
    open_one.step()
    lane.clear()
    assert lane.nbytes == 0
    assert lane.common(model.encode(PROMPTS[0])) == 0
    with pytest.raises(OmniDraftError, match="another request was begun"):
        open_one.step()
    assert read(lane.stream(PROMPTS[0], max_new_tokens=COUNT)).token_ids == alone(model, PROMPTS[0], COUNT)


@pytest.mark.medium
def test_nothing_stays_of_a_round_that_fails(model: OmniDraft) -> None:
    lane, beside = model.lanes(2)
    neighbour = beside.stream(PROMPTS[1], max_new_tokens=COUNT)
    neighbour.step()
    head = model.target.lm.model.get_output_embeddings()
    for failing in (NumericsError, KeyboardInterrupt):
        stream = lane.stream(PROMPTS[0], max_new_tokens=COUNT)
        stream.step()
        assert lane.nbytes > 0

        def broken(_: Any, __: Any, logits: torch.Tensor, failing: type[BaseException] = failing) -> torch.Tensor:
            if failing is KeyboardInterrupt:
                raise failing
            return logits * torch.nan

        hook = head.register_forward_hook(broken)
        with pytest.raises(failing):
            stream.step()
        hook.remove()
        assert (lane.nbytes, lane.common(model.encode(PROMPTS[0]))) == (0, 0)
        assert stream.step() is None
        assert read(lane.stream(PROMPTS[0], max_new_tokens=COUNT)).token_ids == alone(model, PROMPTS[0], COUNT)
    assert read(neighbour).token_ids == alone(model, PROMPTS[1], COUNT)


# ------------------------------------------------------------ learning


@pytest.mark.medium
@pytest.mark.parametrize("step", ["auto", "transformers"])
def test_learned_weights_reach_a_lane_in_the_middle_of_an_answer(target: Path, drafter: Path, step: str) -> None:
    model = load_with(target, drafter, adapt="inline", drafter_backend=step, **FAST, warn=pytest.fail)
    slow, quick = model.lanes(2)
    stream = slow.stream(PROMPTS[0], max_new_tokens=60)
    for _ in range(4):
        stream.step()
    before = stream.rounds[-1].counts.draft_read
    for _ in range(2):
        assert read(quick.stream(PROMPTS[1], max_new_tokens=COUNT)).token_ids == alone(model, PROMPTS[1], COUNT)
    assert (model.learned["updates"], model.learned["rolled_back"]) == (1, 0)
    text_so_far = len(stream.result.token_ids)
    stream.step()
    assert stream.rounds[-1].counts.draft_read > text_so_far + before, "the drafter reads its text again"
    stream.step()
    assert stream.rounds[-1].counts.draft_read == before
    assert read(stream).token_ids == alone(model, PROMPTS[0], 60)
    assert model.learned["answers"] == 3, "of every lane"
    model.close()
    for lane in (slow, quick):
        assert read(lane.stream(PROMPTS[1], max_new_tokens=COUNT)).token_ids == alone(model, PROMPTS[1], COUNT)
    assert model.learned["answers"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("step", ["auto", "transformers"])
def test_two_targets_share_a_drafter_in_lanes(target: Path, drafter: Path, other_target: Path, step: str) -> None:
    a = load_with(target, drafter, adapt="inline", drafter_backend=step, **FAST, warn=pytest.fail)
    b = omnidraft.load(other_target, a, adapt="inline", **FAST, warn=pytest.fail)
    lanes = [*a.lanes(2), *b.lanes(2)]
    for turn in range(3):
        prompts = [PROMPTS[(at + turn) % 4] for at in range(4)]
        found = in_turns([lane.stream(p, max_new_tokens=COUNT) for lane, p in zip(lanes, prompts, strict=True)])
        for model, prompt, answer in zip((a, a, b, b), prompts, found, strict=True):
            assert answer.token_ids == alone(model, prompt, COUNT)
    assert a.learned["updates"] == b.learned["updates"] == 3
    # a lane whose target learns nothing meanwhile reads nothing again, whatever the other one learns
    quiet = lanes[0].stream(" ".join(PROMPTS * 4), max_new_tokens=60)
    quiet.step()
    for prompt in PROMPTS:
        read(lanes[2].stream(prompt, max_new_tokens=COUNT))
        quiet.step()
    assert b.learned["updates"] > 3
    assert quiet.rounds[0].counts.draft_read > 60
    assert max(record.counts.draft_read for record in quiet.rounds[1:]) < 30
    assert a.generate(PROMPTS[3], max_new_tokens=COUNT).token_ids == alone(a, PROMPTS[3], COUNT)


@pytest.mark.medium
def test_what_is_learned_is_what_lanes_draft_with(target: Path, drafter: Path) -> None:
    model = omnidraft.load(target, drafter, adapt="inline", **FAST, warn=pytest.fail)
    lane = model.lanes(1)[0]

    def rounds(one: OmniDraft | Lane) -> list[Any]:
        stream = one.stream(PROMPTS[0], max_new_tokens=COUNT)
        list(itertools.takewhile(lambda _: len(stream.result.token_ids) < COUNT - 1, stream))
        stream.close()  # not complete: nothing is learned from it
        return [(record.draft, record.emitted) for record in stream.rounds]

    before = rounds(lane)
    assert before == rounds(model)
    for prompt in PROMPTS:
        read(lane.stream(prompt, max_new_tokens=COUNT))
    assert rounds(lane) == rounds(model) != before
    assert rounds(model.lanes(1)[0]) == rounds(model)


@pytest.mark.medium
def test_a_lane_teaches_what_a_model_does(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    adaptive, taught = adaptive_of(model), []
    monkeypatch.setattr(adaptive, "teach", lambda *asked: taught.append(adaptive.adaptation.answer(*asked)))
    lane, beside = model.lanes(2)
    in_turns([one.stream(prompt, max_new_tokens=COUNT) for one, prompt in zip((lane, beside), PROMPTS, strict=False)])
    for prompt in PROMPTS[:2]:
        model.generate(prompt, max_new_tokens=COUNT)
    told = [(trace.prompt, trace.tokens, trace.written) for trace in taught]
    assert told[:2] == told[2:]
    assert all(map(all, told))


def test_background_work_stands_still_in_the_rounds_of_any_lane(model: OmniDraft, trainer: Any) -> None:
    one, other = (lane.stream(PROMPTS[0], max_new_tokens=COUNT) for lane in model.lanes(2))

    def runs_after(act: Any) -> bool:
        act()
        return bool(trainer.runs())

    assert not runs_after(one.step)
    assert not runs_after(other.step)
    assert runs_after(one.close)
    assert not runs_after(other.step)
    assert runs_after(other.close)


@pytest.mark.medium
def test_the_measurements_of_lanes_are_kept(target: Path, drafter: Path) -> None:
    model = omnidraft.load(target, drafter, adapt="inline", draft_length="goodput")
    lane = model.lanes(1)[0]
    at_first = adaptive_of(model).measurements["goodput"]
    read(lane.stream(PROMPTS[0], max_new_tokens=COUNT))
    measured = adaptive_of(model).measurements["goodput"]
    assert measured.tolist() != at_first.tolist()
    model.close()
    again = omnidraft.load(target, drafter, draft_length="goodput")
    assert adaptive_of(again).measurements["goodput"].tolist() == measured.tolist()


# ------------------------------------------------------------ log-probabilities


@pytest.mark.medium
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7, "top_k": 5, "repetition_penalty": 1.3}, {"temperature": 0.01, "logits_processor": True}],
)
@pytest.mark.parametrize("plain", [True, False])
def test_logprobs_are_those_of_the_target(twin: OmniDraft, target: Path, plain: bool, options: dict[str, Any]) -> None:
    model = omnidraft.load(target, None) if plain else twin
    if "logits_processor" in options:
        options = {**options, "logits_processor": [lambda _, scores: scores.mul_(0.5)]}
    stream = model.stream(PROMPTS[0], max_new_tokens=COUNT, logprobs=5, seed=1, **options)
    answer = read(stream)
    assert plain or answer.stats.accepted > 4
    told = [one for record in stream.rounds for one in record.logprobs]
    assert tuple(one.token for one in told) == answer.token_ids
    begun = model.encode(PROMPTS[0])
    with torch.no_grad():
        logits = model.target.lm.model(torch.tensor([[*begun, *answer.token_ids]])).logits[0, len(begun) - 1 : -1]
    rows = torch.log_softmax(logits.float(), -1)
    for one, row in zip(told, rows, strict=True):
        assert abs(one.logprob - float(row[one.token])) < 1e-4
        tokens, values = zip(*one.top, strict=True)  # two that are as good as equal may come in either order
        assert len({*tokens}) == 5
        for wanted in (row.topk(5).values, row[list(tokens)]):
            assert torch.allclose(torch.tensor(values), wanted, atol=1e-4)


@pytest.mark.medium
def test_logprobs_are_only_told_where_asked_for(twin: OmniDraft) -> None:
    lane = twin.lanes(1)[0]
    for asked in (None, 0):
        stream = lane.stream(PROMPTS[0], max_new_tokens=8, logprobs=asked)
        read(stream)
        counts = [len(record.logprobs) for record in stream.rounds]
        assert counts == [0 if asked is None else len(record.emitted) for record in stream.rounds]
        assert not any(one.top for record in stream.rounds for one in record.logprobs)
    for wrong in (21, -1, True, "five"):
        with pytest.raises(ConfigError, match="logprobs is"):
            lane.stream(PROMPTS[0], logprobs=wrong)
