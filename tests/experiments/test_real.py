"""Real models on everyday prompts: rows, streams that are learned from, the file that a run goes on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments import real
from omnidraft.bench.interleaved import Answer, EngineWay
from support.compilers import needs_the_8_bit_step

Captured = pytest.CaptureFixture[str]
NUMBERS = ("speedup", "tokens_per_s", "block_efficiency")


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "QUICK", real.Sizes(prompts=2, new_tokens=6, stream=0))


@pytest.fixture
def given(target: Path, drafter: Path, tasks: Path) -> list[str]:
    return ["--target", str(target), "--drafter", str(drafter), "--data", str(tasks), "--quick", "--dtype", "float32"]


def rows_in(stem: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, stem.with_name(stem.name + ".jsonl").read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line["kind"] == "rows"]


def test_a_quick_run(given: list[str], tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "real"
    assert real.main([*given, "--task", "code", "--task", "slow", "--out", str(out)]) == 0
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
        assert not row["learned"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("geometric-mean speedup over generate: target: uad ")
    assert "learned" not in last
    assert last in (tmp_path / "real.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_stream_is_learned_from_and_a_run_goes_on(
    dtype: str, given: list[str], tmp_path: Path, home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == "int8":
        needs_the_8_bit_step()
    out = tmp_path / "real"
    words = [*given[:-1], dtype, "--task", "gsm8k", "--stream", "5", "--out", str(out)]
    assert real.main(words) == 0
    rows = rows_in(out)
    streams = [row for row in rows if row["method"] == "learning"]
    assert [(row["task"], row["prompts"], row["tokens"]) for row in streams] == [
        ("gsm8k, stream", 5, 30),
        ("gsm8k, end of stream", 1, 6),
    ]
    base = next(row for row in rows if row["task"] == "gsm8k, stream" and row["method"] == "generate")
    assert base["prompts"] == 1
    assert streams[0]["speedup"] == pytest.approx(streams[0]["tokens_per_s"] / base["tokens_per_s"])
    assert streams[1]["tokens_per_s"] < streams[0]["tokens_per_s"], "what is left is learned at the end"
    learned = [row for row in rows if row["method"] == "learned"]
    assert [row["identical"] for row in learned] == [2, None]
    assert all(row["learned"] for row in (*learned, *streams))
    assert ", learned " in capsys.readouterr().out.splitlines()[-1]
    assert not (home / "profiles").exists()

    lines = out.with_name("real.jsonl").read_text(encoding="utf-8").splitlines()
    out.with_name("real.jsonl").write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")  # the last cell is cut off
    monkeypatch.setattr(real.Measurement, "stream", None)
    assert real.main(words) == 0
    assert len(rows_in(out)) == len(rows) + 3, "that cell again, and nothing else"
    assert real.main([*words, "--prompts", "1"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_the_gap_of_answers_that_differ(given: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    end = EngineWay.end

    def spoiled(way: EngineWay) -> Answer:
        answer = end(way)
        return Answer([*answer.tokens[:-1], answer.tokens[-1] ^ 1], answer.rounds)

    monkeypatch.setattr(EngineWay, "end", spoiled)
    assert real.main([*given, "--task", "summaries", "--out", str(tmp_path / "real")]) == 1
    found = {row["method"]: row for row in rows_in(tmp_path / "real") if row["temperature"] == 0}
    assert found["frozen"]["identical"] == 0
    assert found["frozen"]["logit_gap"] > 1e-3
    assert (found["uad"]["identical"], found["uad"]["logit_gap"]) == (2, None)


def test_prompts_of_streams_are_no_tests(tasks: Path) -> None:
    rows = [json.loads(line) for line in (tasks / "mbpp/mbpp.jsonl").read_text(encoding="utf-8").splitlines()]
    for number, row in enumerate(rows):
        row["task_id"] = 599 + number
    with (tasks / "mbpp/mbpp.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    learn, tests = real.stream_of("code", tasks, 100), real.texts_of("code", tasks, 100)
    assert len(learn) == len(rows) - 2
    assert learn[0].startswith(f"Task: {rows[2]['text']}")
    assert len(tests) == 2 * len(rows)


def test_own_prompts() -> None:
    for task, least in {"instructions": 20, "summaries": 10, "slow": 12}.items():
        found = real.texts_of(task, None, 100)
        assert len(set(found)) == len(found) >= least


def test_the_summary_compares_what_was_learned_with_the_same_cells() -> None:
    def row(task: str, method: str, speedup: float | None) -> dict[str, Any]:
        return {"target": "t", "task": task, "temperature": 0.0, "method": method, "speedup": speedup}

    rows = [row("a", "frozen", 1.406), row("b", "frozen", 4.245), row("b", "learned", 8.245), row("a", "uad", None)]
    assert real.summary(rows).endswith("over generate: t: frozen 2.44, learned 8.24 (frozen on the same 4.24)")
