"""Models that the system does not let this process read, or look at: one line with the fix of the cause."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import omnidraft
from omnidraft.errors import ModelError
from omnidraft.inspection.models import read_model
from omnidraft.models.gguf.config import is_gguf
from omnidraft.models.loading import load_drafter, load_model, load_tokenizer
from support.command_line import one_error
from support.denied import deny
from support.gguf_models import small_file
from support.models import refused

pytestmark = pytest.mark.usefixtures("home")
LONG = "x" * 300
DENIED = "cannot be read (Permission denied): make it readable"


def refused_everywhere(path: Path, *said: str) -> None:
    for read in (load_model, load_drafter, load_tokenizer, read_model):
        with refused(ModelError, *said):
            read(path)


@pytest.mark.medium
@pytest.mark.parametrize("name", [LONG, f"./{LONG}", f"{LONG}.gguf", f"{LONG}/model"])
def test_a_name_that_is_too_long_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = "cannot be read (File name too long): give a shorter path"
    with refused(ModelError, said):
        omnidraft.load(name, None)
    with refused(ModelError, said):
        omnidraft.load("zoo:target-a", name)
    for command in (("generate", "x", "--target", name), ("inspect", name), ("inspect", name, "--header")):
        assert said in one_error(capsys, *command)
    assert not is_gguf(name)


@pytest.mark.medium
def test_a_model_in_a_folder_of_another_user(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(target, tmp_path / "private" / "target")
    file = small_file(tmp_path / "private" / "small.gguf")
    deny(monkeypatch, tmp_path / "private")
    for path in (folder, file, tmp_path / "private" / "nothing"):
        refused_everywhere(path, repr(str(path)), DENIED)
        assert DENIED in one_error(capsys, "generate", "x", "--target", path)
        assert DENIED in one_error(capsys, "inspect", path, "--header")


@pytest.mark.parametrize("place", ["", "config.json"])
def test_a_folder_whose_files_may_not_be_read(
    place: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(target, tmp_path / "target")
    deny(monkeypatch, folder / place)
    refused_everywhere(folder, repr(str(folder / "config.json")), DENIED)


def test_a_small_file_of_a_folder_that_may_not_be_read(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(target, tmp_path / "target")
    deny(monkeypatch, folder / "generation_config.json")
    with refused(ModelError, "cannot read the generation_config.json of model", "Permission denied"):
        load_model(folder)


@pytest.mark.parametrize("name", ["small.gguf", "sha256-4d7a"])
def test_a_gguf_file_that_may_not_be_read_is_not_called_damaged(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_file(tmp_path / "whole.gguf").rename(tmp_path / name)
    deny(monkeypatch, path)
    refused_everywhere(path, name, DENIED)
    assert DENIED in one_error(capsys, "inspect", path, "--header")


def test_a_link_that_leads_nowhere_but_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "loop"
    path.symlink_to(path)
    refused_everywhere(path, "cannot be read (", "give a path that can be read")


def test_the_shard_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (tmp_path / f"m-0000{number}-of-00002.gguf" for number in (1, 2))
    shutil.copy(small_file(first), second)
    deny(monkeypatch, second)
    with refused(ModelError, second.name, DENIED):
        load_model(first)
