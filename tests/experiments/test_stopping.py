"""The draft-length study: its ways, the acceptance head, and cases where drafts cannot pay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments import stopping
from experiments.evaluation import Evaluation
from experiments.study import JobPart
from omnidraft.bench.interleaved import engine_for
from omnidraft.config import Drafting, Sampling
from omnidraft.draft_length.acceptance_head import Head


def test_ways_have_caches_of_their_own_and_only_one_policy_has_no_head(evaluation: Evaluation) -> None:
    ways = stopping.ways(evaluation, Sampling())
    names = ["plain", "fixed 1", "fixed 3", "confidence", "entropy", "head", "goodput", stopping.WITHOUT]
    assert [way.name for way in ways] == names
    assert [way.engine.drafting.longest for way in ways] == [0, 1, 3, 16, 16, 16, 16, 16]
    assert len({id(way.engine.target) for way in ways}) == len(ways)
    heads = [way.engine.attached.head.trained for way in ways[1:] if way.engine.attached is not None]
    assert heads == [True] * 6 + [False]
    assert not evaluation.model.engine.attached.head.trained  # type: ignore[union-attr]


def test_prompts_of_the_tasks_take_turns(evaluation: Evaluation) -> None:
    one, other = (evaluation.prompts(task, tests=True) for task in ("gsm8k", "code"))
    assert stopping.prompts_of(evaluation, stopping.IN_TURNS) == [one[0], other[0]]
    assert stopping.prompts_of(evaluation, "code") == other


def test_reliability_is_counted_in_bins() -> None:
    seen = [(0.05, False), (0.05, True), (0.95, True), (1.0, True), (0.5, False)]
    found = stopping.reliability(seen)
    assert found["bins"] == {"0": [0.05, 0.5, 2], "5": [0.5, 0.0, 1], "9": [0.975, 1.0, 2]}
    assert found["expected_calibration_error"] == pytest.approx((2 * 0.45 + 0.5 + 2 * 0.025) / 5)


def test_a_prediction_is_set_against_what_became_of_its_token(evaluation: Evaluation) -> None:
    class Counting(Head):
        """Predicts the number of the token, in thousandths."""

        count = 0

        def chance(self, *_: object) -> float:
            self.count += 1
            return self.count / 1000

    noting, model = stopping.Noting(Counting()), evaluation.model
    engine = engine_for(model, Drafting(draft_length=3), policy=noting)
    rounds = list(engine.rounds(evaluation.prompts("gsm8k", tests=True)[0], 20, Sampling(), lambda _: 0))
    expected, first = [], 1
    for record in rounds:
        judged = range(min(record.counts.draft_accepted + 1, len(record.draft)))
        expected += [((first + at) / 1000, at < record.counts.draft_accepted) for at in judged]
        first += len(record.draft)
    assert noting.seen == expected
    assert len(expected) > 10


def test_one_by_one_says_the_same(evaluation: Evaluation) -> None:
    lm = evaluation.model.target.lm
    ids = evaluation.prompts("gsm8k", tests=True)[0]
    lm.crop(0)
    expected = lm.forward(ids, 2).clone()
    lm.crop(0)
    slow = stopping.OneByOne(lm)
    assert torch.allclose(slow.forward(ids, 2), expected, atol=1e-4)
    assert slow.length == len(ids)
    slow.crop(0)
    assert lm.length == 0


def test_a_scrambled_drafter_knows_nothing_and_may_be_slower(evaluation: Evaluation) -> None:
    assert evaluation.model.drafter is not None
    own = evaluation.model.drafter.lm.model
    other, slow = stopping.scrambled(own), stopping.scrambled(own, layers=5)
    mine = dict(own.named_parameters())
    assert not any(torch.equal(p, mine[name]) for name, p in other.named_parameters() if p.ndim > 1)
    assert (other.config.num_hidden_layers, slow.config.num_hidden_layers) == (own.config.num_hidden_layers, 5)


def test_a_speedup_is_the_median_over_repeats_and_goodput_stands_beside_the_best_length() -> None:
    speeds = {"plain": (1, 1, 1), "fixed 1": (1.2, 1.3, 1.1), "fixed 2": (1.25,), "goodput": (1.3, 1.25, 1.3)}
    rows = [
        {"way": way, "repeat": n, "speedup": float(s), "speedup_cpu": float(s), "tokens_per_s": 20.0,
         "tokens_per_cpu_s": 20.0}
        for way, its in speeds.items() for n, s in enumerate(its)
    ]  # fmt: skip
    cells = stopping.PARTS["cells"]
    assert isinstance(cells, JobPart)
    assert cells.table is not None
    text = cells.table([{"target": "a", "task": "t", "temperature": 0.0, "rows": rows}])
    assert "| a | t | 0 | 20.0 | 1.200 | 1.250 | 1.300 | 1.040 |" in text


def test_the_command(small: Path, tasks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    given = [str(small), "--data", str(tasks), "--quick", "--out", str(out)]
    assert stopping.main(given) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert str(tmp_path) not in json.dumps([setting["command"] for setting in result["settings"]])
    cells = {(row["task"], row["temperature"]): row["rows"] for row in result["policies"]}
    assert set(cells) == {(task, warm) for task in ("gsm8k", "code", stopping.IN_TURNS) for warm in (0.0, 1.0)}
    assert all(row["identical"] is (True if warm == 0 else None) for (_, warm), rows in cells.items() for row in rows)
    hopeless = {row["case"]: row for row in result["hopeless"]}
    assert tuple(hopeless) == stopping.CASES
    assert all(row["identical"] and row["prompts"] == stopping.LAPS for row in hopeless.values())
    assert all(0 < row["without_draft"] <= 1 and row["speedup"] > 0 < row["speedup_cpu"] for row in hopeless.values())
    text = (out / "stopping.md").read_text()
    for words in ("## Speedup over plain decoding", "a drafter of random weights", "| interleaved |", "## Calibration"):
        assert words in text
