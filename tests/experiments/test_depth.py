"""Long texts: how much is read before what is timed, the page, and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import depth, llama
from experiments.results import Results
from support.compilers import needs_the_8_bit_step

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.medium
def test_a_quick_run(
    target: Path, drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_8_bit_step()
    monkeypatch.setattr(llama, "llama_module", lambda: None)
    out = tmp_path / "depth"
    words = ["--target", str(target), "--drafter", str(drafter), "--quick", "--out", str(out)]
    assert depth.main(words) == 0
    said = capsys.readouterr()
    assert "llama.cpp is left out" in said.err
    assert said.out == out.with_suffix(".md").read_text(encoding="utf-8")
    rows = list(Results(out.with_suffix(".jsonl"), "depth").of("depths").values())
    assert [row["tokens"] for row in rows] == [32, 64]
    assert all(row[name] > 0 for row in rows for name in depth.COLUMNS[3:])
    assert said.out.count("| ours |") == len(rows)

    def other(lane: object, *_: object) -> tuple[list[int], float]:
        return [id(lane)], 1.0  # another one each time

    monkeypatch.setattr(depth, "answer", other)
    assert depth.main([*words[:-2], "--depths", "16"]) == 1
