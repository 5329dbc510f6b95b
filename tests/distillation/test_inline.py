"""Training in the calling process: updates that would take longer than decoding wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning
from omnidraft.distillation import inline
from omnidraft.distillation import trainer as trainer_module
from omnidraft.distillation.inline import InlineTrainer
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Trainer
from omnidraft.verification.sparse_probs import SparseProbs
from support.models import random_model
from support.table_models import make_world


class Clock:
    """Seconds that pass as they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Setting:
    """An inline trainer whose passes and replies take as long as is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pass_s: float, **options: Any) -> None:
        self.clock, self.said = Clock(), list[str]()
        monkeypatch.setattr(inline, "time", self.clock)
        monkeypatch.setattr(inline, "MINOR_S", 2.0)
        self._world = make_world("nested", 0)
        self._cache = NgramCache(self._world.table, seed="vocabulary")

        def spend() -> None:
            self.clock.now += pass_s

        size = self._world.table.drafter_size
        learning = Learning(**({"interval": 2, "replays": 0} | options))
        trainer = Trainer(random_model("llama", size, 0).model, learning, np.ones(size, np.bool_), yields=spend)
        self.learner = InlineTrainer(trainer, warn=self.said.append)

    def reply(self, seconds: float) -> int:
        """Make a reply and learn from it; how many updates there were so far."""
        if seconds:
            self.learner.pause()
            self.clock.now += seconds
            self.learner.resume()
        law = SparseProbs(np.arange(4, dtype=np.int32), np.full(4, 0.25, np.float32))
        written = tuple(tuple(self._world.table.spelling(token).tolist()) for token in (1, 0))
        self.learner.teach(Trace((0,), (1, 0), written, (law, law)), self._cache)
        return self.learner.counters.updates


def test_updates_that_take_longer_than_decoding_wait_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch, pass_s=2.0, trains="drafter")
    updates = [setting.reply(1.0) for _ in range(30)]
    assert updates[:5] == [0, 1, 1, 2, 2], "what an update takes is known after two"
    waits = [updates.count(n) for n in range(2, max(updates))]
    assert waits
    assert all(6 <= wait <= 20 for wait in waits), "an update of two answers is six to ten passes"
    assert len(setting.said) == 1
    assert "updates wait for more replies" in setting.said[0]


@pytest.mark.parametrize(
    ("pass_s", "reply_s"), [(0.01, 0.02), (2.0, 20.0), (2.0, 0.0)], ids=["brief", "cheap", "untimed"]
)
def test_updates_that_cost_little_do_not_wait(monkeypatch: pytest.MonkeyPatch, pass_s: float, reply_s: float) -> None:
    setting = Setting(monkeypatch, pass_s=pass_s)
    assert [setting.reply(reply_s) for _ in range(6)] == [0, 1, 1, 2, 2, 3]
    assert setting.said == []


def test_a_flush_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch, pass_s=2.0)
    assert [setting.reply(0.1) for _ in range(7)][-1] == 2
    assert setting.learner.poll() is not None
    assert setting.learner.poll() is None
    setting.learner.flush()
    assert setting.learner.counters.updates == 3
    assert setting.learner.poll() is not None


def test_waiting_for_memory_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(monkeypatch, pass_s=0.0, trains="drafter")
    monkeypatch.setattr(trainer_module, "SPARE_BYTES", 2**62)
    for _ in range(6):
        assert setting.reply(1.0) == 0
    assert len(setting.said) == 1
    assert "free memory" in setting.said[0]


def test_the_head_is_handed_over_though_an_update_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "ROLLBACK_MARGIN", 0.0)
    setting = Setting(monkeypatch, pass_s=0.0, learning_rate=1.0)
    for _ in range(2):
        setting.reply(1.0)
    assert setting.learner.counters.rolled_back == setting.learner.counters.updates == 1
    state = setting.learner.poll()
    assert state is not None
    assert any(name.startswith("acceptance_head.") for name in state)
    assert all(bool(torch.isfinite(weight).all()) for weight in state.values())
