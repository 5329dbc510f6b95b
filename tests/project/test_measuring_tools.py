"""The tools that time parts run: what they print stands in the docs, and no timing is looked at here."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from omnidraft.systems import logical_processors, processor_name
from support.compilers import needs_the_8_bit_step
from support.project_files import tool
from support.texts import TEXTS
from support.tokenizer_families import family

pytestmark = pytest.mark.medium


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    places = []
    for name in ("qwen2", "llama2"):
        family(name).save_pretrained(tmp_path / name)
        places.append(str(tmp_path / name))
    return places


@pytest.mark.parametrize("seed", ["vocabulary", "empty"])
def test_bookkeeping(
    seed: str, folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tool("measure_parts")
    monkeypatch.setattr(parts, "TOKENS", 20)
    monkeypatch.setattr(parts, "PROMPT", 10)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS.values()), encoding="utf-8")
    parts.bookkeeping(*folders, text, seed)
    lines = capsys.readouterr().out.splitlines()
    said = [line for line in lines if "ms a round" in line]
    assert len(said) == len(parts.SAMPLINGS)
    assert all(1 < int(line.split(" rounds")[0].split()[-1]) <= 20 for line in said)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["step", "swap", "together"])
def test_parts_of_the_drafter(part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if part in {"step", "together"}:
        needs_the_8_bit_step()  # which is timed
    parts = tool("measure_parts")
    monkeypatch.setattr(parts.turns, "__defaults__", (1,))
    getattr(parts, part)()
    assert capsys.readouterr().out.count(" ms") == {"step": 6, "swap": 3, "together": 8}[part]


def test_scripts(folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = tool("measure_scripts")
    monkeypatch.setattr(scripts, "RUNS", 1)
    scripts.main(*folders)
    assert capsys.readouterr().out.count("\n") >= len(TEXTS)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool with a model that is small, and large enough for several threads."""
    needs_the_8_bit_step()
    module = tool("measure_threads")
    small = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 3, "vocab_size": 16_384}
    monkeypatch.setattr(
        module, "SHAPE", module.SHAPE | small | {"num_attention_heads": 4, "tie_word_embeddings": False}
    )
    return module


def test_threads(threads: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def of_level(words: list[str], left_out: tuple[str, ...]) -> list[Any]:
        """In this process, and with times that tell the level."""
        threads.main(*words, "--json")
        torch.set_num_threads(1)
        rows: list[Any] = json.loads(capsys.readouterr().out)
        return [[count, several, several + len(left_out), turns] for count, several, _, turns in rows]

    monkeypatch.setattr(threads, "of_level", of_level)
    monkeypatch.setattr(threads, "levels", lambda *_: {"some": ("-mno-x",), "all": ()})
    threads.main("--threads", "1,2", "--rows", "1,3", "--seconds", "0", "--busy", "1")
    about, _, head, _, *lines = capsys.readouterr().out.splitlines()
    assert about.startswith(processor_name())
    assert "1 others busy; random weights" in about
    assert head == "| instructions | threads | 1 rows, ms | 3 rows, ms | turns |"
    assert lines == [
        "| some | 1 | 2.0 (1.00x) | 4.0 (2.00x) | 1 |", "| some | 2 | 2.0 (1.00x) | 4.0 (2.00x) | 1 |",
        "| all | 1 | 1.0 (1.00x) | 3.0 (3.00x) | 1 |", "| all | 2 | 1.0 (1.00x) | 3.0 (3.00x) | 1 |",
    ]  # fmt: skip


def test_which_levels_and_threads_are_timed() -> None:
    threads = tool("measure_threads")
    assert threads.levels("arm64", ["avx512f"]) == {"all": ()}
    assert threads.levels("AMD64", []) == {"AVX2": ()}
    some, most = (threads.levels("x86_64", flags) for flags in (["avx512f"], ["avx512f", "avx512_vnni"]))
    assert list(some) == ["AVX2", "AVX-512"]
    assert list(most) == ["AVX2", "AVX-512", "all"]
    assert most["all"] == some["AVX-512"] == ()
    assert "-mno-avx512f" in most["AVX2"]
    assert "-mno-avx512vnni" in most["AVX-512"]
    assert [threads.doubled(most) for most in (1, 6, 8)] == [[1], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.slow
def test_a_machine_that_is_shared_changes_no_token(threads: ModuleType) -> None:
    """Other processes keep all cores busy, and the decoding has twice as many threads as there are: it goes on."""
    model, many = threads.model_of(None), 2 * logical_processors()

    def read(count: int) -> torch.Tensor:
        """The logits of each token of a text, one after the other."""
        torch.set_num_threads(count)  # of this thread
        sequence = model.new_sequence()
        return torch.cat([sequence.forward([7 * place], 1) for place in range(60)])

    try:
        alone = read(1)
        assert len(alone.unique(dim=0)) == 60
        with threads.busy(many), ThreadPoolExecutor(1) as pool:
            assert torch.equal(read(many), alone)
            beside = pool.submit(read, many)  # one has the threads, the other finds them taken
            assert torch.equal(read(many), alone)
            assert torch.equal(beside.result(), alone)
    finally:
        torch.set_num_threads(1)


def test_families(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    needs_the_8_bit_step()
    families = tool("measure_families")
    small = {
        "vocab_size": 40_000, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    monkeypatch.setattr(families, "SHAPES", {"small": ("gemma3_text", small)})
    monkeypatch.setattr(families, "TURNS", 1)
    monkeypatch.setattr(families, "TOKENS", 3)
    families.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "small (1M) generate, bf16", "small (1M) native, 8 bits", "small",
    ]  # fmt: skip
