"""Acceptance probabilities of copied tokens follow what was accepted, by source and length of the match."""

from __future__ import annotations

import pytest

from omnidraft.retrieval.acceptance import HALVED, CopyAcceptance


def test_what_was_never_tried_is_likely() -> None:
    assert CopyAcceptance(2).chances(0, 2, 4) == pytest.approx([2 / 3] * 4)


def test_counts_are_of_a_source_and_of_a_length_with_the_tokens_before() -> None:
    acceptance = CopyAcceptance(2)
    acceptance.learn(0, 2, [True, False])  # after 2, and after 3 equal tokens
    assert acceptance.chances(0, 2, 3) == pytest.approx([2 / 2.5, 1 / 2.5, 2 / 3])
    assert acceptance.chances(0, 3, 1) == pytest.approx([1 / 2.5])
    assert acceptance.chances(1, 2, 1) == pytest.approx([2 / 3])


def test_what_has_failed_is_tried_again_in_the_end() -> None:
    acceptance = CopyAcceptance(1)
    for _ in range(50):
        acceptance.learn(0, 4, [False])
    low = acceptance.chances(0, 4, 1)[0]
    for _ in range(5 * HALVED):
        acceptance.next_round()
    assert low < 0.02
    assert acceptance.chances(0, 4, 1)[0] == pytest.approx(1 / (50 / 2**5 + 1.5))
