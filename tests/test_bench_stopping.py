"""`omnidraft bench stopping`: its figures follow from what was counted, and hopeless cases are what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.bench import hopeless, stopping
from omnidraft.cli import main
from omnidraft.config import Drafting, Sampling
from omnidraft.rate import Rate

SIZES = {"count": 2, "repeats": 2, "max_new_tokens": 8, "hopeless": 3}


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None)


def test_a_cell_compares_the_same_answers(model: OmniDraft) -> None:
    ids = [model.encode(text) for text in ("hello world", "the world was")]
    rows = list(stopping.cell(model, ids, Sampling(), SIZES, (1, 3)))
    assert [row["policy"] for row in rows] == ["plain", "fixed", "fixed", "confidence", "entropy", "rate"]
    assert [row["draft_len"] for row in rows] == [0, 1, 3, 16, 16, 16]
    assert all(row["identical"] for row in rows)
    assert rows[0]["drafted"] == rows[0]["acceptance_rate"] == 0
    assert rows[0]["block_efficiency"] == 1
    assert 0 < rows[1]["drafted"] <= 1 < rows[2]["drafted"] <= 3
    assert all(row["plain_tokens_per_s"] == rows[0]["tokens_per_s"] > 0 for row in rows)
    assert {row["identical"] for row in stopping.cell(model, ids, Sampling(temperature=1.0), SIZES, (1,))} == {None}


def test_measurements_outlive_a_repeat_and_ngrams_do_not(model: OmniDraft) -> None:
    first = stopping.fresh(model, Drafting(stopping="rate"))
    second = stopping.fresh(model, Drafting(stopping="rate"), first)
    assert isinstance(second.stopping, Rate)
    assert second.stopping is first.stopping
    assert first.pair is not None
    assert second.pair is not None
    assert second.pair.cache is not first.pair.cache


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


@pytest.mark.slow
def test_the_command_writes_its_files(
    target: Path, drafter: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stem = tmp_path / "results" / "stopping"
    arguments = ["--target", str(target), "--drafter", str(drafter), "--data", str(data), "--out", str(stem)]
    sizes = [word for name, size in SIZES.items() for word in ("--" + name.replace("_", "-"), str(size))]
    assert main(["bench", "stopping", *arguments, *sizes, "--quick"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result == json.loads(stem.with_suffix(".json").read_text())
    assert str(tmp_path) not in result["command"]
    assert {row["task"] for row in result["cells"]} == {"gsm8k", "mbpp", stopping.IN_TURNS}
    assert {row["temperature"] for row in result["cells"]} == {0.0, 1.0}
    assert len(result["never_slower"]) == 4
    text = stem.with_suffix(".md").read_text()
    assert "## Speedup over the target alone" in text
    assert "a drafter of random weights" in text
