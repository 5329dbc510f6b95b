"""Counting forward passes, pricing them, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omnidraft.bench.passes import Costs, Pass, Prober, between, counting, covering
from omnidraft.errors import InputError
from omnidraft.models.cpu_llama import LeanLlama
from support.engines import generate
from support.models import random_model

POINTS = [(1, 1.0), (2, 2.0), (4, 3.0)]


def test_costs_lie_on_lines_between_the_probes() -> None:
    assert [between(POINTS, size) for size in (1, 2, 3, 4, 6)] == [1.0, 2.0, 2.5, 3.0, 4.0]
    assert between(POINTS[:1], 7) == 1.0


def test_the_sizes_probed_cover_those_that_occurred() -> None:
    assert covering([1]) == [1]
    assert covering([3, 7]) == [3, 4, 5, 6, 8]
    assert covering([40]) == [32, 64]
    assert covering([]) == []


def test_passes_are_priced_by_where_they_are() -> None:
    costs = Costs({(True, True): [(8, 10.0), (16, 20.0)], (False, False): POINTS, (False, True): [(1, 0.5), (3, 1.5)]})
    made = [Pass(12, 0), Pass(1, 12), Pass(3, 13, last=False), Pass(3, 15, last=False), Pass(2, 18)]
    assert costs.total(made) == 15.0 + 0.5 + 2.5 + 2.5 + 1.0
    assert Pass(1, 12, last=False).kind == Pass(1, 12).kind  # one row either way
    assert costs.total([]) == 0.0


def test_a_module_is_counted_and_left_as_it_was() -> None:
    model = random_model("llama", 60, seed=1)
    with counting(model.model) as made:
        tokens = generate(model, [5, 6, 7], 4)
    assert made == [Pass(3, 0), Pass(1, 3), Pass(1, 4), Pass(1, 5)]
    assert generate(model, [5, 6, 7], 4) == tokens
    assert len(made) == 4, "nothing is counted any more"


def test_a_language_model_is_counted_and_left_as_it_was() -> None:
    model = LeanLlama(random_model("llama", 60, seed=1))
    with counting(model) as made:
        expected = model.forward([3, 4, 5], 1)
        model.forward([6, 7], 2)
    assert made == [Pass(3, 0), Pass(2, 3, last=False)]
    assert "forward" not in vars(model)
    with pytest.raises(InputError), counting(model):
        model.forward([0], 2)
    assert "forward" not in vars(model)
    model.crop(0)
    assert torch.equal(model.forward([3, 4, 5], 1), expected)
    with counting(None) as nothing:
        pass
    assert nothing == []


class Scripted:
    """A language model on a clock of its own: a pass takes as long as it has tokens, and the context a tenth."""

    def __init__(self) -> None:
        self.now, self.length, self.calls = 0.0, 0, 0
        self.kept: set[tuple[bool, int, int]] = set()  # whether it begins a text, tokens fed, rows asked for

    def forward(self, ids: Sequence[int], keep: int) -> None:
        self.kept.add((self.length == 0, len(ids), keep))
        self.calls += 1
        slow = 100.0 if self.calls < 2 else 0.0  # what comes first finds nothing ready
        self.now += len(ids) + self.length / 10 + slow
        self.length += len(ids)

    def crop(self, length: int) -> None:
        assert length <= self.length
        self.length = length


def probed(made: list[tuple[Any, list[Pass], int]]) -> list[Costs]:
    prober = Prober(made)
    prober.lap()
    return prober.costs()


def test_costs_are_medians_at_a_context_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Scripted()
    monkeypatch.setattr("omnidraft.bench.passes.time.perf_counter", lambda: model.now)
    monkeypatch.setattr("omnidraft.bench.passes.LAPS", 1)
    made = [Pass(20, 0), Pass(1, 20), Pass(2, 30, last=False), Pass(1, 40), Pass(3, 40)]
    (costs,) = probed([(model, made, 100)])
    found = {kind: dict(points) for kind, points in costs.points.items()}
    assert found[True, True] == pytest.approx({16: 16.0, 32: 32.0})
    assert found[False, True] == pytest.approx({1: 5.0, 2: 6.0, 3: 7.0})
    assert found[False, False] == pytest.approx({2: 5.0})
    assert costs.total(made) == pytest.approx(20 + 5 + 5 + 5 + 7)
    assert {(True, 16, 1), (False, 2, 1), (False, 2, 2)} <= model.kept


def test_no_probe_is_longer_than_the_context() -> None:
    model: Any = Scripted()
    (costs,) = probed([(model, [Pass(20, 0), Pass(7, 17, last=False), Pass(1, 23), Pass(1, 23)], 24)])
    sizes = {kind: [size for size, _ in points] for kind, points in costs.points.items()}
    assert sizes == {(True, True): [16, 24], (False, False): [6, 7], (False, True): [1]}


def test_real_models_are_priced(target: Path) -> None:
    from omnidraft.models.loading import load_model

    model = load_model(target, "float32").lm
    lean = LeanLlama(model)
    made = [Pass(9, 0), Pass(1, 9), Pass(3, 10, last=False)]
    for costs in probed([(model.model, made, 64), (lean, made, 64)]):
        sizes = {kind: [size for size, _ in points] for kind, points in costs.points.items()}
        assert sizes == {(True, True): [8, 10], (False, True): [1], (False, False): [3]}
        assert all(seconds > 0 for points in costs.points.values() for _, seconds in points)
        assert costs.total(made) > 0
