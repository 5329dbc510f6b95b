"""The overhead benchmark on tiny models: what is measured is what is said to be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from omnidraft import cli, zoo
from omnidraft.bench import memory, overhead
from omnidraft.bench.overhead import Overhead, Ratio
from omnidraft.bench.scripted import Pass, Shape, Watch, watching
from omnidraft.bench.turns import ACCEPTANCE, Models
from omnidraft.config import Sampling
from omnidraft.models import load_tokenizer

TARGET = Shape(layers=1, hidden=32, intermediate=48, heads=4, tied=True)
DRAFTER = Shape(layers=1, hidden=16, intermediate=24, heads=2, tied=False)
NAMES = (zoo.PREFIX + zoo.names("target")[0], zoo.PREFIX + zoo.names("drafter")[0])


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    tokenizers = [load_tokenizer(zoo.resolve(name)) for name in NAMES]
    with torch.random.fork_rng():
        yield Models(*tokenizers, target=TARGET, drafter=DRAFTER, context=400, draft_len=4, tokens=60)


def test_a_scripted_target_says_its_text(models: Models) -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        turn = models.rounds(20, sampling, after_prompt=False)
        assert turn.tokens == 60
        assert turn.wall_s > turn.passes_s > 0
        assert turn.beside_s == pytest.approx((turn.wall_s - turn.passes_s) / turn.rounds)
        assert sum(one.runner is models.target.model for one in turn.passes) == turn.rounds


def test_the_drafter_is_right_as_often_as_it_is_told(models: Models) -> None:
    """Of a draft of four, a + a² + a³ + a⁴ are accepted on average, in tokens of which some are symbols of two."""
    knowing = models.rounds(20, Sampling(temperature=1.0))
    told = sum(ACCEPTANCE**i for i in range(1, 5)) / 4
    assert told - 0.2 < knowing.accepted < told + 0.3
    assert models.rounds(20, Sampling(temperature=1.0), knowing=False).accepted < 0.1


def test_the_prompt_is_left_out_where_it_is_told(models: Models) -> None:
    fed = [max(one.fed for one in models.rounds(30, Sampling(), after_prompt=after).passes) for after in (True, False)]
    assert fed[0] < 10
    assert fed[1] >= 30


def test_the_same_passes_again(models: Models) -> None:
    turn = models.rounds(20, Sampling())
    watch = Watch()
    with watching(watch, models.target.model), watching(watch, models.step):
        assert models.replay(turn.passes) > 0
    again = [one for one in watch.passes if one.before > 0]
    assert [(one.before, one.fed) for one in again] == [(one.before, one.fed) for one in turn.passes]


def test_a_script_changes_one_logit_of_each_row(models: Models) -> None:
    lm = models.target
    lm.crop(0)
    plain = lm.forward([1, 2, 3], 2).clone()
    lm.crop(0)
    watch = Watch()
    with watching(watch, lm.model, lambda position: (position, 3.0) if position == 3 else None):
        changed = lm.forward([1, 2, 3], 2)
    assert torch.equal(changed[0], plain[0])
    assert int((changed[1] != plain[1]).sum()) == 1
    assert float(changed[1].softmax(-1)[3]) == pytest.approx(0.75, abs=0.01)
    assert watch.passes == [Pass(lm.model, 0, 3, 2)]
    lm.crop(0)
    assert torch.equal(lm.forward([1, 2, 3], 2), plain)  # nothing stays behind


def test_every_ratio(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "PROBES", 2)
    monkeypatch.setattr(models, "tokens", 12)
    ratios = list(Overhead(models, turns=1, short=20, long=300).ratios())
    assert len({ratio.name for ratio in ratios}) == len(ratios) >= 10
    assert all(math.isfinite(ratio.value) for ratio in ratios)
    shares = [ratio.value for ratio in ratios if ratio.name.startswith("share")]
    assert len(shares) == 4
    assert all(0 < share < 1 for share in shares)


def test_a_ratio_has_a_verdict() -> None:
    def ratio(value: float, *, at_least: bool) -> Ratio:
        return Ratio(name="x", value=value, bound=2.0, at_least=at_least, detail="")

    verdicts = [ratio(value, at_least=least).passed for value in (1.9, 2.0, 2.1) for least in (True, False)]
    assert verdicts == [False, True, True, True, True, False]
    assert ratio(1.9, at_least=True).as_dict()["pass"] is False
    assert ratio(1.9, at_least=True).verdict == "MISS"


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TARGET": TARGET, "DRAFTER": DRAFTER, "SHORT": 20, "LONG": 100, "QUICK": (12, 1)}.items():
        monkeypatch.setattr(overhead, name, value)
    monkeypatch.setattr(overhead, "PROBES", 2)
    monkeypatch.setattr(Overhead.__init__, "__defaults__", (20, 100))
    asked = ["bench", "overhead", "--quick", "--target-tokenizer", NAMES[0], "--drafter-tokenizer", NAMES[1]]
    before = torch.get_num_threads()
    assert cli.main([*asked, "--json", "--threads", "1", "--out", str(tmp_path / "overhead")]) == 0
    assert torch.get_num_threads() == before
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"name", "value", "bound", "pass"} <= set(result["ratios"][0])
    assert result == json.loads((tmp_path / "overhead.json").read_text(encoding="utf-8"))
    table = (tmp_path / "overhead.md").read_text(encoding="utf-8")
    assert all(ratio["name"] in table for ratio in result["ratios"])
    assert str(tmp_path) not in table


@pytest.mark.parametrize("option", [["--draft-len", "0"], ["--threads", "0"], ["--target-tokenizer", "no/folder/here"]])
def test_mistakes_are_one_line(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "overhead", *option]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_the_peak_is_noticed_and_forgotten() -> None:
    start = memory.begin()
    if start is None:
        pytest.skip("this system does not tell")
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    del block
    peak = memory.peak()
    assert peak is not None
    assert peak - start > 50 * 2**20
    memory.begin()
    again = memory.peak()
    assert again is not None
    assert again < peak


def test_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "FORGET", tmp_path / "no" / "such")
    monkeypatch.setattr(memory, "STATUS", tmp_path / "none")
    assert memory.begin() is None
    assert memory.peak() is None
