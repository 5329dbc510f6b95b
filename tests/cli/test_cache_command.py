"""`omnidraft cache`: what is kept is listed and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from omnidraft.cli.main import main


def test_what_is_kept_is_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path))
    folder = tmp_path / "cache" / "gguf" / "0123456789abcdef-float32"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    assert main(["cache"]) == 0
    printed = capsys.readouterr()
    assert "gguf/0123456789abcdef-float32  3 MB" in printed.out
    assert str(tmp_path) in printed.err
    assert main(["cache", "--clear", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["kept"] == []
    assert "freed 3 MB" in printed.err
    assert not folder.exists()
