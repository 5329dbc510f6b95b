"""Training in the calling process: what is handed over, and what is said."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning
from omnidraft.distillation import trainer as trainer_module
from omnidraft.distillation.inline_trainer import InlineTrainer
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Trainer
from omnidraft.verification.sparse_probs import SparseProbs
from support.models import random_model
from support.table_models import make_world


class Setting:
    """An inline trainer, and answers that it is taught."""

    def __init__(self, **options: Any) -> None:
        self.said: list[str] = []
        self._world = make_world("nested", 0)
        self._cache = NgramCache(self._world.table, seed="vocabulary")
        learning = Learning(**({"update_every": 2, "replay_steps": 0} | options))
        model = random_model("llama", self._world.table.drafter_size, 0).model
        self.learner = InlineTrainer(Trainer(model, learning), warn=self.said.append)

    def reply(self) -> int:
        """Learn from a reply; how many updates there were so far."""
        law = SparseProbs(np.arange(4, dtype=np.int32), np.full(4, 0.25, np.float32))
        written = tuple(tuple(self._world.table.spelling(token).tolist()) for token in (1, 0))
        self.learner.teach(Trace((0,), (1, 0), written, (law, law)), self._cache)
        return self.learner.counters.updates


@pytest.mark.medium
def test_updates_are_made_where_they_are_due_and_in_a_flush() -> None:
    setting = Setting()
    assert [setting.reply() for _ in range(7)] == [0, 1, 1, 2, 2, 3, 3]
    assert setting.learner.poll() is not None
    assert setting.learner.poll() is None
    setting.learner.flush()
    assert setting.learner.counters.updates == 4
    assert setting.learner.poll() is not None
    assert setting.said == []


def test_waiting_for_memory_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(train="drafter")
    monkeypatch.setattr(trainer_module, "SPARE_BYTES", 2**62)
    for _ in range(6):
        assert setting.reply() == 0
    assert len(setting.said) == 1
    assert "free memory" in setting.said[0]


def test_the_head_is_handed_over_though_an_update_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "ROLLBACK_MARGIN", 0.0)
    setting = Setting(learning_rate=1.0)
    for _ in range(2):
        setting.reply()
    assert setting.learner.counters.rolled_back == setting.learner.counters.updates == 1
    learned = setting.learner.poll()
    assert learned is not None
    state = learned.state
    assert any(name.startswith("acceptance_head.") for name in state)
    assert all(bool(torch.isfinite(weight).all()) for weight in state.values())


def test_a_flush_waits_for_an_update_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    setting, inside = Setting(), list[str]()
    other = threading.Thread(target=setting.learner.flush)
    update = Trainer.update

    def watched(trainer: Trainer) -> bool:
        inside.append("begin")
        if len(inside) == 1:
            other.start()
            other.join(0.2)  # it has to wait
        changed = update(trainer)
        inside.append("end")
        return changed

    monkeypatch.setattr(Trainer, "update", watched)
    setting.reply()
    setting.reply()
    other.join()
    assert inside == ["begin", "end"] * 2
