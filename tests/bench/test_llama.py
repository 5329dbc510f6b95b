"""llama.cpp behind our interface, and in a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from omnidraft.bench import llama
from omnidraft.bench.records import OF_LLAMA
from omnidraft.cli import main as cli
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.loading import load_model
from support.command_line import one_error
from support.gguf_files import small_model, write
from support.table_models import TableModel

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf", small_model())


@pytest.fixture
def command(target: Path, drafter: Path, tmp_path: Path) -> list[str]:
    task = tmp_path / "own.jsonl"
    task.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("hello world", "def the")))
    models = ["--target", str(target), "--drafter", str(drafter)]
    sizes = ["--max-new-tokens", "8", "--repeats", "1", "--methods", "exact", "--json"]
    return ["bench", "compare", *models, "--task", str(task), *sizes]


@pytest.fixture
def _the_target_itself(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for llama.cpp, and for its drafts the last two tokens of a text."""

    def loaded(*_: object) -> LanguageModel:
        return load_model(target, "float32", "cpu").lm

    def last(text: npt.NDArray[np.intc]) -> npt.NDArray[np.intc]:
        return text[-2:]

    monkeypatch.setattr(llama, "LlamaModel", loaded)
    monkeypatch.setattr(llama, "lookup", lambda: last)


def rows(out: str) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in json.loads(out)["rows"] if row["task"] != "all"}


@pytest.mark.usefixtures("_the_target_itself")
def test_it_is_compared_in_the_same_run(command: list[str], tmp_path: Path, capsys: Captured) -> None:
    assert cli.main([*command, "--gguf", "some.gguf", "--out", str(tmp_path / "made")]) == 0
    made = rows(capsys.readouterr().out)
    assert list(made) == ["generate", "exact", *OF_LLAMA]
    assert made["exact"]["identical"] is True
    for name in OF_LLAMA:
        assert made[name]["identical"] is None, "its products are others"
        assert made[name]["tokens"] == made["generate"]["tokens"]
        assert made[name]["speedup"] > 0
    assert made[OF_LLAMA[0]]["draft_length"] == 0 < made[OF_LLAMA[1]]["draft_length"]
    (written,) = (tmp_path / "made").glob("*.jsonl")
    assert json.loads(written.read_text().splitlines()[0])["gguf"] == "some.gguf"


@pytest.mark.usefixtures("_the_target_itself")
def test_of_sampled_answers_it_is_left_out(command: list[str], capsys: Captured) -> None:
    assert cli.main([*command, "--gguf", "some.gguf", "--temperature", "1"]) == 0
    out, err = capsys.readouterr()
    assert {rows(out)[name]["unavailable"] for name in OF_LLAMA} == {"greedy only"}
    assert "llama.cpp is left out, greedy only" in err


def test_without_the_extra_it_is_refused(command: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "library", lambda: None)
    said = one_error(capsys, *command, "--gguf", "some.gguf")
    assert said.endswith("llama.cpp is not installed: pip install 'omnidraft[llama-cpp]'")


def test_files_of_another_model_are_refused(
    command: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "LlamaModel", lambda *_: TableModel(99, "other"))
    assert "some.gguf has 99 ids, the target " in one_error(capsys, *command, "--gguf", "some.gguf")


@pytest.mark.parametrize(("wrong", "end"), [(0, 30), (1, 30), (0, 20), (1, 20)])
def test_copied_drafts_change_no_answer(wrong: int, end: int) -> None:
    model, plain = TableModel(99, "device", sharp=0.1), [0, 1]
    for _ in range(30):
        model.crop(0)
        plain.append(int(model.forward(plain, 1)[0].argmax()))
    full = np.array([*plain, 0, 0], np.intc)
    way = llama.LlamaWay("lookup", model, [plain[end + 1]], lambda text: full[len(text) :][:2] + np.array([0, wrong]))
    way.begin([0, 1], 30, 0)
    assert way.advance(30) == (end == 30)
    assert way.end().tokens == plain[2 : end + 2]
    assert len(way.end().passes) == -(-end // (3 - wrong)), "drafts are accepted up to the wrong token"


def test_llama_cpp_computes_what_transformers_compute(file: Path) -> None:
    pytest.importorskip("llama_cpp", reason=llama.EXTRA)
    expected = load_model(file, "float32", "cpu").lm.forward([5, 6, 7, 8], 3)
    model, smaller = (llama.LlamaModel(each, 64, 1) for each in (file, llama.requantized(file, 1)))
    assert (model.precision, smaller.precision) == ("all F32", "Q8_0")
    assert (model.forward([5, 6, 7, 8], 3) - expected).abs().max() < 0.01  # its keys and values have 16 bits
    model.crop(1)
    assert (model.forward([6, 7, 8], 1) - expected[-1:]).abs().max() < 0.01
    assert 0.001 < (smaller.forward([5, 6, 7, 8], 3) - expected).abs().max() < 0.2
