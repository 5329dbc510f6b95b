"""The check for machines with a GPU: it says where there is none, and runs through on the CPU as a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from support.project_files import ROOT, environment, tool

OURS = ("plain", "4 draft tokens", "drafts by default")


def test_without_a_device_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tool("gpu_check").main([str(tmp_path / "out")]) == 2
    said = capsys.readouterr().out
    assert said.startswith("gpu_check: there is no CUDA device here: run it on a machine with one")
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_trial_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("omnidraft.draft_length.cost_model.SECONDS", 0.0)
    check = tool("gpu_check")
    tiny = ["--device", "cpu", "--shape", "tiny", "--new-tokens", "6", "--prompts", "1", "--tests", "a_replay_reads"]
    assert check.main([str(tmp_path / "out"), *tiny]) == 0
    report = json.loads((tmp_path / "out" / "gpu-check.json").read_text(encoding="utf-8"))
    assert report["tests"]["passed"] is True, report["tests"]
    assert "1 passed" in report["tests"]["said"]
    assert report["left_out"] == {}
    assert {*report["passes"]} == {"without graphs", "with graphs"}
    rows = {row["method"]: row for row in report["answers"]}
    ours = [f"{name}, {graphs}" for graphs in report["passes"] for name in OURS]
    assert [*rows] == ["generate, static cache, compiled", *ours]
    assert all(row["same_text"] == row["answers"] == 1 for row in rows.values())
    page = (tmp_path / "out" / "gpu-check.md").read_text(encoding="utf-8")
    assert "The target is random" in page
    assert "A trial on the CPU" in page
    assert page in capsys.readouterr().out


@pytest.mark.slow
def test_failed_tests_and_those_that_take_too_long_are_told_apart() -> None:
    check = tool("gpu_check")
    cpu = torch.device("cpu")
    assert check.tests_on(cpu, "none", 1.0) == {"passed": None, "said": "none run"}
    nothing = check.tests_on(cpu, "no_test_is_called_this", 600.0)
    assert nothing["passed"] is False
    late = check.tests_on(cpu, "all", 0.1)
    assert late == {"passed": None, "said": "stopped after 0 s, none had failed"}


def test_what_passes_gain() -> None:
    passes = {"target": {1: 4.0, 5: 4.4}, "drafter": 0.2}
    gains = tool("gpu_check").gains(passes)
    assert gains[0.6] == pytest.approx(4.0 * (1 + 0.6 + 0.6**2 + 0.6**3 + 0.6**4) / (4.4 + 4 * 0.2))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_the_script_finds_the_source(tmp_path: Path) -> None:
    there = environment(tmp_path) | {"PYTHON": sys.executable}
    script = [str(ROOT / "tools" / "gpu_check.sh"), "--help"]
    done = subprocess.run(script, cwd=tmp_path, env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Check decoding with CUDA graphs" in done.stdout
