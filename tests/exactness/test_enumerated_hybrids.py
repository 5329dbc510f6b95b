"""A target that goes back to a checkpoint, and reads again what was accepted since, keeps the law of its text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from support.enumeration import EXACT, distance, first_tokens, plain_distribution, run_distribution
from support.table_models import SHAPES, TableModel, World, frozen_cache, make_world

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


def deviation(world: World, kind: type[Settled], length: int) -> tuple[float, int]:
    """From the target's own distribution, and how many tokens were read again."""
    target = kind(world.target)
    lane = replace(world, target=target).lane(frozen_cache(world, "all"), draft_length=length)
    law = first_tokens(plain_distribution(world), COUNT, world.vocab.eos)
    return distance(run_distribution(lane, COUNT), law), target.again


@pytest.mark.medium
@pytest.mark.parametrize(("shape", "length"), [*((shape, 2) for shape in SHAPES), ("tiny", 1), ("nested", 1)])
def test_whole_runs_have_the_targets_distribution(shape: str, length: int) -> None:
    off, again = deviation(make_world(shape, seed=length), Settled, length)
    assert off < EXACT
    assert again > 0


@pytest.mark.slow
def test_the_check_notices_a_state_that_is_not_that_of_the_text() -> None:
    assert any(deviation(make_world(shape, seed=1), Forgetting, 2)[0] > 0.01 for shape in SHAPES)
