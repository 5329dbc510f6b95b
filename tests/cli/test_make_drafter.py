"""`omnidraft make-drafter`: text and training by one command, mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnidraft.cli.main import main

PAIR = ["zoo:target-a", "--teacher", "zoo:target-b", "--layers", "0", "--vocab", "600", "--dtype", "float32"]


def test_one_command_writes_text_and_makes_a_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is 2 + 3?"}\n{"prompt": "How many legs have 4 cats?"}\n')
    out = tmp_path / "out"
    own = ["--prompts", str(prompts), "--own", "0", "--text-tokens", "200", "--rows", "2"]
    assert main(["make-drafter", *PAIR, *own, "--tokens", "500", "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "tokens written" in said
    assert "accepted of held-out text" in said
    assert main(["generate", "What is 2 + 3?", "--target", "zoo:target-b", "--drafter", str(out)]) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layers", "a"], "'a' are no layers"),
        (["--layers", "16", "--only", "training"], "no text of target-b"),
        (["--text-tokens", "0"], "text_tokens is 0"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--rows", "1", "--text-tokens", "1", "--out", str(tmp_path)]
    assert main(["make-drafter", *PAIR, *own, *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("omnidraft: error:")
    assert message in line
