"""The adaptation study: learning against the clock, beside a trainer, and where the task or target changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments import adaptation, changes, figures
from experiments.evaluation import Evaluation


@pytest.mark.parametrize(
    ("learning", "expected"),
    [([3.0, 2.0, 1.0, 1.0], 3), ([1.0, 1.0], 1), ([3.0, 2.0], None), ([2.0, 3.0, 1.0, 1.0], 3), ([1.0, 4.0], None)],
)
def test_crossover_is_where_learning_stays_ahead(learning: list[float], expected: int | None) -> None:
    assert adaptation.crossover(learning, [2.0] * len(learning)) == expected


def test_moving_block_efficiency() -> None:
    tokens = [4, 6, 2, *[4] * figures.WINDOW]
    found = figures.moving(tokens, [2] * len(tokens))
    assert found[:3] == [2.0, 2.5, 2.0]
    assert found[-1] == 2.0, "the first answers are out of the window"


def test_a_live_stream_is_learned_from(evaluation: Evaluation) -> None:
    row = adaptation.live(evaluation)
    assert row["identical"]
    assert {len(seconds) for seconds in row["seconds"].values()} == {4}
    total = {name: sum(seconds) for name, seconds in row["seconds"].items()}
    assert row["speedup_learning"] == pytest.approx(total["plain"] / total["learning"], rel=1e-3)
    before, after = row["block_efficiency"]
    assert before != after, "four answers change the drafter of random weights"


def test_a_target_comes_back_to_what_was_learned_for_it(evaluation: Evaluation) -> None:
    found = changes.targets(evaluation)
    for tests in found["tests"].values():
        assert tests["leaving"] == tests["coming back"]
    assert all(len(curves) == 3 for curves in found["curves"].values())


@pytest.mark.slow
def test_replies_beside_a_trainer_in_the_background(evaluation: Evaluation) -> None:
    found = adaptation.background(evaluation, pause_s=0.1)
    assert found["prompts"] == 3
    assert found["reply_time_ratio"] > 0 < found["slowest_ratio"]
    assert found["acceptance_rate"].keys() == {"background", "inline"}


def test_the_command(small: Path, tasks: Path, tmp_path: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "results"
    given = [str(small), "--data", str(tasks), "--quick", "--out", str(out), "--parts", "live,streams,switch,targets"]
    assert adaptation.main(given) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {kind: len(rows) for kind, rows in result.items()} == {
        "settings": 1, "live": 1, "cells": 8, "switch": 1, "targets": 1,
    }  # fmt: skip
    text = (out / "adaptation.md").read_text()
    for title in ("Against the clock", "Before and after a stream", "before and after"):
        assert title in text
    assert {path.name for path in out.glob("*.png")} == {"live.png", "switch.png", "targets.png"}
    assert not (home / "profiles").exists()
