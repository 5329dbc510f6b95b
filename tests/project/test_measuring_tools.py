"""The tools that time parts run: what they print stands in the docs, and no timing is looked at here."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.compilers import needs_the_8_bit_step
from support.project_files import tool
from support.texts import TEXTS
from support.tokenizer_families import family


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
