"""A target that goes back to a checkpoint, and reads again what was accepted since, keeps the law of its text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.enumeration import EXACT, distance, plain_distribution, run_distribution
from support.table_models import SHAPES, Ids, TableModel, World, frozen_cache, make_world

COUNT = 3  # tokens of a run: a rejection, and a round that reads again


class Settled(TableModel):
    """A table whose crops go back to where all tokens were committed last."""

    hybrid = True

    def __init__(self, source: TableModel) -> None:
        vars(self).update(vars(source), _ids=[])
        self._settled = self.again = 0

    def crop(self, length: int) -> None:
        if length < self.length:
            length = self._settled = min(length, self._settled)
        self._settled = max(self._settled, length)
        super().crop(length)

    def forward(self, ids: Any, keep: int) -> torch.Tensor:
        self.again += max(0, len(ids) - keep)
        return super().forward(ids, keep)


class Forgetting(Settled):
    """One that has lost a token, and says that it has it."""

    def crop(self, length: int) -> None:
        before, self._ids = self._ids, self._ids[:]
        super().crop(length)
        if len(self._ids) < min(length, len(before)):
            self._ids = before[:length][:-1] + before[:1]


def law(world: World, count: int) -> dict[Ids, float]:
    """The target's own distribution of the first tokens."""
    step, done = plain_distribution(world), dict[Ids, float]()
    todo: dict[Ids, float] = {(): 1.0}
    while todo:
        context, mass = todo.popitem()
        if len(context) == count or (context and context[-1] in world.vocab.eos):
            done[context] = mass
            continue
        todo |= {context + token: mass * p for token, p in step(context).items()}
    return done


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_whole_runs_have_the_targets_distribution(shape: str, length: int) -> None:
    world = make_world(shape, seed=length)
    target = Settled(world.target)
    engine = replace(world, target=target).engine(frozen_cache(world, "all"), draft_length=length)
    assert distance(run_distribution(engine, COUNT), law(world, COUNT)) < EXACT
    assert target.again > 0


def test_the_check_notices_a_state_that_is_not_that_of_the_text() -> None:
    far = 0.0
    for shape in SHAPES:
        world = make_world(shape, seed=1)
        engine = replace(world, target=Forgetting(world.target)).engine(frozen_cache(world, "all"), draft_length=2)
        far = max(far, distance(run_distribution(engine, COUNT), law(world, COUNT)))
    assert far > 0.01
