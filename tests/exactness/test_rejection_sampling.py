"""Verification: by hand, against plain loops over spellings, and each way against the others."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from omnidraft.alignment.spelling_table import Probs
from omnidraft.verification.drawn import Outcome, verify_walk
from omnidraft.verification.rejection.residual import drafter_probability, residual_at, target_probability
from omnidraft.verification.rejection.symbols import verify_block, verify_token
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Sampler
from omnidraft.verification.trie_walk import DEAD, STOP, Walk
from support.enumeration import distribution_of, enumerate_draws, round_distribution
from support.table_models import (
    SHAPES,
    Plain,
    World,
    caches,
    correlated_world,
    drafts,
    frozen_cache,
    make_world,
    random_probs,
    walked,
    worlds,
)

A, B = 0, 1  # drafter tokens of every world
Verify = Callable[[Walk, Sequence[Probs], Callable[[int], Probs], Sampler], Outcome]


def vectors(world: World, walk: Walk, draft: Sequence[int]) -> list[Probs]:
    """For each draft token a distribution that could have drawn it."""
    size = world.drafter_vocab.size
    result = []
    for position in range(walk.drafted):
        q = 0.9 * random_probs(size, "q", position)
        q[draft[position]] += 0.1
        result.append(q)
    return result


# ---------------------------------------------------------------- the two distributions, and the residual


def near(value: object) -> object:
    return pytest.approx(value, abs=1e-12)


@pytest.mark.medium
@settings(max_examples=100)
@given(st.data())
def test_the_distributions_of_a_symbol_and_the_residual(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    draft = data.draw(drafts(world))
    walk = walked(cache, world.vocab.eos, draft)
    plain, qs = Plain(cache), vectors(world, walk, draft)
    weight = data.draw(st.sampled_from([1.0, 0.6, 0.05]))
    for number, symbol in enumerate(walk.symbols):
        p = random_probs(world.vocab.size, "p", symbol.index, data.draw(st.integers(0, 3)))
        path = plain.path[symbol.node]
        assume(not path or plain.mass(p, path) > 0)
        big_p = plain.target_distribution(p, path)
        if symbol.position < 0:
            big_q = {option: float(option == symbol.symbol) for option in big_p}
        else:
            big_q = plain.drafter_distribution(symbol, qs[symbol.position])
        if symbol.symbol != DEAD:
            assert drafter_probability(cache, symbol, qs) == near(big_q[symbol.symbol])
        assert target_probability(cache, symbol, p) == near(big_p.get(symbol.symbol, 0.0)), number
        assert sum(big_p.values()) == near(1.0)  # every token is counted once
        residual = residual_at(cache, symbol, qs, p, weight)
        assert (residual.weights >= 0).all()
        kept = sum(min(weight * mass, big_q.get(option, 0.0)) for option, mass in big_p.items())
        if weight < 1 or weight - kept > 1e-9:
            assert residual.total == near(weight - kept)
            options: list[object] = [plain.path[int(node)][-1] for node in residual.children]
            options += [STOP if path else ("alone", token) for token in residual.alone.tolist()]
            excess = {option: max(0.0, weight * mass - big_q.get(option, 0.0)) for option, mass in big_p.items()}
            assert dict(zip(options, residual.weights, strict=True)) == near(excess)


# ---------------------------------------------------------------- verification, by hand


def outcome_distribution(verify: Verify, walk: Walk, qs: list[Probs], ps: list[Probs]) -> dict[tuple[int, ...], float]:
    return distribution_of(lambda draw: verify(walk, qs, ps.__getitem__, draw).emitted)


def test_one_by_one_and_jointly_by_hand() -> None:
    """The first a is too likely (P/Q = 1/2), the second not likely enough (P/Q = 3/2)."""
    cache = frozen_cache(make_world("tiny"), "none")  # a 0, b 1; ab 2 and ba 3 stand alone
    walk = walked(cache, [], [A, A])
    qs = [np.array([0.8, 0.2]), np.array([0.6, 0.4])]
    ps = [np.array(p) for p in ([0.4, 0.5, 0.1, 0], [0.9, 0.0, 0.0, 0.1], [0, 1.0, 0, 0])]
    # 1/2 the first is taken and the second then surely; else the residual is 0.3 b and 0.1 ab
    assert outcome_distribution(verify_token, walk, qs, ps) == near({(0, 0, 1): 0.5, (1,): 0.375, (2,): 0.125})
    # 1/2 · 3/2 = 3/4 both are taken; if not, a half of the second P is 0.45 a and 0.05 ba, and only ba exceeds Q:
    # the cut comes there with 0.05 / (0.05 + 1 - 0.5) = 1/11
    distribution = {(0, 0, 1): 3 / 4, (0, 3): 1 / 44, (1,): 10 / 44 * 0.75, (2,): 10 / 44 * 0.25}
    assert outcome_distribution(verify_block, walk, qs, ps) == near(distribution)


def test_a_token_is_completed_inside_its_interval_by_hand() -> None:
    cache = frozen_cache(make_world("full"), "all")  # b 1, bba 3: no token ends at bb
    walk = walked(cache, [4], [B, B])
    qs = [np.array([0.0, 1.0, 0, 0])] * 2
    ps = [np.array([0.5, 0.1, 0, 0.4, 0, 0, 0])]
    # b: 0.5 against 1, else a for sure; then b: 0.8 against 1, else STOP for sure; then bba is all there is
    assert outcome_distribution(verify_token, walk, qs, ps) == near({(0,): 0.5, (3,): 0.4, (1,): 0.1})


def test_the_distribution_of_a_prefix_is_asked_only_once_it_is_accepted() -> None:
    cache = frozen_cache(make_world("tiny"), "none")
    walk = walked(cache, [], [A, A])
    qs = [np.array([0.8, 0.2])] * 2
    asked: list[int] = []

    def distribution(index: int) -> Probs:
        asked.append(index)
        return np.array([0.4, 0.6, 0, 0])

    for _, outcome in enumerate_draws(lambda draw: verify_token(walk, qs, distribution, draw)):
        assert asked == sorted(asked)
        assert max(asked) == outcome.accepted
        asked.clear()

    def best(index: int) -> int:
        asked.append(index)
        return B

    verify_walk(walk, best)
    assert asked == [0]


# ---------------------------------------------------------------- verification, against one another


@pytest.mark.medium
@settings(max_examples=100)
@given(st.data())
def test_greedy_is_token_by_token_with_a_distribution_of_one_token(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cache = data.draw(caches(world))
    draft = data.draw(drafts(world))
    walk = walked(cache, world.vocab.eos, draft)
    tokens = st.integers(0, world.vocab.size - 1)
    # mostly what was proposed, so that the draft is followed a while
    best = [data.draw(st.one_of(st.just(token), st.just(token), tokens)) for token in walk.tokens] + [data.draw(tokens)]
    one_hot = np.eye(world.vocab.size)
    greedy = verify_walk(walk, best.__getitem__)
    qs = vectors(world, walk, draft)
    for verify in (verify_token, verify_block):
        run = functools.partial(verify, walk, qs, lambda index: one_hot[best[index]])
        assert [outcome for _, outcome in enumerate_draws(run)] == [greedy]
    plain = [*best[: greedy.accepted], *([] if walk.ended and greedy.refused is None else [best[greedy.accepted]])]
    assert list(greedy.emitted) == plain


def expected(world: World, k: int, verification: str, active: str) -> tuple[float, float]:
    """How many symbols a round accepts, and how many tokens it emits."""
    totals = np.zeros(2)

    def seen(probability: float, record: Round) -> None:
        nonlocal totals
        totals = totals + probability * np.array([record.counts.symbols_accepted, len(record.emitted)])

    round_distribution(
        world.lane(frozen_cache(world, active), draft_length=k, verification=verification), (), seen=seen
    )
    return float(totals[0]), float(totals[1])


@pytest.mark.medium
@pytest.mark.parametrize("active", ["all", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_block_is_never_worse_than_token_by_token(shape: str, active: str) -> None:
    gains = []
    makers = [make_world] if shape.startswith("long") else [make_world, correlated_world]
    for make, (seed, k) in itertools.product(makers, [(0, 1), (0, 2), (1, 3)]):
        world = make(shape, seed)
        block, token = expected(world, k, "block", active), expected(world, k, "token", active)
        gains.append([b - t for b, t in zip(block, token, strict=True)])
    assert np.min(gains) > -1e-12
    assert np.max(gains) > 1e-6


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_a_block_is_never_worse_in_a_random_world(data: st.DataObject) -> None:
    world = data.draw(worlds())
    block, token = expected(world, 2, "block", "all"), expected(world, 2, "token", "all")
    assert all(b > t - 1e-12 for b, t in zip(block, token, strict=True))
