"""`omnidraft make-drafter`: text and training by one command, mistakes in one line."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from omnidraft.cli.main import main
from support.command_line import one_error

pytestmark = pytest.mark.slow
PAIR = ["zoo:target-a", "--teacher", "zoo:target-b", "--layers", "0", "--vocab", "600", "--dtype", "float32"]
COUNTS = {
    "text-tokens": "2.5",
    "batch-size": "2.5",
    "conversation-tokens": "512.5",
    "tokens": "1000000.0",
    "batch-tokens": "1.5",
    "seed": "0.5",
}


def test_one_command_writes_text_and_makes_a_drafter_that_another_begins_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.make_drafter.teacher_text.ANSWERS", {30: 1.0})
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is 2 + 3?"}\n{"prompt": "How many legs have 4 cats?"}\n', encoding="utf-8")
    own = ["--prompts", str(prompts), "--self-asked", "0", "--batch-size", "2"]
    own += ["--text-tokens", "50", "--tokens", "100", "--out"]
    assert main(["make-drafter", *PAIR, *own, str(tmp_path / "first")]) == 0
    said = capsys.readouterr().err
    assert "tokens written" in said
    assert "accepted of held-out text" in said
    models = ["--target", "zoo:target-b", "--drafter", str(tmp_path / "first")]
    assert main(["generate", "What is 2 + 3?", *models, "--max-new-tokens", "8"]) == 0
    begun = ["--init-from", str(tmp_path / "first"), "--learning-rate", "0"]
    assert main(["make-drafter", *PAIR, *begun, *own, str(tmp_path / "second")]) == 0
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    layers = [name for name in first if "layers." in name]
    assert layers
    assert all(torch.equal(first[name], second[name]) for name in layers)
    capsys.readouterr()
    assert main(["make-drafter", *PAIR, *begun, *own, str(tmp_path / "second"), "--only", "training"]) == 0
    assert "does not begin with the weights of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--layers", "a"], "'a' are no layers"),
        (["--only", "training"], "no text of target-b"),
        (["--layers", "0,99"], "layers is [0, 99]: name different ones of 0 to "),
        (["--text-tokens", "0"], "text_tokens is 0"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
        (["--init-from", ""], "is no file or folder that exists"),
        *(
            ([f"--{name}", value], f"{name.replace('-', '_')} is {value}; it must be an integer")
            for name, value in COUNTS.items()
        ),
        (["--teacher", "zoo:target-b"], "two teachers are called target-b: rename"),
    ],
)
def test_mistakes_are_one_line(
    more: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--batch-size", "1", "--text-tokens", "1", "--out", str(tmp_path / "out")]
    assert main(["make-drafter", *PAIR, *own, *more]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("omnidraft: error:")
    assert message in line
    assert not [*tmp_path.rglob("*.npz")], "it is noticed before text is written"


@pytest.mark.parametrize(
    ("out", "reason"),
    [("file", "Not a directory"), ("file/below", "Not a directory"), ("x" * 300, "File name too long")],
)
def test_a_folder_that_cannot_be_written_is_noticed_before_a_model_is_loaded(
    out: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    arguments = ["zoo:nothing", "--layers", "0", "--out", tmp_path / out]
    said = one_error(capsys, "make-drafter", *arguments)
    assert f"cannot write into {tmp_path / out} ({reason}): give --out another folder" in said
    assert "zoo model 'nothing'" in one_error(capsys, "make-drafter", *arguments[:-1], tmp_path / "new" / "folder")


def test_a_folder_of_another_user_is_noticed_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("omnidraft.cli.make_drafter.TemporaryFile", refuse)
    said = one_error(capsys, "make-drafter", "zoo:nothing", "--layers", "0", "--out", tmp_path)
    assert f"cannot write into {tmp_path} (Permission denied): give --out another folder" in said
