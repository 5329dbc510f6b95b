"""Counts through the Python interface: exact drafts, and earlier answers that are kept as long as asked for."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import omnidraft
from omnidraft import Generation, OmniDraft, Stream
from omnidraft.cli import main as cli
from omnidraft.defaults import AUTO
from omnidraft.profiles.manifest import ANSWER_TOKENS
from support.assembling import load_with
from support.lanes import generate
from support.learning import drafts
from support.models import save_model
from support.small_tokenizers import byte_level

PROMPT = "hello world"
COUNT = 24
CODE = "def add(a, b):\n    total = a + b\n    return total\n\n" * 3
KEEPS: dict[str, Any] = {"adapt": "inline", "update_every": 1, "reuse_answers": "profile"}

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes as long over many tokens as over one: whether copies pay is left to no busy machine."""
    ticks = itertools.count()
    for module in ("lane", "round"):
        clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
        monkeypatch.setattr(f"omnidraft.decoding.{module}.time", clock)


def ask(model: OmniDraft, prompt: str = PROMPT, **options: Any) -> Generation:
    return model.generate(prompt, **{"max_new_tokens": COUNT, **options})


def again(model: OmniDraft, times: int = 2) -> Generation:
    """The last of some answers to one prompt, which are the same in any case."""
    answers = [ask(model) for _ in range(times)]
    assert len({answer.token_ids for answer in answers}) == 1
    return answers[-1]


# ---------------------------------------------------------------- exact


@pytest.mark.slow
@pytest.mark.usefixtures("even")
@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("zoo:target-a", {"drafter": None}),
        ("zoo:target-a", {}),
        ("zoo:target-a", {"drafter": None, "draft_length": 6}),
        ("zoo:target-a", {"draft_length": 6}),
        ("zoo:target-a", {"draft_length": "head"}),
        ("zoo:target-b", {"drafter": None}),  # of another tokenizer
        ("zoo:target-b", {}),
    ],
)
def test_greedy_answers_are_those_of_transformers(target: str, options: dict[str, Any]) -> None:
    model = load_with(target, **{"drafter": AUTO, "profile": None, "dtype": "float32", "warn": print, **options})
    ids = model.encode(CODE)
    expected = generate(model.target.lm, ids, COUNT, model.vocab.eos)
    counted = accepted = 0
    for _ in range(5):
        answer = model.generate(ids, max_new_tokens=COUNT, temperature=0.0)
        assert list(answer.token_ids) == expected
        assert 0 <= answer.stats.counted <= answer.stats.drafted
        counted += answer.stats.counted
        accepted += answer.stats.accepted
    assert counted > 10, "identity must have been seen on counted tokens"
    assert accepted > 20


@pytest.mark.medium
@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("length", [4, "goodput"])
def test_without_a_drafter_a_sampled_answer_is_that_of_plain_decoding(target: Path, length: int | str) -> None:
    """Each token takes one draw from the target's distribution, whatever was proposed."""
    plain = omnidraft.load(target, draft_length=0, dtype="float32")
    model = omnidraft.load(target, None, draft_length=length, dtype="float32")
    accepted = 0
    for seed in (1, 2, 1):
        options: dict[str, Any] = {"temperature": 0.8, "top_k": 20, "seed": seed}
        answer = ask(model, **options)
        assert answer.token_ids == ask(plain, **options).token_ids
        accepted += answer.stats.accepted
    assert accepted > COUNT // 2, "the third answer is the first, and is drafted from it"


# ---------------------------------------------------------------- where tokens are counted


@pytest.mark.medium
@pytest.mark.parametrize("options", [{"reuse_answers": "nothing"}, {"mode": "intersection"}, {"mode": "paper"}])
def test_nothing_is_counted_unless_asked_for_and_exact(target: Path, drafter: Path, options: dict[str, Any]) -> None:
    model = load_with(target, drafter, profile=None, draft_length=4, **options)
    assert [ask(model, "hello hello hello hello").stats.counted for _ in range(2)] == [0, 0]
    assert model.memory is None


@pytest.mark.medium
@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("length", ["goodput", "head", 3])
def test_without_a_drafter_counts_draft_under_any_policy(target: Path, length: int | str) -> None:
    model = load_with(target, None, draft_length=length, max_draft_length=5)
    answer = again(model, 3)
    assert model.drafter is None
    assert answer.stats.accepted > 0
    assert answer.stats.counted == answer.stats.drafted


# ---------------------------------------------------------------- what is remembered


@pytest.mark.medium
def test_an_earlier_answer_is_drafted_from_where_it_is_remembered(target: Path, drafter: Path) -> None:
    for helper in (None, drafter):
        accepted = {}
        for reuse_answers in ("request", "memory"):
            model = omnidraft.load(target, helper, draft_length=4, reuse_answers=reuse_answers, profile=None)
            accepted[reuse_answers] = again(model).stats.accepted
        assert accepted["memory"] > COUNT // 2
        assert accepted["request"] < COUNT // 4


@pytest.mark.medium
def test_an_answer_that_is_not_read_to_its_end_is_not_remembered(target: Path) -> None:
    model = omnidraft.load(target, None, draft_length=4)
    with model.stream(PROMPT, max_new_tokens=COUNT) as stream:
        for _ in range(4):
            next(stream)
    assert ask(model).stats.accepted < COUNT // 4


@pytest.mark.medium
def test_targets_that_share_a_drafter_share_its_memory(target: Path, drafter: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", byte_level(), seed=1)  # says the same
    first = omnidraft.load(target, drafter, profile=None)
    second = omnidraft.load(other, first, profile=None)
    alone = omnidraft.load(other, drafter, profile=None, reuse_answers="request")
    assert first.memory is second.memory
    assert stored(alone) == []
    assert omnidraft.load(other, alone, profile=None).memory is not alone.memory
    ask(first)
    ask(alone)
    assert stored(alone) == []
    held = stored(second)
    ask(second)
    assert stored(first)[: len(held)] == held
    assert len(stored(first)) > len(held) > COUNT // 2


@pytest.mark.slow
def test_profiles_of_targets_that_share_a_drafter_do_not_grow_by_being_loaded(
    target: Path, drafter: Path, tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other", byte_level(), seed=5)
    lengths = []
    for _ in range(3):
        with omnidraft.load(target, drafter, **KEEPS) as first, omnidraft.load(other, first, **KEEPS) as second:
            lengths.append(len(stored(first)))
            ask(first, "hello")
            ask(second, "world")
            lengths.append(len(stored(first)))
    added = lengths[1]
    assert lengths == [0, added, added, 2 * added, 2 * added, 3 * added]


@pytest.mark.medium
def test_no_sampled_answer_is_drawn_with_the_numbers_of_one_that_it_is_drafted_from(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rejection sampling: given one seed, the drafts would depend on the numbers that are to judge them."""
    seeds: list[int] = []
    monkeypatch.setattr("omnidraft.api.GeneratorSampler", lambda made: seeds.append(made.initial_seed()))

    def taken(helper: Path | None, **options: Any) -> list[int]:
        model = load_with(target, helper, profile=None, verification="block", **options)
        asked: dict[str, Any] = {"seed": 7, "max_new_tokens": 1}
        (lane,) = model.lanes(1)
        seeds.clear()
        for temperature in (0.0, 1.0, 1.0):
            model.stream(PROMPT, temperature=temperature, **asked).close()
        lane.stream(PROMPT, temperature=1.0, **asked).close()
        return seeds.copy()

    found = taken(drafter)
    assert found[:2] == [7, 7]
    assert len({*found}) == 3
    assert found == taken(drafter), "a new process gives the same again"
    assert found == taken(drafter, reuse_answers="request"), "hit rates are learned from answers, too"
    assert taken(None) == taken(drafter, reuse_answers="nothing") == [7] * 4


def stored(model: OmniDraft) -> list[int]:
    assert model.memory is not None
    return model.memory.index.tokens()


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """Name and details of the only profile."""
    capsys.readouterr()
    assert cli.main(["profiles", "list", "--json"]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert cli.main(["profiles", "show", profile["name"], "--json"]) == 0
    return profile["name"], json.loads(capsys.readouterr().out)


@pytest.mark.medium
def test_answers_are_kept_in_the_profile_until_they_are_forgotten(
    target: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with omnidraft.load(target, drafter, **KEEPS) as first:
        answer = ask(first)
        held = stored(first)
    attached = first.lane.attached
    assert attached is not None
    spelled = attached.context.tokens(answer.token_ids)
    assert held[-len(spelled) :] == spelled
    learned = drafts(first)
    name, details = shown(capsys)
    assert details["counters"][ANSWER_TOKENS] == len(held)
    with omnidraft.load(target, drafter, **KEEPS) as second:
        assert stored(second) == held
        ask(second)
        assert stored(second)[: len(held)] == held
    assert shown(capsys)[1]["counters"][ANSWER_TOKENS] == 2 * len(held)
    learned = drafts(second)
    assert cli.main(["profiles", "forget", name]) == 0
    _, details = shown(capsys)
    assert ANSWER_TOKENS not in details["counters"]
    assert details["counters"]["answers"] == 2
    third = omnidraft.load(target, drafter, **KEEPS)
    assert stored(third) == []
    assert (drafts(third) == learned).all(), "the weights are as they were"
    third.close()


@pytest.mark.medium
def test_answers_stay_in_a_profile_that_others_save(
    target: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with omnidraft.load(target, drafter, **KEEPS) as first:
        ask(first)
        held = stored(first)
    with omnidraft.load(target, drafter, adapt="inline", update_every=1) as forgetful:
        ask(forgetful)
    assert shown(capsys)[1]["counters"] | {"answers": 2, ANSWER_TOKENS: len(held)} == shown(capsys)[1]["counters"]
    with omnidraft.load(target, drafter, **KEEPS) as again_:
        assert stored(again_) == held


@pytest.mark.medium
def test_no_answer_is_in_a_profile_unasked(target: Path, drafter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with omnidraft.load(target, drafter, adapt="inline", update_every=1, reuse_answers="memory") as model:
        ask(model)
        assert stored(model)
    assert ANSWER_TOKENS not in shown(capsys)[1]["counters"]


# ---------------------------------------------------------------- what is refused


@pytest.mark.medium
def test_a_length_beyond_the_context_takes_no_memory(target: Path) -> None:
    """An index is as large as what can be emitted, not as what was asked for."""
    model = omnidraft.load(target, None, dtype="float32")
    model.target.lm.context = 40
    assert model.generate("hello world", max_new_tokens=10**30).finish_reason in ("context", "eos")


@pytest.mark.medium
def test_a_lane_keeps_no_index_after_an_answer(target: Path) -> None:
    lane = omnidraft.load(target, None, dtype="float32", draft_length=4).lanes(1)[0]
    for _ in range(2):
        stream = lane.stream(PROMPT, max_new_tokens=COUNT)
        assert "".join(stream)
        stream.close()
        engine = stream.lane
        assert engine.counts is not None
        assert engine.counts.memory is None
        assert engine.counts.guess(model_text(stream)) is None


def model_text(stream: Stream) -> list[int]:
    return list(stream.result.token_ids[:2])
