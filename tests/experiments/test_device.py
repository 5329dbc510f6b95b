"""What a person would run on a CPU: the ways, rows, and what is left out."""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from experiments import apart, device, llama
from experiments.judging import Text, quality
from experiments.results import Results, Row
from omnidraft.errors import ModelError
from support.compilers import needs_the_8_bit_step
from support.gguf_models import small_file
from support.table_models import TableModel

OTHER = """
import os

class Other:
    def __init__(self, path, *, n_ctx, n_threads, verbose):
        self.said = [n_ctx, n_threads, verbose, os.getpid()]

    def generate(self, tokens, *, max_tokens, temperature):
        return [len(tokens), *self.said, temperature][:max_tokens]
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path))
    (tmp_path / "other_library.py").write_text(OTHER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return small_file(tmp_path / "small.gguf")


@pytest.mark.slow
def test_a_quick_run_without_the_extra(
    file: Path, drafter: Path, tasks: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_8_bit_step()  # of our ways
    monkeypatch.setattr(llama, "llama_module", lambda: None)
    out = file.with_name("device.jsonl")
    words = ["--target", str(file), "--drafter", str(drafter), "--data", str(tasks), "--quick"]
    words += ["--prompts", "1", "--everyday", "1", "--new-tokens", "8", "--repeats", "2"]
    words += ["--passes", "1", "--texts", "2", "--out", str(out.with_suffix("")), "--also", "other_library:Other"]
    assert device.main(words) == 0
    said = capsys.readouterr()
    assert "llama.cpp is left out, as it is not installed: pip install 'omnidraft[llama-cpp]'\n" in said.err
    assert said.out == out.with_suffix(".md").read_text(encoding="utf-8")
    others = r"[\d.]+x generate, [\d.]+x other_library:Other"
    assert re.search(rf"\nsmall.gguf: 8 bits, drafted [\d.]+ tokens/s, {others}\n$", said.out)
    rows = device.rows_of(Results(out, "device"))
    assert [row["method"] for row in rows] == ["generate", *device.OF_OURS, "other_library:Other"]
    assert said.out.count("\n| small.gguf | ") == len(rows) + len(device.OF_OURS)
    assert [row["identical"] for row in rows] == [None, None, 6, 6, None, 6, None], "three prompts, twice"
    rounds = {row["method"]: row for row in device.rounds_of(Results(out, "device"))}
    undrafted = rounds[device.SAMPLED]
    assert (undrafted["tokens_per_pass"], undrafted["everyday"], undrafted["without_draft"]) == (1, 1, 1)
    assert rounds[device.SAMPLED_DRAFTED]["tokens_per_pass"] >= 1 > undrafted["drafts"] == 0
    assert (rows[0]["agreement"], rows[2]["agreement"], rows[1]["step_ms"] > 0) == (1, None, True)
    lines = out.read_text(encoding="utf-8").splitlines(keepends=True)
    out.write_text("".join(lines[:4]), encoding="utf-8")  # cut off after three answers
    assert device.main(words) == 0
    kept = [row["seconds"] for row in Results(out, "device").of("turns").values()]
    assert kept[:3] == [json.loads(line)["seconds"] for line in lines[1:4]]
    for wrong, error in (([*words, "--prompts", "2"], "other settings"), (["--target", str(drafter)], "no GGUF file")):
        assert device.main(wrong) == 2
        assert error in capsys.readouterr().err


@pytest.mark.slow
def test_another_library_has_a_process_of_its_own(file: Path) -> None:
    other = apart.Apart("other_library:Other", file, 64, 2)
    other.begin([5, 6, 7], 100, 0)
    assert not other.advance(100)
    length, room, threads, verbose, process, temperature = other.end().tokens
    assert (length, room, threads, verbose, temperature) == (3, 64, 2, False, 0)
    assert process != os.getpid()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["other_library:None", "no_library:Other", "other_library", ""])
def test_another_library_that_is_not_there(name: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    with pytest.raises(ModelError, match="is no class that is installed"):
        apart.Apart(name, file, 64, 2)


def test_perplexity_is_that_of_the_tokens_judged() -> None:
    model = TableModel(6, "device")
    chances = model.probs((0, 1))[2] * model.probs((0, 1, 2))[3]
    found = quality({"table": model}, [Text([0, 1, 2, 3], 2)])["table"]
    assert found["perplexity"] == pytest.approx(chances**-0.5)


def test_rows_are_medians_of_repeats_and_the_summary_compares() -> None:
    results = Results(None, "device")
    speeds = {"generate": 3.0, "8 bits, drafted": 1.0, "llama.cpp": 0.5}
    for repeat, task in ((repeat, task) for repeat in range(3) for task in device.KINDS):
        seconds = {name: speed * 2**repeat for name, speed in speeds.items()}
        row: Row = {"repeat": repeat, "task": task, "same": {"8 bits, drafted": repeat > 0}, "seconds": seconds}
        results.add("turns", f"m|{repeat}|{task}", row | {"tokens": dict.fromkeys(speeds, 8), "rounds": {}})
    for name in speeds:
        results.add("models", f"m|{name}", {"precision": name, "step_ms": 1.25, "threads": 2})
    rows = device.rows_of(results)
    assert [rows[1][name] for name in ("tokens_per_s", "chat", "identical", "answers")] == [4, 4, 6, 9]
    page = device.Device().page(results).partition("left out")[0]
    assert "| m | llama.cpp | llama.cpp | 2 | 8.00 |" in page
    assert page.endswith("m: 8 bits, drafted 4.0 tokens/s, 3.00x generate, 0.50x llama.cpp\n")


def test_rounds_are_counted_over_all_answers_and_by_kind() -> None:
    results = Results(None, "device")
    for task, rounds, drafted in (("chat", 10, 20), ("code", 20, 70), ("everyday", 10, 0)):
        counts = {"tokens": drafted + rounds, "rounds": rounds, "drafted": drafted, "rounds_without_draft": rounds // 5}
        times = {"draft_s": 0.1 * drafted, "verify_s": 0.5 * rounds, "overhead_s": 0.01 * rounds, "policy_s": 0.0}
        none = {"tokens": 0, "rounds": 0}
        row: Row = {"task": task, "rounds": {"8 bits, drafted": counts | times, "8 bits, model": none}}
        results.add("turns", f"m|0|{task}", row)
    results.add("models", "m|8 bits", {})
    (row,) = device.rounds_of(results)
    assert (row["method"], row["tokens_per_pass"], row["drafts"], row["without_draft"]) == (
        *("8 bits, drafted", 130 / 40, 90 / 40, 8 / 40),
    )
    assert (row["chat"], row["code"], row["everyday"]) == (3, 4.5, 1)
    assert (row["draft_ms"], row["verify_ms"], row["rest_ms"]) == pytest.approx((9000 / 40, 500, 10))
