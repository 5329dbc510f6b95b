"""The index finds the longest earlier occurrence, in bounded memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from omnidraft.retrieval.token_index import BOUNDARY, LONGEST, SHORTEST, TokenIndex

TOKENS = st.lists(st.sampled_from([0, 1, 2, BOUNDARY]), max_size=60)


def by_search(held: list[int], text: list[int]) -> tuple[int, list[int]] | None:
    """Length and continuation of the longest match, of equal ones the newest, by comparing every position."""
    best: tuple[int, int] | None = None
    for end in range(1, len(held)):
        if held[end] == BOUNDARY:
            continue
        same = 0
        while same < min(end, len(text), LONGEST) and held[end - 1 - same] == text[-1 - same] != BOUNDARY:
            same += 1
        if same >= SHORTEST and (best is None or same >= best[0]):
            best = (same, end)
    if best is None:
        return None
    after = held[best[1] :]
    return best[0], after[: after.index(BOUNDARY)] if BOUNDARY in after else after


@given(TOKENS, st.lists(st.integers(0, 2), max_size=6))
def test_the_longest_match_and_what_follows_it(tokens: list[int], text: list[int]) -> None:
    index = TokenIndex(100)
    index.extend(tokens)
    match, expected = index.longest(text), by_search(tokens, text)
    if expected is None:
        assert match is None
    else:
        assert match is not None
        found = index.after(match, len(tokens) - match.position)
        assert (match.length, found) == expected


@given(TOKENS, st.lists(st.integers(0, 2), min_size=2, max_size=6), st.integers(1, 20))
def test_only_the_latest_tokens_are_held(tokens: list[int], text: list[int], capacity: int) -> None:
    index, parts = TokenIndex(capacity), [tokens[:7], tokens[7:]]
    for part in parts:
        index.extend(part)
    held = tokens[-capacity:]
    assert index.tokens() == held
    assert len(index) == len(held)
    match, expected = index.longest(text), by_search(held, text)
    assert (match is None) == (expected is None)
    if match is not None and expected is not None:
        assert (match.length, index.after(match, len(expected[1]))) == expected


def test_a_match_may_begin_with_the_oldest_token() -> None:
    index = TokenIndex(3)
    index.extend([0, 2, 1])
    match = index.longest([0, 2])
    assert match is not None
    assert (match.length, index.after(match, 3)) == (2, [1, 1, 1])


def test_a_text_matches_itself_and_a_repetition_goes_on() -> None:
    index, text = TokenIndex(20), [5, 1, 2, 3, 1, 2, 3]
    index.extend(text)
    match = index.longest(text)
    assert match is not None
    assert index.after(match, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_no_match_goes_across_a_boundary() -> None:
    index = TokenIndex(20)
    index.extend([1, 2, BOUNDARY, 3, 4, 5])
    assert index.longest([2, 3]) is None
    assert index.longest([1, 2]) is None  # nothing follows
    match = index.longest([2, 3, 4])
    assert match is not None
    assert match.length == 2


def test_memory_is_fixed_when_the_index_is_made() -> None:
    index = TokenIndex(2**20)
    assert index.nbytes == 20 * 2**20
    index.extend(range(5000))
    assert index.nbytes == 20 * 2**20


def test_a_chain_is_visited_for_a_bounded_number_of_positions() -> None:
    """The oldest occurrence is the longest, but too many newer ones lie before it."""
    index = TokenIndex(1000)
    index.extend([7, 8, 1, 2, 9])
    for other in range(200):
        index.extend([20 + other, 1, 2, 3])
    match = index.longest([7, 8, 1, 2])
    assert match is not None
    assert match.length == SHORTEST
    assert index.after(match, 1) == [3]
    assert all(first != second for first, second in pairwise(index.tokens()))
