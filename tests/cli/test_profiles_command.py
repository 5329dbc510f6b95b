"""`omnidraft profiles`."""

from __future__ import annotations

import errno
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from omnidraft import storage
from omnidraft.cli import main as cli
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile_file import ProfileFile
from omnidraft.profiles.store import ProfileStore
from support.command_line import one_error
from support.small_profiles import KEY, number_of, numbered

Captured = pytest.CaptureFixture[str]
NAME = "/".join(KEY.place)
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(home: Path) -> ProfileStore:
    """A store with one profile."""
    store = ProfileStore()
    assert store.root == home / "profiles"
    put(store, 2)
    return store


def put(store: ProfileStore, number: int, key: Key = KEY) -> ProfileFile:
    file = store.file(key)
    with file.held():
        file.save(key, numbered(number, weights={"w": torch.ones(3)}))
    return file


def profiles(*arguments: object) -> int:
    return cli.main(["profiles", *map(str, arguments)])


# ------------------------------------------------------------ looking


def test_list(store: ProfileStore, capsys: Captured) -> None:
    assert profiles("list") == 0
    out, err = capsys.readouterr()
    header, line = out.splitlines()
    assert header.split() == ["NAME", "SAVED", "SIZE", "PROBLEM"]
    assert line.split()[0] == NAME
    assert err == ""
    other = replace(KEY, target="other")
    torn = put(store, 3, other)
    torn.path.write_bytes(torn.path.read_bytes()[:50])
    store.file(KEY).set_aside()
    put(store, 4)
    assert profiles("list") == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert lines.keys() == {NAME, f"{NAME}.aside-1", "/".join(other.place)}
    for name, problem in {f"{NAME}.aside-1": "set aside", "/".join(other.place): "is damaged"}.items():
        assert problem in lines[name]
    assert profiles("list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["profiles"]
    assert {entry["name"]: entry["problem"] is None for entry in found} == {name: name == NAME for name in lines}


def test_nothing_to_list(home: Path, capsys: Captured) -> None:
    assert profiles("list") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert str(home / "profiles") in err
    assert profiles("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"profiles": []}
    assert "there are none yet" in one_error(capsys, "profiles", "show", "x")


def test_show(store: ProfileStore, capsys: Captured) -> None:
    assert profiles("show", NAME) == 0
    out = capsys.readouterr().out.splitlines()
    assert {
        f"name: {NAME}",
        "learning.adapter: lora",
        "counters.rounds: 2",
        f"target: {KEY.target}",
        "problem: none",
    } <= set(out)
    assert profiles("show", NAME, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["counters"], found["drafter_weights"]) == ({"rounds": 2, "loss": 0.5}, KEY.drafter_weights)
    path = store.file(KEY).path
    path.write_bytes(path.read_bytes()[:-1])
    assert profiles("show", NAME) == 0
    assert "by its header it must have" in capsys.readouterr().out
    assert "by its header it must have" in str(store.list()[0].problem)


def test_a_file_is_copied_to_another_home(
    store: ProfileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(store.root, elsewhere / "profiles")
    monkeypatch.setenv("OMNIDRAFT_HOME", str(elsewhere))
    assert number_of(ProfileStore().file(KEY).load(KEY)) == 2
    copy = shutil.copy(
        store.file(KEY).path, elsewhere / "profiles" / store.file(KEY).path.parent.name / "a.safetensors"
    )
    assert profiles("list", "--json") == 0
    problems = {entry["path"]: entry["problem"] for entry in json.loads(capsys.readouterr().out)["profiles"]}
    assert problems == {
        str(ProfileStore().file(KEY).path): None,
        str(copy): "set aside or renamed, and not in use: remove it, or load it by its path",
    }
    assert number_of(ProfileFile(Path(copy)).load(KEY)) == 2


# ------------------------------------------------------------ removing


def test_remove(store: ProfileStore, capsys: Captured) -> None:
    other = replace(KEY, target="other")
    put(store, 3, other)
    assert profiles("remove", NAME) == 0
    assert capsys.readouterr().err == f"omnidraft: removed {NAME}\n"
    assert store.file(KEY).load(KEY) is None
    assert number_of(store.file(other).load(other)) == 3
    assert profiles("remove", "/".join(other.place)) == 0
    assert list(store.root.iterdir()) == []


def test_forget(store: ProfileStore, capsys: Captured) -> None:
    file = store.file(KEY)
    with file.held():
        answers = {"drafter_tokens": np.array([1, 2, 3], np.int32)}
        counters = {"rounds": 2, "loss": 0.5, "answer_tokens": 3}
        file.save(KEY, numbered(2, answers=answers, counters=counters))
    assert profiles("forget", NAME) == 0
    assert capsys.readouterr().err == f"omnidraft: {NAME} holds no earlier answers\n"
    left = file.load(KEY)
    assert left is not None
    assert (number_of(left), dict(left.answers)) == (2, {})


def test_remove_of_one_that_is_damaged_or_in_use(store: ProfileStore, capsys: Captured) -> None:
    file = store.file(KEY)
    assert file.claim()
    assert "in use by another process" in one_error(capsys, "profiles", "remove", NAME)
    file.release()
    file.path.write_bytes(b"torn")
    assert profiles("remove", NAME) == 0
    assert not file.path.exists()
    assert list(store.root.iterdir()) == []


def test_a_disk_that_removes_nothing(store: ProfileStore, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, f"{path.name} stays")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove", refuse)
        assert "cannot be removed" in one_error(capsys, "profiles", "remove", NAME)
    assert number_of(store.file(KEY).load(KEY)) == 2


def test_names_are_looked_up(store: ProfileStore, capsys: Captured, tmp_path: Path) -> None:
    assert f"did you mean '{NAME}'?" in one_error(capsys, "profiles", "show", NAME[:-1])
    precious = tmp_path / "precious.safetensors"
    precious.touch()
    for name in ("../../precious", str(precious), ".", "..", f"./{NAME}", f"{NAME}.safetensors", ""):
        for command in ("show", "remove"):
            assert "does not exist" in one_error(capsys, "profiles", command, name)
    assert precious.exists()
    assert number_of(store.file(KEY).load(KEY)) == 2


def test_bad_arguments(capsys: Captured) -> None:
    for arguments in ([], ["lost"], ["list", "--forse"], ["show"], ["remove"], ["export", NAME]):
        one_error(capsys, "profiles", *arguments)
    assert profiles("--help") == 0
    assert "remove" in capsys.readouterr().out
