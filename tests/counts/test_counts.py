"""Guesses are what followed before, as sure as guesses of their kind were right, of committed text alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from counts.test_token_index import by_search
from omnidraft.counts import counts as module
from omnidraft.counts import token_index
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.counts import Counts, Guess
from omnidraft.counts.hit_rates import (
    GUESS_DISCOUNT,
    GUESS_KINDS,
    OCCURRENCE_EDGES,
    PRIOR_GUESSES,
    SHARE_EDGES,
    kind_of,
)
from omnidraft.counts.token_index import BOUNDARY, LONGEST, MATCH_LENGTHS, TokenIndex

RATE = PRIOR_GUESSES[0] / PRIOR_GUESSES[1]  # of a kind of which no guess was judged
REPEATED = [1, 2, 3, 4, 5, 1, 2]  # after it comes 3
TOKENS = st.lists(st.integers(0, 2), max_size=40)
LEARNED = st.lists(st.tuples(st.integers(0, GUESS_KINDS - 1), st.booleans()), max_size=200)


def begun(prompt: Sequence[int], memory: AnswerMemory | None = None, new_tokens: int = 64) -> Counts:
    counts = Counts()
    counts.start(prompt, new_tokens, memory)
    return counts


def own(counts: Counts) -> TokenIndex:
    return counts._own  # noqa: SLF001


def followers(counts: Counts, text: list[int]) -> list[list[int]]:
    return own(counts).followers(text)


def rates(counts: Counts) -> list[float]:
    return counts._rates.rates  # noqa: SLF001


def shares(counts: Counts, text: Sequence[int]) -> dict[int, float]:
    guess = counts.guess(text)
    return {} if guess is None else dict(guess.shares)


def by_counting(found: list[list[int]], rates: Sequence[float]) -> Guess | None:
    """The guess of the surest kind among the tokens that followed, the newest first, by length of the match."""
    guesses = []
    for level, tokens in enumerate(found):
        numbers = Counter(tokens)
        most = max(numbers.values())
        best = next(token for at, token in enumerate(tokens) if tokens[: at + 1].count(token) == most)
        shared = {token: number / len(tokens) for token, number in numbers.items()}
        kind = kind_of(level, most / len(tokens), len(tokens))
        guesses.append(Guess(shared, best, rates[kind], kind))
    return max(reversed(guesses), key=lambda guess: guess.chance, default=None)  # of equal ones that of the longest


# ---------------------------------------------------------------- the guess


@pytest.mark.slow
@given(TOKENS, TOKENS, st.lists(st.integers(0, 2), max_size=LONGEST + 1), LEARNED)
def test_the_guess_is_that_of_the_surest_kind(
    own: list[int], stored: list[int], text: list[int], learned: list[tuple[int, bool]]
) -> None:
    memory = AnswerMemory(64)
    memory.index.extend(stored)
    for kind, right in learned:
        memory.rates.learn(kind, right=right)
    with mock.patch.object(token_index, "VISITED", 100):
        guess = begun(own, memory).guess(text)
        lengths = zip_longest(by_search(own, text), by_search(stored, text))
        both = [[*(one or ()), *(other or ())] for one, other in lengths]
        assert guess == by_counting(both, memory.rates.rates)
        alone = begun(own).guess(text)
        assert alone == by_counting(by_search(own, text), [RATE] * GUESS_KINDS)
    for one in (guess, alone):
        assert one is None or sum(one.shares.values()) == pytest.approx(1, abs=1e-12)


def test_shares_are_those_of_all_occurrences() -> None:
    counts = begun([1, 2, 7, 1, 2, 8, 1, 2, 7, 9, 2, 1])
    guess = counts.guess([1, 2])
    assert guess is not None
    assert (guess.best, guess.shares) == (7, {7: 2 / 3, 8: 1 / 3})
    assert guess.kind == kind_of(1, 2 / 3, 3)
    assert shares(counts, [5, 2]) == {1: 0.25, 7: 0.5, 8: 0.25}
    assert counts.guess([5]) is None


def test_a_longer_match_counts_until_it_was_wrong_more_often() -> None:
    text = [3, 6, 1, 2, 7, 5, 1, 2, 8, 4, 1, 2, 8, 3, 6, 1, 2]
    memory = AnswerMemory()
    counts = begun(text, memory)
    guess = counts.guess(text)
    assert guess is not None
    assert guess.best == 7
    memory.rates.learn(guess.kind, right=False)
    assert counts.guess(text) == (shares(counts, text), 8, RATE, kind_of(1, 2 / 3, 3))


def test_kinds_are_distinct() -> None:
    found = {
        kind_of(level, share, number)
        for level in range(len(MATCH_LENGTHS))
        for share in (0.1, *SHARE_EDGES)
        for number in (1, *OCCURRENCE_EDGES)
    }
    assert found == set(range(GUESS_KINDS))


def test_a_guess_is_mixed_with_other_probabilities() -> None:
    guess = Guess({1: 0.75, 3: 0.25}, 1, 0.4, 0)
    assert guess.over(4).tolist() == [0, 0.75, 0, 0.25]
    other = np.array([0.5, 0.1, 0.2, 0.2])
    mixed = guess.mixed(other)
    assert mixed is other, "in place"
    assert mixed == pytest.approx([0.3, 0.06 + 0.3, 0.12, 0.12 + 0.1])
    assert guess.mixed(np.array([1.0, 0, 0, 0]), 0.0).tolist() == [1, 0, 0, 0]


# ---------------------------------------------------------------- its chance


@pytest.mark.medium
@given(st.lists(st.booleans(), max_size=30))
def test_the_chance_is_the_discounted_rate_of_its_kind(outcomes: list[bool]) -> None:
    memory = AnswerMemory(64)
    counts, text = begun(REPEATED, memory), [9, 2]  # which matches in one length
    guess = counts.guess(text)
    assert guess is not None
    for right in outcomes:
        memory.rates.learn(guess.kind, right=right)
        memory.rates.learn((guess.kind + 1) % GUESS_KINDS, right=not right)  # of no concern
    weights = [GUESS_DISCOUNT**age for age in reversed(range(len(outcomes)))]
    oldest = GUESS_DISCOUNT ** len(outcomes)
    right_ones = sum(weight for weight, right in zip(weights, outcomes, strict=True) if right)
    after = counts.guess(text)
    assert after is not None
    assert after.chance == pytest.approx(
        (PRIOR_GUESSES[0] * oldest + right_ones) / (PRIOR_GUESSES[1] * oldest + sum(weights))
    )


class Judged(Counts):
    """Notes each guess that is judged: its place, and whether it was right."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[int], bool]] = []
        super().__init__()

    def follow(self, text: Sequence[int], kept: int) -> None:
        def learn(kind: int, *, right: bool) -> None:
            self.seen.append((self._own.tokens(), right))
            true(kind, right=right)

        true = self._rates.learn
        with mock.patch.object(self._rates, "learn", learn):
            super().follow(text, kept)


def test_committed_tokens_are_judged_before_they_are_counted() -> None:
    counts, text = Judged(), [*REPEATED, 3, 9]
    counts.start(REPEATED, 10, None)
    counts.follow(text, len(REPEATED))
    assert counts.seen == [(text[:7], True), (text[:8], False)], "of what was before each"
    assert shares(counts, [2, 3]) == {4: 0.5, 9: 0.5}


def test_a_text_that_is_spelled_anew_is_counted_anew_and_judged_once() -> None:
    counts, text = Judged(), [*REPEATED, 3, 4]
    counts.start(REPEATED, 10, None)
    counts.follow(text, len(REPEATED))
    before, again = len(counts.seen), [*text[:8], 7, 1, 2]  # 7 in place of 4
    counts.follow(again, 8)
    assert counts.seen[before:] == [(again[:10], True)], "4 was judged, and nothing came before 7 1"
    assert own(counts).tokens() == again
    fresh = begun(again)
    assert all(followers(counts, [one, two]) == followers(fresh, [one, two]) for one in range(9) for two in range(9))
    counts.follow([*again, 3], len(again))
    assert counts.seen[before + 1 :] == [(again, True)]


@pytest.mark.medium
@given(st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), max_size=4)), max_size=8))
def test_after_any_changes_counts_are_those_of_the_text(changes: list[tuple[int, list[int]]]) -> None:
    text = [0, 1, 2, 0, 1]
    counts = begun(text)
    for taken, added in changes:
        kept = max(5, len(text) - taken)
        text = [*text[:kept], *added]
        counts.follow(text, kept)
        assert own(counts).tokens() == text
        fresh = begun(text)
        assert all(
            followers(counts, [one, two]) == followers(fresh, [one, two]) for one in range(3) for two in range(3)
        )


def test_a_guess_counts_no_draft_token() -> None:
    counts = begun(REPEATED)
    before = own(counts).tokens(), rates(counts).copy()
    for end in range(3):
        counts.guess([*REPEATED, 3, 4][: 7 + end])
    assert (own(counts).tokens(), rates(counts)) == before


# ---------------------------------------------------------------- what is kept


def test_a_kept_answer_is_found_by_the_end_of_its_prompt() -> None:
    memory, prompt = AnswerMemory(), [9, 8, 7, 6, 5, 4, 3, 2, 1]
    counts = begun(prompt, memory)
    counts.keep(prompt)
    assert memory.index.tokens() == [], "there is no answer"
    text = [*prompt, 10, 11]
    counts.follow(text, len(prompt))
    assert shares(begun([2, 1], memory), [2, 1]) == {}, "nothing of it before it is complete"
    counts.keep(text)
    assert memory.index.tokens() == [BOUNDARY, *prompt[-LONGEST:], 10, 11]
    later = begun([5, 2, 1], memory)
    assert shares(later, [5, 2, 1]) == {10: 1}
    assert shares(later, [10, 11]) == {}
    later.follow([15, 2, 1, 12], 3)
    later.keep([15, 2, 1, 12])
    assert shares(begun([0], memory), [11]) == {}, "answers are apart"


def test_without_a_memory_nothing_outlives_the_request_but_hit_rates() -> None:
    counts, text = begun(REPEATED), [*REPEATED, 3]
    counts.follow(text, len(REPEATED))
    counts.keep(text)
    learned = rates(counts).copy()
    counts.start([4, 1, 2], 10, None)
    assert shares(counts, [1, 2]) == {}
    assert rates(counts) == learned != [RATE] * GUESS_KINDS


def test_two_requests_share_a_memory() -> None:
    memory = AnswerMemory()
    one, other = begun(REPEATED, memory), begun([7, 1, 2], memory)
    text = [*REPEATED, 3, 4, 9]
    one.follow(text, len(REPEATED))
    seen = one.guess([*text, 1, 2])
    found = other.guess([7, 1, 2])
    assert (seen is not None, found) == (True, None), "of a text that goes on, nothing is known to the other"
    one.keep(text)
    assert shares(other, [7, 1, 2]) == {3: 1}  # of the answer with the end of its prompt
    kind = kind_of(1, 1.0, 1)
    assert memory.rates.rates[kind] != RATE
    found = other.guess([7, 1, 2])
    assert found is not None
    assert found.chance == memory.rates.rates[found.kind]


def test_after_a_start_with_another_memory_nothing_of_the_first_shows() -> None:
    first, second = AnswerMemory(), AnswerMemory()
    counts, text = begun(REPEATED, first), [*REPEATED, 3, 4, 5]
    counts.follow(text, len(REPEATED))
    counts.keep(text)
    learned = first.rates.rates.copy()
    assert learned != [RATE] * GUESS_KINDS
    for memory in (second, None):
        counts.start([8, 9], 10, memory)
        assert [counts.guess(text[:end]) for end in range(len(text))] == [None] * len(text)
        counts.start(REPEATED, 10, memory)
        guess = counts.guess(REPEATED)
        assert guess is not None
        assert guess.chance == RATE
    counts.follow([*REPEATED, 9], len(REPEATED))
    counts.keep([*REPEATED, 9])
    assert first.rates.rates == learned
    assert second.index.tokens() == []


@pytest.mark.medium
def test_memory_stays_as_it_is_after_very_many_answers() -> None:
    memory = AnswerMemory(256)
    size = memory.index.nbytes
    counts = Counts()
    for number in range(1000):
        prompt = [number, 1, 2]
        counts.start(prompt, 8, memory)
        text = [*prompt, 3, 10_000 + number, 4, 5, 6]
        counts.follow(text, 3)
        counts.keep(text)
    assert (memory.index.nbytes, len(memory.index)) == (size, 256)
    assert shares(begun([0], memory), [3, 10_999]) == {4: 1}
    assert shares(begun([0], memory), [3, 10_001]) == {}
    guess = begun([0], memory).guess([1, 2])
    assert guess is not None
    assert guess.shares == {3: 1}
    assert guess.chance > 0.95, "it was right each time but the first"
    assert len(memory.rates.rates) == GUESS_KINDS


def test_the_index_of_a_request_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own(begun([1, 2, 3], new_tokens=10**30)).nbytes <= 52 * module.OWN_TOKENS
    monkeypatch.setattr(module, "OWN_TOKENS", 8)
    counts, text = begun(REPEATED, new_tokens=10**30), list(REPEATED)
    for _ in range(50):
        text += [3, 4, 5, 1, 2]
        counts.follow(text, len(text) - 5)
    assert (own(counts).tokens(), shares(counts, text)) == (text[-8:], {3: 1})
