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
    words += ["--seconds", "1", "--long", "60", "--method", "drafts"]
    assert serve.main([*words, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "serve.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [line for line in lines if line["kind"] == "rows"]
    ways = [(row["method"], row["clients"]) for row in rows]
    assert ways == [("drafts", 1), ("drafts", 2)]
    for row in rows:
        assert row["answers"] >= row["clients"]
        assert row["identical"] == row["answers"]
        assert row["lost"] == 0
        assert 0 < row["first_p50_s"] <= row["first_p95_s"]
        assert row["tokens_per_s"] > 0
        assert row["rss_end_mb"] > 50
    (beside,) = (line for line in lines if line["kind"] == "beside")
    assert 0 <= beside["gap_s"] < 60  # 0: a prompt as short as that was read between two pieces
    assert 0 < beside["alone_gap_s"] < 60
    assert 0 < beside["left_s"] < 60
    assert (beside["prompt"], beside["read_s"] > 0) == (60, True)
    assert "| chat | drafts |" in (tmp_path / "serve.md").read_text(encoding="utf-8")
    capsys.readouterr()
    assert serve.main([*words, "--out", str(out)]) == 0  # all is there
    assert "| chat | drafts |" in capsys.readouterr().out


def test_a_server_for_each_target_and_method(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[tuple[str, ...]] = []

    def start(_: object, target: str, *more: str) -> Fickle:
        started.append((target, *more))
        return Fickle()

    monkeypatch.setattr(serve, "Server", start)
    monkeypatch.setattr(serve, "load_run", lambda *_: {"answers": 2, "identical": 1, "lost": 0, "tokens_per_s": 1.0})
    monkeypatch.setattr(serve, "beside_run", lambda *_: {"prompt": 100})
    words = ["--target", "a", "--target", "b", "--quick"]
    assert serve.main([*words, "--dtype", "float32"]) == 1, "an answer differs"
    assert started == [(target, *more) for target in "ab" for more in serve.METHODS.values()]
    assert capsys.readouterr().out.count("| b | no drafts | ") == 2 + 1
    assert serve.main([*words, "--dtype", "bfloat16"]) == 0, "a near tie may be decided differently"


class Fickle:
    """A server whose second answer is another one and whose third is lost."""

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, place: int, prompt: str) -> Reply:
        self.asked += 1
        text = None if self.asked == 3 else "other" if self.asked == 2 else prompt
        return Reply(prompt=place, text=text, tokens=2, first_s=float(self.asked))

    def rss(self) -> float:
        return 1.0

    def close(self) -> None:
        """Nothing to do."""


@pytest.mark.slow
def test_an_answer_that_differs_is_counted() -> None:
    row = serve.load_run(Fickle(), ["a", "b"], ["a", "b"], 1, 1)  # type: ignore[arg-type]
    assert row["lost"] == 1
    assert row["identical"] == row["answers"] - 2
    assert row["first_p50_s"] < row["first_p95_s"]
