"""Two lanes on the same table models, round by round in turns: the joint distribution of all that they emit.

Both learn into one n-gram cache, and the first goes on with a second request from the KV caches of its first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.decoding.engine import Engine, Request
from omnidraft.verification.sampling import Sampler
from support.enumeration import (
    EXACT,
    SAMPLED,
    Distribution,
    clone,
    distance,
    distribution_of,
    first_tokens,
    plain_distribution,
)
from support.table_models import PROMPT, Ids, TableModel, World, make_world

ASKED = {"first": [PROMPT], "other": [PROMPT, 1]}  # prompts; the first lane's second one goes on from its answer
COUNT = 2  # tokens of an answer


def again(model: TableModel) -> TableModel:
    other = copy.copy(model)
    other._ids = []
    return other


def lane(world: World, cache: NgramCache, k: int) -> Engine:
    own = replace(world, target=again(world.target), drafter=again(world.drafter)).engine(cache, draft_length=k)
    return Engine(own.target.model, world.vocab.eos, own.attached, own.drafting, keeps=True)


def check_caches(engine: Engine, request: Request) -> None:
    """The models hold what the engine takes them to hold."""
    target: Any = engine.target
    assert target.ids == tuple(request.ids[: target.length])
    assert engine.attached is not None
    drafter: Any = engine.attached.drafter
    assert drafter.model.ids[: len(drafter._cached)] == tuple(drafter._cached)
    assert drafter._cached[: drafter._agreed] == drafter._text[drafter._base :][: drafter._agreed]


def in_turns(
    engines: Sequence[Engine], requests: Sequence[Request], check: Callable[[Engine, Request], None] = check_caches
) -> None:
    while any(request.open for request in requests):
        for engine, request in zip(engines, requests, strict=True):
            if request.open:
                engine.commit(request, engine.verify(request))
                check(engine, request)


def joint(world: World, k: int, seen: Callable[[int], None]) -> Distribution:
    """The distribution of the answers of both lanes and of the first lane's second one, one after the other."""
    cache = NgramCache(world.table, seed="vocabulary")

    def run(draw: Sampler) -> Ids:
        shared = clone(cache)
        engines = [lane(world, shared, k) for _ in ASKED]
        requests = [
            engine.begin(prompt, COUNT, SAMPLED, draw) for engine, prompt in zip(engines, ASKED.values(), strict=True)
        ]
        in_turns(engines, requests)
        follow_up = [PROMPT, *requests[0].ids[1:], 0]
        held = engines[0].common(follow_up)
        last = engines[0].begin(follow_up, 1, SAMPLED, draw)
        seen(held)
        assert engines[0].target.length == held
        in_turns(engines[:1], [last])
        return (*requests[0].ids[1:], *requests[1].ids[2:], *last.ids[len(follow_up) :])

    return distribution_of(run)


def expected(world: World) -> Distribution:
    """What the target alone says to the three requests."""
    next_token = plain_distribution(world)

    def said(before: Ids, count: int) -> Distribution:
        return first_tokens(lambda context: next_token((*before, *context)), count, ())

    return {
        (*one, *other, *last): p * q * r
        for one, p in said((), COUNT).items()
        for other, q in said((1,), COUNT).items()
        for last, r in said((*one, 0), 1).items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "k"), [(1, 1), (2, 2)])
def test_lanes_in_turns_have_the_targets_joint_distribution(seed: int, k: int) -> None:
    world = make_world("tiny", seed)
    held: list[int] = []
    found = joint(world, k, held.append)
    assert abs(sum(found.values()) - 1) < EXACT
    assert distance(found, expected(world)) < EXACT
    assert min(held) >= 1 + COUNT - 1, "the answer is not read again"


def test_a_cache_of_other_tokens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: ids are taken for those of the cache without a look."""
    monkeypatch.setattr(Engine, "common", lambda self, prompt: min(self.target.length, len(prompt) - 1))
    world = make_world("tiny", 1)
    engine = lane(world, NgramCache(world.table, seed="vocabulary"), 1)

    def answer(prompt: list[int]) -> Distribution:
        def run(draw: Sampler) -> Ids:
            request = engine.begin([PROMPT, 2, 3, 1], 1, SAMPLED, lambda weights: int(weights.argmax()))
            in_turns([engine], [request], lambda *_: None)
            request = engine.begin(prompt, 1, SAMPLED, draw)
            in_turns([engine], [request], lambda *_: None)
            return tuple(request.ids[len(prompt) :])

        return distribution_of(run)

    wanted = plain_distribution(world)((1, 2, 3))
    assert distance(answer([PROMPT, 1, 2, 3]), wanted) > 1e-3
    monkeypatch.undo()
    assert distance(answer([PROMPT, 1, 2, 3]), wanted) < EXACT
