"""The distribution stays the target's while the n-gram cache learns, and rounds equal those of a fresh start."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch

from experiments.cache_study import BoundedCache
from omnidraft.alignment.ngram_cache import FALSE_MERGES_BEFORE_OFF, NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import VERIFICATIONS, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.passes import Passes
from omnidraft.decoding.stream import decode
from omnidraft.verification.round import Round, RoundTimes
from omnidraft.verification.sampling import GeneratorSampler, softmax
from support.enumeration import EXACT, clone, distance, first_tokens, learning_distribution, plain_distribution
from support.table_models import PROMPT, SHAPES, World, cache_of, make_world

pytestmark = pytest.mark.medium

LEARNING: dict[str, tuple[str, int | None, str]] = {
    "empty": ("empty", None, ""),
    "empty, one entry, lfu": ("empty", 1, "lfu"),
    "empty, one entry, lru": ("empty", 1, "lru"),
    "vocabulary, two entries": ("vocabulary", 2, "lfu"),
    "vocabulary": ("vocabulary", None, ""),
}
# shapes, and the tokens that are enumerated with drawn drafts of two, of which some have many
LEARNT = {"full": 2, "nested": 3, "inner": 3, "duplicate": 3, "long nested": 2}


def distrusted(world: World, seed: str, bound: int | None, eviction: str) -> NgramCache:
    """A cache where one more false merge switches any n-gram off."""
    cache = cache_of(world.table, seed, bound, eviction)
    cache.false_merges[np.diff(world.table.offsets) > 1] = FALSE_MERGES_BEFORE_OFF - 1
    return cache


def assert_exact_while_learning(shape: str, learning: str, count: int, **drafting: object) -> set[bytes]:
    """Returns the active sets that occurred."""
    world = make_world(shape, 1)
    cache = distrusted(world, *LEARNING[learning])
    sets = set()

    def seen(state: NgramCache) -> None:
        assert not isinstance(state, BoundedCache) or state.size <= state.bound
        sets.add(state.active.tobytes())

    ours = learning_distribution(world, cache, count, seen, **drafting)
    assert distance(ours, first_tokens(plain_distribution(world), count, world.vocab.eos)) < EXACT
    return sets


@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize("verification", VERIFICATIONS)
def test_the_distribution_holds_while_ngrams_come_and_go(learning: str, verification: str) -> None:
    count = 3 if verification == "seeded" else 2  # best tokens are seldom wrong merges
    sets = assert_exact_while_learning("nested", learning, count, draft_length=2, verification=verification)
    assert len(sets) >= 2  # of rounds before the last; nothing stays as it was


@pytest.mark.slow
@pytest.mark.parametrize("learning", LEARNING)
@pytest.mark.parametrize("shape", LEARNT)
def test_the_distribution_of_three_tokens_holds_while_ngrams_come_and_go(shape: str, learning: str) -> None:
    turn = [*LEARNT].index(shape) + [*LEARNING].index(learning)
    for k in (1, 2):  # with each verification in every other cache
        verification = ("seeded", "block")[(turn + k) % 2]
        count = LEARNT[shape] if (k, verification) == (2, "block") else 3
        assert_exact_while_learning(shape, learning, count, draft_length=k, verification=verification)


# ---------------------------------------------------------------- many rounds


def content(record: Round) -> dict[str, object]:
    """All but times, and how much of the text the drafter had to read, which a fresh one reads whole."""
    return asdict(replace(record, times=RoundTimes(), counts=replace(record.counts, draft_read=0)))


MANY: dict[str, tuple[dict[str, object], Sampling]] = {
    "seeded": ({"draft_length": 4, "verification": "seeded"}, Sampling(temperature=1.0)),
    "block": ({"draft_length": 4, "verification": "block"}, Sampling(temperature=1.0)),
    "token": ({"draft_length": 3, "verification": "token"}, Sampling(temperature=0.8, top_k=3)),
    "masked": ({"draft_length": 4, "mode": "intersection"}, Sampling(temperature=1.0)),
    "paper": ({"draft_length": 4, "mode": "paper"}, Sampling(temperature=1.0)),
    "greedy": ({"draft_length": 4, "drafter_temperature": 1.0, "verification": "block"}, Sampling()),
}


@pytest.mark.parametrize("way", MANY)
@pytest.mark.parametrize("shape", SHAPES)
def test_after_many_rounds_all_is_as_after_a_fresh_start(shape: str, way: str) -> None:
    drafting, sampling = MANY[way]
    world, other = make_world(shape, 2), make_world(shape, 2)
    cache = BoundedCache(world.table, 2, "lru", seed="empty")
    lane, generator = world.lane(cache, **drafting), torch.Generator()
    assert lane.attached is not None
    drafter, translator = lane.attached.drafter, lane.attached.context
    rounds = 0
    while rounds < 25:  # the same lane again and again; an end of text comes soon in some worlds
        ids, end = [PROMPT], 1 + 14
        before = clone(cache)
        records = decode(lane, ids, end - 1, sampling, GeneratorSampler(generator))
        finish = None
        while finish is None:
            generator.manual_seed(rounds)
            record = next(records)
            generator.manual_seed(rounds)
            fresh = other.lane(before, **drafting)
            again = next(decode(fresh, ids, end - len(ids), sampling, GeneratorSampler(generator)))
            assert content(record) == content(again)
            for name in ("active", "hits", "false_merges", "last_use"):
                assert np.array_equal(getattr(cache, name), getattr(before, name))
            before, finish, rounds = clone(cache), record.finish, rounds + 1
            ids += record.emitted
            assert world.target.ids == tuple(ids[: world.target.length])
            if finish != "length" and way != "paper":  # the last token rides in the next round, if there is one
                assert world.target.length == len(ids) - 1
            added, kept = translator.after(
                drafter.text, drafter.begun, lane.attached.untranslated
            )  # with the next draft
            assert [*drafter.text[:kept], *added] == translator.prompt(ids)
            assert tuple(drafter._cached) == world.drafter.ids
            assert drafter._cached[: drafter._agreed] == drafter._text[: drafter._agreed]
        assert next(records, None) is None


@pytest.mark.parametrize("room", [2, 3, 5, 8])
@pytest.mark.parametrize("shape", ["nested", "full", "long nested"])
def test_the_recorded_vectors_are_those_of_the_text(shape: str, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was dropped from the drafter's cache or read anew: Q is what follows the committed text."""
    world = make_world(shape, 3)
    world.drafter.context = room
    lane = world.lane(draft_length=3, verification="block")
    assert lane.attached is not None
    translator, ids = lane.attached.context, [PROMPT]
    draft, checked = Drafter.draft, set()

    def watched(drafter: Drafter, *arguments: Any) -> Passes[tuple[list[int], list[Probs]]]:
        assert drafter._text == translator.prompt(ids)
        tokens, vectors = yield from draft(drafter, *arguments)
        window = drafter._text[drafter._base :]
        assert window
        for position, q in enumerate(vectors):
            assert np.array_equal(q, softmax(world.drafter.row((*window, *tokens[:position]))))
        checked.add((drafter._base > 0, len(tokens)))
        return tokens, vectors

    monkeypatch.setattr(Drafter, "draft", watched)
    for seed in range(10):
        ids[:] = [PROMPT]
        for record in decode(
            lane, ids, 20, Sampling(temperature=1.0), GeneratorSampler(torch.Generator().manual_seed(seed))
        ):
            ids += record.emitted
    assert {base for base, _ in checked} == {False, True}
    assert {length for _, length in checked} >= set(range(1, min(3, room // 2) + 1))
