"""The walk: how a draft is read, and that nothing to come has a say in it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.alignment.spelling_table import ROOT
from omnidraft.verification.trie_walk import DEAD, STOP, Walk
from support.table_models import Plain, caches, drafts, frozen_cache, make_world, walked, worlds

A, B = 0, 1  # drafter tokens of every world


def names(walk: Walk) -> list[tuple[str, int]]:
    letters = {A: "a", B: "b", STOP: "STOP", DEAD: "DEAD"}
    return [(letters[symbol.symbol], symbol.index) for symbol in walk.symbols]


def test_a_draft_is_read_symbol_by_symbol() -> None:
    cache = frozen_cache(make_world("full"), "all")  # a 0, b 1, ab 2, bba 3
    walk = walked(cache, [4], [A, A, B, B, B, A], finish=False)
    assert walk.tokens == [0, 2, 3]  # a, then ab, then bba
    assert names(walk) == [("a", 0), ("STOP", 0), ("a", 1), ("b", 1), ("b", 2), ("b", 2), ("a", 2)]
    assert [symbol.position for symbol in walk.symbols] == [0, 1, 1, 2, 3, 4, 5]
    assert [symbol.after > 0 for symbol in walk.symbols] == [False, False, True, False, False, False, False]
    assert walk.open


def test_the_end_of_a_draft_is_put_to_the_target_where_a_token_ends() -> None:
    cache = frozen_cache(make_world("full"), "all")
    ends = walked(cache, [4], [A])
    assert names(ends) == [("a", 0), ("STOP", 0)]
    assert ends.symbols[-1].position == -1
    assert ends.tokens == [0]
    inside = walked(cache, [4], [B, B])
    assert names(inside) == [("b", 0), ("b", 0)]
    assert inside.tokens == []
    assert inside.node != ROOT


def test_what_the_target_cannot_say_is_dead_and_ends_the_walk() -> None:
    cache = frozen_cache(make_world("full"), "all")
    z = 3
    for draft, index in (([z, A], 0), ([A, z], 1), ([B, B, B], 0)):
        walk = walked(cache, [4], draft)
        assert walk.dead
        assert not walk.open
        assert (walk.symbols[-1].symbol, walk.symbols[-1].index) == (DEAD, index)
        with pytest.raises(ValueError, match="ended"):
            walk.push(A)


def test_an_end_of_text_ends_the_walk() -> None:
    walk = walked(frozen_cache(make_world("full"), "all"), [4], [A, 2, A])
    assert walk.tokens == [0, 4]
    assert walk.ended
    assert walk.drafted == 2
    written = walked(frozen_cache(make_world("written end"), "all"), [2], [A, B, B, A])
    assert written.tokens == [2]  # ab, and what revealed its end is of no use
    assert written.ended


def test_a_drafter_token_may_stand_for_whole_target_tokens() -> None:
    cache = frozen_cache(make_world("long"), "all")  # aab: a, ab; abb: ab, b
    walk = walked(cache, [], [2, 3])
    assert walk.tokens == [0, 2, 2, 1]
    certain = [symbol.position < 0 for symbol in walk.symbols]
    assert [symbol.position for symbol in walk.symbols if symbol.position >= 0] == [0, 1]
    assert sum(certain) == len(certain) - 2


@pytest.mark.medium
@settings(max_examples=100)
@given(st.data())
def test_a_reading_depends_on_nothing_to_come(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    draft, other = data.draw(drafts(world)), data.draw(drafts(world))
    length = data.draw(st.integers(0, len(draft)))
    eos = world.vocab.eos
    prefix = walked(cache, eos, draft[:length], finish=False)
    for longer in (draft, draft[:length] + other):
        whole = walked(cache, eos, longer, finish=False)
        assert whole.symbols[: len(prefix.symbols)] == prefix.symbols
        assert whole.tokens[: len(prefix.tokens)] == prefix.tokens
        assert all(symbol.position >= length or symbol.position < 0 for symbol in whole.symbols[len(prefix.symbols) :])
        if len(longer) > length and prefix.open:
            assert len(whole.symbols) > len(prefix.symbols)


@pytest.mark.medium
@settings(max_examples=100)
@given(st.data())
def test_the_proposals_write_what_was_drafted(data: st.DataObject) -> None:
    """Drafter tokens in = drafter tokens out, over-long ones written by what they stand for."""
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    draft = data.draw(drafts(world))
    walk = walked(cache, world.vocab.eos, draft)
    plain = Plain(cache)
    written = [d for token in walk.tokens for d in plain.spelling[token]] + list(plain.path[walk.node])
    text: list[int] = []
    for token in draft[: walk.drafted]:
        stands_for = plain.long[token] if world.table.root[token] < 0 else ()
        text += [d for t in stands_for for d in plain.spelling[t]] or [token]
    assert all(cache.active[token] for token in walk.tokens)
    if walk.dead or walk.ended:
        assert text[: len(written)] == written
    else:
        assert text == written
        assert walk.drafted == len(draft)
    steps = [symbol for symbol in walk.symbols if symbol.child >= 0]
    assert [symbol.symbol for symbol in steps] == written[: len(steps)]
