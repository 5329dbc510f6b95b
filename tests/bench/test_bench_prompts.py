"""Prompts of each task, from folders, from the hub and from files of one's own."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from omnidraft.bench.prompts import Prompt, digest, name_of, read
from omnidraft.errors import ConfigError, InputError, PromptError
from support.project_files import shared

GSM8K = [{"question": "How many?", "answer": "4"}, {"question": "How much?", "answer": "5"}]
MBPP = [
    {"task_id": number, "text": f"Write {number}.", "test_list": [f"assert f({number})", "assert g"]}
    for number in (10, 11, 510, 511)
]
HUMANEVAL = [{"prompt": "def f():\n"}, {"prompt": "def g():\n    "}]


def write(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "gsm8k" / "test.jsonl", GSM8K)
    write(tmp_path / "mbpp" / "mbpp.jsonl", MBPP)
    write(tmp_path / "humaneval" / "HumanEval.jsonl.gz", HUMANEVAL)
    return tmp_path


def texts(prompts: list[Prompt]) -> list[str]:
    return [prompt.text for prompt in prompts]


EXPECTED = {
    "gsm8k": ["Question: How many?\nAnswer:", "Question: How much?\nAnswer:"],
    "mbpp": [f"Task: Write {number}.\nassert f({number})\nSolution:\n" for number in (11, 510)],
    "humaneval": ["def f():\n", "def g():\n    "],
}


@pytest.mark.parametrize("task", EXPECTED)
def test_the_prompts_of_a_task(data: Path, task: str) -> None:
    prompts = read(task, data)
    assert texts(prompts) == EXPECTED[task]
    assert {prompt.task for prompt in prompts} == {task}
    assert texts(read(task, data, 1)) == EXPECTED[task][:1]


def test_the_folder_of_one_task_will_do(tmp_path: Path) -> None:
    write(tmp_path / "test.jsonl", GSM8K)
    write(tmp_path / "HumanEval.jsonl", HUMANEVAL)
    assert texts(read("gsm8k", tmp_path)) == EXPECTED["gsm8k"]
    assert texts(read("humaneval", tmp_path)) == EXPECTED["humaneval"]


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_a_file_of_ones_own(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, HUMANEVAL)
    assert read(str(path)) == [Prompt("own", row["prompt"]) for row in HUMANEVAL]
    assert name_of(str(path)) == "own"


def test_the_real_test_sets() -> None:
    counts = {task: len(read(task, shared("data"))) for task in EXPECTED}
    assert counts == {"gsm8k": 1319, "mbpp": 500, "humaneval": 164}


@pytest.mark.parametrize(
    ("line", "why"), [("{", "is no JSON"), ('{"text": 1}', "lacks"), ('{"prompt": 3}', "lacks"), ("[]", "lacks")]
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, why: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n')
    with pytest.raises(PromptError, match=f"own.jsonl, line 3, {why}"):
        read(str(path))
    assert texts(read(str(path), count=1)) == ["a"], "what comes later is not read"


def test_files_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'gsm9k' is no file and none of gsm8k"):
        read("gsm9k")
    with pytest.raises(InputError, match=r"holds none of mbpp/mbpp\.jsonl"):
        read("mbpp", tmp_path)
    broken = write(tmp_path / "own.jsonl.gz", HUMANEVAL * 9)
    broken.write_bytes(broken.read_bytes()[:-12])
    with pytest.raises(InputError, match=r"cannot read .*own\.jsonl\.gz"):
        read(str(broken))
    with pytest.raises(PromptError, match="no prompts"):
        read(str(write(tmp_path / "empty.jsonl", [])))


@pytest.mark.parametrize(
    ("task", "rows", "source"),
    [
        ("gsm8k", GSM8K, ("openai/gsm8k", "main")),
        ("mbpp", MBPP, ("google-research-datasets/mbpp",)),
        ("humaneval", HUMANEVAL, ("openai/openai_humaneval",)),
    ],
)
def test_without_a_folder_the_hub_is_asked(
    monkeypatch: pytest.MonkeyPatch, task: str, rows: list[dict[str, Any]], source: tuple[str, ...]
) -> None:
    asked: list[object] = []

    def load_dataset(*names: str, split: str) -> list[dict[str, Any]]:
        asked.append((names, split))
        return rows

    library: Any = ModuleType("datasets")
    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert texts(read(task)) == EXPECTED[task]
    assert asked == [(source, "test")]


def test_without_the_library_or_the_connection_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"omnidraft\[bench\].*--data"):
        read("gsm8k")

    def load_dataset(*_: str, split: str) -> None:
        raise ConnectionError(split)

    library: Any = ModuleType("datasets")
    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    with pytest.raises(InputError, match=r"ConnectionError.*--data"):
        read("gsm8k")


def test_the_digest_tells_prompts_and_their_order_apart() -> None:
    a, b, ab = Prompt("t", "a"), Prompt("t", "b"), Prompt("t", "ab")
    digests = [digest(prompts) for prompts in ([a, b], [b, a], [ab], [a], [])]
    assert len(set(digests)) == len(digests)
    assert digest([Prompt("other", "a"), b]) == digests[0]
    assert all(len(each) == 12 for each in digests)
