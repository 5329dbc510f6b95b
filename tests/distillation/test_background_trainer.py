"""The background trainer: what a flush waits for, what is left of one that dies, and its end with its parent."""

from __future__ import annotations

import io
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import psutil
import pytest

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.attach import LearningPlan, make_learner
from omnidraft.config import Learning
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation import background_trainer
from omnidraft.distillation.background_trainer import BackgroundTrainer
from omnidraft.distillation.online_adaptation import Learned
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Counters
from omnidraft.errors import ModelError, OmniDraftError
from omnidraft.models.loading import LoadedModel, load_skeleton
from omnidraft.verification.sparse_probs import SparseProbs
from support.homes import with_native
from support.models import random_model
from support.project_files import environment
from support.table_models import make_world
from support.waiting import until

# a worker that comes to the end of its first update once a file is there, and never to that of its second
SLOW = """
import time
from pathlib import Path
from omnidraft.distillation import trainer
from omnidraft.distillation import background_trainer
read = trainer.Trainer.read
def slow(self, *batch):
    while self.counters.updates or not Path({go!r}).exists():
        time.sleep(0.01)
    return read(self, *batch)
trainer.Trainer.read = slow
background_trainer.work()
"""
# a worker that makes a file where it stands still
STILL = """
import threading
from pathlib import Path
from types import SimpleNamespace
from omnidraft.distillation import background_trainer
class Noted(threading.Event):
    def wait(self, timeout=None):
        if not self.is_set():
            Path({stands!r}).touch()
        return super().wait(timeout)
background_trainer.threading = SimpleNamespace(Event=Noted, Thread=threading.Thread)
background_trainer.work()
"""


def learner_of(said: list[str]) -> tuple[BackgroundTrainer, NgramCache]:
    world = make_world("nested", 0)
    model = random_model("llama", world.table.drafter_size, 0).model
    learning = Learning(update_every=4, train="drafter")
    return BackgroundTrainer(model, learning, world.table, warn=said.append), NgramCache(world.table, seed="vocabulary")


def teach(learner: BackgroundTrainer, cache: NgramCache, count: int) -> None:
    """Teach a text of two tokens so many times."""
    p = SparseProbs(np.arange(4, dtype=np.int32), np.full(4, 0.25, np.float32))
    written = tuple(tuple(cache.table.spelling(token).tolist()) for token in (1, 0))
    for _ in range(count):
        learner.teach(Trace((0,), (1, 0), written, (p, p)), cache)


@pytest.mark.slow
def test_a_flush_waits_says_so_and_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = tmp_path / "go"
    monkeypatch.setattr(background_trainer, "WORKER", SLOW.format(go=str(go)))
    said: list[str] = []
    learner, cache = learner_of(said)
    learner.flush()  # until it is up
    assert learner.poll() is None
    said.clear()
    monkeypatch.setattr(background_trainer, "SAID_S", 0.0)
    learner.pause()
    teach(learner, cache, 4)
    looks: list[int] = []

    def look() -> None:
        looks.append(len(said))
        if len(looks) == 3:
            go.touch()

    learner.flush(look)  # goes on, as nobody waits for a reply
    assert (learner.counters.answers, learner.counters.updates) == (4, 1)
    assert learner.poll() is not None
    assert learner.poll() is None
    assert looks[:3] == [0, 1, 1]
    assert len(said) == 1
    assert "still learns from the last answers" in said[0]
    monkeypatch.setattr(background_trainer, "FLUSH_S", 0.0)
    teach(learner, cache, 4)
    with pytest.raises(OmniDraftError, match="was given up after"):
        learner.flush()
    assert learner.alive
    assert learner.counters.updates == 1
    learner.close()
    assert not learner.alive


@pytest.mark.slow
def test_it_stands_still_between_pause_and_resume_and_its_death_is_an_error_that_leaves_what_it_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands = tmp_path / "stands"
    monkeypatch.setattr(background_trainer, "WORKER", STILL.format(stands=str(stands)))
    before = set(psutil.Process().children())
    learner, cache = learner_of([])
    (process,) = set(psutil.Process().children()) - before
    learner.flush()  # until it is up
    learner.pause()
    teach(learner, cache, 4)
    until(lambda: stands.exists() or learner.counters.answers)
    assert (learner.counters.answers, learner.counters.updates) == (0, 0)
    learner.resume()
    until(lambda: learner.counters.updates or not learner.alive)
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


def test_updates_are_counted_once_their_state_can_be_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a save could take the state before for that of all updates, and the last one would not be saved."""
    messages, counted = queue.SimpleQueue[object](), list[int]()
    states = SimpleNamespace(append=lambda _: counted.append(learner.counters.updates))
    monkeypatch.setattr(background_trainer, "WORKER", "")
    monkeypatch.setattr(background_trainer, "_received", lambda _: messages.get())
    monkeypatch.setattr(background_trainer, "deque", lambda **_: states)
    learner: BackgroundTrainer = learner_of([])[0]
    messages.put(background_trainer._Progress(Counters(updates=1), Learned({}), flushed=True))  # noqa: SLF001
    messages.put(None)
    assert learner._flushed.wait(60)  # noqa: SLF001
    assert (counted, learner.counters.updates) == ([0], 1)
    learner.close()


def test_without_memory_for_it_no_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.distillation.trainer.free_bytes", lambda _: 0)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    plan = LearningPlan(adapt="background", learning={}, warn=pytest.fail)
    lm, table = random_model("llama", 8, 0), make_world("nested").table
    with pytest.raises(ModelError, match="use adapt='off'"):
        make_learner(LoadedModel(lm, None, "m", ""), table, plan, Learning(), {}, SharedDrafter(lm))


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_any_more_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    learner = BackgroundTrainer(partial(load_skeleton, Path("gone.gguf")), Learning(), make_world("nested").table)
    until(lambda: not learner.alive)
    learner.close()
    assert capfd.readouterr().err == (
        "omnidraft: model 'gone.gguf' is no file or folder that exists: give a folder with a config.json, a GGUF file "
        "or a hub id, owner/name\n"
    )


# ---------------------------------------------------------------- what waits

SIZES = {"first": 6, "second": 4, "third": 8}  # bytes


class Sized(background_trainer._Taught):  # noqa: SLF001
    """An answer whose size can be asked for only after `beside` was called, as if another thread came in between."""

    beside: ClassVar[Callable[[object], None]]

    @property
    def nbytes(self) -> int:
        type(self).beside(self.trace)
        return SIZES[str(self.trace)]


def test_what_comes_while_an_answer_is_begun_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    table, model = make_world("nested", 0).table, random_model("llama", 8, 0).model
    active = NgramCache(table).active
    first, second, third = (Sized(name, active) for name in SIZES)  # type: ignore[arg-type]
    incoming, asks = queue.SimpleQueue[object](), threading.Semaphore(0)
    learned: list[str] = []

    def received(_: object) -> object:
        asks.release()  # the message before has been seen to
        return incoming.get()

    def hear(message: object) -> None:
        incoming.put(message)
        assert asks.acquire(timeout=60)

    class Listening:
        due, head_changed, counters = False, False, None

        def teach(self, trace: str, _: object) -> None:
            learned.append(trace)
            if trace == "first":  # and the second waits
                hear(third)
                hear(background_trainer._Signal.FLUSH)  # noqa: SLF001

        def update(self) -> bool:
            raise EOFError  # all that waited was learned from

    began = list[object]()

    def beside(trace: object) -> None:
        if trace == "first" and threading.current_thread() is threading.main_thread() and not began:
            began.append(trace)
            hear(second)

    monkeypatch.setattr(Sized, "beside", beside, raising=False)
    monkeypatch.setattr(background_trainer, "_received", received)
    monkeypatch.setattr(background_trainer, "Trainer", lambda *_, **__: Listening())
    monkeypatch.setattr(background_trainer, "REPLAY_BYTES", 10)
    worker = background_trainer._Worker(io.BytesIO(), io.BytesIO(), model, Learning(), table, None)  # noqa: SLF001
    assert asks.acquire(timeout=60)
    hear(first)
    with pytest.raises(EOFError):
        worker.run()
    assert learned == ["first", "second"], "4 bytes waited, which 8 more do not fit beside"


# ---------------------------------------------------------------- its parent

PARENT = """
import sys, time, omnidraft
model = omnidraft.load(sys.argv[1], sys.argv[2], adapt="background", profile=None)
model.adaptive.adaptation.flush()
stream = model.stream("hello world", max_new_tokens=40)
next(stream)
print("paused", flush=True)
time.sleep(100)
"""


@pytest.mark.slow
def test_a_trainer_whose_parent_was_killed_ends_by_itself(target: Path, drafter: Path, home: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(target), str(drafter)]
    with subprocess.Popen(command, env=environment(with_native(home)), stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"paused\n"
            (worker,) = psutil.Process(parent.pid).children()
            assert worker.is_running()
        finally:
            parent.kill()
    until(lambda: not alive(worker))


def alive(process: psutil.Process) -> bool:
    try:
        # what nobody waits for stays as a zombie where the first process of a container reaps none
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
