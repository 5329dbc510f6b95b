"""The n-gram cache's file: what is loaded is what was saved, and what was not saved as it is is refused."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.errors import ModelError
from omnidraft.ngrams import FALSE_MERGES_BEFORE_OFF, NgramCache
from omnidraft.spelling import ROOT
from random_worlds import active, caches, rounds, worlds
from worlds import make_world

# In the world "nested" the n-grams are ab 1, aba 2 and abab 3.
RECORDS = ("active", "hits", "false_merges", "last_use")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_loaded_is_what_was_saved(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    path = tmp_path_factory.mktemp("cache") / "ngrams.npz"
    cache.save(path)
    loaded = NgramCache(world.table, seed=cache.seed, bound=cache.bound, eviction=cache.eviction)
    loaded.load(path)
    assert list(path.parent.iterdir()) == [path]
    more = data.draw(rounds(world))
    for emitted, false_merge in [([], None), *more]:  # and both go on alike
        for each in (cache, loaded):
            each.observe(emitted, false_merge)
        for name in RECORDS:
            assert np.array_equal(getattr(cache, name), getattr(loaded, name)), name
        assert np.array_equal(cache._live, loaded._live)
        assert np.array_equal(cache.outside, loaded.outside)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_loading_takes_nothing_over_from_before(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    world = data.draw(worlds())
    saved, used = data.draw(caches(world)), data.draw(caches(world))
    used.bound = saved.bound
    path = tmp_path_factory.mktemp("cache") / "ngrams.npz"
    saved.save(path)
    used.load(path)
    for name in RECORDS:
        assert np.array_equal(getattr(used, name), getattr(saved, name)), name


def test_an_ngram_without_a_record_stays_off(tmp_path: Path) -> None:
    table = make_world("nested").table
    cache = NgramCache(table, bound=2)  # ab and aba
    for _ in range(FALSE_MERGES_BEFORE_OFF):
        cache.observe([], false_merge=1)
    cache.save(tmp_path / "cache")
    loaded = NgramCache(table, bound=2)
    loaded.load(tmp_path / "cache")
    assert active(loaded) == active(cache) == {2}


def test_a_smaller_bound_holds_from_the_start(tmp_path: Path) -> None:
    table = make_world("nested").table
    cache = NgramCache(table)
    cache.observe([2, 2, 3])
    cache.save(tmp_path / "cache")
    small = NgramCache(table, bound=1)
    small.load(tmp_path / "cache")
    assert active(small) == {2}
    assert small._live[ROOT] == 3 + 1  # tokens of one drafter token, the end of the text among them


def saved_bytes(tmp_path: Path, shape: str = "nested") -> bytes:
    cache = NgramCache(make_world(shape).table, seed="empty")
    cache.observe([1, 2])
    cache.observe([2], false_merge=1)
    cache.save(tmp_path / "good")
    return (tmp_path / "good").read_bytes()


def load_bytes(tmp_path: Path, data: bytes) -> NgramCache:
    path = tmp_path / "bad"
    path.write_bytes(data)
    cache = NgramCache(make_world("nested").table, seed="empty")
    cache.load(path)
    return cache


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    """Cut short anywhere, or with any one bit flipped, it is a ModelError, or it reads as it was."""
    data = saved_bytes(tmp_path)
    good = load_bytes(tmp_path, data)
    assert good.hits[2] == 2
    damaged = [data[:length] for length in range(0, len(data), 50)]
    damaged += [data[:i] + bytes([data[i] ^ 1 << (i % 8)]) + data[i + 1 :] for i in range(0, len(data), 3)]
    messages = []
    for bad in damaged:
        try:
            cache = load_bytes(tmp_path, bad)
        except ModelError as error:
            messages.append(str(error))
        else:  # names and times of the archive's members are no content
            assert all(np.array_equal(getattr(cache, name), getattr(good, name)) for name in RECORDS)
    assert len(messages) > len(damaged) / 2
    assert all(str(tmp_path / "bad") in message and "\n" not in message for message in messages)


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 100, b"not an archive", npy([1, 2]), npz(x=1), npz(format=1), npz(format=[1, 2]), npz(format="one")],
    ids=["empty", "zeros", "text", "single array", "other names", "too few", "two formats", "word for a format"],
)
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ModelError):
        load_bytes(tmp_path, data)


def test_the_file_of_another_pair_or_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = saved_bytes(tmp_path, "full")
    with pytest.raises(ModelError, match="another tokenizer pair"):
        load_bytes(tmp_path, other)
    own = saved_bytes(tmp_path)
    monkeypatch.setattr("omnidraft.ngrams.FORMAT", 2)
    with pytest.raises(ModelError, match="format"):
        load_bytes(tmp_path, own)
    with pytest.raises(ModelError):
        NgramCache(make_world("nested").table).load(tmp_path / "nowhere")


def test_a_refused_file_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    table = make_world("nested").table
    cache = NgramCache(table, seed="empty")
    cache.observe([3])
    with np.load(io.BytesIO(saved_bytes(tmp_path))) as good:
        arrays = dict(good)
    for name in ("active", "hits", "false_merges", "last_use", "clock", "token", "seed"):
        before = {record: getattr(cache, record).copy() for record in RECORDS}
        (tmp_path / "bad").write_bytes(npz(**{key: array for key, array in arrays.items() if key != name}))
        with pytest.raises(ModelError):
            cache.load(tmp_path / "bad")
        for record in RECORDS:
            assert np.array_equal(getattr(cache, record), before[record]), (name, record)
    (tmp_path / "bad").write_bytes(npz(**{**arrays, "token": np.array([1, 99], np.int32)}))
    with pytest.raises(ModelError):
        cache.load(tmp_path / "bad")
    assert active(cache) == {3}
