"""The study of copied drafts: its prompts, conversations, rows, and what it comes to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from experiments import retrieval
from omnidraft.cli.prompts import MBPP_TEST


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
    found = retrieval.Retrieval().texts("edits", codes, 3)
    assert [str(text).split("\n\n", 1)[1] for text in found] == [
        "```python\ndef f11():\n    return 1\n```",
        "```python\ndef g1():\n    return 2\n```",
        "```python\ndef f12():\n    return 1\n```",
    ]
    assert [str(text).split("\n\n", 1)[0] for text in found] == list(retrieval.EDITS[:3])


def test_texts_are_asked_about_in_other_words() -> None:
    for task, order in (("quotes", retrieval.QUOTES), ("passages", retrieval.PASSAGE)):
        found = retrieval.Retrieval().texts(task, None, 100)
        assert len(found) >= 10
        assert all(str(text).startswith(order) and retrieval.SUMMARIZE not in text for text in found)


def test_a_quick_run(target: Path, drafter: Path, codes: Path, tmp_path: Path) -> None:
    chat = tmp_path / "chat"
    shutil.copytree(target, chat)
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }} {% endfor %}", encoding="utf-8")
    words = ["--target", str(chat), "--drafter", str(drafter), "--data", str(codes), "--quick", "--dtype", "float32"]
    words += ["--prompts", "1", "--new-tokens", "6"]
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
