"""The spelling table against a slow trie of dictionaries, on small and real tokenizers, and stored on disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from omnidraft.alignment import spelling_table as spelling
from omnidraft.alignment.spelling_table import (
    ROOT,
    SpellingTable,
    build_table,
    byte_matches,
    default_cache_dir,
    load_table,
)
from omnidraft.alignment.vocab import Speller, Vocab
from support.lanes import family_language, real_language, table, written
from support.table_models import Greedy, table_of, vocabulary
from support.tokenizer_families import PARTIAL, WHOLE

ARRAYS = [field.name for field in fields(SpellingTable) if "Ints" in str(field.type)]


def ragged(offsets: Any, flat: Any) -> list[tuple[int, ...]]:
    return [tuple(flat[start:end].tolist()) for start, end in pairwise(offsets.tolist())]


def slow(drafter: Vocab, target: Vocab, speller: Speller, target_speller: Speller) -> dict[str, Any]:
    """What the table must hold, by dictionaries and sorting alone."""
    spellings = [(data and speller.spell(data)) or () for data in target.tokens]
    if drafter.eos and target.eos and drafter.tokens[drafter.eos[0]] is target.tokens[target.eos[0]] is None:
        spellings[target.eos[0]] = (drafter.eos[0],)
    owner: dict[tuple[int, ...], int] = {}
    for t, ids in enumerate(spellings):
        if ids:
            owner.setdefault(ids, t)
    prefixes = {ids[:n] for ids in owner for n in range(len(ids) + 1)} | {()}
    nodes = sorted(prefixes, key=lambda path: (len(path), path))  # breadth-first
    number = {path: v for v, path in enumerate(nodes)}
    order = [owner[ids] for ids in sorted(owner)]
    under = [[t for t in order if spellings[t][: len(path)] == path] for path in nodes]
    children = [[number[p] for p in nodes if len(p) == len(path) + 1 and p[:-1] == path] for path in nodes]
    roots = [number.get((d,), -1) for d in range(drafter.size)]
    rest = [
        (target_speller.spell(data) or ()) if data is not None and child < 0 else ()
        for data, child in zip(drafter.tokens, roots, strict=True)
    ]
    return {
        "spellings": spellings,
        "order": order,
        "under": under,
        "children": children,
        "symbol": [path[-1] if path else -1 for path in nodes],
        "ends": [owner.get(path, -1) for path in nodes],
        "node": [number[ids] if owner.get(ids) == t else -1 for t, ids in enumerate(spellings)],
        "root": roots,
        "long": [ids if all(t in order for t in ids) else () for ids in rest],
    }


def as_slow(table: SpellingTable) -> dict[str, Any]:
    nodes = range(len(table.symbol))
    return {
        "spellings": ragged(table.offsets, table.flat),
        "order": table.order.tolist(),
        "under": [table.order[table.lo[v] : table.hi[v]].tolist() for v in nodes],
        "children": [list(range(table.first[v], table.first[v + 1])) for v in nodes],
        "symbol": table.symbol.tolist(),
        "ends": table.ends.tolist(),
        "node": table.node.tolist(),
        "root": table.root.tolist(),
        "long": ragged(table.long_offsets, table.long_flat),
    }


tokens = st.none() | st.lists(st.sampled_from(b"abc"), min_size=1, max_size=5).map(bytes)


@st.composite
def vocabularies(draw: st.DrawFn, size: int) -> Vocab:
    drawn = draw(st.lists(tokens, min_size=1, max_size=size))
    return vocabulary(*drawn, eos=tuple(draw(st.lists(st.integers(0, len(drawn) - 1), max_size=2))))


@pytest.mark.medium
@given(drafter=vocabularies(8), target=vocabularies(14))
@settings(max_examples=200)
def test_the_table_is_the_slow_trie(drafter: Vocab, target: Vocab) -> None:
    assert as_slow(table_of(drafter, target)) == slow(drafter, target, Greedy(drafter), Greedy(target))


def test_a_table_by_hand() -> None:
    drafter = vocabulary(b"a", b"b", b"abc", None, b"x", None, eos=(3,))  # the last one is padding
    target = vocabulary(b"ab", b"a", None, b"ab", b"abb", b"b", b"y", b"c", eos=(2, 5))
    table = table_of(drafter, target)
    assert ragged(table.offsets, table.flat) == [(0, 1), (0,), (3,), (0, 1), (0, 1, 1), (1,), (), ()]
    assert table.order.tolist() == [1, 0, 4, 5, 2]
    assert table.symbol.tolist() == [-1, 0, 1, 3, 1, 1]  # the root; a, b, end of text; ab; abb
    assert table.first.tolist() == [1, 4, 5, 5, 5, 6, 6]
    intervals = list(zip(table.lo.tolist(), table.hi.tolist(), strict=True))
    assert intervals == [(0, 5), (0, 3), (3, 4), (4, 5), (1, 3), (2, 3)]
    assert table.ends.tolist() == [-1, 1, 5, 2, 0, 4]
    assert table.node.tolist() == [4, 1, 3, -1, 5, 2, -1, -1]  # token 3 has the bytes of token 0
    assert table.root.tolist() == [1, 2, -1, 3, -1, -1]
    assert ragged(table.long_offsets, table.long_flat) == [(), (), (), (), (), ()]  # "c" owns no spelling
    assert table.spelling(4).tolist() == [0, 1, 1]
    assert table.spelling(6).tolist() == []
    assert (table.target_size, table.drafter_size) == (8, 6)


def test_a_drafter_token_longer_than_any_target_token_has_target_tokens_that_own_their_spelling() -> None:
    drafter, target = vocabulary(b"a", b"b", b"abb", None), vocabulary(b"b", b"ab", b"b")
    table = table_of(drafter, target)
    assert table.root.tolist() == [1, 2, -1, -1]
    assert ragged(table.long_offsets, table.long_flat) == [(), (), (1, 0), ()]

    class Duplicate(Greedy):
        def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
            return [(1, 2) for _ in texts]

    assert build_table(drafter, target, Greedy(drafter), Duplicate(target)).long_flat.tolist() == []


# ---------------------------------------------------------------- tokenizers


def check(table: SpellingTable, drafter: Vocab, target: Vocab) -> None:
    """What holds for every table, however large."""
    nodes = len(table.symbol)
    count = np.diff(table.first)
    assert table.first[ROOT] == 1
    assert table.first[-1] == nodes
    assert count.min() >= 0
    parent = np.repeat(np.arange(nodes), count)  # of nodes 1, 2, ...
    siblings = parent[1:] == parent[:-1]
    assert (np.diff(table.symbol[1:])[siblings] > 0).all()
    assert (np.diff(table.lo[1:])[siblings] == (table.hi - table.lo)[1:-1][siblings]).all()
    inside = np.zeros(nodes, np.int64)
    np.add.at(inside, parent, (table.hi - table.lo)[1:])
    assert_array_equal(inside + (table.ends >= 0), table.hi - table.lo)  # every owner is in one child, or ends here
    has_children = np.flatnonzero(count)
    assert_array_equal(table.lo[table.first[has_children]], (table.lo + (table.ends >= 0))[has_children])
    assert sorted(table.order.tolist()) == np.flatnonzero(table.node >= 0).tolist()
    assert_array_equal(table.ends[table.node[table.order]], table.order)
    assert_array_equal(table.lo[table.node[table.order]], np.arange(len(table.order)))
    assert_array_equal(table.symbol[table.root[table.root >= 0]], np.flatnonzero(table.root >= 0))
    edge = {
        (v, d): child for child, (v, d) in enumerate(zip(parent.tolist(), table.symbol[1:].tolist(), strict=True), 1)
    }
    for t, ids in enumerate(ragged(table.offsets, table.flat)):
        data = target.tokens[t]
        assert ids == () or data is None or written(drafter, ids) == data
        path = ROOT
        for d in ids:
            path = edge[path, d]
        assert not ids or table.ends[path] == t or target.tokens[table.ends[path]] == data
    for d, ids in enumerate(ragged(table.long_offsets, table.long_flat)):
        assert not ids or (table.root[d] < 0 and written(target, ids) == drafter.tokens[d])
    for name in ARRAYS:
        assert getattr(table, name).dtype == np.int32
        assert not getattr(table, name).flags.writeable


def can_be_written(data: bytes, tokens: set[bytes]) -> bool:
    """Whether bytes are tokens put side by side."""
    ends = {0}
    for end in range(1, len(data) + 1):
        if any(data[start:end] in tokens for start in ends):
            ends.add(end)
    return len(data) in ends


@pytest.mark.parametrize("drafter", [*WHOLE, *PARTIAL])
def test_any_tokenizer_drafts_for_any_other(drafter: str) -> None:
    """Every target token with bytes has a spelling, but for those that a drafter without bytes has no tokens for."""
    own = family_language(drafter).vocab
    pieces = {data for data in own.tokens if data is not None}
    for target in ("llama2", "gemma", "neox", "llama3", "unigram_with_bytes", "xlnet"):
        vocab, found = family_language(target).vocab, table(family_language(drafter), family_language(target))
        check(found, own, vocab)
        for token, data in enumerate(vocab.tokens):
            spelled = found.spelling(token).tolist()
            if data is not None:
                assert bool(spelled) == (drafter not in PARTIAL or can_be_written(data, pieces)), (target, data)
            else:
                assert spelled == ([own.eos[0]] if token == vocab.eos[0] else [])
        if not {drafter, target} & PARTIAL.keys():  # whatever it drafts begins a spelling, or stands for target tokens
            lengths = np.diff(found.long_offsets)
            assert all(found.root[d] >= 0 or lengths[d] > 0 for d, data in enumerate(own.tokens) if data is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "matches"), [("llama3", 26_695), ("qwen2", 26_438)])
def test_every_token_of_a_real_target_has_a_spelling_of_its_own(name: str, matches: int) -> None:
    drafter, target = real_language("llama2"), real_language(name)
    found = table(drafter, target)
    check(found, drafter.vocab, target.vocab)
    expected = [t for t, data in enumerate(target.vocab.tokens) if data is not None or t == target.vocab.eos[0]]
    assert sorted(found.order.tolist()) == expected
    assert found.nbytes < 8_000_000
    # Qwen2 has the ordinary tokens "<unk>", "<s>" and "</s>", which write text; those of Llama 2 write nothing.
    assert byte_matches(drafter.vocab, target.vocab) == matches


@pytest.mark.slow
def test_of_equal_spellings_the_one_that_texts_are_made_of_is_the_owner() -> None:
    """SentencePiece has every letter as a byte as well, with a lower id; the target never writes that one."""
    language = real_language("llama2")
    found = table(language, language)
    byte, letter = (int(language.tokenizer.get_vocab()[token]) for token in ("<0x41>", "A"))
    assert byte < letter
    assert found.spelling(byte).tolist() == found.spelling(letter).tolist() == [letter]
    assert found.node[letter] >= 0
    assert found.node[byte] == -1


def test_byte_matches_counts_drafter_tokens() -> None:
    assert byte_matches(vocabulary(b"a", b"a", b"b", None), vocabulary(b"a", b"c", None)) == 2


# ---------------------------------------------------------------- the store on disk

DRAFTER = vocabulary(b"a", b"b", b"abc", None, eos=(3,))
TARGET = vocabulary(b"ab", b"a", None, b"abb", b"b", b"c", eos=(2,))
OTHER = vocabulary(b"ab", b"b")
BUILT = table_of(DRAFTER, TARGET)
FILE = f"{BUILT.fingerprint}.safetensors"


def load(folder: Path | None, target: Vocab = TARGET) -> tuple[SpellingTable, list[str]]:
    warnings: list[str] = []
    table = load_table(DRAFTER, target, Greedy(DRAFTER), Greedy(target), folder, warnings.append)
    assert all("\n" not in warning for warning in warnings)
    return table, warnings


def same(table: SpellingTable) -> bool:
    return all(np.array_equal(getattr(table, field.name), getattr(BUILT, field.name)) for field in fields(BUILT))


def test_a_table_is_stored_once_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "not" / "yet"
    assert load(folder)[1] == []
    assert [path.name for path in folder.iterdir()] == [FILE]
    monkeypatch.delattr(spelling, "build_table")
    table, warnings = load(folder)
    assert same(table)
    assert warnings == []
    assert not any(getattr(table, name).flags.writeable for name in ARRAYS)


def test_without_a_folder_nothing_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table, warnings = load(None)
    assert same(table)
    assert warnings == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.medium
@given(data=st.data())
@settings(max_examples=60)
def test_a_damaged_file_is_noticed_and_replaced(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("tables")
    load(folder)
    whole = bytearray((folder / FILE).read_bytes())
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        whole[at] ^= data.draw(st.integers(1, 255))
    else:
        del whole[at:]
    (folder / FILE).write_bytes(whole)
    table, warnings = load(folder)
    assert same(table)
    assert len(warnings) == 1
    assert load(folder)[1] == []


def test_a_file_of_another_format_or_pair_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(tmp_path)
    assert load(tmp_path, OTHER)[0].target_size == 2
    (other,) = (path for path in tmp_path.iterdir() if path.name != FILE)
    other.replace(tmp_path / FILE)
    table, (warning,) = load(tmp_path)
    assert same(table)
    assert "another pair" in warning
    with monkeypatch.context() as patch:
        patch.setattr(spelling, "TABLE_FORMAT", "0")
        load(tmp_path)
    (other,) = (path for path in tmp_path.iterdir() if path.name != FILE)
    other.replace(tmp_path / FILE)
    table, (warning,) = load(tmp_path)
    assert same(table)
    assert "its format is 0, not 2" in warning


def file_in_the_way(path: Path, _: pytest.MonkeyPatch) -> None:
    path.write_text("", encoding="utf-8")


def folder_in_place_of_the_file(path: Path, _: pytest.MonkeyPatch) -> None:
    (path / FILE).mkdir(parents=True)


def full_disk(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, f"No space left on device {descriptor}")

    monkeypatch.setattr(os, "fsync", full)


@pytest.mark.parametrize("spoil", [file_in_the_way, folder_in_place_of_the_file, full_disk])
def test_a_disk_that_refuses_is_done_without(
    spoil: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(tmp_path / "tables", monkeypatch)
    table, warnings = load(tmp_path / "tables")
    assert same(table)
    assert "going on without" in warnings[-1]
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / FILE).write_bytes(b"torn")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt(descriptor)

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(FILE, b"torn")]


@pytest.mark.medium
def test_a_folder_is_shared(tmp_path: Path) -> None:
    def race(which: int) -> None:
        for turn in range(60):
            table, warnings = load(tmp_path)
            assert warnings == []
            assert same(table)
            if turn % 3 == which:
                (tmp_path / FILE).unlink(missing_ok=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(race, range(2)))
    assert list(tmp_path.glob("*.tmp")) == []


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OMNIDRAFT_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    own = tmp_path / ".local" / "share"
    assert default_cache_dir() == own / "omnidraft" / "tables"
    for folder, expected in (("relative", own), (str(tmp_path / "data"), tmp_path / "data")):
        monkeypatch.setenv("XDG_DATA_HOME", folder)
        assert default_cache_dir() == expected / "omnidraft" / "tables"
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own" / "tables"
