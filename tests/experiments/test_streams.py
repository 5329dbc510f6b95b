"""Streams of one user: their prompts, how they are answered in turns and gone on with, and what is made of the rows."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import omnidraft.decoding.stream
from experiments import stream_prompts, streams
from experiments.results import Results, Row
from experiments.stream_prompts import STREAMS, prompts
from experiments.stream_report import parts, picture
from experiments.tasks import PROMPTS
from omnidraft.api import OmniDraft
from omnidraft.bench.compare import Question
from omnidraft.cli.prompts import read
from omnidraft.distillation.inline_trainer import InlineTrainer
from omnidraft.errors import ConfigError
from support.project_files import shared

OWN = tuple(name for name in STREAMS if name not in ("code", "gsm8k"))  # written by the project
Said = tuple[list[int], Row]


@pytest.mark.parametrize("stream", OWN)
def test_prompts_differ_and_are_the_same_every_time(stream: str) -> None:
    found = prompts(stream, 120, None)
    assert len(set(found)) == 120
    assert found[:30] == prompts(stream, 30, None)
    before = stream_prompts.parts()[stream].get("before", "")
    texts = [text.removeprefix(before) for text in found]
    if stream == "edits":
        texts = [text.rpartition("```")[2] for text in texts]
    assert len(set(texts)) == 120, "the fixed part is not all that they have"
    assert not any(stream_prompts.FIELD.search(text) for text in texts), "every field is filled in"
    other = {text for path in PROMPTS.glob("*.jsonl") for text in read(path)}
    assert len(other) > 100
    assert not other.intersection(found), "they are in no other set"


@pytest.mark.parametrize("stream", STREAMS)
def test_no_prompt_is_of_a_test_set(stream: str) -> None:
    data = shared("data")
    found = "\n".join(prompts(stream, 120, data))
    tests = [line["question"] for line in _lines(data / "gsm8k" / "test.jsonl")]
    tests += [line["text"] for line in _lines(data / "mbpp" / "mbpp.jsonl") if line["task_id"] < 601]
    tests += read("humaneval", data)
    assert len(tests) > 1900
    assert [text for text in tests if text in found] == []


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_edits_are_of_one_file_that_changes_slowly() -> None:
    files, requests = [], []
    for prompt in prompts("edits", 120, None):
        _, file, request = prompt.split("```")
        files.append(file.removeprefix("python\n"))
        requests.append(request)
    functions = [[each.name for each in ast.parse(file).body if isinstance(each, ast.FunctionDef)] for file in files]
    assert all(60 <= file.count("\n") <= 100 for file in files)
    assert len(set(files)) > 30
    changed = [len(set(now) - set(before)) for before, now in itertools.pairwise(functions)]
    assert set(changed) == {0, 1}
    named = [name for its, request in zip(functions, requests, strict=True) for name in its if f"`{name}`" in request]
    assert len(named) > 80, "what is asked for is in the file"


def test_training_prompts_of_both_tasks(tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "mbpp/mbpp.jsonl": [
            {"task_id": number, "text": f"task {number}", "test_list": ["assert f()"]}
            for number in (600, 601, 974, 975)
        ],
        "gsm8k/train.jsonl": [{"question": "how many?"}],
        "gsm8k/test.jsonl": [{"question": "how few?"}],
    }
    for name, its in rows.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in its), encoding="utf-8")
    first, second = prompts("code", 2, tmp_path)
    assert "Google style" in first
    assert (first.splitlines()[2:], second.splitlines()[2]) == (
        ["task 601", "It has to pass this test: assert f()"],
        "task 974",
    )
    assert prompts("gsm8k", 1, tmp_path) == ["Question: how many?\nAnswer:"]
    for stream, count in (("code", 3), ("gsm8k", 2)):
        with pytest.raises(ConfigError, match=f"{count} are asked for: use fewer"):
            prompts(stream, count, tmp_path)


# ---------------------------------------------------------------- answering


@pytest.fixture
def words(target: Path, drafter: Path, tmp_path: Path) -> list[str]:
    given = ["--target", str(target), "--drafter", str(drafter), "--dtype", "float32", "--quick"]
    given += ["--prompts", "4", "--new-tokens", "6"]
    return [*given, "--streams", "chinese", "--out", str(tmp_path / "streams")]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The answers given from now on: which model's and to which prompt, the warm-up left out."""
    given: list[tuple[int, int]] = []
    answer = streams.answer

    def noted(model: OmniDraft, question: Question, new_tokens: int, temperature: float) -> Said:
        if new_tokens == 6:
            given.append((id(model), question.number))
        return answer(model, question, new_tokens, temperature)

    monkeypatch.setattr(streams, "answer", noted)
    return given


@pytest.mark.slow
def test_a_quick_run_and_going_on(
    words: list[str],
    answers: list[tuple[int, int]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(streams.WAYS, "learning", streams.WAYS["learning"] | {"update_every": 2})
    out = tmp_path / "streams.jsonl"
    assert streams.main(words) == 0
    assert capsys.readouterr().out == out.with_suffix(".md").read_text(encoding="utf-8")
    rows = [row["ways"] for row in Results(out, "streams").of("answers").values()]
    assert [list(row) for row in rows] == [list(streams.WAYS)] * 4
    for way in (way for row in rows for way in row.values()):
        assert way["identical"]
        assert way["accepted"] <= way["proposed"] <= 5 * way["rounds"]
        assert way["tokens"] == 6 >= way["rounds"]
        assert way["verify_s"] > 0
    assert {row["plain"]["rounds"] for row in rows} == {6}
    assert Results(out, "streams").of("learned").popitem()[1]["learning"]["updates"] > 0
    assert len({model for model, _ in answers[::4]}) == len(streams.WAYS), "each begins now and then"
    assert [number for _, number in answers] == sorted([*range(4)] * 4)

    answers.clear()
    assert streams.main(words) == 0
    assert answers == [], "all is done"
    lines = out.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(lines[:3]), encoding="utf-8")  # cut off after two prompts
    assert streams.main(words) == 0
    assert len(answers) == 4 * 4, "what is learned is of the whole stream"
    assert len(Results(out, "streams").of("answers")) == 4
    assert streams.main([*words, "--prompts", "3"]) == 2
    assert "other settings" in capsys.readouterr().err


@pytest.mark.medium
def test_learning_is_timed_apart(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def takes(seconds: float, kind: Any, name: str) -> None:
        act = getattr(kind, name)

        def timed(*arguments: object) -> object:
            nonlocal now
            now += seconds
            return act(*arguments)

        monkeypatch.setattr(kind, name, timed)

    monkeypatch.setattr(streams, "time", SimpleNamespace(perf_counter=lambda: now))
    takes(0.25, omnidraft.decoding.stream, "verify")
    takes(8.0, InlineTrainer, "teach")
    assert streams.main([*words, "--prompts", "2"]) == 0
    for row in Results(Path(words[-1]).with_suffix(".jsonl"), "streams").of("answers").values():
        for name, way in row["ways"].items():
            assert way["seconds"] == way["rounds"] / 4
            assert way["learning_s"] == (8.0 if name == "learning" else 0.0)


@pytest.mark.medium
def test_what_is_sampled_is_not_compared(words: list[str]) -> None:
    assert streams.main([*words, "--temperature", "1", "--prompts", "2", "--ways", "plain,frozen"]) == 0
    rows = Results(Path(words[-1]).with_suffix(".jsonl"), "streams").of("answers").values()
    assert all(list(row["ways"]) == ["plain", "frozen"] for row in rows)
    assert not any("identical" in way for row in rows for way in row["ways"].values())


@pytest.mark.medium
def test_an_answer_that_drafts_change_is_told(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = streams.answer

    def other(model: OmniDraft, *rest: Any) -> Said:
        tokens, row = answer(model, *rest)
        return tokens if model.drafter is None else [*tokens, 0], row

    monkeypatch.setattr(streams, "answer", other)
    assert streams.main([*words, "--prompts", "1"]) == 1
    assert "memory | 1 | 0 |" in Path(words[-1]).with_suffix(".md").read_text(encoding="utf-8")


@pytest.mark.medium
def test_ways_share_the_target_and_nothing_else(target: Path, drafter: Path) -> None:
    given = {"target": str(target), "drafter": str(drafter), "dtype": "float32", "device": "cpu", "warn": print}
    models = list(streams.models_of(argparse.Namespace(**given, ways=list(streams.WAYS))).values())
    assert len({id(model.target) for model in models}) == 1
    assert len({id(model.lane.policy) for model in models}) == len(models)
    assert len({id(model.drafter) for model in models[1:]}) == len(models) - 1
    assert models[0].drafter is None


# ---------------------------------------------------------------- the report


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (30, {"first 10": (0, 10), "first third": (0, 10), "second third": (10, 20), "last third": (20, 30)}),
        (20, {"first 10": (0, 10), "first third": (0, 6), "second third": (6, 13), "last third": (13, 20)}),
        (2, {"first 2": (0, 2), "second third": (0, 1), "last third": (1, 2)}),
    ],
)
def test_parts_of_a_stream(count: int, expected: dict[str, tuple[int, int]]) -> None:
    found = {name: (its.start, its.stop) for name, its in parts(count).items()}
    assert found == expected | {"all": (0, count)}


def _results(count: int) -> Results:
    """Answers of two ways, of which `memory` gets better and `frozen` does not; they are not in their order."""
    results = Results(None, "streams")
    for number in reversed(range(count)):
        frozen = {"tokens": 8 + 4 * (number % 2), "rounds": 4, "seconds": 2.0, "learning_s": 0.0, "identical": True}
        frozen |= {"accepted": 1, "proposed": 4}
        memory = frozen | {"rounds": 4 if number < count - 3 else 2, "learning_s": 2.0, "accepted": number}
        results.add("answers", f"m|json|0|{number}", {"number": number, "ways": {"frozen": frozen, "memory": memory}})
    return results


def test_a_page_has_sums_of_parts_and_ratios() -> None:
    page = streams.Streams().page(_results(9))
    assert "| m | json | 0 | first third | 2.33 | 2.33 | 1.00 |\n" in page, "(8 + 12 + 8) / 12"
    assert "| m | json | 0 | last third | 2.33 | 4.66 | 2.00 |\n" in page
    assert "| m | json | 0 | first 9 | 4.88 | 2.44 | 0.50 |\n" in page, "learning is in the time"
    assert "| m | json | 0 | last third | 0.25 | 1.75 | 7.00 |\n" in page, "(6 + 7 + 8) / 12"
    assert "| m | json | 0 | memory | 9 | 9 | – | – | 18.0 |\n" in page


@pytest.mark.medium
def test_a_picture_for_light_and_dark_pages(tmp_path: Path) -> None:
    path = tmp_path / "streams.svg"
    assert picture(_results(12), path)
    text = path.read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert "#808080" not in text
    assert all(f">{name}<" in text for name in ("json", "frozen", "memory"))
    assert ">learning<" not in text
    assert not picture(Results(None, "streams"), path)
