"""The paper's own verification, kept by name: what it merges, and how far from exact it is."""

from __future__ import annotations

import numpy as np
import pytest

from omnidraft.config import Sampling
from omnidraft.decoding.stream import decode
from omnidraft.verification.rejection.paper import DirectMap, Proposal, lifted, merge
from support.enumeration import EXACT, SAMPLED, Case, distance, first_tokens, plain_distribution, round_distribution
from support.table_models import SHAPES, Shape, frozen_cache, make_world

A, B = 0, 1  # drafter tokens


def test_the_longest_active_ngram_is_merged() -> None:
    world = make_world("nested")  # a 0, ab 1, aba 2, abab 3, b 4
    everything = frozen_cache(world, "all")
    direct = DirectMap(everything)
    assert direct.mapped.tolist() == [True, True, True]
    assert direct.target.tolist() == [0, 4, 5]

    def tokens(draft: list[int], active: str = "all") -> list[tuple[int, int, int]]:
        return [(m.token, m.start, m.length) for m in merge(draft, frozen_cache(world, active), direct)]

    assert tokens([A, B, A, B, B]) == [(3, 0, 4), (4, 4, 1)]
    assert tokens([B, A, B, A, A]) == [(4, 0, 1), (2, 1, 3), (0, 4, 1)]
    assert tokens([A, B], "none") == [(0, 0, 1), (4, 1, 1)]
    assert tokens([]) == []
    # bb is no token: what has led nowhere is read token by token
    full = make_world("full")
    assert [m.token for m in merge([B, B, B], frozen_cache(full, "all"), DirectMap(frozen_cache(full, "all")))] == [
        1
    ] * 3


def test_an_ngram_takes_its_probability_from_its_first_token() -> None:
    world = make_world("nested")
    direct = DirectMap(frozen_cache(world, "all"))
    qs = [np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.6, 0.0])]
    alone = lifted(Proposal(0, 0, 1), [A, B], qs, direct, 6)
    assert alone.tolist() == pytest.approx([0.5, 0, 0, 0, 0.3, 0.2])
    merged = lifted(Proposal(1, 0, 2), [A, B], qs, direct, 6)
    assert merged.tolist() == pytest.approx([0.2, 0.3, 0, 0, 0.3, 0.2])


@pytest.mark.parametrize("mode", ["paper", "intersection"])
def test_where_the_vocabularies_have_nothing_in_common_the_target_goes_on_alone(mode: str) -> None:
    shape = Shape((b"a", b"b"), (b"ab", b"ba"))
    for sampling in (SAMPLED, Sampling()):
        world = make_world("apart", shape=shape)
        distribution = round_distribution(world.lane(draft_length=2, mode=mode), (), sampling)
        assert distance(distribution, first_tokens(plain_distribution(world, sampling), 1, ())) < EXACT


@pytest.mark.parametrize("mode", ["paper", "intersection", "exact"])
def test_a_text_that_the_drafter_cannot_read_is_decoded_without_it(mode: str) -> None:
    world = make_world("full")
    lane = world.lane(draft_length=2, mode=mode)
    no_bytes = 5
    record = next(decode(lane, [no_bytes], 5, SAMPLED, lambda weights: int(weights.argmax())))
    assert record.draft == ()
    assert len(record.emitted) == 1


# ---------------------------------------------------------------- its distribution


@pytest.mark.slow
def test_paper_mode_is_not_exact() -> None:
    """Another negative control: Eq. 2 is only approximately right, and the harness must say so."""
    worst = {
        count: [
            Case(shape, seed, count=count, drafting={"draft_length": 2, "mode": "paper"}).deviation()
            for shape in ("full", "nested", "tiny")
            for seed in range(5)
        ]
        for count in (1, 2)
    }
    assert 0.02 < np.mean(worst[1]) < np.mean(worst[2])
    assert 0.1 < max(worst[1]) < max(worst[2])


@pytest.mark.medium
@pytest.mark.parametrize("shape", SHAPES)
def test_paper_mode_is_exact_where_no_ngram_can_be_merged(shape: str) -> None:
    for active, k in (("all", 1), ("none", 2)):
        for seed in (0, 1):
            case = Case(shape, seed, 0.2, active, drafting={"draft_length": k, "mode": "paper"})
            assert case.deviation() < EXACT


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_paper_mode_is_exact_in_greedy_decoding(shape: str, temperature: float) -> None:
    for seed in (0, 1, 2):
        drafting = {"draft_length": 3, "mode": "paper", "drafter_temperature": temperature}
        assert Case(shape, seed, 0.2, count=3, drafting=drafting, sampling=Sampling()).deviation() < EXACT
