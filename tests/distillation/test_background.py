"""The background trainer: what a flush waits for, what is left of one that dies, and its end with its parent."""

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

# a worker that takes a while for its first update, and does not come to the end of its second
SLOW = """
import time
from omnidraft.distillation import background, trainer
read = trainer.Trainer._read
def slow(self, batch):
    time.sleep(1000 if self.counters.updates else 0.1)
    return read(self, batch)
trainer.Trainer._read = slow
background.work()
"""


def learner_of(said: list[str]) -> tuple[BackgroundTrainer, NgramCache]:
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
def test_a_flush_waits_says_so_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "WORKER", SLOW)
    said: list[str] = []
    learner, cache = learner_of(said)
    learner.flush()  # until it is up
    assert learner.poll() is None
    said.clear()
    monkeypatch.setattr(background, "SAID_S", 0.3)
    learner.pause()
    teach(learner, cache, 4)
    learner.flush()  # goes on, as nobody waits for a reply
    assert (learner.counters.answers, learner.counters.updates) == (4, 1)
    assert learner.poll() is not None
    assert learner.poll() is None
    assert len(said) == 1
    assert "still learns from the last answers" in said[0]
    monkeypatch.setattr(background, "FLUSH_S", 1.0)
    teach(learner, cache, 4)
    with pytest.raises(OmniDraftError, match="was given up after"):
        learner.flush()
    assert learner.alive
    assert learner.counters.updates == 1
    learner.close()
    assert not learner.alive


@pytest.mark.slow
def test_it_stands_still_between_pause_and_resume_and_its_death_is_an_error_that_leaves_what_it_learned() -> None:
    before = set(psutil.Process().children())
    learner, cache = learner_of([])
    (process,) = set(psutil.Process().children()) - before
    learner.flush()  # until it is up
    learner.pause()
    teach(learner, cache, 4)
    for _ in range(20):  # an update takes less, on most machines
        time.sleep(0.1)
        assert (learner.counters.answers, learner.counters.updates) == (0, 0)
    learner.resume()
    deadline = time.monotonic() + 600
    while not learner.counters.updates and learner.alive and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (learner.counters.answers, learner.counters.updates) == (4, 1)
    process.kill()
    process.wait()
    assert not learner.alive
    with pytest.raises(OmniDraftError, match="the background trainer has died"):
        learner.flush()
    with pytest.raises(OmniDraftError, match="the background trainer has died"):
        teach(learner, cache, 1)
    assert learner.poll() is not None
    learner.close()


def test_without_memory_for_it_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.distillation.trainer.free_bytes", lambda _: 0)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(ModelError, match="use adapt='off'"):
        learner_of([])


# ---------------------------------------------------------------- its parent

PARENT = """
import sys, time, omnidraft
model = omnidraft.load(sys.argv[1], sys.argv[2], adapt="background", profile=None)
model.side.adaptation.flush()
stream = model.stream("hello world", max_new_tokens=40)
next(stream)
print("paused", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_a_trainer_whose_parent_was_killed_ends_by_itself(target: Path, drafter: Path, home: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(target), str(drafter)]
    with subprocess.Popen(command, env=environment(home), stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"paused\n"
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
