"""Real models on everyday prompts: rows, and the file that a run goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import real, tasks
from omnidraft.bench.interleaved import LaneMethod, TimedAnswer

Captured = pytest.CaptureFixture[str]
NUMBERS = ("speedup", "tokens_per_s", "block_efficiency")


@pytest.fixture
def given(target: Path, drafter: Path, tasks: Path) -> list[str]:
    words = ["--target", str(target), "--drafter", str(drafter), "--data", str(tasks), "--quick", "--dtype", "float32"]
    return [*words, "--new-tokens", "6"]


def rows_in(stem: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, stem.with_name(stem.name + ".jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == "rows"]


@pytest.mark.medium
def test_a_quick_run(given: list[str], tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "real"
    words = [*given, "--task", "code", "--task", "slow", "--out", str(out)]
    assert real.main(words) == 0
    rows = rows_in(out)
    assert [(row["task"], row["temperature"], row["method"]) for row in rows] == [
        (task, temperature, method)
        for task in ("code", "slow")
        for temperature in (0.0, 1.0)
        for method in ("generate", "uad", "frozen")
    ]
    for row in rows:
        assert row["identical"] == (None if row["temperature"] or row["unavailable"] else 2)
        assert (row["unavailable"] is not None) == (row["method"] == "uad" and row["temperature"] == 1)
        assert row["unavailable"] or all(row[name] > 0 for name in NUMBERS)
    assert capsys.readouterr().out == (tmp_path / "real.md").read_text(encoding="utf-8")
    lines = out.with_name("real.jsonl").read_text(encoding="utf-8").splitlines()
    out.with_name("real.jsonl").write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")  # the last cell is cut off
    assert real.main(words) == 0
    assert len(rows_in(out)) == len(rows) + 2, "that cell again, and nothing else"
    assert real.main([*words, "--prompts", "1"]) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.medium
def test_the_gap_of_answers_that_differ(given: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    end = LaneMethod.end

    def spoiled(way: LaneMethod) -> TimedAnswer:
        answer = end(way)
        return TimedAnswer([*answer.tokens[:-1], answer.tokens[-1] ^ 1], answer.rounds)

    monkeypatch.setattr(LaneMethod, "end", spoiled)
    assert real.main([*given, "--task", "summaries", "--out", str(tmp_path / "real")]) == 1
    found = {row["method"]: row for row in rows_in(tmp_path / "real") if row["temperature"] == 0}
    assert found["frozen"]["identical"] == 0
    assert found["frozen"]["logit_gap"] > 1e-3
    assert (found["uad"]["identical"], found["uad"]["logit_gap"]) == (2, None)


def test_own_prompts() -> None:
    for task, least in {"instructions": 20, "summaries": 10, "slow": 12}.items():
        found = tasks.texts_of(task, None, 100)
        assert len(set(found)) == len(found) >= least
