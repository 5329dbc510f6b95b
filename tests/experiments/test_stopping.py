"""The draft-length study: its ways, the acceptance head, cases where drafts cannot pay, and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import omnidraft
from experiments.results import Results
from experiments.stopping import acceptance_head, study, worst_cases
from experiments.stopping.__main__ import main
from experiments.stopping.tables import markdown
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import emitted, engine_for
from omnidraft.config import Drafting, Sampling
from omnidraft.draft_length.acceptance_head import Head

SIZES = {"count": 2, "repeats": 2, "max_new_tokens": 8, "hopeless": 3, "learn": 3}


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None)


def test_plain_decoding_comes_first_and_only_one_policy_has_no_head(model: OmniDraft) -> None:
    head = Head()
    ways = study.ways(model, (1, 3), head, Sampling())
    names = ["plain", "fixed 1", "fixed 3", "confidence", "entropy", "head", "goodput", study.WITHOUT]
    assert [way.name for way in ways] == names
    assert [way.engine.drafting.longest for way in ways] == [0, 1, 3, 16, 16, 16, 16, 16]
    assert len({id(way.engine.target) for way in ways}) == len(ways)
    few = study.ways(model, (1,), head, Sampling(), goodput_only=True)
    assert [way.name for way in few] == ["plain", "fixed 1", "goodput", study.WITHOUT]


# ---------------------------------------------------------------- the head


def test_a_head_is_taught_and_the_drafter_is_not(model: OmniDraft) -> None:
    prompts = [model.encode(text) for text in ("hello world", "the world was", "don't", "ing 10", "10 worlds")]
    recorded = acceptance_head.examples(model, prompts, 8)
    engine = engine_for(model)
    greedy = [
        one.tokens == tuple(emitted(engine.rounds(ids, 8, Sampling(), lambda _: 0)))
        for one, ids in zip(recorded, prompts, strict=True)
    ]
    assert greedy == [True, True, False, False, True], "two and two, as prompts of two tasks take turns"
    assert model.drafter is not None
    before = {name: p.clone() for name, p in model.drafter.lm.model.named_parameters()}
    assert acceptance_head.teach(model, recorded).trained
    assert all(torch.equal(p, before[name]) for name, p in model.drafter.lm.model.named_parameters())
    assert not model.engine.attached.head.trained  # type: ignore[union-attr]


def test_reliability_is_counted_in_bins() -> None:
    seen = [(0.05, False), (0.05, True), (0.95, True), (1.0, True), (0.5, False)]
    found = acceptance_head.reliability(seen)
    assert found["bins"] == [
        {"chance": 0.05, "accepted": 0.5, "tokens": 2},
        {"chance": 0.5, "accepted": 0.0, "tokens": 1},
        {"chance": 0.975, "accepted": 1.0, "tokens": 2},
    ]
    assert found["expected_calibration_error"] == pytest.approx((2 * 0.45 + 0.5 + 2 * 0.025) / 5)


def test_what_was_thought_is_set_against_what_became_of_it(model: OmniDraft) -> None:
    class Counting(Head):
        """Thinks the number of the token, in hundredths."""

        count = 0

        def chance(self, *_: object) -> float:
            self.count += 1
            return self.count / 1000

    noting = acceptance_head.Noting(Counting())
    engine = engine_for(model, Drafting(draft_length=3), policy=noting)
    rounds = list(engine.rounds(model.encode("hello world"), 20, Sampling(), lambda _: 0))
    expected, first = [], 1
    for record in rounds:
        judged = range(min(record.counts.draft_accepted + 1, len(record.draft)))
        expected += [((first + at) / 1000, at < record.counts.draft_accepted) for at in judged]
        first += len(record.draft)
    assert noting.seen == expected
    assert {was for _, was in expected} == {True, False} or len(expected) > 10


def test_schedules_are_compared_on_prompts_that_taught_nothing(model: OmniDraft) -> None:
    ids = [model.encode(text) for text in ("hello world", "the world was", "don't", "ing 10")]
    rows = list(acceptance_head.schedules(model, ids[:3] * 3, ids[3:], 8, 2))
    assert [row["way"] for row in rows] == 2 * list(acceptance_head.METHODS)
    assert all(row["identical"] is True and row["speedup"] > 0 for row in rows)


# ---------------------------------------------------------------- where drafts cannot pay


def test_one_by_one_says_the_same(model: OmniDraft) -> None:
    lm = model.target.lm
    ids = model.encode("hello world the world was")
    expected = lm.forward(ids, 2).clone()
    lm.crop(0)
    slow = worst_cases.OneByOne(lm)
    assert torch.allclose(slow.forward(ids, 2), expected, atol=1e-4)
    assert slow.length == len(ids)
    slow.crop(0)
    assert lm.length == 0


def test_a_scrambled_drafter_knows_nothing_and_may_be_slower(model: OmniDraft) -> None:
    assert model.drafter is not None
    own = model.drafter.lm.model
    other, slow = worst_cases.scrambled(own), worst_cases.scrambled(own, layers=5)
    mine = dict(own.named_parameters())
    assert not any(torch.equal(p, mine[name]) for name, p in other.named_parameters() if p.ndim > 1)
    assert (other.config.num_hidden_layers, slow.config.num_hidden_layers) == (own.config.num_hidden_layers, 5)


def test_a_case_is_measured_beside_plain_decoding(model: OmniDraft) -> None:
    ids = [model.encode(text) for text in ("hello world", "the world was")]
    rows = list(worst_cases.cases(model, ids, 2))
    assert len({row["case"] for row in rows}) == len(rows) == 4
    for row in rows:
        assert row["identical"]
        assert row["prompts"] == 2
        assert 0 < row["without_draft"] <= 1
        assert row["speedup"] > 0 < row["speedup_cpu"]


# ---------------------------------------------------------------- the command


def test_a_speedup_is_the_median_over_repeats_and_goodput_stands_beside_the_best_length() -> None:
    results = Results(None, "stopping", study.KEYS)
    about = {"target": "a", "task": "t", "temperature": 0.0, "tokens_per_s": 20.0, "tokens_per_cpu_s": 20.0}
    speeds = {"plain": (1, 1, 1), "fixed 1": (1.2, 1.3, 1.1), "fixed 2": (1.25,), "goodput": (1.3, 1.25, 1.3)}
    for way, its in speeds.items():
        for repeat, speedup in enumerate(its):
            both = {"speedup": float(speedup), "speedup_cpu": float(speedup)}
            results.add("cells", {**about, "way": way, "repeat": repeat, **both})
    text = markdown(results)
    assert "| plain, tokens/s | fixed 1 | fixed 2 | goodput | goodput, of the best fixed length |" in text
    assert "| a | t | 0 | 20.0 | 1.200 | 1.250 | 1.300 | 1.040 |" in text


@pytest.mark.slow
def test_the_command_writes_its_files(
    target: Path, drafter: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = tmp_path / "results" / "stopping"
    arguments = ["--target", str(target), "--drafter", str(drafter), "--data", str(data), "--out", str(stem)]
    sizes = [word for name, size in SIZES.items() for word in ("--" + name.replace("_", "-"), str(size))]
    assert main([*arguments, *sizes, "--quick"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert str(tmp_path) not in json.dumps(result["settings"])
    assert {row["task"] for row in result["cells"]} == {"gsm8k", "mbpp", study.IN_TURNS}
    assert {row["temperature"] for row in result["cells"]} == {0.0, 1.0}
    assert len(result["hopeless"]) == 4
    text = stem.with_suffix(".md").read_text()
    for words in ("## Speedup over plain decoding", "a drafter of random weights", "| interleaved |", "## Calibration"):
        assert words in text
    one = ["--parts", "cells", "--task", "gsm8k", "--temperature", "0", "--draft-length", "3", "--goodput-only"]
    assert main([*arguments, *sizes, *one, "--more"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    its = [row for row in found if row["task"] == "gsm8k" and row["temperature"] == 0]
    repeats = {
        way: sorted(row["repeat"] for row in its if row["way"] == way) for way in ("fixed 1", "fixed 3", "goodput")
    }
    assert repeats == {"fixed 1": [0, 1], "fixed 3": [2, 3], "goodput": [0, 1, 2, 3]}
    assert main([*arguments, *sizes, *one]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    its = [row for row in found if row["task"] == "gsm8k" and row["temperature"] == 0]
    assert {row["way"] for row in its} == {"plain", "fixed 3", "goodput", study.WITHOUT}, "the others are forgotten"


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--target", "nowhere", "--drafter", "nowhere", "--data", "nowhere"]
    for given in (["--parts", "cells,none"], ["--draft-length", "0"], ["--more"]):
        assert main([*arguments, *given]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
