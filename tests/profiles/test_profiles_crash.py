"""A save that is cut off anywhere leaves the old profile or the new one."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from omnidraft import storage
from omnidraft.errors import ProfileError
from omnidraft.profiles.folder import CURRENT, MANIFEST, ProfileFolder
from omnidraft.profiles.manifest import Key, Manifest, Setting, digest
from support import small_profiles
from support.faulty_disk import Killed, KilledDisk, PowerCut, RefusingDisk, install
from support.small_profiles import KEY, number_of, numbered

KILLS = 20
Make = Callable[[int], KilledDisk]
MODES: dict[str, Make] = {
    "killed": KilledDisk,
    "killed in a write": lambda at: KilledDisk(at, torn=True),
    "power cut, contents lost": lambda at: PowerCut(at, names="none"),
    "power cut, new names lost": lambda at: PowerCut(at, names="made"),
    "power cut, all names lost": lambda at: PowerCut(at, names="all"),
}


class InPlace(ProfileFolder):
    """Writes over what is there: the negative control."""

    def put(
        self,
        key: Key,
        learning: Mapping[str, Setting],
        counters: Mapping[str, int | float],
        files: Mapping[str, bytes],
        saved: str | None = None,
    ) -> None:
        hashes = {name: digest(data) for name, data in files.items()}
        time_of = saved or "2026-01-31T08:15:00Z"
        data = Manifest(key=key, learning=learning, counters=counters, saved=time_of, files=hashes).encode()
        version = self.path / "v00000001"
        if not version.exists():
            storage.make_folder(version)
        for name, content in {**files, MANIFEST: data}.items():
            storage.write_file(version / name, content)
        storage.write_file(self.path / CURRENT, f"v00000001 {digest(data)}\n".encode())


def saves(folder: ProfileFolder, number: int) -> None:
    assert folder.claim()
    try:
        folder.save(KEY, numbered(number))
    finally:
        folder.release()  # as the system does for a process that is gone


def versions(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir() if p.name.startswith("v0"))


def outcomes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Make,
    before: int,
    cls: type[ProfileFolder] = ProfileFolder,
) -> list[str]:
    """How a save after `before` others ends for every point at which it is cut off, in their order."""
    whole = tmp_path / "whole"
    for number in range(1, before + 1):
        saves(cls(whole), number)
    found: list[str] = []
    for at in range(1, 200):
        path = tmp_path / f"cut-{at}"
        if before:
            shutil.copytree(whole, path)
        disk = make(at)
        install(disk, monkeypatch)
        try:
            saves(cls(path), before + 1)
        except Killed:
            disk.crash()
        else:
            return found
        finally:
            install(None, monkeypatch)
        try:
            loaded = number_of(ProfileFolder(path).load(KEY))
            found.append("new" if loaded == before + 1 else "old" if loaded == (before or None) else "another")
            saves(cls(path), 50)
            assert number_of(ProfileFolder(path).load(KEY)) == 50
            assert len(versions(path)) <= 2
            assert not list(path.glob(".*"))
        except (ProfileError, ValueError):
            found.append("torn")
    raise AssertionError("the save never ends")


@pytest.mark.parametrize("before", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_a_save_that_is_cut_off_anywhere(
    mode: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcomes(tmp_path, monkeypatch, MODES[mode], before)
    assert set(found) <= {"old", "new"}
    assert "old" in found
    assert "new" in found or before < 2, "with versions to remove, there are points after the new one is durable"
    assert found == sorted(found, reverse=True), "once the new one is there, it stays"
    assert len(found) >= 18


def test_every_kind_of_change_is_among_the_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        saves(ProfileFolder(tmp_path / "p"), number)
    disk = KilledDisk()
    install(disk, monkeypatch)
    saves(ProfileFolder(tmp_path / "p"), 3)
    assert {"mkdir", "open", "write", "fsync", "replace", "unlink", "rmdir"} == set(disk.log)


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_writes_in_place_is_caught(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torn" in outcomes(tmp_path, monkeypatch, MODES[mode], 1, InPlace)


@pytest.mark.parametrize("names", ["none", "made"])
def test_a_store_that_syncs_nothing_is_caught(names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torn" in outcomes(tmp_path, monkeypatch, lambda at: PowerCut(at, names=names, deaf=True), 2)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_that_refuses(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for at in range(1, 200):
        path = tmp_path / f"refused-{at}"
        for number in (1, 2):
            saves(ProfileFolder(path), number)
        disk = RefusingDisk(at, error)
        install(disk, monkeypatch)
        try:
            saves(ProfileFolder(path), 3)
        except ProfileError as trouble:
            refused += f"cannot be saved ({os.strerror(error)})" in str(trouble) and "\n" not in str(trouble)
            replaced = "replace" in disk.log[: at - 1]
            assert number_of(ProfileFolder(path).load(KEY)) == (3 if replaced else 2)
            if not replaced:
                assert versions(path) == ["v00000001", "v00000002"], "room is given back"
                assert not list(path.glob(".*"))
        else:
            assert number_of(ProfileFolder(path).load(KEY)) == 3
            if disk.count < at:
                break
        finally:
            install(None, monkeypatch)
    assert refused >= 15


def test_a_failure_to_clean_up_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(errno.EACCES, f"{path} stays")

    folder = ProfileFolder(tmp_path / "p")
    for number in (1, 2):
        saves(folder, number)
    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove", refuse)
        saves(folder, 3)
    assert number_of(folder.load(KEY)) == 3
    assert len(versions(folder.path)) == 3
    saves(folder, 4)
    assert versions(folder.path) == ["v00000003", "v00000004"]


def test_only_its_own_versions_are_removed(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "p")
    saves(folder, 1)
    others = [folder.path / name for name in ("v1", "mine", "v00000009.aside")]
    for other in others:
        other.mkdir()
    for number in (2, 3, 4):
        saves(folder, number)
    assert all(other.is_dir() for other in others)
    assert len(versions(folder.path)) == 2 + 1


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    """Real processes that save without pause are killed, and the next one goes on from what is there."""
    path = tmp_path / "p"
    draw = random.Random(7)
    last, unfinished = 0, 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(small_profiles.__file__), str(path)]
    for _ in range(KILLS):
        process = subprocess.Popen([*command, str(last), "0"], env=environment, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            process.stdout.readline()  # warmed up, and it has the claim
            time.sleep(draw.uniform(0, 0.05))
            process.kill()
            said = [int(line) for line in process.stdout.read().split()]
        number = number_of(ProfileFolder(path).load(KEY))
        assert number is not None
        reported = max([last + 1, *said])
        assert reported <= number <= reported + 1
        unfinished += not (path / versions(path)[-1] / MANIFEST).exists()
        last = number
    assert unfinished, "no kill came in the middle of a save: nothing was shown"
    folder = ProfileFolder(path)
    assert folder.claim(), "the claim of a killed process is free"
    folder.release()
