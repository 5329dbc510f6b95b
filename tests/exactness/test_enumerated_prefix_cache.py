"""Lanes that take over what others have read, on table models: the joint distribution of three answers.

Two lanes answer prompts that begin alike, one after the other, then the first goes on with a third, whose beginning
the second has read.  Blocks hold two ids, and few of them are kept.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from exactness.test_planted_faults import PLAIN, Rewrite
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.models import prefix_cache
from omnidraft.models.prefix_cache import PrefixCache
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

PROMPTS = ([PROMPT, 1, 2, 3, 0], [PROMPT, 1, 2, 3, 1, 1])
COUNT = 1  # token of an answer


@dataclass(eq=False)
class Block:
    """A block of two ids, and all before it."""

    text: Ids
    nbytes: int = 1


class SharingTable(TableModel):
    """A table model whose text others can take over."""

    block = 2

    def share(self, at: int) -> Block:
        return Block(self.ids[: (at + 1) * self.block])

    def adopt(self, blocks: Sequence[Block], length: int, held: int = 0) -> None:
        assert list(self.ids[:held]) == list(blocks[-1].text[:held]), "what it is said to hold already"
        self._ids = list(blocks[-1].text[:length])

    def data_of(self, block: Block) -> memoryview:
        raise NotImplementedError

    def block_of(self, data: bytes) -> Block:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "WORTH", 1)


def sharing(model: TableModel, name: bytes) -> SharingTable:
    other = copy.copy(model)
    other.__class__ = SharingTable
    other._ids, other.identity = [], name
    return other  # type: ignore[return-value]


def joint(world: World, k: int, limit: int, held: list[int]) -> Distribution:
    cache = NgramCache(world.table, seed="vocabulary")

    def run(draw: Sampler) -> Ids:
        kept, shared = PrefixCache(limit), clone(cache)
        lanes = []
        for _ in range(2):
            own = replace(world, target=sharing(world.target, b"t"), drafter=sharing(world.drafter, b"d"))
            made = own.lane(shared, draft_length=k)
            model = made.target.model
            lanes.append(Lane(model, world.vocab.eos, made.attached, made.drafting, keeps=True, prefix_cache=kept))
        answers = [answer(lane, prompt, draw, held) for lane, prompt in zip(lanes, PROMPTS, strict=True)]
        last = answer(lanes[0], [*PROMPTS[1], *answers[1], 0], draw, held)
        return (*answers[0], *answers[1], *last)

    return distribution_of(run)


def answer(lane: Lane, prompt: list[int], draw: Sampler, held: list[int]) -> Ids:
    request = lane.request(prompt, COUNT, SAMPLED, draw)
    lane.begin(request)
    held.append(request.cached)
    lane.release()
    return tuple(token for record in decode(lane, prompt, COUNT, SAMPLED, draw) for token in record.emitted)


def expected(world: World) -> Distribution:
    next_token = plain_distribution(world)

    def said(before: Sequence[int]) -> Distribution:
        return first_tokens(lambda context: next_token((*before[1:], *context)), COUNT, ())

    return {
        (*one, *other, *last): p * q * r
        for one, p in said(PROMPTS[0]).items()
        for other, q in said(PROMPTS[1]).items()
        for last, r in said([*PROMPTS[1], *other, 0]).items()
    }


@pytest.mark.medium
@pytest.mark.parametrize(("seed", "k", "limit"), [(1, 1, 100), (2, 2, 100), (2, 2, 5), (3, 1, 0)])
def test_answers_on_shared_blocks_have_the_targets_joint_distribution(seed: int, k: int, limit: int) -> None:
    world, held = make_world("tiny", seed), list[int]()
    found = joint(world, k, limit, held)
    assert abs(sum(found.values()) - 1) < EXACT
    assert distance(found, expected(world)) < EXACT
    if limit > 10:
        assert set(held[1::3]) == {4}, "the second lane begins with what the first has read"
        assert set(held[2::3]) == {len(PROMPTS[1])}, "and the first with what the second has read"


def test_blocks_that_are_known_by_their_own_ids_alone_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: what came before a block is not looked at."""
    calls: list[str] = []
    Rewrite(prefix_cache._name, "before + np", "np")(monkeypatch, calls)
    kept = PrefixCache(100)
    world = make_world("tiny", 2)
    own = replace(world, target=sharing(world.target, b"t"), drafter=sharing(world.drafter, b"d"))
    made = own.lane(NgramCache(world.table, seed="vocabulary"), draft_length=1)
    lane = Lane(made.target.model, world.vocab.eos, made.attached, made.drafting, keeps=True, prefix_cache=kept)
    next_token = plain_distribution(world)

    def run(draw: Sampler) -> Ids:
        kept.trim(0)
        kept.limit = 100
        for prompt in ([PROMPT, 1, 2, 3, 0], [PROMPT, 2, 1, 1, 0]):
            list(decode(lane, prompt, 1, SAMPLED, lambda weights: int(weights.argmax())))
        last = decode(lane, [PROMPT, 2, 2, 3, 0, 1], 1, SAMPLED, draw)
        return tuple(token for record in last for token in record.emitted)

    found = distribution_of(run)
    assert calls
    wanted = first_tokens(lambda context: next_token((2, 2, 3, 0, 1, *context)), 1, ())
    assert distance(found, wanted) > PLAIN
