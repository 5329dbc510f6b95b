"""The study of copied drafts: its prompts, conversations, rows, and what it comes to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments import real, retrieval
from omnidraft.bench.prompts import MBPP_TEST


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real, "QUICK", real.Sizes(prompts=1, new_tokens=6, stream=0))


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    """A folder with two solutions of each task, and one of MBPP that is not of its test split."""
    mbpp: list[dict[str, Any]] = [
        {"task_id": number, "text": "t", "code": f"def f{number}():\r\n    return 1"} for number in (1, 11, 12)
    ]
    humaneval: list[dict[str, Any]] = [
        {"prompt": f"def g{number}():\n", "canonical_solution": "    return 2\n\n"} for number in (1, 2)
    ]
    for name, rows in {"mbpp/mbpp.jsonl": mbpp, "humaneval/HumanEval.jsonl": humaneval}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert 1 not in MBPP_TEST
    return tmp_path


def test_edits_are_made_of_solutions_in_turns(codes: Path) -> None:
    found = retrieval.Copying.texts("edits", codes, 3)
    assert [str(text).split("\n\n", 1)[1] for text in found] == [
        "```python\ndef f11():\n    return 1\n```",
        "```python\ndef g1():\n    return 2\n```",
        "```python\ndef f12():\n    return 1\n```",
    ]
    assert [str(text).split("\n\n", 1)[0] for text in found] == list(retrieval.EDITS[:3])


def test_texts_are_asked_about_in_other_words() -> None:
    for task, order in (("quotes", retrieval.QUOTES), ("passages", retrieval.PASSAGE)):
        found = retrieval.Copying.texts(task, None, 100)
        assert len(found) >= 10
        assert all(str(text).startswith(order) and retrieval.SUMMARIZE not in text for text in found)


def test_a_quick_run(
    target: Path, drafter: Path, codes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = tmp_path / "chat"
    shutil.copytree(target, chat)
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8")
    words = ["--target", str(chat), "--drafter", str(drafter), "--data", str(codes), "--quick", "--dtype", "float32"]
    out = tmp_path / "retrieval"
    assert retrieval.main([*words, "--task", "edits", "--task", "conversation", "--out", str(out)]) == 0
    lines = map(json.loads, out.with_name("retrieval.jsonl").read_text(encoding="utf-8").splitlines())
    rows = [line for line in lines if line["kind"] == "rows"]
    assert [(row["task"], row["temperature"], row["method"]) for row in rows] == [
        (task, temperature, method)
        for task in ("edits", "conversation")
        for temperature in (0.0, 1.0)
        for method in ("generate", "lookup", "auto", "model", "retrieval")
    ]
    for row in rows:
        prompts = 1 if row["task"] == "edits" else len(retrieval.TURNS)
        assert row["prompts"] == prompts
        assert row["identical"] == (None if row["temperature"] else prompts)
    last = capsys.readouterr().out.splitlines()[-1]
    assert "temperature 0, conversation " in last
    assert "temperature 1, copying " in last


def test_the_summary_compares_both_with_the_better_one() -> None:
    def row(task: str, method: str, speedup: float) -> dict[str, Any]:
        return {"target": "t", "task": task, "temperature": 0.0, "method": method, "speedup": speedup}

    rows = [
        *(row("edits", name, speed) for name, speed in {"auto": 2.0, "model": 1.0, "retrieval": 1.6}.items()),
        *(row("quotes", name, speed) for name, speed in {"auto": 1.8, "model": 1.2, "retrieval": 0.9}.items()),
        row("edits", "lookup", 1.0),
        row("quotes", "lookup", 0.5),
    ]
    assert retrieval.Copying.summary(rows).endswith(": t, temperature 0, copying 1.36, over lookup 2.68")
