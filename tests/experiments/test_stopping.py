"""`python -m experiments.stopping`: its figures follow from what was counted, and hopeless cases are what they say."""

from __future__ import annotations

import json
import random
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import omnidraft
from experiments.stopping import acceptance_head as head_study
from experiments.stopping import study as stopping
from experiments.stopping import worst_cases as hopeless
from experiments.stopping.__main__ import main
from experiments.stopping.tables import markdown
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import UNITS, Way, repeat
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.goodput import Goodput
from omnidraft.errors import InputError

SIZES = {"count": 2, "repeats": 2, "max_new_tokens": 8, "hopeless": 3, "learn": 3}


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None)


def test_a_cell_compares_the_same_answers(model: OmniDraft) -> None:
    ids = [model.encode(text) for text in ("hello world", "the world was")]
    rows = list(stopping.cell(model, stopping.ways(model, (1, 3), Head()), ids, Sampling(), SIZES))
    policies = ["plain", "fixed", "fixed", "confidence", "entropy", "head", "goodput", "goodput without the head"]
    assert [row["policy"] for row in rows] == policies
    assert [row["draft_length"] for row in rows] == [0, 1, 3, 16, 16, 16, 16, 16]
    assert all(row["identical"] for row in rows)
    assert rows[0]["drafted"] == rows[0]["acceptance_rate"] == 0
    assert rows[0]["block_efficiency"] == 1
    assert 0 < rows[1]["drafted"] <= 1 < rows[2]["drafted"] <= 3
    assert all(row["plain_tokens_per_s"] == rows[0]["tokens_per_s"] > 0 for row in rows)
    few = stopping.ways(model, (1,), Head(), goodput_only=True)
    rows = list(stopping.cell(model, few, ids, Sampling(temperature=1.0), SIZES))
    assert [row["policy"] for row in rows] == ["plain", "fixed", "goodput", "goodput without the head"]
    assert all(row["identical"] is None for row in rows)


def test_repeats_are_numbered_on_and_come_together_in_the_file(model: OmniDraft, tmp_path: Path) -> None:
    ids = [model.encode("hello world")]
    sampled = Sampling(temperature=1.0)
    about = {"target": "a", "task": "t", "temperature": 1.0}
    stem = tmp_path / "rows"
    two = [[*stopping.cell(model, stopping.ways(model, (1,), Head()), ids, sampled, SIZES, first)] for first in (0, 2)]
    rows: list[tuple[str, Any]] = [("cells", about | row) for run in two for row in run]
    assert all(len(row["repeats"]) == 2 for _, row in rows)
    found = stopping.keep(stem, rows, {}, more=True)
    for row in found["cells"]:
        assert len(row["repeats"]) == 4
        for unit in (*UNITS, *(f"plain_{unit}" for unit in UNITS), "acceptance_rate"):
            assert row[unit] == pytest.approx(statistics.median(each[unit] for each in row["repeats"]), abs=1e-4)
    found = stopping.keep(stem, [rows[0]], {})
    assert [len(row["repeats"]) for row in found["cells"] if row["policy"] == "plain"] == [2]


def test_answers_of_later_repeats_are_drawn_with_other_seeds(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    monkeypatch.setattr(Way, "begin", lambda *_, seed: seen.append(seed))
    monkeypatch.setattr(Way, "end", lambda _: [])
    monkeypatch.setattr(Way, "end_repeat", lambda way: way.repeats.append(dict.fromkeys(UNITS, 1.0)))
    list(stopping.cell(model, stopping.ways(model, (1,), Head()), [[1], [2]], Sampling(), SIZES, first=3))
    assert set(seen) == {3000, 3001, 4000, 4001}


@pytest.mark.parametrize(("temperature", "wrong"), [(0.0, True), (0.0, False), (1.0, True)])
def test_greedy_answers_that_differ_are_noticed(
    temperature: float, wrong: bool, model: OmniDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Drafting(draft_length=0)
    ways = [Way(name, plain, stopping.fresh(model, plain, Head())) for name in ("one", "other")]
    end, answers = Way.end, iter(range(4))

    def changed(self: Way) -> list[int]:
        said = end(self)
        return said[:-1] if next(answers) == 3 and wrong else said  # the last one, of the last prompt

    monkeypatch.setattr(Way, "end", changed)
    prompts = [model.encode(text) for text in ("hello world", "the world was")]
    same = repeat(ways, prompts, 8, Sampling(temperature=temperature), random.Random(0), 6)
    assert same is not (wrong and temperature == 0)
    assert [len(way.repeats) for way in ways] == [1, 1]


def test_ways_answer_a_prompt_at_once(model: OmniDraft, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[int, str, int]] = []  # a length that is wanted, a way, and the length that it comes to
    go_on = Way.go_on

    def noted(self: Way, length: int) -> bool:
        goes_on = go_on(self, length)
        turns.append((length, f"{self.policy} {self.drafting.longest}", self._length))
        return goes_on

    monkeypatch.setattr(Way, "go_on", noted)
    compared = stopping.ways(model, (1, 3), Head())
    assert len({id(way.engine.target) for way in compared}) == len(compared)
    assert len({id(way.engine.attached.drafter.model) for way in compared if way.engine.attached}) == len(compared) - 1
    prompts = [model.encode(text) for text in ("hello world", "the world was")]
    assert repeat(compared, prompts, 20, Sampling(), random.Random(0), 0), "what one holds of a text is not another's"
    lengths = [length for length, _, _ in turns]
    second = lengths.index(min(lengths), lengths.index(max(lengths)))
    assert lengths == sorted(lengths[:second]) + sorted(lengths[second:])
    by_length = {length: [name for wanted, name, _ in turns if wanted == length] for length in lengths}
    assert all(len(names) == 2 * len(compared) for length, names in by_length.items() if length <= 20)
    assert len({tuple(names) for names in by_length.values()}) == len(by_length) > 4, "in another order each time"
    assert all(came >= wanted or came == 20 for wanted, _, came in turns)
    assert all(came == wanted for wanted, name, came in turns if name == "plain 0" and wanted <= 20)
    for way in compared:
        assert way.repeats[0]["tokens_per_s"] > 0


def test_measurements_outlive_a_repeat_and_ngrams_do_not(model: OmniDraft) -> None:
    head = Head()
    first = stopping.fresh(model, Drafting(draft_length="goodput"), head)
    second = stopping.fresh(model, Drafting(draft_length="goodput"), head, first)
    assert isinstance(second.policy, Goodput)
    assert second.policy is first.policy
    assert first.attached is not None
    assert second.attached is not None
    assert second.attached.cache is not first.attached.cache
    assert second.attached.head is first.attached.head is head
    assert second.target is first.target
    assert second.attached.drafter is first.attached.drafter


# ---------------------------------------------------------------- the head


def test_a_head_is_taught_and_the_drafter_is_not(model: OmniDraft) -> None:
    prompts = [model.encode(text) for text in ("hello world", "the world was", "don't", "ing 10", "10 worlds")]
    recorded = head_study.lessons(model, prompts, 8)
    engine = Engine(model.engine.target, sorted(model.engine.eos))
    greedy = [
        one.tokens == tuple(t for r in engine.rounds(ids, 8, Sampling(), lambda _: 0) for t in r.emitted)
        for one, ids in zip(recorded, prompts, strict=True)
    ]
    assert greedy == [True, True, False, False, True], "two and two, as prompts of two tasks take turns"
    assert model.drafter is not None
    before = {name: p.clone() for name, p in model.drafter.lm.model.named_parameters()}
    assert head_study.teach(model, recorded).trained
    assert all(torch.equal(p, before[name]) for name, p in model.drafter.lm.model.named_parameters())
    assert not model.engine.attached.head.trained  # type: ignore[union-attr]


def test_reliability_is_counted_in_bins() -> None:
    seen = [(0.05, False), (0.05, True), (0.95, True), (1.0, True), (0.5, False)]
    found = head_study.reliability(seen)
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

    noting = head_study.Noting(Counting())
    pair = model.engine.attached
    engine = Engine(model.engine.target, sorted(model.engine.eos), pair, Drafting(draft_length=3), noting)
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
    rows = list(head_study.schedules(model, head_study.Schedule(ids[:3] * 3, ids[3:], 8, 3)))
    assert [row["method"] for row in rows] == list(head_study.METHODS)
    for row in rows:
        assert row["identical"] is True
        assert row["speedup"] == pytest.approx(sorted(each["speedup"] for each in row["repeats"])[1])
        assert row["speedup"] > 0
    assert {row["draft_length"] for row in rows} == {head_study.DRAFT_LENGTH, 16}


# ---------------------------------------------------------------- the file


def test_rows_take_the_place_of_those_about_the_same(tmp_path: Path) -> None:
    stem = tmp_path / "results" / "all"
    about = {"target": "a", "task": "t", "temperature": 0.0}
    one, other = about | {"policy": "fixed", "draft_length": 1}, about | {"policy": "fixed", "draft_length": 2}
    stopping.keep(stem, [("cells", one | {"tokens_per_s": 1.0}), ("cells", other | {"tokens_per_s": 2.0})], {})
    stopping.keep(stem, [("cells", one | {"tokens_per_s": 3.0})], {"command": "first"})
    found = stopping.keep(stem, [("never_slower", {"target": "a", "case": "c", "ratio": 1.0})], {"command": "second"})
    assert found == json.loads(stem.with_suffix(".json").read_text())
    assert {(row["draft_length"], row["tokens_per_s"]) for row in found["cells"]} == {(1, 3.0), (2, 2.0)}
    assert [run["command"] for run in found["runs"]] == ["first", "second"]
    assert len(found["never_slower"]) == 1
    stem.with_suffix(".json").write_text("{")
    with pytest.raises(InputError, match="remove it"):
        stopping.keep(stem, [], {})


def test_speedups_are_those_of_the_same_repeat() -> None:
    def row(policy: str, length: int, *speeds: tuple[float, float]) -> dict[str, Any]:
        each = [dict.fromkeys(UNITS, own) | {f"plain_{unit}": plain for unit in UNITS} for own, plain in speeds]
        medians = {name: statistics.median(one[name] for one in each) for name in each[0]}
        about = {"target": "a", "task": "t", "temperature": 0.0, "policy": policy, "draft_length": length}
        return about | medians | {"repeats": each}

    cells = [
        row("fixed", 2, (12.5, 10.0)),  # once, and the best
        row("head", 16, (11.5, 10.0)),
        row("fixed", 1, (12.0, 10.0), (26.0, 20.0), (44.0, 40.0)),
        row("goodput", 16, (13.0, 10.0), (25.0, 20.0), (52.0, 40.0)),
        row("plain", 0, (10.0, 10.0), (20.0, 20.0), (40.0, 40.0)),
    ]
    text = markdown({"cells": cells, "calibration": [], "never_slower": [], "schedules": []})
    assert "| plain, tokens/s | fixed 1 | fixed 2 | head | goodput | goodput, of the best fixed |" in text
    assert "| a | t | 0 | 20.0 | 1.200 | 1.250 | 1.150 | 1.300 | 1.040 |" in text


# ---------------------------------------------------------------- where drafts cannot pay


def test_one_by_one_says_the_same(model: OmniDraft) -> None:
    lm = model.target.lm
    ids = model.encode("hello world the world was")
    expected = lm.forward(ids, 2).clone()
    lm.crop(0)
    slow = hopeless.OneByOne(lm)
    assert torch.allclose(slow.forward(ids, 2), expected, atol=1e-4)
    assert slow.length == len(ids)
    slow.crop(0)
    assert lm.length == 0


def test_a_scrambled_drafter_knows_nothing_and_may_be_slower(model: OmniDraft) -> None:
    assert model.drafter is not None
    own = model.drafter.lm.model
    other, slow = hopeless.scrambled(own), hopeless.scrambled(own, layers=5)
    mine = dict(own.named_parameters())
    assert not any(torch.equal(p, mine[name]) for name, p in other.named_parameters() if p.ndim > 1)
    assert (other.config.num_hidden_layers, slow.config.num_hidden_layers) == (own.config.num_hidden_layers, 5)


def test_a_case_is_measured_beside_the_target_alone(model: OmniDraft) -> None:
    ids = [model.encode(text) for text in ("hello world", "the world was")]
    rows = list(hopeless.cases(model, ids, 2))
    assert len({row["case"] for row in rows}) == len(rows) == 4
    for row in rows:
        assert row["identical"]
        assert row["prompts"] == 2
        assert 0 < row["undrafted"] <= 1
        assert 0.05 < row["ratio"] < 20
        assert 0.05 < row["ratio_cpu"] < 20
    text = markdown(
        {"cells": [], "calibration": [], "schedules": []} | {"never_slower": [{"target": "a"} | row for row in rows]}
    )
    assert "| a | a drafter of random weights |" in text


@pytest.mark.slow
def test_the_command_writes_its_files(
    target: Path, drafter: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = tmp_path / "results" / "stopping"
    arguments = ["--target", str(target), "--drafter", str(drafter), "--data", str(data), "--out", str(stem)]
    sizes = [word for name, size in SIZES.items() for word in ("--" + name.replace("_", "-"), str(size))]
    assert main([*arguments, *sizes, "--quick"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(stem.with_suffix(".json").read_text())
    assert all(str(tmp_path) not in run["command"] for run in result["runs"])
    assert {row["task"] for row in result["cells"]} == {"gsm8k", "mbpp", stopping.IN_TURNS}
    assert {row["temperature"] for row in result["cells"]} == {0.0, 1.0}
    assert len(result["never_slower"]) == 4
    text = stem.with_suffix(".md").read_text()
    assert "## Speedup over the target alone" in text
    assert "a drafter of random weights" in text
    assert {(row["policy"], row["temperature"]) for row in result["calibration"]} == {
        (policy, temperature) for policy in ("head", "entropy") for temperature in (0.0, 1.0)
    }
    assert {row["method"] for row in result["schedules"]} == set(head_study.METHODS)
    assert "| interleaved |" in text
    assert main([*arguments, "--parts", "cells,none"]) == 2
    assert main([*arguments, "--draft-length", "0"]) == 2
    assert "argument --draft-length: 0 is not" in capsys.readouterr().err
    one = [
        "--parts",
        "cells",
        "--task",
        "gsm8k",
        "--draft-length",
        "3",
        "--more",
        "--goodput-only",
        "--temperature",
        "0",
    ]
    assert main([*arguments, *sizes, *one]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    found = [row for row in found if row["task"] == "gsm8k" and row["temperature"] == 0]
    times = {row["draft_length"]: len(row["repeats"]) for row in found if row["policy"] == "fixed"}
    assert times == {1: 2, 2: 2, 4: 2, 3: 2}
    assert {row["policy"]: len(row["repeats"]) for row in found if row["policy"] in stopping.POLICIES} == {
        "confidence": 2,
        "entropy": 2,
        "head": 2,
        "goodput": 4,
    }
