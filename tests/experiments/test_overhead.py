"""The overhead study on tiny models: what is measured is what is said to be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from experiments import overhead, scripted
from experiments.overhead import Overhead, Ratio
from experiments.scripted import ACCEPTANCE, Answer, Models, Shape, Spread, Watch, watching
from omnidraft import zoo
from omnidraft.config import Sampling
from omnidraft.models.loading import load_tokenizer

SHAPES = (
    Shape(layers=1, hidden=32, intermediate=48, heads=4, tied=True),
    Shape(layers=1, hidden=16, intermediate=24, heads=2, tied=False),
)
NAMES = ("zoo:target-a", "zoo:drafter")


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    target, drafter = (load_tokenizer(zoo.resolve(name)) for name in NAMES)
    with torch.random.fork_rng():
        yield Models((target, drafter), SHAPES, context=400, tokens=60)


@pytest.mark.parametrize("sampling", [sampling for sampling, _ in overhead.SAMPLINGS.values()])
def test_the_drafter_is_right_as_often_as_it_is_told(models: Models, sampling: Sampling) -> None:
    told = models.answer(20, sampling, after_prompt=False)
    assert ACCEPTANCE - 0.15 < told.accepted < ACCEPTANCE + 0.15
    assert told.tokens == 60
    assert told.wall_s > told.passes_s > 0
    assert models.answer(20, sampling, knowing=False).accepted < 0.3


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_a_spread_row_has_the_distribution_it_says(temperature: float) -> None:
    spread = Spread([None, *[b"x"] * 999], 0.6, temperature, torch.float32)
    rows = torch.zeros(2, 1000)
    for position, row in enumerate(rows):
        spread.write(position, row, 5)
    probs = (rows / temperature).softmax(-1)
    assert probs[:, 5].tolist() == pytest.approx([0.6, 0.6], abs=0.05)
    assert probs[:, 0].max() < 1e-4
    largest = probs.topk(9)
    assert not set(largest.indices[0, 1:].tolist()) & set(largest.indices[1, 1:].tolist())
    assert 2 < largest.values[0, 1] / largest.values[0, 3] < 8


def test_a_script_changes_one_logit_of_each_row(models: Models) -> None:
    lm = models.target.new_sequence()
    lm.crop(0)
    plain = lm.forward([1, 2, 3], 2).clone()
    lm.crop(0)
    watch = Watch()

    def say(position: int, row: torch.Tensor) -> None:
        if position == 3:
            scripted.certain(row, position)

    with watching(watch, lm.model.model, say, target=True):
        changed = lm.forward([1, 2, 3], 2)
    assert torch.equal(changed[0], plain[0])
    assert int((changed[1] != plain[1]).sum()) == 1
    assert float(changed[1].softmax(-1)[3]) == pytest.approx(1, abs=1e-4)
    assert watch.target_passes == 1
    lm.crop(0)
    assert torch.equal(lm.forward([1, 2, 3], 2), plain), "nothing stays behind"


def test_growth_is_held_against_the_target_alone(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = overhead.CONTEXTS
    monkeypatch.setattr(models, "alone", {short: 1.0, long: 2.0}.__getitem__)
    monkeypatch.setattr(models, "answer", lambda start, *_, **__: Answer(1, {short: 1.0, long: 3.0}[start], 0.5, 1))
    ratio = Overhead(models, repeats=1).growth()
    assert ratio.value == pytest.approx(1.5)
    assert not ratio.passed


def test_a_ratio_on_its_bound_has_passed() -> None:
    def passed(value: float, *, at_least: bool) -> bool:
        return Ratio(name="x", value=value, bound=2.0, at_least=at_least, detail="").passed

    assert [passed(value, at_least=least) for value in (1.9, 2.0, 2.1) for least in (True, False)] == [
        False, True, True, True, True, False,
    ]  # fmt: skip


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    for name, value in {"SHAPES": SHAPES, "CONTEXTS": (20, 100), "QUICK": (12, 1), "PROBES": 2}.items():
        monkeypatch.setattr(overhead, name, value)
    asked = ["--quick", "--target-tokenizer", NAMES[0], "--drafter-tokenizer", NAMES[1], "--threads", "1"]
    assert overhead.main([*asked, "--out", str(tmp_path / "overhead")]) == 0
    result = json.loads((tmp_path / "overhead.json").read_text(encoding="utf-8"))
    ratios = {ratio["name"]: ratio for ratio in result["ratios"]}
    assert len(ratios) == len(result["ratios"]) >= 9
    assert all(math.isfinite(ratio["value"]) for ratio in ratios.values())
    assert all(0 < ratio["value"] < 1 for name, ratio in ratios.items() if name.startswith("share"))
    table = (tmp_path / "overhead.md").read_text(encoding="utf-8")
    assert all(name in table for name in ratios)
    assert table in capsys.readouterr().out
    assert str(tmp_path) not in table
    assert not home.exists(), "the table of spellings is built, not read"


def test_a_mistake_is_one_line_before_anything_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for given in (
        ["--threads", "0"],
        ["--target-tokenizer", "no/folder/here"],
        ["--out", str(tmp_path / "file" / "a")],
    ):
        assert overhead.main(given) == 2
        assert len(capsys.readouterr().err.splitlines()) <= 2


def test_the_peak_is_noticed_and_forgotten() -> None:
    start = scripted.memory_in_use()
    if start is None:
        pytest.skip("this system does not tell")
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    peak = scripted.memory_at_peak()
    assert peak is not None
    assert peak - start > 50 * 2**20
    scripted.memory_in_use()
    again = scripted.memory_at_peak()
    assert again is not None
    assert again < peak
