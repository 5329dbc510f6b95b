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

from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import FORMAT, Key, Setting
from omnidraft.profiles.profile import Profile
from omnidraft.profiles.profile_file import ProfileFile
from omnidraft.profiles.store import ProfileStore
from support import small_profiles
from support.small_profiles import KEY, number_of, numbered, sealed

OTHERS = {
    "tokenizers": "belongs to another pair of tokenizers",
    "drafter_weights": "belongs to other weights of the drafter",
    "target_weights": "belongs to other weights of the target",
    "drafter": "belongs to the drafter JackFram/llama-68m, not ",
    "target": "belongs to the target Qwen/Qwen2-0.5B, not ",
}


@pytest.fixture
def file(tmp_path: Path) -> ProfileFile:
    return ProfileFile(tmp_path / "p")


def saved(file: ProfileFile, profile: Profile, key: Key = KEY) -> ProfileFile:
    with file.held():
        file.save(key, profile)
    return file


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(ProfileError) as caught:
        load()
    text = str(caught.value)
    assert "\n" not in text
    assert ": " in text or "; " in text, "what is allowed, or the fix, comes last"
    return text


# ------------------------------------------------------------ what comes back


def test_a_profile_comes_back_as_it_was(file: ProfileFile) -> None:
    weight = torch.randn(4, 6)
    weights = {"a.lora_A": weight.T, "b": weight, "half": weight.to(torch.bfloat16), "scalar": torch.tensor(3.5)}
    ngrams = {
        "hits": np.arange(12, dtype=np.int32)[::2],
        "active": np.array([True, False]),
        "clock": np.array(7),
        "none": np.zeros(0, np.int32),
    }
    measurements = {"hits": np.array([[0.5, 2.0]])}
    learning: dict[str, Setting] = {"adapter": "lora", "rank": 32, "rate": 1e-3, "head": None}
    counters = {"rounds": 3, "loss": 0.25}
    assert file.load(KEY) is None
    saved(
        file, Profile(weights=weights, ngrams=ngrams, measurements=measurements, learning=learning, counters=counters)
    )
    found = file.load(KEY)
    assert found is not None
    assert found.weights.keys() == weights.keys()
    assert all(torch.equal(found.weights[n], t) and found.weights[n].dtype == t.dtype for n, t in weights.items())
    for back, arrays in ((found.ngrams, ngrams), (found.measurements, measurements)):
        assert back.keys() == arrays.keys()
        for name, array in arrays.items():
            assert np.array_equal(back[name], array)
            assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
    assert (found.learning, found.counters) == (learning, counters)
    assert type(found.counters["rounds"]) is int


def test_the_last_save_counts(file: ProfileFile) -> None:
    for number in range(1, 4):
        saved(file, numbered(number))
        assert number_of(file.load(KEY)) == number


def test_nothing_is_made_before_a_claim(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path / "a" / "b")
    assert file.load(KEY) is None
    assert not (tmp_path / "a").exists()
    saved(file, numbered(2))
    assert number_of(ProfileFile(tmp_path / "a" / "b").load(KEY)) == 2


def test_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "own"))
    assert ProfileStore().root == tmp_path / "own" / "profiles"


# ------------------------------------------------------------ names

NASTY = [
    "../x", "../../x", "..", ".", "a/b", "a\\b", "a--b", "A/B", "Ab", "ab", "aB", "x" * 200, "x" * 199 + "y",
    "é", "日本語", "한국어", "nul", "a b", "~", "-rf", "*", "C:x", "a:b", "name-0123456789ab",
]  # fmt: skip


def test_names_neither_escape_nor_meet(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles")
    keys = [replace(KEY, drafter=a, target=b) for a, b in zip(NASTY, reversed(NASTY), strict=True)]
    keys += [replace(KEY, target=name) for name in NASTY] + [replace(KEY, drafter=name) for name in NASTY]
    keys += [replace(KEY, **{field: "e" * 64}) for field in ("tokenizers", "drafter_weights", "target_weights")]
    folded = {"/".join(key.place).casefold() for key in keys}
    assert len(folded) == len(set(keys)), "where file systems ignore case, too"
    for number, key in enumerate(keys):
        path = store.file(key).path
        assert path.resolve().relative_to(store.root.resolve()).with_suffix("").parts == key.place
        assert all(part.isascii() and len(part) <= 80 for part in key.place)
        saved(store.file(key), numbered(number), key)
    assert [number_of(store.file(key).load(key)) for key in keys] == list(range(len(keys)))
    assert [path.name for path in tmp_path.iterdir()] == ["profiles"]
    assert {entry.name for entry in store.list()} == {"/".join(key.place) for key in keys}
    assert {entry.problem for entry in store.list()} == {None}


@pytest.mark.parametrize(
    "change", [{"drafter": ""}, {"target": "a\nb"}, {"drafter": "x" * 201}, {"drafter_weights": "b" * 63}]
)
def test_a_key_that_is_none(change: dict[str, str]) -> None:
    (name,) = change
    assert refusal(lambda: replace(KEY, **change)).startswith(f"{name} is ")


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("field", OTHERS)
def test_a_profile_of_another_pair_is_refused(field: str, file: ProfileFile) -> None:
    saved(file, numbered(1))
    other = replace(KEY, **{field: "d" * 64})
    text = refusal(lambda: file.load(other))
    assert text.startswith(f"profile {file.path} {OTHERS[field]}")
    assert refusal(lambda: saved(file, numbered(2), other)) == text
    assert number_of(file.load(KEY)) == 1
    aside = file.set_aside()
    saved(file, numbered(2), other)
    assert (number_of(file.load(other)), number_of(ProfileFile(aside).load(KEY))) == (2, 1)


def test_any_changed_byte_is_found(file: ProfileFile) -> None:
    saved(file, numbered(1, 5, weights={"w": torch.ones(3)}))
    data = file.path.read_bytes()
    for at in range(len(data)):
        file.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        assert "is damaged or no profile (" in refusal(lambda: file.load(KEY))
        refusal(file.manifest)
    file.path.write_bytes(data)
    assert number_of(file.load(KEY)) == 1


def test_a_file_that_was_cut_or_has_grown_is_found(file: ProfileFile) -> None:
    saved(file, numbered(1, 5))
    data = file.path.read_bytes()
    for content in (*(data[:length] for length in range(len(data))), data + b"\0", data * 2):
        file.path.write_bytes(content)
        assert "is damaged or no profile (" in refusal(lambda: file.load(KEY))


def test_a_later_format_says_so_whatever_else_it_holds(file: ProfileFile) -> None:
    file.path.write_bytes(sealed({"omnidraft_profile": json.dumps({"format": FORMAT + 1, "new": []})}))
    assert f"format is {FORMAT + 1}, and this version reads {FORMAT}: upgrade" in refusal(lambda: file.load(KEY))


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda _: [],
    "nothing": lambda _: {},
    "format": lambda m: {**m, "format": "1"},
    "true": lambda m: {**m, "format": True},
    "one field more": lambda m: {**m, "prompt": "hello"},
    "one field less": lambda m: {name: value for name, value in m.items() if name != "learning"},
    "key": lambda m: {**m, "key": "x"},
    "key field": lambda m: {**m, "key": {**m["key"], "prompt": "hello"}},
    "hash": lambda m: {**m, "key": {**m["key"], "target_weights": 5}},
    "time": lambda m: {**m, "saved": "yesterday"},
    "counters": lambda m: {**m, "counters": {"rounds": "hello"}},
    "counters as a list": lambda m: {**m, "counters": [1]},
    "NaN": lambda m: {**m, "counters": {"loss": float("nan")}},
    "huge": lambda m: {**m, "counters": {"rounds": 10**400}},
    "learning": lambda m: {**m, "learning": {"adapter": "two words"}},
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_that_is_none_is_refused(case: str, file: ProfileFile) -> None:
    saved(file, numbered(1))
    data = file.path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    manifest = json.loads(header["omnidraft_profile"])
    file.path.write_bytes(sealed({"omnidraft_profile": json.dumps(manifest)}))
    assert file.manifest() is not None, "as it was"
    file.path.write_bytes(sealed({"omnidraft_profile": json.dumps(BAD[case](manifest))}))
    text = refusal(lambda: file.load(KEY))
    assert "is damaged or no profile (" in text
    assert "checksum" not in text


@pytest.mark.parametrize("content", [b"", b"hello world", b"\xff" * 100, b"\x04\0\0\0\0\0\0\0null", sealed({})])
def test_a_file_that_is_no_profile(content: bytes, file: ProfileFile) -> None:
    file.path.write_bytes(content)
    assert "it has no header of a profile" in refusal(lambda: file.load(KEY))
    refusal(lambda: saved(file, numbered(1)))
    assert file.path.read_bytes() == content


def test_nested_json_is_refused(file: ProfileFile) -> None:
    file.path.write_bytes(sealed({"omnidraft_profile": "[" * 100_000}))
    assert "its manifest cannot be read" in refusal(lambda: file.load(KEY))


def test_tensors_that_belong_to_no_part_are_refused(file: ProfileFile) -> None:
    saved(file, numbered(1))
    file.path.write_bytes(sealed({}, file.path.read_bytes(), {"more.x": np.zeros(1)}))
    assert "its tensors cannot be read" in refusal(lambda: file.load(KEY))


def test_a_folder_of_an_earlier_version_is_refused_and_left_alone(file: ProfileFile) -> None:
    file.path.mkdir()
    (file.path / "current").write_bytes(b"v00000001")
    text = f"profile {file.path} is a folder, as earlier versions wrote, and is not read: give a file"
    assert refusal(lambda: file.load(KEY)) == text
    assert refusal(lambda: saved(file, numbered(1))) == text
    assert (file.path / "current").read_bytes() == b"v00000001"


def test_a_refused_profile_is_not_replaced_and_setting_it_aside_keeps_its_bytes(file: ProfileFile) -> None:
    for expected in ("p.aside-1", "p.aside-2"):
        saved(file, numbered(1))
        torn = file.path.read_bytes()[:-1]
        file.path.write_bytes(torn)
        refusal(lambda: saved(file, numbered(2)))
        assert file.path.read_bytes() == torn
        aside = file.set_aside()
        assert (aside.name, aside.read_bytes()) == (expected, torn)
        assert file.load(KEY) is None


def test_the_claim_stays_when_a_profile_is_set_aside(file: ProfileFile) -> None:
    assert file.claim()
    file.save(KEY, numbered(1))
    file.set_aside()
    assert file.claimed
    assert not ProfileFile(file.path).claim()
    file.save(KEY, numbered(2))
    file.release()


# ------------------------------------------------------------ two processes


def test_one_process_saves_and_others_read(file: ProfileFile) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(small_profiles.__file__), str(file.path), "0", "600"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            assert not file.claim()
            assert not file.claimed
            assert number_of(file.load(KEY)) == 1
            for change in (lambda: file.save(KEY, numbered(2)), file.remove, file.set_aside):
                assert "in use by another process" in refusal(change)
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
            assert "in use" in done.stderr
            assert number_of(file.load(KEY)) == 1
        finally:
            process.kill()
    assert file.claim(), "the end of a process ends its claim"
    file.save(KEY, numbered(2))
    file.release()
    assert number_of(file.load(KEY)) == 2


def test_a_reader_never_sees_half_of_a_save(file: ProfileFile) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, str(small_profiles.__file__), str(file.path), "0", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            seen = [number_of(file.load(KEY)) or 0 for _ in range(40)]
        finally:
            process.kill()
    assert seen == sorted(seen)
    assert len(set(seen)) > 1, "nothing was saved meanwhile: nothing was shown"


def test_a_save_takes_a_claim(file: ProfileFile) -> None:
    assert "is not claimed" in refusal(lambda: file.save(KEY, numbered(1)))
    assert file.claim()
    assert file.claim(), "again"
    assert not ProfileFile(file.path).claim()
    file.release()
    file.release()
    refusal(lambda: file.save(KEY, numbered(1)))
    assert file.load(KEY) is None


def test_a_claim_is_of_the_process_and_not_of_a_thread(file: ProfileFile) -> None:
    assert file.claim()
    with ThreadPoolExecutor(1) as other:
        other.submit(file.save, KEY, numbered(1)).result()
        other.submit(file.release).result()
    assert ProfileFile(file.path).claim()


def test_threads_that_save_at_once_leave_one_of_their_profiles(file: ProfileFile) -> None:
    with file.held(), ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            for done in [threads.submit(file.save, KEY, numbered(number, 50_000)) for number in range(1, 9)]:
                done.result()
            assert number_of(file.load(KEY)) in range(1, 9)
    assert sorted(path.name for path in file.path.parent.iterdir()) == [".p.lock", "p"]


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_place_that_cannot_be_claimed(error: int, file: ProfileFile, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(file, numbered(1))
    opened = os.open

    def refuse_lock(path: Any, *arguments: Any, **more: Any) -> int:
        if Path(path).name.endswith("lock"):
            raise OSError(error, os.strerror(error))
        return opened(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse_lock)
        assert f"cannot be written ({os.strerror(error)})" in refusal(file.claim)
        assert number_of(file.load(KEY)) == 1
    below = ProfileFile(file.path / "below")
    assert "cannot be written" in refusal(below.claim)
    assert below.load(KEY) is None


def test_a_file_that_cannot_be_read(file: ProfileFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    saved(file, numbered(1))
    monkeypatch.setattr(Path, "open", refuse)
    assert "cannot be read (Permission denied)" in refusal(lambda: file.load(KEY))


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
        {"ngrams": {SECRET: np.zeros(1)}},
        {"ngrams": {"texts": np.array([SECRET])}},
        {"measurements": {"texts": np.array([SECRET], object)}},
        {"weights": {SECRET: torch.zeros(1)}},
    ],
)
def test_text_that_somebody_typed_does_not_fit(change: dict[str, Any]) -> None:
    refusal(lambda: numbered(1, **change))


def test_the_header_holds_known_fields_only(file: ProfileFile) -> None:
    saved(file, numbered(1, weights={"w": torch.ones(3)}, measurements={"c": np.ones(1)}))
    data = file.path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    metadata = header.pop("__metadata__")
    assert header.keys() == {"weights.w", "ngrams.hits", "ngrams.active", "ngrams.clock", "measurements.c"}
    assert metadata.keys() == {"omnidraft_profile", "sha256"}
    manifest = json.loads(metadata["omnidraft_profile"])
    assert manifest.keys() == {"format", "key", "learning", "counters", "saved"}
    assert manifest["key"].keys() == {"drafter", "target", "tokenizers", "drafter_weights", "target_weights"}
    assert sorted(path.name for path in file.path.parent.iterdir()) == [".p.lock", "p"]
    assert file.path.with_name(".p.lock").read_bytes() == b""
