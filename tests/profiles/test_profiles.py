"""Profiles: what comes back, what is refused, who may save, and what is never written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft import storage
from omnidraft.errors import ConfigError, ProfileError
from omnidraft.profiles import manifest
from omnidraft.profiles.folder import CURRENT, MANIFEST, ProfileFolder
from omnidraft.profiles.manifest import Key
from omnidraft.profiles.profile import Profile
from omnidraft.profiles.store import ProfileStore
from support import small_profiles
from support.small_profiles import KEY, number_of, numbered

OTHERS = {
    "tokenizers": "belongs to another pair of tokenizers",
    "weights": "belongs to other weights of the drafter",
    "drafter": "belongs to the drafter JackFram/llama-68m, not ",
    "target": "belongs to the target Qwen/Qwen2-0.5B, not ",
}


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles")


def saved(folder: ProfileFolder, profile: Profile, key: Key = KEY) -> ProfileFolder:
    with folder.held():
        folder.save(key, profile)
    return folder


def files_of(folder: ProfileFolder) -> list[Path]:
    """What a load reads."""
    (version,) = (path for path in folder.path.iterdir() if path.is_dir())
    return [folder.path / CURRENT, *sorted(version.iterdir())]


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(ProfileError) as caught:
        load()
    text = str(caught.value)
    assert "\n" not in text
    assert ": " in text or "; " in text, "what is allowed, or the fix, comes last"
    return text


# ------------------------------------------------------------ what comes back


def test_a_profile_comes_back_as_it_was(store: ProfileStore) -> None:
    weight = torch.randn(4, 6)
    tensors = {"a.lora_A": weight.T, "b": weight, "half": weight.to(torch.bfloat16), "scalar": torch.tensor(3.5)}
    arrays = {"hits": np.arange(12, dtype=np.int32)[::2], "active": np.array([True, False]), "clock": np.array(7)}
    learning: dict[str, manifest.Setting] = {"adapter": "lora", "rank": 32, "rate": 1e-3, "head": None}
    profile = Profile(tensors=tensors, arrays=arrays, learning=learning, counters={"rounds": 3, "loss": 0.25})
    assert store.load(KEY) is None
    saved(store.folder(KEY), profile)
    found = store.load(KEY)
    assert found is not None
    assert found.tensors.keys() == tensors.keys()
    assert all(torch.equal(found.tensors[n], t) and found.tensors[n].dtype == t.dtype for n, t in tensors.items())
    assert found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(found.arrays[name], array)
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
    assert (found.learning, found.counters) == (learning, {"rounds": 3, "loss": 0.25})
    assert type(found.counters["rounds"]) is int


def test_the_last_save_counts_and_the_one_before_is_kept(store: ProfileStore) -> None:
    folder = store.folder(KEY)
    for number in range(1, 6):
        saved(folder, numbered(number))
        assert number_of(store.load(KEY)) == number
    assert sorted(path.name for path in folder.path.iterdir() if path.is_dir()) == ["v00000004", "v00000005"]


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "a" / "b")
    assert folder.load(KEY) is None
    assert not (tmp_path / "a").exists(), "nothing is made before a claim"
    saved(folder, numbered(2))
    assert number_of(ProfileFolder(tmp_path / "a" / "b").load(KEY)) == 2


def test_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMNIDRAFT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ProfileStore().root == tmp_path / ".local" / "share" / "omnidraft" / "profiles"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert ProfileStore().root == tmp_path / "data" / "omnidraft" / "profiles"
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "own"))
    assert ProfileStore().root == tmp_path / "own" / "profiles"


def test_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError

    for name in ("OMNIDRAFT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    with pytest.raises(ConfigError, match="set OMNIDRAFT_HOME"):
        ProfileStore()


# ------------------------------------------------------------ names

NASTY = [
    "../x", "../../x", "..", ".", "a/b", "a\\b", "a--b", "A/B", "Ab", "ab", "aB", "x" * 200, "x" * 199 + "y",
    "é", "日本語", "한국어", "nul", "a b", "~", "-rf", "*", "C:x", "a:b", "name-0123456789ab",
]  # fmt: skip


def test_names_neither_escape_nor_meet(store: ProfileStore, tmp_path: Path) -> None:
    keys = [replace(KEY, drafter=a, target=b) for a, b in zip(NASTY, reversed(NASTY), strict=True)]
    keys += [replace(KEY, target=name) for name in NASTY] + [replace(KEY, drafter=name) for name in NASTY]
    folded = {"/".join(key.place).casefold() for key in keys}
    assert len(folded) == len(set(keys)), "where file systems ignore case, too"
    for number, key in enumerate(keys):
        path = store.folder(key).path
        assert path.resolve().relative_to(store.root.resolve()).parts == key.place
        assert all(part.isascii() and len(part) <= 80 for part in key.place)
        saved(store.folder(key), numbered(number), key)
    assert [number_of(store.load(key)) for key in keys] == list(range(len(keys)))
    assert [path.name for path in tmp_path.iterdir()] == ["profiles"]
    assert len(store.list()) == len(keys)


def test_another_pair_of_tokenizers_has_another_folder(store: ProfileStore) -> None:
    saved(store.folder(KEY), numbered(1))
    assert store.load(replace(KEY, tokenizers="c" * 64)) is None


@pytest.mark.parametrize("change", [{"drafter": ""}, {"target": "a\nb"}, {"drafter": "x" * 201}, {"weights": "b" * 63}])
def test_a_key_that_is_none(change: dict[str, str]) -> None:
    (name,) = change
    assert refusal(lambda: replace(KEY, **change)).startswith(f"{name} is ")


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("field", OTHERS)
def test_a_profile_of_another_pair_is_refused(field: str, tmp_path: Path) -> None:
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    other = replace(KEY, **{field: "c" * 64})
    text = refusal(lambda: folder.load(other))
    assert text.startswith(f"profile {tmp_path / 'p'} {OTHERS[field]}")
    assert refusal(lambda: saved(folder, numbered(2), other)) == text
    assert number_of(folder.load(KEY)) == 1
    aside = folder.set_aside()
    saved(folder, numbered(2), other)
    assert (number_of(folder.load(other)), number_of(ProfileFolder(aside).load(KEY))) == (2, 1)


def test_other_weights_are_refused_in_the_store(store: ProfileStore) -> None:
    saved(store.folder(KEY), numbered(1))
    assert OTHERS["weights"] in refusal(lambda: store.load(replace(KEY, weights="c" * 64)))


def test_any_changed_byte_is_found(tmp_path: Path) -> None:
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1, 5, tensors={"w": torch.ones(3)}))
    files = files_of(folder)
    assert len(files) == 4
    for path in files:
        data = path.read_bytes()
        for at in range(len(data)):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            assert "is damaged (" in refusal(lambda: folder.load(KEY))
        path.write_bytes(data)
        assert number_of(folder.load(KEY)) == 1


@pytest.mark.parametrize("length", [0, 1, -1])
def test_a_file_that_was_cut_or_is_gone_is_found(length: int, tmp_path: Path) -> None:
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    pointer, *files = files_of(folder)
    for path in (pointer, *files):
        data = path.read_bytes()
        path.write_bytes(data[:length])
        assert "is damaged (" in refusal(lambda: folder.load(KEY))
        path.unlink()
        if path != pointer:  # without it there is no profile
            assert f"/{path.name} is missing)" in refusal(lambda: folder.load(KEY))
        path.write_bytes(data)
    pointer.write_bytes(pointer.read_bytes() + b"more")
    assert "names no version" in refusal(lambda: folder.load(KEY))


def rewrite(folder: ProfileFolder, data: bytes) -> None:
    """Another manifest, whose checksum is right."""
    pointer, *files = files_of(folder)
    next(path for path in files if path.name == MANIFEST).write_bytes(data)
    pointer.write_text(f"v00000001 {manifest.digest(data)}\n", encoding="ascii")


def test_a_later_format_says_so_whatever_else_it_holds(tmp_path: Path) -> None:
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    rewrite(folder, json.dumps({"format": manifest.FORMAT + 1, "new": []}).encode())
    assert "format is 2, and this version reads 1: upgrade OmniDraft" in refusal(lambda: folder.load(KEY))


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda _: [],
    "nothing": lambda _: {},
    "format": lambda m: {**m, "format": "1"},
    "true": lambda m: {**m, "format": True},
    "one field more": lambda m: {**m, "prompt": "hello"},
    "one field less": lambda m: {name: value for name, value in m.items() if name != "learning"},
    "key": lambda m: {**m, "key": "x"},
    "key field": lambda m: {**m, "key": {**m["key"], "prompt": "hello"}},
    "hash": lambda m: {**m, "key": {**m["key"], "weights": 5}},
    "time": lambda m: {**m, "saved": "yesterday"},
    "files": lambda m: {**m, "files": {"../../x": "a" * 64}},
    "files as a list": lambda m: {**m, "files": sorted(m["files"])},
    "file hash": lambda m: {**m, "files": dict.fromkeys(m["files"], "a")},
    "counters": lambda m: {**m, "counters": {"rounds": "hello"}},
    "counters as a list": lambda m: {**m, "counters": [1]},
    "NaN": lambda m: {**m, "counters": {"loss": float("nan")}},
    "huge": lambda m: {**m, "counters": {"rounds": 10**400}},
    "learning": lambda m: {**m, "learning": {"adapter": "two words"}},
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_that_is_none_is_refused(case: str, tmp_path: Path) -> None:
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    found = json.loads(next(path for path in files_of(folder) if path.name == MANIFEST).read_bytes())
    rewrite(folder, json.dumps(found).encode())
    assert number_of(folder.load(KEY)) == 1, "as it was"
    rewrite(folder, json.dumps(BAD[case](found)).encode())
    assert "is damaged (" in refusal(lambda: folder.load(KEY))


def test_nested_json_is_refused(tmp_path: Path) -> None:
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    rewrite(folder, b"[" * 100_000)
    assert "manifest.json cannot be read" in refusal(lambda: folder.load(KEY))


def test_a_refused_profile_is_not_replaced_and_setting_it_aside_keeps_its_bytes(store: ProfileStore) -> None:
    folder = saved(store.folder(KEY), numbered(1))
    for expected in ("aside-1", "aside-2"):
        files_of(folder)[1].write_bytes(b"torn")
        before = {path.relative_to(folder.path): path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
        files_of(folder)[2].write_bytes(b"torn, too")
        before[files_of(folder)[2].relative_to(folder.path)] = b"torn, too"
        refusal(lambda: store.load(KEY))
        aside = store.set_aside(KEY)
        assert aside.name == f"{folder.path.name}.{expected}"
        assert {path.relative_to(aside): path.read_bytes() for path in aside.rglob("*") if path.is_file()} == before
        assert store.load(KEY) is None
        saved(folder, numbered(1))
    torn = files_of(folder)[2]
    torn.write_bytes(b"torn")
    refusal(lambda: saved(folder, numbered(2)))
    assert torn.read_bytes() == b"torn"


def test_the_claim_stays_when_a_profile_is_set_aside(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "p")
    assert folder.claim()
    folder.save(KEY, numbered(1))
    folder.set_aside()
    assert folder.claimed
    assert not ProfileFolder(folder.path).claim()
    folder.save(KEY, numbered(2))
    folder.release()


def test_a_version_that_is_removed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two saves between the reading of `current` and that of what it names."""
    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    read, again = folder._manifest, iter([2, 3])

    def slow(*arguments: Any) -> manifest.Manifest:
        for number in again:
            saved(ProfileFolder(folder.path), numbered(number))
        return read(*arguments)

    monkeypatch.setattr(folder, "_manifest", slow)
    assert number_of(folder.load(KEY)) == 3


# ------------------------------------------------------------ two processes


def test_one_process_saves_and_others_read(tmp_path: Path) -> None:
    path = tmp_path / "p"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(small_profiles.__file__), str(path), "0", "600"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            folder = ProfileFolder(path)
            assert not folder.claim()
            assert not folder.claimed
            assert number_of(folder.load(KEY)) == 1
            for change in (lambda: folder.save(KEY, numbered(2)), folder.remove, folder.set_aside):
                assert "in use by another process" in refusal(change)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
            assert "in use" in done.stderr
            assert number_of(folder.load(KEY)) == 1
        finally:
            process.kill()
    assert folder.claim(), "the end of a process ends its claim"
    folder.save(KEY, numbered(2))
    folder.release()
    assert number_of(folder.load(KEY)) == 2


def test_a_save_takes_a_claim(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "p")
    assert "is not claimed" in refusal(lambda: folder.save(KEY, numbered(1)))
    assert folder.claim()
    assert folder.claim(), "again"
    assert not ProfileFolder(tmp_path / "p").claim()
    folder.release()
    folder.release()
    refusal(lambda: folder.save(KEY, numbered(1)))
    assert folder.load(KEY) is None


def test_a_claim_is_of_the_process_and_not_of_a_thread(tmp_path: Path) -> None:
    folder = ProfileFolder(tmp_path / "p")
    assert folder.claim()
    with ThreadPoolExecutor(1) as other:
        other.submit(folder.save, KEY, numbered(1)).result()
        other.submit(folder.release).result()
    assert ProfileFolder(tmp_path / "p").claim()


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_claimed(error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    folder = ProfileFolder(tmp_path / "p")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "make_folder", refuse)
        assert f"cannot be written ({os.strerror(error)})" in refusal(folder.claim)
    saved(folder, numbered(1))
    opened = os.open

    def refuse_lock(path: Any, *arguments: Any, **more: Any) -> int:
        if Path(path).name == "lock":
            refuse()
        return opened(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse_lock)
        assert f"cannot be written ({os.strerror(error)})" in refusal(folder.claim)
        assert number_of(folder.load(KEY)) == 1
    (tmp_path / "file").touch()
    assert "use a folder that can be written" in refusal(ProfileFolder(tmp_path / "file").claim)
    assert ProfileFolder(tmp_path / "file").load(KEY) is None


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    folder = saved(ProfileFolder(tmp_path / "p"), numbered(1))
    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "cannot be read (Permission denied)" in refusal(lambda: folder.load(KEY))


# ------------------------------------------------------------ what is never written

SECRET = "my secret text"


@pytest.mark.parametrize(
    "change",
    [
        {"learning": {"adapter": SECRET}},
        {"learning": {"adapter": "x" * 41}},
        {"learning": {SECRET: 1}},
        {"learning": {"adapter": [SECRET]}},
        {"counters": {"rounds": SECRET}},
        {"counters": {"rounds": "secret"}},
        {"counters": {SECRET: 1}},
        {"counters": {"rounds": True}},
        {"counters": {"loss": float("inf")}},
        {"counters": {"rounds": None}},
        {"arrays": {SECRET: np.zeros(1)}},
        {"arrays": {"texts": np.array([SECRET])}},
        {"arrays": {"texts": np.array([SECRET], object)}},
        {"tensors": {SECRET: torch.zeros(1)}},
    ],
)
def test_text_that_somebody_typed_does_not_fit(change: dict[str, Any]) -> None:
    refusal(lambda: numbered(1, **change))


def test_the_files_hold_known_fields_only(store: ProfileStore) -> None:
    folder = saved(store.folder(KEY), numbered(1, tensors={"w": torch.ones(3)}))
    pointer, *files = files_of(folder)
    assert [path.name for path in files] == ["adapter.safetensors", "manifest.json", "ngrams.safetensors"]
    found = json.loads(files[1].read_bytes())
    assert found.keys() == {"format", "key", "learning", "counters", "saved", "files"}
    assert found["key"].keys() == {"drafter", "target", "tokenizers", "weights"}
    assert pointer.read_text(encoding="ascii").split() == ["v00000001", manifest.digest(files[1].read_bytes())]
    for path, names in ((files[0], {"w"}), (files[2], {"hits", "active", "clock"})):
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert header.keys() == names, "no metadata"
    assert (folder.path / "lock").read_bytes() == b""
