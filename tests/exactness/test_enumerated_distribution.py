"""The joint distribution of the first tokens, over several rounds, is the target's: enumerated, not sampled."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.config import VERIFICATIONS, Sampling
from omnidraft.decoding.stream import decode
from omnidraft.verification.rejection import residual
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Sampler
from omnidraft.verification.trie_walk import Walk
from support.enumeration import (
    EXACT,
    FAR,
    SAMPLED,
    Case,
    Distribution,
    deviation,
    distance,
    distribution_of,
    first_tokens,
    plain_distribution,
    round_distribution,
    run_distribution,
)
from support.table_models import ACTIVE, PROMPT, SHAPES, Ids, caches, frozen_cache, make_world, worlds

pytestmark = pytest.mark.medium

REJECTION = ("block", "token")
# Modes and temperatures that claim exactness.  `intersection` with n-grams active is masked drafting.
VARIANTS: dict[str, tuple[dict[str, object], Sampling]] = {
    "masked": ({"mode": "intersection"}, SAMPLED),
    "masked, greedy drafter": ({"mode": "intersection", "drafter_temperature": 0.0}, SAMPLED),
    "cooler drafter": ({"drafter_temperature": 0.5, "verification": "block"}, SAMPLED),
    "greedy drafter": ({"drafter_temperature": 0.0, "verification": "token"}, SAMPLED),
    "hotter target": ({"drafter_temperature": 1.0, "verification": "block"}, Sampling(temperature=1.7)),
    "top-k": ({"verification": "seeded"}, Sampling(temperature=1.0, top_k=2)),
    "top-p and min-p": ({"verification": "seeded"}, Sampling(temperature=0.8, top_k=5, top_p=0.8, min_p=0.15)),
    "top-k, rejection": ({"verification": "block"}, Sampling(temperature=1.0, top_k=2)),
    "top-p and min-p, rejection": (
        {"verification": "block"},
        Sampling(temperature=0.8, top_k=5, top_p=0.8, min_p=0.15),
    ),
    "greedy target": ({"drafter_temperature": 1.0, "verification": "block"}, Sampling()),
    "greedy target and drafter": ({}, Sampling()),
    "masked, greedy target": ({"mode": "intersection", "drafter_temperature": 1.0}, Sampling()),
}


def worst(cases: Iterator[Case]) -> tuple[float, Case | None]:
    return max(((case.deviation(), case) for case in cases), key=lambda pair: pair[0], default=(0.0, None))


def assert_exact(cases: Iterator[Case]) -> None:
    deviation, case = worst(cases)
    assert case is not None
    assert deviation < EXACT, case


@pytest.mark.parametrize("verification", VERIFICATIONS)
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_tokens_have_the_targets_distribution(shape: str, active: str, verification: str) -> None:
    assert_exact(
        Case(shape, seed, zero, active, count, {"draft_length": k, "verification": verification})
        for k, count, seed, zero in ((0, 3, 0, 0.0), (1, 3, 0, 0.0), (2, 2, 1, 0.35))
    )


@pytest.mark.parametrize("tries", [0, 1, 2])
@pytest.mark.parametrize("verification", REJECTION)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_ways_of_large_vocabularies(
    shape: str, verification: str, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a position is often passed without its residual, and a correction looked for before it is computed."""
    monkeypatch.setattr(residual, "LARGE", 0)
    monkeypatch.setattr(residual, "TRIES", tries)
    assert_exact(
        Case(shape, seed, zero, active, 2, {"draft_length": k, "verification": verification})
        for active, k, seed, zero in (("all", 1, 0, 0.0), ("random", 1 if tries == 2 else 2, 1, 0.35))
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_other_modes_and_temperatures_are_as_exact(shape: str, variant: str) -> None:
    drafting, sampling = VARIANTS[variant]
    assert_exact(
        Case(shape, seed, zero, active, 2, {"draft_length": 2, **drafting}, sampling)
        for active, seed, zero in (("all", 0, 0.0), ("none", 1, 0.35))
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_whole_grid(shape: str) -> None:
    """In each shape every value of a setting meets every value of each other one, three tokens drafts of three."""

    def grid() -> Iterator[Case]:
        for (row, active), (column, verification) in itertools.product(enumerate(ACTIVE), enumerate(VERIFICATIONS)):
            drafting: dict[str, object] = {"verification": verification}
            for seed, zero in ((0, 0.0), (1, 0.35)):
                yield Case(shape, seed, zero, active, 2, drafting | {"draft_length": (row + column + seed) % 3})
            count = 3 if (row + column) % 3 == 0 else 2
            yield Case(shape, 2 + 3 * row + column, 0.2, active, count, drafting | {"draft_length": 3})
        for number, (active, verification) in enumerate((("all", "block"), ("random", "token"))):
            yield Case(shape, 9 + number, 0.2, active, 2, {"draft_length": 4, "verification": verification})

    assert_exact(grid())


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_the_whole_grid_of_modes_and_temperatures(shape: str) -> None:
    """Every variant with each cache and each length of a draft, and every two of the latter and of the zeros."""

    def grid() -> Iterator[Case]:
        for turn, (drafting, sampling) in enumerate(VARIANTS.values()):
            for number, active in enumerate(ACTIVE):
                zero = 0.35 * ((turn // 2 + number) % 2)
                length = {"draft_length": 1 + (turn + number) % 2}
                yield Case(shape, turn, zero, active, 3, {**length, **drafting}, sampling)

    assert_exact(grid())


@pytest.mark.slow
@settings(max_examples=400)  # of the faults of `test_planted_faults`, the rarest show in one of some 150 worlds
@given(st.data())
def test_random_vocabularies(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    cache.frozen = True
    drafting: dict[str, object] = {
        "draft_length": data.draw(st.integers(1, 3)),
        "mode": data.draw(st.sampled_from(["exact", "exact", "intersection"])),
        "verification": data.draw(st.sampled_from(VERIFICATIONS)),
        "drafter_temperature": data.draw(st.sampled_from([None, 0.0, 0.5, 2.0])),
    }
    sampling = data.draw(st.sampled_from([SAMPLED, Sampling(temperature=0.7, top_k=3), Sampling()]))
    assert deviation(world, world.lane(cache, **drafting), 2, sampling) < EXACT


# ---------------------------------------------------------------- what a round may depend on


@pytest.mark.parametrize("shape", ["full", "nested", "long nested"])
def test_a_draft_may_end_after_any_prefix(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop policy that decides before each draw, from what has been drafted, leaves the distribution alone."""
    push, lengths = Walk.push, set()

    def read(walk: Walk, draft: int) -> bool:
        push(walk, draft)
        drafted = [symbol.symbol for symbol in walk.symbols]
        lengths.add(walk.drafted)
        return walk.open and (sum(drafted) + len(drafted)) % 3 > 0

    monkeypatch.setattr(Walk, "read", read)
    assert_exact(Case(shape, 4, active=active, count=1, drafting={"draft_length": 3}) for active in ACTIVE)
    assert lengths == {1, 2, 3}


class Rolling:
    """A processor with a distribution that depends on all the ids, and a record of what it was shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(ids[0].tolist()))
        return torch.roll(scores, 1 + int(ids.sum()), dims=-1)


@pytest.mark.parametrize(("temperature", "penalty"), [(1.0, 1.0), (1.0, 1.8), (0.0, 1.0)])
@pytest.mark.parametrize("shape", ["full", "long nested", "duplicate"])
def test_processors_see_what_plain_decoding_would_show_them(shape: str, temperature: float, penalty: float) -> None:
    world = make_world(shape, 3)
    lane = world.lane(draft_length=2, drafter_temperature=1.0)
    sampling = Sampling(temperature=temperature, repetition_penalty=penalty)
    processor = Rolling()

    def round_of(context: Ids) -> Distribution:
        def seen(_: float, record: Round) -> None:
            ids_now = (PROMPT, *context, *record.emitted)
            assert all(ids_now[: len(ids)] == ids for ids in processor.seen), "it was shown an id that did not stay"
            assert [len(ids) for ids in processor.seen] == sorted({len(ids) for ids in processor.seen})
            processor.seen.clear()

        return round_distribution(lane, context, sampling, [processor], seen)

    ours = first_tokens(round_of, 2, world.vocab.eos)
    target = first_tokens(plain_distribution(world, sampling, Rolling()), 2, world.vocab.eos)
    assert distance(ours, target) < EXACT
    assert distance(ours, first_tokens(plain_distribution(world, sampling), 2, world.vocab.eos)) > 0.1


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("shape", ["nested", "tiny", "long nested"])
def test_a_run_of_three_tokens_has_the_targets_distribution(shape: str, k: int) -> None:
    """Rounds that go on from one another and grow shorter towards the end: all paths of whole runs."""
    world = make_world(shape, 5)
    ours = run_distribution(world.lane(draft_length=k), 3)
    assert distance(ours, first_tokens(plain_distribution(world), 3, world.vocab.eos)) < EXACT


@pytest.mark.parametrize(
    ("shape", "k"),
    [
        ("tiny", 1),
        ("inner", 1),
        *[pytest.param(shape, 2, marks=pytest.mark.slow) for shape in ("nested", "inner", "tiny", "duplicate")],
    ],
)
def test_a_round_that_goes_on_is_like_a_fresh_one(shape: str, k: int) -> None:
    """What is enumerated one fresh round after the other elsewhere is what a lane at work does."""
    world = make_world(shape, 6)
    lane = world.lane(draft_length=k)

    def run(draw: Sampler) -> tuple[Ids, ...]:
        return tuple(record.emitted for record in itertools.islice(decode(lane, [PROMPT], FAR, SAMPLED, draw), 2))

    going_on = distribution_of(run)
    fresh: dict[tuple[Ids, ...], float] = {}
    for first, p in round_distribution(lane, ()).items():
        if first[-1] in world.vocab.eos:
            fresh[first,] = p
        else:
            fresh |= {(first, second): p * p2 for second, p2 in round_distribution(lane, first).items()}
    assert going_on.keys() == fresh.keys()
    assert max(abs(going_on[key] - fresh[key]) for key in fresh) < EXACT


@pytest.mark.parametrize("room", [2, 3, 4, 5])
@pytest.mark.parametrize("shape", ["full", "long nested"])
def test_the_distribution_holds_where_the_drafter_reads_its_window_anew(shape: str, room: int) -> None:
    world = make_world(shape, 7)
    world.drafter.context = room
    assert deviation(world, world.lane(draft_length=2), 2) < EXACT


@pytest.mark.parametrize("room", [2, 3])
@pytest.mark.parametrize("shape", ["full", "long nested"])
def test_the_distribution_holds_to_the_end_of_the_targets_context(shape: str, room: int) -> None:
    world = make_world(shape, 8)
    world.target.context = room
    ours = run_distribution(world.lane(draft_length=2), 5)
    # the prompt and all but the last token fill the context
    assert {len(emitted) for emitted in ours if emitted[-1] not in world.vocab.eos} == {room}
    assert distance(ours, first_tokens(plain_distribution(world), room, world.vocab.eos)) < EXACT


def test_the_harness_tells_distributions_apart() -> None:
    distribution: Distribution = {(0,): 0.25, (1,): 0.75}
    other: Distribution = {(0,): 0.5, (2,): 0.5}
    assert distance(distribution, distribution) == 0
    assert np.isclose(distance(distribution, other), 0.75)
    world, second = make_world("tiny", 0), make_world("tiny", 1)
    lane = second.lane(draft_length=1)
    assert deviation(second, lane, 1) < EXACT
    assert deviation(world, lane, 1) > 0.1
    random = frozen_cache(make_world("nested"), "random")
    assert 0 < random.size < frozen_cache(make_world("nested"), "all").size
