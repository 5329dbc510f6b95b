"""The background trainer: a flush waits while there is progress, and the process ends with its parent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning
from omnidraft.distillation import background
from omnidraft.distillation.background import BackgroundTrainer
from omnidraft.distillation.teacher import Trace
from omnidraft.errors import ModelError, OmniDraftError
from omnidraft.verification.sparse_probs import SparseProbs
from support.models import random_model
from support.project_files import environment
from support.table_models import make_world

# a worker whose passes take half a second each, or of which one never ends
SLOW = """
import time
from omnidraft.distillation import background, trainer
passed = trainer.Trainer._pass
def slow(self, examples):
    time.sleep({seconds} if self.counters.updates >= {updates} else 0)
    return passed(self, examples)
trainer.Trainer._pass = slow
background.work()
"""


def learner_of(
    monkeypatch: pytest.MonkeyPatch, said: list[str], *, seconds: float = 0.0, updates: int = 0
) -> tuple[BackgroundTrainer, NgramCache]:
    monkeypatch.setattr(background, "WORKER", SLOW.format(seconds=seconds, updates=updates))
    world = make_world("nested", 0)
    model = random_model("llama", world.table.drafter_size, 0).model
    learning = Learning(interval=4, trains="drafter")
    return BackgroundTrainer(model, learning, world.table, warn=said.append), NgramCache(world.table, seed="vocabulary")


def teach(learner: BackgroundTrainer, cache: NgramCache, count: int) -> None:
    """Teach a text of two tokens so many times."""
    p = SparseProbs(np.arange(4, dtype=np.int32), np.full(4, 0.25, np.float32))
    written = tuple(tuple(cache.table.spelling(token).tolist()) for token in (1, 0))
    for _ in range(count):
        learner.teach(Trace((0,), (1, 0), written, (p, p)), cache)


@pytest.mark.slow
def test_a_flush_waits_as_long_as_there_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    learner, cache = learner_of(monkeypatch, said, seconds=0.5)
    learner.flush()  # until it is up
    said.clear()
    monkeypatch.setattr(background, "STALLED_S", 6.0)
    monkeypatch.setattr(background, "SAID_S", 1.0)
    learner.pause()
    teach(learner, cache, 4)
    learner.flush()  # four passes before, eight of learning, and four after: 8 s
    assert learner.counters.updates == 1
    assert learner.poll() is not None
    assert len(said) == 1
    assert "still learns from the last answers" in said[0]
    learner.close()


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "seconds"), [("STALLED_S", 1000.0), ("FLUSH_S", 0.5)], ids=["stalled", "too long"])
def test_a_flush_that_is_given_up_leaves_what_was_learned(
    monkeypatch: pytest.MonkeyPatch, limit: str, seconds: float
) -> None:
    learner, cache = learner_of(monkeypatch, [], seconds=seconds, updates=1)
    learner.flush()
    teach(learner, cache, 12)
    monkeypatch.setattr(background, limit, 5.0)
    with pytest.raises(OmniDraftError, match="was given up after"):
        learner.flush()
    assert learner.alive
    assert learner.counters.updates >= 1
    assert learner.poll() is not None
    learner.close()
    assert not learner.alive


def test_without_memory_for_it_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.distillation.trainer.free_bytes", lambda _: 0)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(ModelError, match="use adapt='off'"):
        learner_of(monkeypatch, [])


# ---------------------------------------------------------------- its parent

PARENT = """
import sys, time, omnidraft
model = omnidraft.load(sys.argv[1], sys.argv[2], adapt="background", interval=1, profile=None)
if sys.argv[3] == "paused":
    model.generate("hello world", max_new_tokens=8)
    model.side.adaptation.flush()
    model.generate("hello world", max_new_tokens=8)
    stream = model.stream("hello world", max_new_tokens=40)
    next(stream)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["starting", "paused"])
def test_a_trainer_whose_parent_was_killed_ends_by_itself(target: Path, drafter: Path, home: Path, state: str) -> None:
    command = [sys.executable, "-c", PARENT, str(target), str(drafter), state]
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"ready\n"
            (worker,) = psutil.Process(parent.pid).children()
            assert worker.is_running()
        finally:
            parent.kill()
    deadline = time.monotonic() + 60
    while alive(worker):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def alive(process: psutil.Process) -> bool:
    try:
        # what nobody waits for stays as a zombie where the first process of a container reaps none
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
