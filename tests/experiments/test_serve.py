"""A server under load: rows of all ways, and answers that are those of each prompt alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from experiments import serve
from experiments.serve import Reply


@pytest.mark.slow
def test_a_quick_run(target: Path, drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = shutil.copytree(target, tmp_path / "chat")
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8")
    out = tmp_path / "serve"
    words = ["--target", str(chat), "--drafter", str(drafter), "--dtype", "float32", "--threads", "1", "--quick"]
    words += ["--seconds", "1", "--long", "60"]
    assert serve.main([*words, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "serve.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [line for line in lines if line["kind"] == "rows"]
    ways = [(row["method"], row["clients"]) for row in rows]
    assert ways == [("drafts", 1), ("drafts", 2), ("no drafts", 1), ("no drafts", 2)]
    for row in rows:
        assert row["answers"] >= row["clients"]
        assert row["identical"] == row["answers"]
        assert row["lost"] == 0
        assert 0 < row["first_p50_s"] <= row["first_p95_s"]
        assert row["tokens_per_s"] > 0
        assert row["rss_end_mb"] > 50
    beside = [line for line in lines if line["kind"] == "beside"]
    assert [row["method"] for row in beside] == ["drafts", "no drafts"]
    for row in beside:
        assert 0 <= row["gap_s"] < 60  # 0: a prompt as short as that was read between two pieces
        assert 0 < row["alone_gap_s"] < 60
        assert 0 < row["left_s"] < 60
        assert (row["prompt"], row["read_s"] > 0) == (60, True)
    assert "| chat | drafts |" in (tmp_path / "serve.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert serve.main([*words, "--out", str(out)]) == 0  # all is there
    assert "| chat | no drafts |" in capsys.readouterr().out


def test_an_answer_that_differs_is_counted() -> None:
    class Fickle:
        asked = 0

        def ask(self, place: int, prompt: str) -> Reply:
            self.asked += 1
            text = None if self.asked == 3 else "other" if self.asked == 2 else prompt
            return Reply(prompt=place, text=text, tokens=2, first_s=float(self.asked))

        def rss(self) -> float:
            return 1.0

        def close(self) -> None:
            """Nothing to do."""

    row = serve.load_run(Fickle(), ["a", "b"], ["a", "b"], 1, 1)  # type: ignore[arg-type]
    assert row["lost"] == 1
    assert row["identical"] == row["answers"] - 2
    assert row["first_p50_s"] < row["first_p95_s"]
