"""Long texts: how much is read before what is timed, the page, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from experiments import depth
from experiments.results import Results
from omnidraft.bench import llama
from support.compilers import needs_the_8_bit_step

pytestmark = pytest.mark.usefixtures("home")


class Counting:
    """A sequence that notes the passes it makes."""

    def __init__(self) -> None:
        self.length, self.passes = 0, list[tuple[int, int]]()

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        self.passes.append((self.length, len(ids)))
        self.length += len(ids)
        return torch.zeros(keep, 3)

    def crop(self, length: int) -> None:
        self.length = length


def test_each_pass_is_timed_after_the_whole_text() -> None:
    sequence = Counting()
    assert depth.read_seconds(sequence, range(30)) > 0  # type: ignore[arg-type]
    for rows in (1, 5):
        assert depth.pass_seconds(sequence, range(rows)) > 0  # type: ignore[arg-type]
    assert sequence.passes == [(0, 30), (30, 1), (30, 5)]


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
    assert [row["tokens"] for row in rows] == list(depth.QUICK.depths)
    assert all(row[name] > 0 for row in rows for name in depth.COLUMNS[3:])
    assert said.out.count("| ours |") == len(rows)

    def other(engine: object, *_: object) -> tuple[list[int], float]:
        return [id(engine)], 1.0  # another one each time

    monkeypatch.setattr(depth, "answer", other)
    assert depth.main(words) == 1
