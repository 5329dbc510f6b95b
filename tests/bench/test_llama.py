"""llama.cpp behind our interface, and in a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import omnidraft
from omnidraft.bench import llama
from omnidraft.bench.records import OF_LLAMA
from omnidraft.cli import main as cli
from omnidraft.errors import ModelError
from omnidraft.models.loading import load_model
from support.command_line import one_error
from support.gguf_files import small_model, write
from support.table_models import TableModel

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]
TEXTS = ("hello world", "def the")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "small.gguf", small_model())


@pytest.fixture
def command(target: Path, drafter: Path, tmp_path: Path) -> list[str]:
    task = tmp_path / "own.jsonl"
    task.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS), encoding="utf-8")
    models = ["--target", str(target), "--drafter", str(drafter)]
    sizes = ["--max-new-tokens", "8", "--repeats", "1", "--methods", "exact"]
    return ["bench", "compare", *models, "--task", str(task), *sizes]


@pytest.fixture
def asked(target: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What llama.cpp was asked for; the target itself stands for it, and for its drafts the last two tokens."""
    calls: list[tuple[object, ...]] = []

    def loaded(*arguments: object) -> Any:
        calls.append(arguments)
        model: Any = load_model(target, "float32", "cpu").lm
        config = model.model.config
        model.shape, model.precision = (model.vocab_size, config.num_hidden_layers, config.hidden_size), "Q9"
        return model

    def last(text: npt.NDArray[np.intc]) -> npt.NDArray[np.intc]:
        return text[-2:]

    monkeypatch.setattr(llama, "llama_module", object)
    monkeypatch.setattr(llama, "LlamaModel", loaded)
    monkeypatch.setattr(llama, "lookup", lambda: last)
    return calls


def rows(out: str) -> dict[str, dict[str, Any]]:
    return {row["method"]: row for row in json.loads(out)["rows"] if row["task"] != "all"}


def test_it_is_compared_in_the_same_run(
    command: list[str], file: Path, target: Path, tmp_path: Path, asked: list[tuple[object, ...]], capsys: Captured
) -> None:
    made = [*command, "--gguf", str(file), "--threads", "1"]
    assert cli.main([*made, "--json", "--out", str(tmp_path / "made")]) == 0
    found = rows(capsys.readouterr().out)
    assert list(found) == ["generate", "exact", *OF_LLAMA]
    assert found["exact"]["identical"] is True
    for name in OF_LLAMA:
        assert found[name]["identical"] is None, "its products are others"
        assert found[name]["tokens"] == found["generate"]["tokens"]
        assert found[name]["speedup"] > 0
    assert found[OF_LLAMA[0]]["draft_length"] == 0 < found[OF_LLAMA[1]]["draft_length"]
    longest = max(len(omnidraft.load(target).encode_message(text)) for text in TEXTS)
    assert asked == [(file, longest + 8, 1)]
    (written,) = (tmp_path / "made").glob("*.jsonl")
    assert json.loads(written.read_text(encoding="utf-8").splitlines()[0])["gguf"] == "small.gguf, Q9"
    assert cli.main(["bench", "report", str(written)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| llama.cpp")]
    assert {line.split("|")[-2].strip() for line in lines} == {"–"}, "they are neither alike nor sampled"


@pytest.mark.usefixtures("asked")
def test_of_sampled_answers_it_is_left_out(command: list[str], file: Path, capsys: Captured) -> None:
    assert cli.main([*command, "--json", "--gguf", str(file), "--temperature", "1"]) == 0
    out, err = capsys.readouterr()
    assert {rows(out)[name]["unavailable"] for name in OF_LLAMA} == {"greedy only, and on a CPU"}
    assert "llama.cpp is left out, greedy only" in err


def test_a_failure_of_its_own_leaves_the_others(
    command: list[str], file: Path, asked: list[tuple[object, ...]], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("llama.cpp cannot read 3 tokens after 0: use a smaller context")

    monkeypatch.setattr(llama.LlamaWay, "_answer", fail)
    assert cli.main([*command, "--json", "--gguf", str(file)]) == 0
    found = rows(capsys.readouterr().out)
    assert found["exact"]["speedup"] > 0
    assert all(found[name]["unavailable"].startswith("llama.cpp cannot read") for name in OF_LLAMA)
    assert len(asked) == 1


@pytest.mark.usefixtures("asked")
def test_no_file_and_files_of_another_model_are_refused(
    command: list[str], file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no.gguf' is no file: give --gguf" in one_error(capsys, *command, "--gguf", "no.gguf")
    monkeypatch.setattr(llama, "LlamaModel", lambda *_: SimpleNamespace(shape=(99, 2, 32), precision="Q9"))
    assert "the file has (99, 2, 32) ids, layers and columns, the target (" in one_error(
        capsys, *command, "--gguf", str(file)
    )


def test_without_the_extra_it_is_refused(
    command: list[str], file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama, "llama_module", lambda: None)
    said = one_error(capsys, *command, "--gguf", str(file))
    assert said.endswith("llama.cpp is not installed: pip install 'omnidraft[llama-cpp]'")


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


def test_a_cache_that_cannot_be_cropped_is_an_error() -> None:
    model = object.__new__(llama.LlamaModel)
    model._lib, model._memory, model.length = SimpleNamespace(llama_memory_seq_rm=lambda *_: False), None, 9
    with pytest.raises(ModelError, match="cannot keep 5 of 9 tokens"):
        model.crop(5)


def test_llama_cpp_computes_what_transformers_compute(file: Path) -> None:
    pytest.importorskip("llama_cpp", reason=llama.EXTRA)
    expected = load_model(file, "float32", "cpu").lm.new_sequence().forward([5, 6, 7, 8], 3)
    model, smaller = (llama.LlamaModel(each, 64, 1) for each in (file, llama.requantized(file, 1)))
    assert (model.precision, smaller.precision) == ("all F32", "Q8_0")
    assert (model.forward([5, 6, 7, 8], 3) - expected).abs().max() < 0.01  # its keys and values have 16 bits
    model.crop(1)
    assert (model.forward([6, 7, 8], 1) - expected[-1:]).abs().max() < 0.01
    assert 0.001 < (smaller.forward([5, 6, 7, 8], 3) - expected).abs().max() < 0.2
