"""Prompts of each task, from folders, from the hub and from files of one's own."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omnidraft.cli import prompts
from omnidraft.cli.prompts import digest, name_of, read
from omnidraft.errors import ConfigError, InputError, PromptError
from support.project_files import shared

ROWS: dict[str, list[dict[str, Any]]] = {
    "gsm8k": [{"question": "How many?", "answer": "4"}, {"question": "How much?", "answer": "5"}],
    "mbpp": [
        {"task_id": number, "text": f"Write {number}.", "test_list": [f"assert f({number})", "assert g"]}
        for number in (10, 11, 510, 511)
    ],
    "humaneval": [{"prompt": "def f():\n"}, {"prompt": "def g():\n    "}],
}
EXPECTED = {
    "gsm8k": ["Question: How many?\nAnswer:", "Question: How much?\nAnswer:"],
    "mbpp": [f"Task: Write {number}.\nassert f({number})\nSolution:\n" for number in (11, 510)],
    "humaneval": ["def f():\n", "def g():\n    "],
}


def write(path: Path, rows: Iterable[object], encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode(encoding)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("gsm8k", "gsm8k/test.jsonl"),
        ("gsm8k", "test.jsonl"),
        ("mbpp", "mbpp/mbpp.jsonl"),
        ("humaneval", "humaneval/HumanEval.jsonl.gz"),
        ("humaneval", "HumanEval.jsonl"),
    ],
)
def test_the_prompts_of_a_task_lie_below_a_folder(tmp_path: Path, task: str, file: str) -> None:
    write(tmp_path / file, ROWS[task])
    assert read(task, tmp_path) == EXPECTED[task]
    assert read(task, tmp_path, 1) == EXPECTED[task][:1]


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_a_file_of_ones_own(tmp_path: Path, name: str) -> None:
    for encoding in ("utf-8-sig", "utf-8"):
        path = write(tmp_path / name, ROWS["humaneval"], encoding)
        assert read(str(path)) == read(path) == EXPECTED["humaneval"]
    assert name_of(str(tmp_path / name)) == "own"


def test_the_real_test_sets() -> None:
    counts = {task: len(read(task, shared("data"))) for task in EXPECTED}
    assert counts == {"gsm8k": 1319, "mbpp": 500, "humaneval": 164}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is no JSON"),
        *((line, "lacks") for line in ('{"text": 1}', '{"prompt": 3}', "[]")),
        ("1" * 5000, r"is no JSON that can be read \(too long an integer"),
        ("[" * 100_000, r"is no JSON that can be read \(nested too deeply"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(PromptError, match=f"own.jsonl, line 3, {why}"):
        read(str(path))
    assert read(str(path), count=1) == ["a"], "what comes later is not read"


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'gsm9k' is no file and none of gsm8k"):
        read("gsm9k")
    with pytest.raises(InputError, match=r"holds none of mbpp/mbpp\.jsonl"):
        read("mbpp", tmp_path)
    broken = write(tmp_path / "own.jsonl.gz", ROWS["humaneval"] * 9)
    broken.write_bytes(broken.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"cannot read .*own\.jsonl\.gz"):
        read(str(broken))
    with pytest.raises(PromptError, match="no prompts"):
        read(str(write(tmp_path / "empty.jsonl", [])))
    with pytest.raises(InputError, match="is no file and none of gsm8k"):
        prompts.read("x" * 300)


@pytest.mark.parametrize(
    ("task", "source"),
    [
        ("gsm8k", ("openai/gsm8k", "main")),
        ("mbpp", ("google-research-datasets/mbpp",)),
        ("humaneval", ("openai/openai_humaneval",)),
    ],
)
def test_without_a_folder_the_hub_is_asked(monkeypatch: pytest.MonkeyPatch, task: str, source: tuple[str, ...]) -> None:
    asked: list[object] = []

    def load_dataset(*names: str, split: str) -> list[dict[str, Any]]:
        asked.append((names, split))
        if len(asked) > 1:
            raise ConnectionError
        return ROWS[task]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert read(task) == EXPECTED[task]
    assert asked == [(source, "test")]
    with pytest.raises(InputError, match=r"ConnectionError.*--data"):
        read(task)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"omnidraft\[bench\].*--data"):
        read(task)


def test_the_digest_tells_prompts_and_their_order_apart() -> None:
    digests = {digest(prompts) for prompts in (["a", "b"], ["b", "a"], ["ab"], ["a"], [])}
    assert len(digests) == 5
    assert all(len(each) == 12 for each in digests)


def test_chats_are_texts_or_whole_lines(tmp_path: Path) -> None:
    file, chat = tmp_path / "prompts.jsonl", {"messages": [{"role": "user", "content": "Hi"}], "tools": []}
    file.write_text(json.dumps({"prompt": "Hello"}) + "\n" + json.dumps(chat) + "\n", encoding="utf-8")
    assert prompts.chats(file) == ["Hello", chat]
    for wrong in ('{"messages": 1}', "{}", "[1]", '{"prompt": null}'):
        file.write_text(wrong + "\n", encoding="utf-8")
        with pytest.raises(PromptError, match=r"line 1, has neither a text as prompt nor a list of messages"):
            prompts.chats(file)
