"""What is copied: of the request's own text or a stored answer, up to where it ends, and what is learned of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from omnidraft.config import Drafting
from omnidraft.draft_length.policy import Fixed
from omnidraft.errors import ConfigError
from omnidraft.retrieval.source import OWN_TOKENS, Retrieval, new_store, retrieves
from omnidraft.retrieval.token_index import BOUNDARY, TokenIndex
from omnidraft.verification.rejection_sampling import Outcome
from omnidraft.verification.round import Draft

EOS = 99
ROOM = 4
REPEATED = (1, 2, 3, 4, 5, 1, 2)  # after it comes 3, 4, 5, 1

# chances of a token of a bin in which none was judged, one was accepted, and one was rejected
CHANCES: list[Any] = [pytest.approx((accepted + 1) / (seen + 1.5)) for accepted, seen in ((0, 0), (1, 1), (0, 1))]
NEW, HIT, MISSED = CHANCES


class Noting(Fixed):
    """Copies all that is found, also after a draft, and notes the acceptance probabilities that it is shown."""

    chances: Sequence[float] = ()

    def copies(self, chances: Sequence[float], *, alone: bool) -> int:
        self.chances = list(chances)
        return super().copies(chances, alone=alone)

    def extends(self, chances: Sequence[float]) -> int:
        return len(chances)


class Copier:
    """A request beside a store that holds some tokens."""

    def __init__(self, prompt: Sequence[int], stored: Sequence[int] | None = ()) -> None:
        self.store = None if stored is None else TokenIndex(64)
        if self.store is not None:
            self.store.extend(stored or ())
        self.policy = Noting()
        self.retrieval = Retrieval(self.policy, (EOS,), self.store)
        self.start(prompt)

    def start(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)
        self.retrieval.start(prompt, 32)

    def draft(self) -> Draft | None:
        return self.retrieval.draft(self.ids, ROOM, alone=True)

    @property
    def copied(self) -> list[int]:
        draft = self.draft()
        return [] if draft is None else list(draft.proposals)

    @property
    def chances(self) -> Sequence[float]:
        assert self.draft() is not None
        return self.policy.chances

    def commit(
        self, emitted: Sequence[int], draft: Draft | None = None, *, accepted: int = 0, end: bool = False
    ) -> int:
        """A round that emits these tokens."""
        self.ids += emitted
        outcome = Outcome(tuple(emitted), accepted, 0, None)
        return self.retrieval.commit(emitted, draft or Draft(), outcome, end=end)


# ---------------------------------------------------------------- where it is found


def test_of_equal_matches_the_request_s_own_is_copied() -> None:
    assert Copier(REPEATED, (1, 2, 7, 8, 9, 6)).copied == [3, 4, 5, 1]


def test_a_longer_match_in_a_stored_answer_is_copied() -> None:
    assert Copier((1, 2, 3, 4, 8, 1, 2), (8, 1, 2, 7, 6, 5, 4)).copied == [7, 6, 5, 4]
    assert Copier((8, 1, 2, 3, 4, 8, 1, 2), (8, 1, 2, 7, 6, 5, 4)).copied == [3, 4, 8, 1]


def test_where_nothing_matches_nothing_is_proposed() -> None:
    assert Copier((1, 2, 3, 4), (5, 6, 7)).draft() is None
    assert Copier(REPEATED).retrieval.draft(REPEATED, 0, alone=True) is None


def test_no_copy_goes_from_one_stored_answer_into_the_next() -> None:
    assert Copier((7, 1, 2), (1, 2, 3, BOUNDARY, 4, 5, BOUNDARY)).copied == [3]
    assert Copier((7, 3, 4), (1, 2, 3, BOUNDARY, 4, 5, BOUNDARY)).copied == []


def test_a_copy_ends_with_the_text() -> None:
    draft = Copier((1, 2, 3, EOS, 5, 1, 2)).draft()
    assert draft is not None
    assert (draft.proposals, draft.retrieved, draft.ended) == ([3, EOS], 2, True)
    whole = Copier(REPEATED).draft()
    assert whole is not None
    assert not whole.ended


def test_what_follows_the_end_of_a_draft_is_added_to_it() -> None:
    copier = Copier((1, 2, 3, 4, 5, 1))
    extended = copier.retrieval.extended(Draft(proposals=[2, 3]), copier.ids, ROOM)
    assert (extended.proposals, extended.retrieved, extended.drafted) == ([2, 3, 4, 5], 2, 2)
    ended = Draft(proposals=[2, 3], ended=True)
    assert copier.retrieval.extended(ended, copier.ids, ROOM) is ended
    assert copier.retrieval.extended(Draft(proposals=[7]), copier.ids, ROOM).proposals == [7]


# ---------------------------------------------------------------- what is kept


def test_only_complete_answers_are_stored_without_their_prompts() -> None:
    copier = Copier(REPEATED)
    assert copier.store is not None
    copier.commit([3, 4])
    assert copier.store.tokens() == []
    copier.start((6, 7))  # the first request was not read to its end
    copier.commit([8, 9])
    copier.commit([EOS], end=True)
    assert copier.store.tokens() == [8, 9, EOS, BOUNDARY]
    copier.start((1, 8, 9))
    assert copier.copied == [EOS]


def test_without_a_store_nothing_outlives_the_request() -> None:
    copier = Copier(REPEATED, stored=None)
    assert copier.copied == [3, 4, 5, 1]
    copier.commit([3, 4, EOS], end=True)
    copier.retrieval.release()
    assert copier.retrieval.draft(REPEATED, ROOM, alone=True) is None
    copier.start((9, 3, 4))
    assert copier.copied == []


# ---------------------------------------------------------------- what is learned


def test_acceptance_is_learned_up_to_the_first_rejected_token() -> None:
    copier = Copier((0, 1, 2, 3, 4, 5, 6, 0, 1, 2))  # the bins of 3, 4 and 5 equal tokens have counts of their own
    draft = copier.draft()
    assert draft is not None
    assert copier.chances[:3] == [NEW, NEW, NEW]
    assert copier.commit([3, 9], draft, accepted=1) == 1
    copier.start((0, 1, 2, 3, 4, 5, 6, 0, 1, 2))
    assert copier.chances[:3] == [HIT, MISSED, NEW]


def test_tokens_after_a_stop_string_are_not_judged() -> None:
    """All that is kept of the draft was accepted; of what was cut off nothing is known."""
    prompt = (0, 1, 2, 3, 4, 5, 6, 0, 1, 2)
    copier = Copier(prompt)
    draft = copier.draft()
    assert draft is not None
    kept, outcome = draft.cut(Outcome((3, 4, 5, 9), 3, 0, None), 2)
    assert copier.retrieval.commit([3, 4], kept, outcome, end=True) == 2
    copier.start(prompt)
    assert copier.chances[:3] == [HIT, HIT, NEW]


def test_a_copy_after_a_rejected_draft_is_not_judged() -> None:
    copier = Copier((0, 1, 2, 3, 4, 5, 6, 0))
    draft = copier.retrieval.extended(Draft(proposals=[1, 2]), copier.ids, ROOM)
    assert draft.retrieved == 2
    assert copier.commit([1, 7], draft, accepted=1) == 0
    copier.start((0, 1, 2, 3, 4, 5, 6, 0, 1, 2))
    assert copier.chances[:2] == [NEW, NEW]


def test_stored_answers_have_an_acceptance_of_their_own() -> None:
    copier = Copier((9, 1, 2), (1, 2, 3, 4, 5, 6))
    copier.commit([7], copier.draft(), accepted=0)
    copier.start((8, 1, 2))
    assert copier.chances[0] == MISSED
    copier.start((1, 2, 7, 1, 2))
    assert copier.chances[0] == NEW


# ---------------------------------------------------------------- where it is used


@pytest.mark.parametrize(
    ("options", "alone", "beside"),
    [
        ({}, True, True),
        ({"draft_length": 4}, True, False),
        ({"draft_length": 4, "sources": "retrieval"}, True, True),
        ({"draft_length": 0, "sources": "retrieval"}, False, False),
        ({"draft_length": 0}, False, False),
        ({"mode": "paper"}, True, False),
        ({"sources": "model"}, False, False),
    ],
)
def test_beside_a_drafter_only_where_both_are_weighed(options: dict[str, object], *, alone: bool, beside: bool) -> None:
    drafting = Drafting(**options)  # type: ignore[arg-type]
    assert retrieves(drafting, drafter=False) is alone
    assert retrieves(drafting, drafter=True) is beside


def test_a_store_is_made_where_answers_are_copied() -> None:
    assert new_store(Drafting(), drafter=True) is None
    assert new_store(Drafting(remember="memory"), drafter=True) is not None
    with pytest.raises(ConfigError, match=r"remember is 'memory'.*use draft_length='goodput'"):
        new_store(Drafting(remember="memory", draft_length=4), drafter=True)


def test_a_symbol_refused_before_a_copy_stays_refused_where_the_answer_ends_in_the_copy() -> None:
    """The correction of a symbol read beyond the proposals can be what was copied, and the symbol is refused."""

    class Read(Draft):
        def symbols_in(self, proposals: int) -> int:
            return 2 + proposals

    draft = Read(proposals=(1, 2, 3), retrieved=2)
    _, kept = draft.cut(Outcome((1, 2, 3, 4), 3, 2, None), 2)
    assert kept.symbols_accepted == 2
    assert draft.cut(Outcome((1, 2, 3, 4), 3, 9, None), 2)[1].symbols_accepted == 4


def test_the_index_of_a_request_is_bounded_by_what_can_be_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    true = TokenIndex.__init__

    def noted(index: TokenIndex, size: int) -> None:
        asked.append(size)
        true(index, size)

    monkeypatch.setattr(TokenIndex, "__init__", noted)
    retrieval = Retrieval(Fixed(), ())
    retrieval.start((1, 2, 3), 10**30)
    assert asked[-1] == OWN_TOKENS
