"""`omnidraft profiles`, and profiles as single files."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omnidraft.cli import main as cli
from omnidraft.errors import ProfileError
from omnidraft.profiles import manifest
from omnidraft.profiles.store import MEMBERS, ProfileStore, unpack
from support.small_profiles import KEY, number_of, numbered

Captured = pytest.CaptureFixture[str]
NAME = "/".join(KEY.place)
pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def store(home: Path) -> ProfileStore:
    """A store with one profile, of two versions."""
    store = ProfileStore()
    assert store.root == home / "profiles"
    for number in (1, 2):
        put(store, number)
    return store


def put(store: ProfileStore, number: int, key: manifest.Key = KEY) -> None:
    folder = store.folder(key)
    with folder.held():
        folder.save(key, numbered(number, tensors={"w": torch.ones(3)}))


def profiles(*arguments: object) -> int:
    return cli.main(["profiles", *map(str, arguments)])


def refused(capsys: Captured, *arguments: object) -> str:
    """The one line that says why."""
    assert profiles(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("omnidraft: error: ")
    assert len(err.splitlines()) == 1
    return err


def exported(folder: Path) -> Path:
    file = folder / "one.profile"
    ProfileStore().export(NAME, file)
    return file


# ------------------------------------------------------------ looking


def test_list(store: ProfileStore, capsys: Captured) -> None:
    assert profiles("list") == 0
    out, err = capsys.readouterr()
    header, line = out.splitlines()
    assert header.split() == ["NAME", "SAVED", "SIZE", "PROBLEM"]
    assert line.split()[0] == NAME
    assert err == ""
    other = replace(KEY, target="other")
    put(store, 3, other)
    (store.folder(other).path / "current").write_bytes(b"torn")
    store.set_aside(KEY)
    put(store, 4)
    assert profiles("list") == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 3
    assert [("is damaged" in line, "set aside" in line) for line in lines].count((False, False)) == 1
    assert profiles("list", "--json") == 0
    found = json.loads(capsys.readouterr().out)["profiles"]
    assert {entry["name"] for entry in found} == {NAME, f"{NAME}.aside-1", "/".join(other.place)}
    assert {entry["problem"] is None for entry in found} == {True, False}


def test_nothing_to_list(home: Path, capsys: Captured) -> None:
    assert profiles("list") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert str(home / "profiles") in err
    assert profiles("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"profiles": []}
    assert "there are none yet" in refused(capsys, "show", "x")


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
    assert found["counters"] == {"rounds": 2, "loss": 0.5}
    next(store.folder(KEY).path.glob("v*2/ngrams.safetensors")).write_bytes(b"torn")
    assert profiles("show", NAME) == 0
    assert "problem: profile" in capsys.readouterr().out
    assert store.list()[0].problem is None, "a list reads no tensors"


def test_looking_takes_no_model_library(store: ProfileStore, home: Path) -> None:
    code = "import sys; from omnidraft.cli.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "OMNIDRAFT_HOME": str(home), "PYTHONPATH": paths}
    for arguments in (
        ["list"],
        ["show", NAME],
        ["export", NAME, str(home / "f")],
        ["import", str(home / "f"), "--force"],
    ):
        command = [sys.executable, "-c", code, "profiles", *arguments]
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert number_of(store.load(KEY)) == 2


# ------------------------------------------------------------ removing


def test_remove(store: ProfileStore, capsys: Captured) -> None:
    other = replace(KEY, target="other")
    put(store, 3, other)
    assert profiles("remove", NAME) == 0
    assert capsys.readouterr().err == f"omnidraft: removed {NAME}\n"
    assert store.load(KEY) is None
    assert number_of(store.load(other)) == 3
    assert profiles("remove", "/".join(other.place)) == 0
    assert list(store.root.iterdir()) == []


def test_remove_of_one_that_is_damaged_or_in_use(store: ProfileStore, capsys: Captured) -> None:
    folder = store.folder(KEY)
    assert folder.claim()
    assert "in use by another process" in refused(capsys, "remove", NAME)
    folder.release()
    (folder.path / "current").write_bytes(b"torn")
    assert profiles("remove", NAME) == 0
    assert not folder.path.exists()


def test_remove_that_is_cut_off_leaves_nothing_torn(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, f"{path} stays")

    folder = store.folder(KEY)
    (folder.path / "v00000001" / "locked").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        with pytest.raises(ProfileError, match="cannot be removed"):
            store.remove(NAME)
    assert store.load(KEY) is None
    assert store.list() == []
    put(store, 5)
    assert number_of(store.load(KEY)) == 5


def test_names_are_looked_up(store: ProfileStore, capsys: Captured, tmp_path: Path) -> None:
    assert f"did you mean '{NAME}'?" in refused(capsys, "show", NAME[:-1])
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "current").touch()
    for name in ("../../precious", str(precious), ".", "..", f"./{NAME}", ""):
        for command in (["show", name], ["remove", name], ["export", name, tmp_path / "x"]):
            assert "does not exist" in refused(capsys, *command)
    assert (precious / "current").exists()
    assert number_of(store.load(KEY)) == 2


def test_bad_arguments(capsys: Captured) -> None:
    for arguments in ([], ["lost"], ["list", "--forse"], ["show"], ["export", NAME], ["import", "--force"]):
        refused(capsys, *arguments)
    assert profiles("--help") == 0
    assert "import" in capsys.readouterr().out


# ------------------------------------------------------------ single files


def test_export_and_import(store: ProfileStore, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "one.profile"
    before = store.folder(KEY).read()
    assert profiles("export", NAME, file) == 0
    assert capsys.readouterr().err == f"omnidraft: exported {NAME} to {file}\n"
    first = file.read_bytes()
    assert "is there already: use --force" in refused(capsys, "export", NAME, file)
    assert profiles("export", NAME, file, "--force") == 0
    assert file.read_bytes() == first, "the same profile makes the same file"
    assert profiles("remove", NAME) == 0
    assert profiles("import", file) == 0
    assert store.folder(KEY).read() == before
    assert f"imported {NAME}" in capsys.readouterr().err


def test_import_over_a_profile(store: ProfileStore, tmp_path: Path, capsys: Captured) -> None:
    file = exported(tmp_path)
    put(store, 3)
    assert "use --force" in refused(capsys, "import", file)
    assert number_of(store.load(KEY)) == 3
    folder = store.folder(KEY)
    assert folder.claim()
    assert "in use by another process" in refused(capsys, "import", file, "--force")
    folder.release()
    assert profiles("import", file, "--force") == 0
    assert number_of(store.load(KEY)) == 2
    assert len(list(folder.path.glob("v*"))) == 2, "a version more, and the one before"
    (folder.path / "current").write_bytes(b"torn")
    assert profiles("import", file, "--force") == 0
    assert number_of(store.load(KEY)) == 2


def test_export_of_one_that_is_damaged(store: ProfileStore, tmp_path: Path, capsys: Captured) -> None:
    next(store.folder(KEY).path.glob("v*2/adapter.safetensors")).write_bytes(b"torn")
    assert "is damaged" in refused(capsys, "export", NAME, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_export_to_nowhere(store: ProfileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileError, match="give another place"):
        store.export(NAME, tmp_path / "nothing" / "x")
    file = exported(tmp_path)
    file.write_bytes(b"mine")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(ProfileError, match="No space left on device"):
        store.export(NAME, file, force=True)
    assert file.read_bytes() == b"mine"
    assert [path.name for path in tmp_path.glob("*profile*") if path.is_file()] == ["one.profile"]
    assert not list(tmp_path.glob(".*"))


def test_a_damaged_file_is_refused(store: ProfileStore, tmp_path: Path) -> None:
    file = exported(tmp_path)
    data = file.read_bytes()
    store.remove(NAME)
    cut = tmp_path / "cut.profile"
    for length in (0, 1, 10, 100, *range(len(data) // 2, len(data), 97), len(data) - 1):
        cut.write_bytes(data[:length])
        with pytest.raises(ProfileError, match="cannot be imported"):
            store.import_(cut)
    whole = unpack(data)
    refused_at = 0
    for at in range(len(data)):
        # what an archive says of itself beside its content may change; then the content is what it was
        try:
            assert unpack(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]) == whole
        except (EOFError, LookupError, ValueError, RuntimeError, zipfile.BadZipFile):
            refused_at += 1
    assert refused_at > len(data) // 2
    assert store.list() == []
    assert store.import_(file) == NAME


def archive(content: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as target:
        for name, text in content.items():
            target.writestr(name, text)
    return data.getvalue()


def consistent(content: dict[str, bytes], change: Callable[[dict[str, object]], object]) -> bytes:
    """An archive with another manifest, whose checksum is right."""
    data = json.dumps(change(json.loads(content["manifest.json"]))).encode()
    return archive({**content, "manifest.json": data, "sha256": manifest.digest(data).encode()})


FOREIGN: dict[str, tuple[Callable[[dict[str, bytes]], bytes], str]] = {
    "no archive": (lambda _: b"hello", "cannot be imported"),
    "traversal": (lambda c: archive({**c, "../../evil": b""}), "other files"),
    "traversal instead": (
        lambda c: archive({("../evil" if n == "sha256" else n): d for n, d in c.items()}),
        "other files",
    ),
    "one file less": (lambda c: archive({n: d for n, d in c.items() if n != "sha256"}), "other files"),
    "compressed": (lambda c: archive(c, zipfile.ZIP_DEFLATED), "compressed"),
    "checksum": (lambda c: archive({**c, "sha256": b"0" * 64}), "checksum does not match"),
    "content": (lambda c: archive({**c, "ngrams.safetensors": c["adapter.safetensors"]}), "checksum does not match"),
    "later format": (lambda c: consistent(c, lambda m: {**m, "format": 2}), "upgrade OmniDraft"),
    "a field more": (lambda c: consistent(c, lambda m: {**m, "prompt": "hello"}), "other fields"),
    "a counter of text": (lambda c: consistent(c, lambda m: {**m, "counters": {"a": "hello"}}), "finite number"),
    "no tensors": (
        lambda c: consistent(
            {**c, "ngrams.safetensors": b"hello"},
            lambda m: {**m, "files": {**m["files"], "ngrams.safetensors": manifest.digest(b"hello")}},  # type: ignore[dict-item]
        ),
        "ngrams.safetensors cannot be read",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_a_foreign_file_is_refused(case: str, store: ProfileStore, tmp_path: Path, capsys: Captured) -> None:
    file = exported(tmp_path)
    with zipfile.ZipFile(file) as source:
        content = {name: source.read(name) for name in source.namelist()}
    assert sorted(content) == sorted(MEMBERS)
    file.write_bytes(archive(content))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert profiles("import", file, "--force") == 0, "as it was"
    make, words = FOREIGN[case]
    put(store, 7)
    file.write_bytes(make(content))
    capsys.readouterr()
    assert words in refused(capsys, "import", file, "--force")
    assert number_of(store.load(KEY)) == 7
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {path.name for path in before}


def test_a_file_that_is_not_there(tmp_path: Path, capsys: Captured) -> None:
    assert "does not exist: give a file" in refused(capsys, "import", tmp_path / "nothing")
    assert "cannot be imported" in refused(capsys, "import", tmp_path)
