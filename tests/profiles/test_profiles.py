"""Profiles: what comes back, what is refused, who may save, and what is never written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft import storage
from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import PROFILE_FORMAT, Key, Profile, Setting, model_name
from omnidraft.profiles.profile_file import ProfileFile
from omnidraft.profiles.store import ProfileStore
from omnidraft.systems import DEVICES
from support.small_profiles import KEY, header, made, number_of, numbered, saved, saving_process


@pytest.fixture
def file(tmp_path: Path) -> ProfileFile:
    return ProfileFile(tmp_path / "p")


def refusal(load: Callable[[], object]) -> str:
    with pytest.raises(ProfileError) as caught:
        load()
    text = str(caught.value)
    assert "\n" not in text
    assert ": " in text or "; " in text, "what is allowed, or the fix, comes last"
    return text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
    profile = Profile(weights=weights, ngrams=ngrams, measurements=measurements, learning=learning, counters=counters)
    found = saved(file, profile).load(KEY)
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


def test_the_last_save_counts_and_nothing_is_made_before_a_claim(tmp_path: Path) -> None:
    file = ProfileFile(tmp_path / "a" / "b")
    assert file.load(KEY) is None
    assert not (tmp_path / "a").exists()
    for number in range(1, 4):
        saved(file, numbered(number))
        assert number_of(ProfileFile(tmp_path / "a" / "b").load(KEY)) == number


# ------------------------------------------------------------ names

NASTY = [
    "../x", "../../x", "..", ".", "a/b", "a\\b", "a--b", "A/B", "Ab", "ab", "aB", "x" * 200, "x" * 199 + "y",
    "é", "日本語", "한국어", "nul", "aux.gguf", "CON", "a b", "~", "-rf", "*", "C:x", "a:b", "name-0123456789ab",
]  # fmt: skip


@pytest.mark.medium
def test_names_neither_escape_nor_meet(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles")
    keys = [replace(KEY, drafter=a, target=b) for a, b in zip(NASTY, reversed(NASTY), strict=True)]
    keys += [replace(KEY, **{field: "e" * 64}) for field in ("tokenizers", "drafter_weights", "target_weights")]
    folded = {"/".join(key.place).casefold() for key in keys}
    assert len(folded) == len(set(keys)), "where file systems ignore case, too"
    for number, key in enumerate(keys):
        path = store.file(key).path
        assert path.resolve().relative_to(store.root.resolve()).with_suffix("").parts == key.place
        assert all(part.isascii() and len(part) <= 80 for part in key.place)
        assert not {part.partition(".")[0].upper() for part in key.place} & DEVICES, "which Windows takes for others"
        saved(store.file(key), numbered(number), key)
    assert [number_of(store.file(key).load(key)) for key in keys] == list(range(len(keys)))
    assert names(tmp_path) == ["profiles"]
    entries = store.list()
    assert {entry.name for entry in entries} == {"/".join(key.place) for key in keys}
    assert {entry.problem for entry in entries} == {None}


@pytest.mark.parametrize(
    "change", [{"drafter": ""}, {"target": "a\nb"}, {"drafter": "x" * 201}, {"drafter_weights": "b" * 63}]
)
def test_a_key_that_is_none(change: dict[str, str]) -> None:
    (name,) = change
    assert refusal(lambda: replace(KEY, **change)).startswith(f"{name} is ")


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("field", "owner"),
    [
        ("drafter", f"the drafter {KEY.drafter}, not "),
        ("target", f"the target {KEY.target}, not "),
        ("tokenizers", "another pair of tokenizers"),
        ("drafter_weights", "other weights of the drafter"),
        ("target_weights", "other weights of the target"),
    ],
)
def test_a_profile_of_another_pair_is_refused(field: str, owner: str, file: ProfileFile) -> None:
    saved(file, numbered(1))
    other = replace(KEY, **{field: "d" * 64})
    text = refusal(lambda: file.load(other))
    assert text.startswith(f"profile {file.path} belongs to {owner}")
    assert refusal(lambda: saved(file, numbered(2), other)) == text
    assert number_of(file.load(KEY)) == 1
    aside = file.set_aside()
    saved(file, numbered(2), other)
    assert (number_of(file.load(other)), number_of(ProfileFile(aside).load(KEY))) == (2, 1)


def test_a_file_that_is_cut_or_longer_is_refused(file: ProfileFile) -> None:
    data = saved(file, numbered(1, 5)).path.read_bytes()
    for content in (*(data[:length] for length in range(0, len(data), 7)), data[:-1], data + b"\0", data * 2):
        file.path.write_bytes(content)
        assert "is damaged or no profile (" in refusal(lambda: file.load(KEY))
    file.path.write_bytes(data)
    assert number_of(file.load(KEY)) == 1


@pytest.mark.medium
def test_a_byte_of_the_header_that_is_changed_is_refused_or_harmless(file: ProfileFile) -> None:
    data = saved(file, numbered(1, 5)).path.read_bytes()
    refused, size = 0, 8 + int.from_bytes(data[:8], "little")
    for at in range(size):
        file.path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            file.load(KEY)
        except ProfileError:
            refused += 1
    assert refused > 0.8 * size


BAD: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a list": lambda _: [],
    "nothing": lambda _: {},
    "format": lambda m: {**m, "format": "1"},
    "an earlier format": lambda m: {**m, "format": PROFILE_FORMAT - 1},
    "true": lambda m: {**m, "format": True},
    "one field more": lambda m: {**m, "prompt": "hello"},
    "one field less": lambda m: {name: value for name, value in m.items() if name != "learning"},
    "key": lambda m: {**m, "key": "x"},
    "key field": lambda m: {**m, "key": {**m["key"], "prompt": "hello"}},
    "hash": lambda m: {**m, "key": {**m["key"], "target_weights": 5}},
    "time": lambda m: {**m, "saved": "yesterday"},
    "counters as a list": lambda m: {**m, "counters": [1]},
    "huge": lambda m: {**m, "counters": {"rounds": 10**400}},
}


@pytest.mark.parametrize("case", BAD)
def test_a_manifest_that_is_none_is_refused(case: str, file: ProfileFile) -> None:
    manifest = json.loads(header(saved(file, numbered(1)))["__metadata__"]["omnidraft_profile"])
    file.path.write_bytes(made({"omnidraft_profile": json.dumps(manifest)}))
    assert file.manifest() is not None, "as it was"
    file.path.write_bytes(made({"omnidraft_profile": json.dumps(BAD[case](manifest))}))
    text = refusal(lambda: file.load(KEY))
    assert "is damaged or no profile (" in text


NO_PROFILE = {
    "empty": (b"", "it has no manifest"),
    "text": (b"hello world", "it has no manifest"),
    "a huge header": (b"\xff" * 100, "it has no manifest"),
    "null": (b"\x04\0\0\0\0\0\0\0null", "it has no manifest"),
    "other safetensors": (made({}), "it has no manifest"),
    "nested JSON": (made({"omnidraft_profile": "[" * 100_000}), "it has no manifest"),
    "a later format": (
        made({"omnidraft_profile": json.dumps({"format": PROFILE_FORMAT + 1, "new": []})}),
        f"format is {PROFILE_FORMAT + 1}, and this version reads {PROFILE_FORMAT}: upgrade",
    ),
    "tensors of no part": (
        made({}, numbered(1).encode(KEY), {"more.x": np.zeros(1)}),
        "its tensor 'more.x' is no part",
    ),
}


@pytest.mark.parametrize("kind", NO_PROFILE)
def test_a_file_that_is_no_profile_is_refused_and_left_alone(kind: str, file: ProfileFile) -> None:
    content, text = NO_PROFILE[kind]
    file.path.write_bytes(content)
    assert text in refusal(lambda: file.load(KEY))
    refusal(lambda: saved(file, numbered(1)))
    assert file.path.read_bytes() == content


@pytest.mark.parametrize("ids", [np.zeros((3, 4), np.int32), np.array(5, np.int32), np.array([0.5]), np.array([2**40])])
def test_answers_that_are_no_list_of_ids_are_refused(ids: np.ndarray[Any, Any]) -> None:
    data = Profile(answers={"drafter_tokens": ids}).encode(KEY)
    with pytest.raises(ProfileError, match="no list of token ids"):
        Profile.decode(data)


def test_setting_a_profile_aside_keeps_its_bytes_and_the_claim(file: ProfileFile) -> None:
    assert file.claim()
    for expected in ("p.aside-1", "p.aside-2"):
        saved(file, numbered(1))
        torn = file.path.read_bytes()[:-1]
        file.path.write_bytes(torn)
        refusal(lambda: saved(file, numbered(2)))
        aside = file.set_aside()
        assert (aside.name, aside.read_bytes()) == (expected, torn)
        assert file.load(KEY) is None
    assert file.claimed
    assert not ProfileFile(file.path).claim()
    file.release()


# ------------------------------------------------------------ two processes


@pytest.mark.slow
def test_one_process_saves_and_others_read(file: ProfileFile) -> None:
    with saving_process(file.path, number=0, pause=600) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        assert not file.claim()
        assert not file.claimed
        assert number_of(file.load(KEY)) == 1
        for change in (lambda: file.save(KEY, numbered(2)), file.remove, file.set_aside):
            assert "in use by another process" in refusal(change)
        assert number_of(file.load(KEY)) == 1
    assert file.claim(), "the end of a process ends its claim"
    file.save(KEY, numbered(2))
    file.release()
    assert number_of(file.load(KEY)) == 2


@pytest.mark.slow
def test_a_reader_never_sees_half_of_a_save(file: ProfileFile) -> None:
    with saving_process(file.path, number=0, pause=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen: list[int] = []
        while len(seen) < 40 or len(set(seen)) < 5:  # what was saved meanwhile must have been met
            seen.append(number_of(file.load(KEY)) or 0)
    assert seen == sorted(seen)


def test_a_save_takes_a_claim_which_is_of_the_process_and_not_of_a_thread(file: ProfileFile) -> None:
    assert "is not claimed" in refusal(lambda: file.save(KEY, numbered(1)))
    assert file.claim()
    assert file.claim(), "again"
    assert not ProfileFile(file.path).claim()
    file.release()
    file.release()
    refusal(lambda: file.save(KEY, numbered(1)))
    assert file.load(KEY) is None
    assert file.claim()
    with ThreadPoolExecutor(1) as other:
        other.submit(file.save, KEY, numbered(1)).result()
        other.submit(file.release).result()
    assert ProfileFile(file.path).claim()


def test_threads_that_save_at_once_leave_one_of_their_profiles(file: ProfileFile) -> None:
    with file.held(), ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(file.save, KEY, numbered(number, 50_000)) for number in range(1, 20)]:
            done.result()
        assert number_of(file.load(KEY)) in range(1, 20)
    assert names(file.path.parent) == [".p.lock", "p"]


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

    assert "cannot be read (Is a directory)" in refusal(lambda: ProfileFile(file.path.parent).load(KEY))
    saved(file, numbered(1))
    monkeypatch.setattr(Path, "open", refuse)
    assert "cannot be read (Permission denied)" in refusal(lambda: file.load(KEY))


def test_a_save_reads_the_header_alone(file: ProfileFile) -> None:
    saved(file, replace(numbered(1), answers={"drafter_tokens": np.array([0.5])}))
    assert "are no list of token ids" in refusal(lambda: file.load(KEY)), "that is in no header"
    assert number_of(saved(file, numbered(2)).load(KEY)) == 2


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
        {"counters": {"loss": float("nan")}},
        {"counters": {"rounds": None}},
        {"ngrams": {SECRET: np.zeros(1)}},
        {"ngrams": {"texts": np.array([SECRET])}},
        {"measurements": {"texts": np.array([SECRET], object)}},
        {"weights": {SECRET: torch.zeros(1)}},
    ],
)
def test_text_that_somebody_typed_does_not_fit(change: dict[str, Any], file: ProfileFile) -> None:
    refusal(lambda: saved(file, numbered(1, **change)))
    assert not file.path.exists()


def test_the_header_holds_known_fields_only(file: ProfileFile) -> None:
    found = header(saved(file, numbered(1, weights={"w": torch.ones(3)}, measurements={"c": np.ones(1)})))
    metadata = found.pop("__metadata__")
    assert found.keys() == {"weights.w", "ngrams.hits", "ngrams.active", "ngrams.clock", "measurements.c"}
    assert metadata.keys() == {"omnidraft_profile"}
    manifest = json.loads(metadata["omnidraft_profile"])
    assert manifest.keys() == {"format", "key", "learning", "counters", "saved"}
    assert manifest["key"].keys() == set(Key.__dataclass_fields__)
    assert names(file.path.parent) == [".p.lock", "p"]
    assert file.path.with_name(".p.lock").read_bytes() == b""


# ------------------------------------------------------------ long names


@pytest.mark.parametrize("name", ["p" * 240 + ".safetensors", "é" * 120 + ".st", "p" * 255, "a name"])
def test_a_file_with_a_long_name_is_claimed_saved_and_set_aside(tmp_path: Path, name: str) -> None:
    file, other = ProfileFile(tmp_path / name), ProfileFile(tmp_path / name)
    assert file.claim()
    assert not other.claim()
    file.save(KEY, numbered(1))
    leftover = storage.beside(file.path, ".0123456789abcdef.tmp")
    assert len(os.fsencode(leftover.name)) <= 255
    leftover.write_bytes(b"torn")
    file.release()
    assert other.claim()
    assert not leftover.exists()
    found = other.load(KEY)
    assert found is not None
    assert number_of(found) == 1
    aside = other.set_aside()
    assert aside.name.endswith(f".aside-1{file.path.suffix}")
    assert aside.is_file()


def test_names_that_fit_stay_as_they_are(tmp_path: Path) -> None:
    assert storage.beside(tmp_path / "name", ".lock").name == ".name.lock"
    assert storage.fitting("n" * 250, 5) == "n" * 250
    cut = {storage.fitting("n" * 250 + end, 5) for end in ("a", "b")}
    assert len(cut) == 2
    assert {len(each) for each in cut} == {250}
    for name in ("a" * 200, "org/model", "é" * 200):
        assert model_name(name) == name


@pytest.mark.parametrize("name", ["a" * 205, "é" * 201, "two\nlines", "", "lone \udcff"])
def test_any_name_of_a_model_makes_a_key(name: str) -> None:
    key = replace(KEY, drafter=model_name(name), target=model_name(name))
    assert key.place != replace(key, target=model_name(name + "b")).place
    assert all(len(part.encode()) < 100 for part in key.place)
