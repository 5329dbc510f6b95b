"""Copied drafts through the Python interface: exact, where they are asked for, and kept as long as they are."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import omnidraft
from omnidraft import Generation, OmniDraft
from omnidraft.cli import main as cli
from omnidraft.profiles.profile import ANSWER_TOKENS
from support.engines import generate
from support.learning import drafts
from support.models import save_model
from support.small_tokenizers import byte_level

PROMPT = "hello world"
COUNT = 24
CODE = "def add(a, b):\n    total = a + b\n    return total\n\n" * 3
KEEPS: dict[str, Any] = {"adapt": "inline", "interval": 1, "remember": "answers", "sources": "auto"}

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes as long over many tokens as over one: whether copies pay is left to no busy machine."""
    ticks = itertools.count()
    monkeypatch.setattr("omnidraft.decoding.engine.time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))


def ask(model: OmniDraft, prompt: str = PROMPT, **options: Any) -> Generation:
    return model.generate(prompt, **{"max_new_tokens": COUNT, **options})


def again(model: OmniDraft, times: int = 2) -> Generation:
    """The last of some answers to one prompt, which are the same in any case."""
    answers = [ask(model) for _ in range(times)]
    assert len({answer.token_ids for answer in answers}) == 1
    return answers[-1]


# ---------------------------------------------------------------- exact


@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("target", ["zoo:target-a", "zoo:target-b"])
def test_greedy_answers_are_those_of_transformers(target: str) -> None:
    copied, drafted = 0, 0
    ways: list[dict[str, Any]] = [{"sources": "retrieval"}, {"sources": "auto"}, {"drafter": None, "draft_length": 6}]
    for options in ways:
        model = omnidraft.load(target, **{"profile": None, "dtype": "float32", "warn": print, **options})
        ids = model.encode(CODE)
        expected = generate(model.target.lm, ids, COUNT, model.vocab.eos)
        for _ in range(3):
            answer = model.generate(ids, max_new_tokens=COUNT, temperature=0.0)
            assert list(answer.token_ids) == expected
            assert 0 <= answer.stats.retrieved_accepted <= answer.stats.retrieved <= answer.stats.proposed
            assert answer.stats.retrieved_accepted <= answer.stats.accepted
            copied += answer.stats.retrieved_accepted
            drafted += answer.stats.drafted
    assert copied > 20, "identity must have been seen on copied tokens"
    assert drafted > 0, "and on the drafter's"


@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("length", [4, "goodput"])
def test_copied_drafts_alone_leave_a_sampled_answer_that_of_plain_decoding(target: Path, length: int | str) -> None:
    """Each token takes one draw from the target's distribution, whatever was copied."""
    plain = omnidraft.load(target, draft_length=0, dtype="float32")
    model = omnidraft.load(target, None, draft_length=length, remember="memory", dtype="float32")
    copied = 0
    for seed in (1, 2, 1):
        options: dict[str, Any] = {"temperature": 0.8, "top_k": 20, "seed": seed}
        answer = ask(model, **options)
        assert answer.token_ids == ask(plain, **options).token_ids
        copied += answer.stats.retrieved_accepted
    assert copied > COUNT // 2, "the third answer is the first, and is copied"


# ---------------------------------------------------------------- where copies are made


@pytest.mark.parametrize("options", [{"sources": "model"}, {"draft_length": 4}])
def test_the_drafter_alone_copies_nothing(target: Path, drafter: Path, options: dict[str, Any]) -> None:
    model = omnidraft.load(target, drafter, profile=None, **options)
    assert [ask(model, "hello hello hello hello").stats.retrieved for _ in range(2)] == [0, 0]


@pytest.mark.usefixtures("even")
@pytest.mark.parametrize("length", ["goodput", "confidence", "entropy", "head", 3])
def test_retrieval_alone_has_no_drafter_under_any_policy(target: Path, length: int | str) -> None:
    model = omnidraft.load(target, sources="retrieval", draft_length=length, max_draft_length=5, remember="memory")
    answer = again(model, 3)
    assert model.drafter is None
    assert answer.stats.retrieved_accepted > 0


# ---------------------------------------------------------------- what is remembered


def test_an_earlier_answer_is_copied_where_it_is_remembered(target: Path) -> None:
    accepted = {}
    for remember in ("nothing", "memory"):
        answer = again(omnidraft.load(target, None, draft_length=4, remember=remember))
        accepted[remember] = answer.stats.retrieved_accepted
    assert accepted["memory"] > COUNT // 2
    assert accepted["nothing"] < COUNT // 4


def test_an_answer_that_is_not_read_to_its_end_is_not_remembered(target: Path) -> None:
    model = omnidraft.load(target, None, draft_length=4, remember="memory")
    with model.stream(PROMPT, max_new_tokens=COUNT) as stream:
        for _ in range(4):
            next(stream)
    assert ask(model).stats.retrieved_accepted < COUNT // 4


def test_another_target_has_a_store_of_its_own(target: Path, drafter: Path, tmp_path: Path) -> None:
    """Also where both share a drafter."""
    other = save_model(tmp_path / "other", byte_level(), seed=1)  # says the same
    first = omnidraft.load(target, drafter, remember="memory", profile=None)
    second = omnidraft.load(other, first, remember="memory", profile=None)
    assert ask(first).token_ids == ask(second).token_ids
    assert first.engine.retrieval is not None
    assert second.engine.retrieval is not None
    one, two = first.engine.retrieval.store, second.engine.retrieval.store
    assert one is not None
    assert two is not None
    ask(first)
    assert (len(one), len(two)) == (2 * (COUNT + 1), COUNT + 1)


def stored(model: OmniDraft) -> list[int]:
    assert model.engine.retrieval is not None
    assert model.engine.retrieval.store is not None
    return model.engine.retrieval.store.tokens()


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[str, dict[str, Any]]:
    """Name and details of the only profile."""
    capsys.readouterr()
    assert cli.main(["profiles", "list", "--json"]) == 0
    (profile,) = json.loads(capsys.readouterr().out)["profiles"]
    assert cli.main(["profiles", "show", profile["name"], "--json"]) == 0
    return profile["name"], json.loads(capsys.readouterr().out)


def test_answers_are_kept_in_the_profile_until_they_are_forgotten(
    target: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with omnidraft.load(target, drafter, **KEEPS) as first:
        answer = ask(first)
        held = stored(first)
    assert held[:COUNT] == list(answer.token_ids)
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


def test_answers_stay_in_a_profile_that_others_save(
    target: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with omnidraft.load(target, drafter, **KEEPS) as first:
        ask(first)
        held = stored(first)
    with omnidraft.load(target, drafter, adapt="inline", interval=1) as forgetful:
        ask(forgetful)
    assert shown(capsys)[1]["counters"] | {"answers": 2, ANSWER_TOKENS: len(held)} == shown(capsys)[1]["counters"]
    with omnidraft.load(target, drafter, **KEEPS) as again_:
        assert stored(again_) == held


def test_no_answer_is_in_a_profile_unasked(target: Path, drafter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with omnidraft.load(target, drafter, adapt="inline", interval=1, remember="memory") as model:
        ask(model)
        assert stored(model)
    assert ANSWER_TOKENS not in shown(capsys)[1]["counters"]


# ---------------------------------------------------------------- what is refused


def test_a_length_beyond_the_context_takes_no_memory(target: Path) -> None:
    """An index is as large as what can be emitted, not as what was asked for."""
    model = omnidraft.load(target, None, dtype="float32")
    model.target.lm.context = 40
    assert model.generate("hello world", max_new_tokens=10**30).finish_reason in ("context", "eos")


def test_a_lane_keeps_no_index_after_an_answer(target: Path) -> None:
    lane = omnidraft.load(target, None, dtype="float32", draft_length=4).lanes(1)[0]
    for _ in range(2):
        stream = lane.stream(PROMPT, max_new_tokens=COUNT)
        assert "".join(stream)
        stream.close()
        retrieval = stream._session._engine.retrieval  # noqa: SLF001  nothing else shows what is kept
        assert retrieval is not None
        assert retrieval.draft([1, 2] * 9, 4, alone=True) is None
