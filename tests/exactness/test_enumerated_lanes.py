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
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import Stream
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


def lane(world: World, cache: NgramCache, k: int) -> Lane:
    own = replace(world, target=again(world.target), drafter=again(world.drafter)).lane(cache, draft_length=k)
    return Lane(own.target.model, world.vocab.eos, own.attached, own.drafting, keeps=True)


def check_caches(stream: Stream) -> None:
    """The models hold what the lane takes them to hold."""
    target: Any = stream.lane.target
    assert target.ids == tuple(stream.request.ids[: target.length])
    assert stream.lane.attached is not None
    drafter: Any = stream.lane.attached.drafter
    assert drafter.model.ids[: len(drafter._cached)] == tuple(drafter._cached)
    assert drafter._cached[: drafter._agreed] == drafter._text[drafter._base :][: drafter._agreed]


def in_turns(streams: Sequence[Stream], check: Callable[[Stream], None] = check_caches) -> None:
    while any([stream.step() is not None for stream in streams]):  # noqa: C419  each has its turn
        for stream in streams:
            check(stream)


def joint(world: World, k: int, seen: Callable[[int], None]) -> Distribution:
    """The distribution of the answers of both lanes and of the first lane's second one, one after the other."""
    cache = NgramCache(world.table, seed="vocabulary")

    def run(draw: Sampler) -> Ids:
        shared = clone(cache)
        lanes = [lane(world, shared, k) for _ in ASKED]
        first, other = streams = [
            Stream(one, one.request(prompt, COUNT, SAMPLED, draw))
            for one, prompt in zip(lanes, ASKED.values(), strict=True)
        ]
        in_turns(streams)
        follow_up = [PROMPT, *first.request.ids[1:], 0]
        seen(lanes[0].common(follow_up))
        last = Stream(lanes[0], lanes[0].request(follow_up, 1, SAMPLED, draw))
        in_turns([last])
        return (*first.request.ids[1:], *other.request.ids[2:], *last.request.ids[len(follow_up) :])

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
    monkeypatch.setattr(Lane, "common", lambda self, prompt: min(self.target.length, len(prompt) - 1))
    world = make_world("tiny", 1)
    one = lane(world, NgramCache(world.table, seed="vocabulary"), 1)

    def answer(prompt: list[int]) -> Distribution:
        def run(draw: Sampler) -> Ids:
            before = one.request([PROMPT, 2, 3, 1], 1, SAMPLED, lambda weights: int(weights.argmax()))
            request = one.request(prompt, 1, SAMPLED, draw)
            for each in (before, request):
                in_turns([Stream(one, each)], lambda _: None)
            return tuple(request.ids[len(prompt) :])

        return distribution_of(run)

    wanted = plain_distribution(world)((1, 2, 3))
    assert distance(answer([PROMPT, 1, 2, 3]), wanted) > 1e-3
    monkeypatch.undo()
    assert distance(answer([PROMPT, 1, 2, 3]), wanted) < EXACT
