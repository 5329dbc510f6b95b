"""The spelling table against a slow trie of dictionaries, and on small and real tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from omnidraft.alignment.spelling_table import ROOT, SpellingTable, build_table, byte_matches
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from support.project_files import real_tokenizer
from support.small_tokenizers import PARTIAL, WHOLE, wrap
from support.table_models import Greedy, table_of, vocabulary

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


@given(drafter=vocabularies(8), target=vocabularies(14))
@settings(max_examples=300, deadline=None)
def test_the_table_is_the_slow_trie(drafter: Vocab, target: Vocab) -> None:
    table = table_of(drafter, target)
    assert as_slow(table) == slow(drafter, target, Greedy(drafter), Greedy(target))


def test_a_table_by_hand() -> None:
    drafter = vocabulary(b"a", b"b", b"abc", None, b"x", None, eos=(3,))  # the last one is padding
    target = vocabulary(b"ab", b"a", None, b"ab", b"abb", b"b", b"y", b"c", eos=(2, 5))
    table = table_of(drafter, target)
    assert ragged(table.offsets, table.flat) == [(0, 1), (0,), (3,), (0, 1), (0, 1, 1), (1,), (), ()]
    assert table.order.tolist() == [1, 0, 4, 5, 2]
    assert table.symbol.tolist() == [-1, 0, 1, 3, 1, 1]  # the root; a, b, end of text; ab; abb
    assert table.first.tolist() == [1, 4, 5, 5, 5, 6, 6]
    assert list(zip(table.lo.tolist(), table.hi.tolist(), strict=True)) == [
        (0, 5),
        (0, 3),
        (3, 4),
        (4, 5),
        (1, 3),
        (2, 3),
    ]
    assert table.ends.tolist() == [-1, 1, 5, 2, 0, 4]
    assert table.node.tolist() == [4, 1, 3, -1, 5, 2, -1, -1]  # token 3 has the bytes of token 0
    assert table.root.tolist() == [1, 2, -1, 3, -1, -1]
    assert ragged(table.long_offsets, table.long_flat) == [(), (), (), (), (), ()]  # "c" owns no spelling
    assert table.spelling(4).tolist() == [0, 1, 1]
    assert table.spelling(6).tolist() == []
    assert (table.target_size, table.drafter_size) == (8, 6)


def test_a_drafter_token_longer_than_any_target_token_has_target_tokens() -> None:
    drafter, target = vocabulary(b"a", b"b", b"abb", None), vocabulary(b"b", b"ab", b"b")
    table = table_of(drafter, target)
    assert table.root.tolist() == [2 - 1, 2, -1, -1]
    assert ragged(table.long_offsets, table.long_flat) == [(), (), (1, 0), ()]
    reversed_target = vocabulary(b"b", b"ab", None, b"a")

    class Duplicate(Greedy):
        def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
            return [(1, 2) for _ in texts]

    dropped = build_table(drafter, target, Greedy(drafter), Duplicate(target))
    assert dropped.long_flat.tolist() == []  # token 2 does not own its spelling
    assert len(table_of(drafter, reversed_target).long_flat) == 2


@pytest.mark.parametrize(
    ("drafter", "target", "paired"),
    [
        (vocabulary(b"a", None, eos=(1,)), vocabulary(b"a", None, None, eos=(2, 1)), True),
        (vocabulary(b"a", None), vocabulary(b"a", None, None, eos=(2, 1)), False),
        (vocabulary(b"a", None, eos=(1,)), vocabulary(b"a", None, None), False),
        (vocabulary(b"a", None, eos=(0, 1)), vocabulary(b"a", None, None, eos=(2,)), False),
        (vocabulary(b"a", None, eos=(1,)), vocabulary(b"a", None, b"aa", eos=(2,)), False),
    ],
)
def test_end_of_text_is_spelled_by_end_of_text_where_neither_writes_bytes(
    drafter: Vocab, target: Vocab, *, paired: bool
) -> None:
    table = table_of(drafter, target)
    assert (table.spelling(2).tolist() == [1]) == paired
    assert table.spelling(1).tolist() == []
    assert (table.root[1] >= 0) == paired
    if paired:
        leaf = table.root[1]
        assert table.first[leaf] == table.first[leaf + 1]
        assert table.ends[leaf] == 2


def test_a_target_without_any_spelling_has_a_bare_root() -> None:
    table = table_of(vocabulary(b"a"), vocabulary(None, b"b"))
    assert as_slow(table) == slow(
        vocabulary(b"a"), vocabulary(None, b"b"), Greedy(vocabulary(b"a")), Greedy(vocabulary(b"b"))
    )
    assert (table.lo.tolist(), table.hi.tolist(), table.first.tolist()) == ([0], [0], [1, 1])


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
        assert ids == () or data is None or b"".join(drafter.tokens[d] or b"" for d in ids) == data
        path = ROOT
        for d in ids:
            path = edge[path, d]
        assert not ids or table.ends[path] == t or target.tokens[table.ends[path]] == data
    for d, ids in enumerate(ragged(table.long_offsets, table.long_flat)):
        assert not ids or (table.root[d] < 0 and b"".join(target.tokens[t] or b"" for t in ids) == drafter.tokens[d])
    for name in ARRAYS:
        array = getattr(table, name)
        assert array.dtype == np.int32
        assert not array.flags.writeable


@pytest.mark.parametrize("drafter_kind", [*WHOLE, "plain"])
@pytest.mark.parametrize("target_kind", ["byte-level", "unigram", "added tokens"])
def test_tables_of_small_tokenizers(drafter_kind: str, target_kind: str) -> None:
    drafter_tokenizer, target_tokenizer = wrap((WHOLE | PARTIAL)[drafter_kind]()), wrap(WHOLE[target_kind]())
    drafter, target = read_vocab(drafter_tokenizer), read_vocab(target_tokenizer, size=500)
    speller, target_speller = Speller(drafter_tokenizer, drafter), Speller(target_tokenizer, target)
    table = build_table(drafter, target, speller, target_speller)
    check(table, drafter, target)
    assert table.spelling(target.eos[0]).tolist() == [drafter.eos[0]]
    if drafter_kind in WHOLE:
        unspelled = [t for t in range(target.size) if not len(table.spelling(t))]
        assert unspelled == [t for t in range(target.size) if target.tokens[t] is None and t != target.eos[0]]


def test_byte_matches_counts_drafter_tokens() -> None:
    assert byte_matches(vocabulary(b"a", b"a", b"b", None), vocabulary(b"a", b"c", None)) == 2


class WholeBytes(Speller):
    """Writes all of a token in Llama 2's byte tokens where it is not wholly UTF-8, as the design's figures have it."""

    def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
        broken = ["\ufffd" in data.decode(errors="replace") and "\ufffd".encode() not in data for data in texts]
        found = super().spell_many(texts)
        first = 3  # <0x00>
        return [tuple(first + byte for byte in texts[i]) if broken[i] else ids for i, ids in enumerate(found)]


@cache
def real(name: str) -> tuple[Vocab, Speller]:
    tokenizer = real_tokenizer(name)
    vocab = read_vocab(tokenizer, size=152_064 if name == "qwen2" else None)
    return vocab, Speller(tokenizer, vocab)


def with_special_tokens_as_text(vocab: Vocab) -> Vocab:
    return replace(
        vocab, tokens=tuple((vocab.special.get(i) or "").encode() or data for i, data in enumerate(vocab.tokens))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama3", "qwen2"])
def test_every_token_of_a_real_target_has_a_spelling_of_its_own(name: str) -> None:
    (drafter, speller), (target, target_speller) = real("llama2"), real(name)
    table = build_table(drafter, target, speller, target_speller)
    check(table, drafter, target)
    expected = [t for t, data in enumerate(target.tokens) if data is not None or t == target.eos[0]]
    assert sorted(table.order.tolist()) == expected
    assert table.nbytes < 8_000_000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "matches", "tokens", "nodes", "mean"),
    [("llama3", 26_695, 128_256, 144_456, 2.2), ("qwen2", 26_441, 151_646, 181_610, 2.5)],
)
def test_the_figures_of_the_design(name: str, matches: int, tokens: int, nodes: int, mean: float) -> None:
    # They count the special tokens as text, and the nodes without the root.
    drafter, target = (with_special_tokens_as_text(real(which)[0]) for which in ("llama2", name))
    assert byte_matches(drafter, target) == matches
    speller = WholeBytes(real_tokenizer("llama2"), real("llama2")[0])
    table = build_table(replace(drafter, eos=()), target, speller, real(name)[1])
    assert (len(table.order), len(table.symbol) - 1) == (tokens, nodes)
    assert round(float(np.diff(table.offsets).sum()) / tokens, 1) == mean


@pytest.mark.slow
@pytest.mark.parametrize(("name", "matches"), [("llama3", 26_695), ("qwen2", 26_438)])
def test_special_tokens_are_no_byte_matches(name: str, matches: int) -> None:
    # Qwen2 has the ordinary tokens "<unk>", "<s>" and "</s>", which write text; those of Llama 2 write nothing.
    assert byte_matches(real("llama2")[0], real(name)[0]) == matches


def test_of_equal_spellings_the_one_that_texts_are_made_of_is_the_owner() -> None:
    """SentencePiece has every letter as a byte as well, with a lower id; the target never writes that one."""
    tokenizer = real_tokenizer("llama2")
    vocab = read_vocab(tokenizer)
    speller = Speller(tokenizer, vocab)
    table = build_table(vocab, vocab, speller, speller)
    byte, letter = (int(tokenizer.get_vocab()[token]) for token in ("<0x41>", "A"))
    assert byte < letter
    assert table.spelling(byte).tolist() == table.spelling(letter).tolist() == [letter]
    assert table.node[letter] >= 0
    assert table.node[byte] == -1
