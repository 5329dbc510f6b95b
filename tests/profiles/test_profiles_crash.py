"""A save that is cut off anywhere leaves the old profile or the new one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from omnidraft import storage
from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import Key, Profile
from omnidraft.profiles.profile_file import ProfileFile
from support.faulty_disk import Killed, KilledDisk, PowerCut, RefusingDisk, install
from support.small_profiles import KEY, number_of, numbered

Make = Callable[[int], KilledDisk]
MODES: dict[str, Make] = {
    "killed": KilledDisk,
    "killed in a write": lambda at: KilledDisk(at, torn=True),
    "power cut, contents lost": lambda at: PowerCut(at, names="none"),
    "power cut, new names lost": lambda at: PowerCut(at, names="made"),
    "power cut, all names lost": lambda at: PowerCut(at, names="all"),
}


class InPlace(ProfileFile):
    """Writes over the present content: the negative control."""

    def save(self, key: Key, profile: Profile) -> None:
        storage.write_file(self.path, profile.encode(key))


def saves(file: ProfileFile, number: int) -> None:
    assert file.claim()
    try:
        file.save(KEY, numbered(number))
    finally:
        file.release()  # as the system does for a process that is gone


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def outcomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, before: int, cls: type[ProfileFile] = ProfileFile
) -> list[str]:
    """How a save after `before` others ends for every point at which it is cut off, in their order.

    The last one is a crash right after the save has returned.
    """
    whole = tmp_path / "whole"
    for number in range(1, before + 1):
        saves(cls(whole / "p"), number)
    found: list[str] = []
    for at in range(1, 200):
        folder = tmp_path / f"cut-{at}"
        if before:
            shutil.copytree(whole, folder)
        disk, returned = make(at), False
        install(disk, monkeypatch)
        try:
            with suppress(Killed):
                saves(cls(folder / "p"), before + 1)
                returned = True
        finally:
            install(None, monkeypatch)
        disk.crash()
        try:
            loaded = number_of(ProfileFile(folder / "p").load(KEY))
            found.append("new" if loaded == before + 1 else "old" if loaded == (before or None) else "another")
            saves(cls(folder / "p"), 50)
            assert number_of(ProfileFile(folder / "p").load(KEY)) == 50
            assert names(folder) == [".p.lock", "p"], "nothing is left of the save that was cut off"
        except (ProfileError, ValueError):
            found.append("torn")
        if returned:
            return found
    raise AssertionError("the save never ends")


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_save_that_is_cut_off_anywhere(
    mode: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = outcomes(tmp_path, monkeypatch, MODES[mode], before)
    assert set(found) <= {"old", "new"}
    assert "old" in found
    assert found[-1] == "new", "a save that has returned is durable"
    assert found == sorted(found, reverse=True), "once the new one is there, it stays"
    assert len(found) >= 7


def test_every_kind_of_change_is_among_the_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = KilledDisk()
    install(disk, monkeypatch)
    saves(ProfileFile(tmp_path / "new" / "p"), 1)
    saves(ProfileFile(tmp_path / "new" / "p"), 2)
    save = ["open", "write", "fsync", "replace", "open", "fsync"]
    assert disk.log == ["mkdir", "open", "fsync", *save, *save]


@pytest.mark.parametrize("mode", MODES)
def test_a_store_that_writes_in_place_is_caught(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torn" in outcomes(tmp_path, monkeypatch, MODES[mode], 1, InPlace)


@pytest.mark.parametrize("lost", ["none", "made"])
def test_a_store_that_syncs_nothing_is_caught(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "torn" in outcomes(tmp_path, monkeypatch, lambda at: PowerCut(at, names=lost, deaf=True), 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("act", [ProfileFile.set_aside, ProfileFile.remove])
def test_what_moves_or_removes_a_profile_is_cut_off(
    act: Callable[[ProfileFile], object], mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile is there, or it is gone; what was set aside is whole."""
    cuts = 0
    for at in range(1, 200):
        file = ProfileFile(tmp_path / str(at) / "p")
        saves(file, 1)
        disk = MODES[mode](at)
        install(disk, monkeypatch)
        try:
            act(file)
        except Killed:
            disk.crash()
            cuts += 1
        else:
            break
        finally:
            install(None, monkeypatch)
        file.release()
        left = [ProfileFile(path).load(KEY) for path in file.path.parent.glob("p*")]
        assert [number_of(profile) for profile in left] in ([[1], []] if act is ProfileFile.remove else [[1]])
        saves(file, 2)
        assert number_of(file.load(KEY)) == 2
    assert cuts >= 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EIO])
def test_a_disk_that_refuses(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0
    for at in range(1, 200):
        file = ProfileFile(tmp_path / f"refused-{at}" / "p")
        saves(file, 1)
        disk = RefusingDisk(at, error)
        install(disk, monkeypatch)
        try:
            saves(file, 2)
        except ProfileError as trouble:
            refused += f"cannot be saved ({os.strerror(error)})" in str(trouble) and "\n" not in str(trouble)
            replaced = "replace" in disk.log[: at - 1]
            assert number_of(file.load(KEY)) == (2 if replaced else 1)
            assert names(file.path.parent) == [".p.lock", "p"], "room is given back"
        else:
            assert number_of(file.load(KEY)) == 2
            if disk.count < at:
                break
        finally:
            install(None, monkeypatch)
    assert refused >= 5


def test_only_its_own_files_are_changed(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path / "p")
    token = "0123456789abcdef"
    mine = ("p.tmp", f".q.{token}.tmp", f".p.q.{token}.tmp", f"p.{token}.tmp", "p.aside-1", ".p.mine")
    others = [tmp_path / name for name in mine]
    for other in others:
        other.write_bytes(b"mine")
    for number in (1, 2, 3):
        saves(file, number)
    assert file.set_aside().name == "p.aside-2"
    saves(file, 4)
    file.remove()
    assert all(other.read_bytes() == b"mine" for other in others)
    assert names(tmp_path) == sorted([*(other.name for other in others), "p.aside-2"])
