"""The overhead benchmark on tiny models: what is measured is what is said to be."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.overhead import peak_memory as memory
from experiments.overhead import study as overhead
from experiments.overhead.__main__ import main
from experiments.overhead.study import Overhead, Ratio
from experiments.overhead.synthetic import Pass, Shape, Spread, Watch, certain, counting_truncations, watching
from experiments.overhead.synthetic_models import ACCEPTANCE, Course, Models, Turn
from omnidraft import zoo
from omnidraft.alignment.spelling_table import SpellingTable, build_table
from omnidraft.bench.environment import writing
from omnidraft.config import Sampling
from omnidraft.errors import InputError
from omnidraft.models.loading import load_tokenizer
from omnidraft.verification.truncation import Truncation

TARGET = Shape(layers=1, hidden=32, intermediate=48, heads=4, tied=True)
DRAFTER = Shape(layers=1, hidden=16, intermediate=24, heads=2, tied=False)
NAMES = (zoo.PREFIX + zoo.names("target")[0], zoo.PREFIX + zoo.names("drafter")[0])


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    tokenizers = [load_tokenizer(zoo.resolve(name)) for name in NAMES]
    with torch.random.fork_rng():
        yield Models(*tokenizers, target=TARGET, drafter=DRAFTER, context=400, draft_length=4, tokens=60)


def test_a_scripted_target_says_its_text(models: Models) -> None:
    for sampling in (Sampling(), Sampling(temperature=1.0)):
        turn = models.rounds(20, sampling, after_prompt=False)
        assert turn.tokens == 60
        assert turn.wall_s > turn.passes_s > 0
        assert turn.beside_s == pytest.approx((turn.wall_s - turn.passes_s) / turn.rounds)
        assert sum(one.runner is models.target.model for one in turn.passes) == turn.rounds


@pytest.mark.parametrize("sampling", [sampling for sampling, _ in overhead.SAMPLINGS.values()])
def test_the_drafter_is_right_as_often_as_it_is_told(models: Models, sampling: Sampling) -> None:
    assert ACCEPTANCE - 0.15 < models.rounds(20, sampling).accepted < ACCEPTANCE + 0.15
    assert models.rounds(20, sampling, knowing=False).accepted < 0.3


def test_what_is_drafted_follows_a_text_that_leaves_the_script(models: Models) -> None:
    translator, ids = models.attached.context, models.ids
    course = Course(translator, ids, length=20, written=30)
    course.go_on((), 4)
    assert course.at(29) is None
    emitted = [ids[20], ids[7], ids[8]]
    course.go_on(emitted, 4)
    begin = 30 + len(translator.tokens(emitted))
    wanted = translator.tokens(ids[23:27])
    assert [course.at(begin + i) for i in range(len(wanted) + 1)] == [*wanted, None]


@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_a_spread_row_has_the_law_it_says(temperature: float) -> None:
    law = Spread([None, *[b"x"] * 999], 0.6, temperature, torch.float32)
    rows = torch.zeros(2, 1000)
    for position, row in enumerate(rows):
        law.write(position, row, 5)
    probs = (rows / temperature).softmax(-1)
    assert probs[:, 5].tolist() == pytest.approx([0.6, 0.6], abs=0.05)
    assert probs[:, 0].max() < 1e-4
    largest = probs.topk(9)
    assert not set(largest.indices[0, 1:].tolist()) & set(largest.indices[1, 1:].tolist())
    assert 2 < largest.values[0, 1] / largest.values[0, 3] < 8
    entropy = -(probs * probs.log()).sum(-1)
    assert 1.5 < float(entropy[0]) < 4


def test_truncated_laws_are_counted() -> None:
    row = torch.tensor([0.5, 0.25, 0.25]).log().numpy()
    with counting_truncations() as counts:
        for top_p in (0.9, 0.6, 0.5):
            Truncation(1.0, 0, top_p, 0.0).probs(row)
    assert counts == {True: 2, False: 1}
    Truncation(1.0, 0, 0.5, 0.0).probs(row)
    assert counts.total() == 3  # nothing stays behind


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
    with watching(watch, lm.model, lambda position, row: certain(row, position) if position == 3 else None):
        changed = lm.forward([1, 2, 3], 2)
    assert torch.equal(changed[0], plain[0])
    assert int((changed[1] != plain[1]).sum()) == 1
    assert float(changed[1].softmax(-1)[3]) == pytest.approx(1, abs=1e-4)
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


def test_growth_is_held_against_the_target_alone(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "PROBES", 2)
    monkeypatch.setattr(models, "alone", lambda start: 2.0 if start == 300 else 1.0)
    seconds = {20: 1.0, 300: 3.0}
    monkeypatch.setattr(models, "rounds", lambda start, *_, **__: Turn(1, seconds[start], 0.5, 1, ()))
    ratio = Overhead(models, turns=1, short=20, long=300).growth()
    assert ratio.value == pytest.approx(1.5)
    assert not ratio.passed
    assert "3.00 against 2.00" in ratio.detail


def test_the_table_is_built_in_memory(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    begun: list[str] = []
    monkeypatch.setattr(memory, "begin", lambda: begun.append("measuring"))

    def build(*given: Any) -> SpellingTable:
        begun.append("building")
        return build_table(*given)

    monkeypatch.setattr("experiments.overhead.synthetic_models.build_table", build)
    tokenizers = [load_tokenizer(zoo.resolve(name)) for name in NAMES]
    with torch.random.fork_rng():
        Models(*tokenizers, target=TARGET, drafter=DRAFTER, context=64, draft_length=4, tokens=6)
    assert begun == ["measuring", "building"]
    assert not home.exists()


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
    asked = ["--quick", "--target-tokenizer", NAMES[0], "--drafter-tokenizer", NAMES[1]]
    before = torch.get_num_threads()
    assert main([*asked, "--json", "--threads", "1", "--out", str(tmp_path / "overhead")]) == 0
    assert torch.get_num_threads() == before
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"name", "value", "bound", "pass"} <= set(result["ratios"][0])
    assert result == json.loads((tmp_path / "overhead.json").read_text(encoding="utf-8"))
    table = (tmp_path / "overhead.md").read_text(encoding="utf-8")
    assert all(ratio["name"] in table for ratio in result["ratios"])
    assert str(tmp_path) not in table


@pytest.mark.parametrize(
    "option", [["--draft-length", "0"], ["--threads", "0"], ["--target-tokenizer", "no/folder/here"]]
)
def test_mistakes_are_one_line(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*option]) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 2


@pytest.mark.parametrize("stem", [".", "file/overhead"])
def test_where_nothing_can_be_written_nothing_is_measured(
    stem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(overhead, "Models", None)  # to make them would be a TypeError
    assert main(["--out", stem]) == 2
    assert "give --out another place" in capsys.readouterr().err


def test_a_full_disk_is_one_line() -> None:
    with pytest.raises(InputError, match="another place"), writing(Path("overhead")):
        raise OSError("no space left")


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


def test_where_freed_memory_cannot_be_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory.begin()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    assert (memory.begin() is None) == (before is None)
