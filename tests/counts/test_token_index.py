"""The index finds all earlier occurrences of the end of a text, in bounded memory and time."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnidraft.counts import token_index
from omnidraft.counts.token_index import BOUNDARY, LONGEST, MATCH_LENGTHS, VISITED, TokenIndex

TOKENS = st.lists(st.sampled_from([0, 1, 2, BOUNDARY]), max_size=60)
TEXT = st.lists(st.integers(0, 2), max_size=LONGEST + 2)
TEXTS = [[first, second, third] for first in range(3) for second in range(3) for third in range(3)]


def by_search(held: list[int], text: list[int]) -> list[list[int]]:
    """What followed the end of a text, for each length of a match, by comparing every position."""
    found = []
    for length in MATCH_LENGTHS:
        ends = [end for end in reversed(range(length, len(held))) if held[end - length : end] == text[-length:]]
        of_length = [held[end] for end in ends if held[end] != BOUNDARY and length <= len(text)]
        if of_length:
            found.append(of_length)
    return found


def filled(tokens: list[int], capacity: int = 100) -> TokenIndex:
    index = TokenIndex(capacity)
    index.extend(tokens)
    return index


@pytest.mark.medium
@given(TOKENS, TEXT, st.integers(1, 70))
def test_all_occurrences_in_the_latest_tokens_are_found(tokens: list[int], text: list[int], capacity: int) -> None:
    index = filled(tokens[:7], capacity)
    index.extend(tokens[7:])
    held = tokens[-capacity:]
    assert (index.tokens(), len(index)) == (held, len(held))
    with mock.patch.object(token_index, "VISITED", 100):
        assert index.followers(text) == by_search(held, text)


@pytest.mark.medium
@given(TOKENS, TOKENS, TOKENS, st.integers(0, 3))
def test_what_is_dropped_was_never_there(kept: list[int], dropped: list[int], later: list[int], more: int) -> None:
    index, fresh = filled(kept, 200), filled(kept[: max(0, len(kept) - more)], 200)
    index.extend(dropped)
    index.drop(len(dropped) + more)
    for _ in range(2):
        assert index.tokens() == fresh.tokens()
        assert list(map(index.followers, TEXTS)) == list(map(fresh.followers, TEXTS))
        for each in (index, fresh):
            each.extend(later)


def test_no_more_is_dropped_than_is_held() -> None:
    index = filled([1, 2, 1, 2])
    index.drop(9)
    assert (len(index), index.followers([1, 2])) == (0, [])


@pytest.mark.medium
@given(TOKENS, TOKENS, st.integers(1, 20), TEXT)
def test_a_drop_from_a_full_ring_does_no_harm(one: list[int], two: list[int], capacity: int, text: list[int]) -> None:
    """What was overwritten is gone."""
    index, half = filled(one, capacity), len(one) // 2
    index.drop(half)
    held = one[max(0, len(one) - capacity) : len(one) - half]
    for added in ([], two):
        index.extend(added)
        held = [*held, *added][-capacity:]
        assert index.tokens() == held
        with mock.patch.object(token_index, "VISITED", 100):
            assert index.followers(text) == by_search(held, text)


def test_a_ring_that_was_emptied_is_as_new() -> None:
    index = filled([5, 6, 7, 5], 3)
    index.drop(3)
    for _ in range(2):
        index.extend([7, 6, 7])
        assert (index.tokens(), index.followers([7, 6]), index.followers([6, 7])) == ([7, 6, 7], [[7], [7]], [[6]])
        index.drop(3)


def test_a_text_matches_earlier_places_of_itself() -> None:
    text = [5, 1, 2, 3, 1, 2, 3]
    assert filled(text).followers(text) == [[1], [1]]


def test_no_match_goes_across_a_boundary() -> None:
    index = filled([1, 2, BOUNDARY, 3, 4, 5])
    assert index.followers([2, 3]) == [[4]]
    assert index.followers([1, 2]) == []  # nothing follows
    assert index.followers([2, 3, 4]) == [[5], [5]]


def test_a_match_may_begin_with_the_oldest_token() -> None:
    index = filled([7, 7, 0, 2, 1], 3)
    assert index.followers([7, 0, 2]) == [[1], [1]]
    assert filled([0, 2, 1, 3, 4], 5).followers([4, 0, 2, 1]) == [[3], [3]], "the ring does not go on at its other end"
    assert filled([5, 6, 7, 5], 3).followers([5, 6]) == [[7]], "its 5 was overwritten by one that comes later"


def test_a_match_may_lie_across_the_end_of_the_ring() -> None:
    index = filled([9, 9, 9, 1, 2, 3, 4, 5, 6, 7, 8], 9)
    assert index.followers([1, 2, 3, 4, 5, 6, 7]) == [[8]] * len(MATCH_LENGTHS)
    assert index.followers([0, 2, 3, 4, 5, 6, 7]) == [[8]] * (len(MATCH_LENGTHS) - 1)


def test_texts_of_one_chain_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "WORD", 0)  # there is one chain
    index = filled([1, 2, 3, 1, 4, 5, 2, 6])
    assert (index.followers([1]), index.followers([1, 2]), index.followers([7])) == ([[4, 2]], [[6, 3], [3]], [])


def test_positions_begin_anew_before_they_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "END", 10)
    index = filled([1, 2, 3, 4, 5, 6, 7])
    index.extend([1, 2, 3])
    assert index.followers([1, 2]) == [[3, 3], [3, 3]]
    index.extend([1, 2, 4])
    assert (index.tokens(), index.followers([1, 2])) == ([1, 2, 4], [[4], [4]])


@pytest.mark.parametrize("capacity", [1, 1000, 1025, 2**20])
def test_memory_is_fixed_when_the_index_is_made(capacity: int) -> None:
    index = TokenIndex(capacity)
    size = index.nbytes
    assert 36 * capacity <= size <= 52 * capacity
    index.extend(range(5000))
    index.drop(100)
    assert index.nbytes == size


def test_a_look_up_visits_a_bounded_number_of_positions() -> None:
    """An old occurrence of the longest match is found whatever newer ones of shorter matches there are."""
    index = filled([6, 7, 8, 1, 2, 9], 1000)
    for other in range(200):
        index.extend([20 + other, 1, 2, 3])
    assert index.followers([7, 8, 1, 2]) == [[3] * VISITED, [3] * VISITED, [9]]
