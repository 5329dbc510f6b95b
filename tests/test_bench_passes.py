"""Counting forward passes, pricing them, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omnidraft.bench.passes import Costs, Pass, between, counting, covering, measure
from omnidraft.errors import InputError
from omnidraft.lean import LeanLlama
from pairs import generate, random_model

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
    costs = Costs(step=POINTS, prompt=[(8, 10.0), (16, 20.0)])
    made = [Pass(12, 0), Pass(1, 12), Pass(3, 13), Pass(3, 15)]
    assert costs.total(made) == 15.0 + 1.0 + 2.5 + 2.5
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
    assert made == [Pass(3, 0), Pass(2, 3)]
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

    def forward(self, ids: Sequence[int], keep: int) -> None:
        assert keep == (len(ids) if self.length else 1), "the first of a text gives its last logits, the rest all"
        self.calls += 1
        slow = 100.0 if self.calls < 6 else 0.0  # nothing is ready in the first lap
        self.now += len(ids) + self.length / 10 + slow
        self.length += len(ids)

    def crop(self, length: int) -> None:
        assert length <= self.length
        self.length = length


def test_costs_are_medians_at_a_context_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = Scripted()
    monkeypatch.setattr("omnidraft.bench.passes.time.perf_counter", lambda: model.now)
    monkeypatch.setattr("omnidraft.bench.passes.LAPS", 1)
    made = [Pass(20, 0), Pass(1, 20), Pass(2, 30), Pass(1, 40)]
    (costs,) = measure([(model, made)], limit=100)
    assert dict(costs.step) == pytest.approx({1: 4.0, 2: 5.0})
    assert dict(costs.prompt) == pytest.approx({16: 16.0, 32: 32.0})
    assert costs.total(made) == pytest.approx(20 + 4 + 5 + 4)


def test_no_probe_is_longer_than_the_context() -> None:
    model: Any = Scripted()
    (costs,) = measure([(model, [Pass(20, 0), Pass(7, 20)])], limit=24)
    assert [size for size, _ in costs.step] == [4]
    assert [size for size, _ in costs.prompt] == [16, 24]


def test_real_models_are_priced(target: Path) -> None:
    from omnidraft.models import load_model

    model = load_model(target, "float32").lm
    lean = LeanLlama(model)
    made = [Pass(9, 0), Pass(1, 9), Pass(3, 10)]
    for costs in measure([(model.model, made), (lean, made)], limit=64):
        assert [size for size, _ in costs.step] == [1, 2, 3]
        assert [size for size, _ in costs.prompt] == [8, 10]
        assert all(seconds > 0 for _, seconds in [*costs.step, *costs.prompt])
        assert costs.total(made) > 0
