"""Training beside the traffic: a process of low priority that holds a trainer, and stands still while a reply is made.

A process and not a thread, which would take turns with the engine at the interpreter.  What goes to it are messages in
order; what comes back are learned states.  It ends with its parent.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.trie import SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.counters import Counters
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import Trace, lesson, shared_tokens
from omnidraft.distillation.trainer import DEFAULTS, Trainer
from omnidraft.distillation.weights import Weights
from omnidraft.errors import OmniDraftError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NICEST = 19
DEAD = "the background trainer has died: load the models again, or use adapt='inline'"
PATIENCE_S = 60.0  # with a flush
LOOK_S = 0.2  # how often somebody who waits looks whether the process is alive


@dataclass(frozen=True, eq=False)
class _Beginning:
    """All that the process needs to know at first."""

    model: PreTrainedModel
    learning: Learning
    settings: TrainerSettings
    table: SpellingTable
    state: Weights | None
    seed: int


@dataclass(frozen=True, eq=False)
class _Taught:
    answer: Trace
    active: npt.NDArray[np.bool_]  # (V_p,)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.active.nbytes + sum(law.tokens.nbytes + law.probs.nbytes for law in self.answer.laws)


@dataclass(frozen=True)
class _Busy:
    """Whether a reply is being made."""

    busy: bool


@dataclass(frozen=True)
class _Flush:
    """Learn from everything now, and say so."""


@dataclass(frozen=True, eq=False)
class _Learned:
    state: Weights | None  # None: nothing new
    counters: Counters
    flushed: bool = False


class BackgroundTrainer:
    """A trainer in a process of its own; see `trainer.Trainer`."""

    def __init__(
        self,
        model: PreTrainedModel,
        learning: Learning,
        table: SpellingTable,
        state: Mapping[str, torch.Tensor] | None = None,
        seed: int = 0,
        settings: TrainerSettings = DEFAULTS,
    ) -> None:
        self.counters = Counters()
        self._state: Weights | None = None
        self._flushed = threading.Event()
        self._lock = threading.RLock()  # a finalizer may run in the middle of what holds it
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from omnidraft.distillation.background import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the parent, which says when to end
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(part for part in sys.path if part and isinstance(part, str)),
                "PYTHONWARNINGS": "ignore",
            },
        )
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._write, self._read)]
        for thread in self._threads:
            thread.start()
        self._messages.put(_Beginning(model, learning, settings, table, None if state is None else dict(state), seed))

    def teach(self, answer: Trace, cache: NgramCache) -> None:
        """Hand over an answer and the n-grams that are active; raises OmniDraftError where the process has died."""
        if not self.alive:
            raise OmniDraftError(DEAD)
        self._messages.put(_Taught(answer, cache.active.copy()))

    def pause(self) -> None:
        """Stand still: a reply is being made."""
        self._messages.put(_Busy(busy=True))

    def resume(self) -> None:
        self._messages.put(_Busy(busy=False))

    def poll(self) -> Weights | None:
        """The state after the last update, once."""
        with self._lock:
            state, self._state = self._state, None
        return state

    def flush(self) -> None:
        """Wait until everything taught so far is learned; raises OmniDraftError where it has died or is slow."""
        if threading.current_thread() in self._threads:  # a finalizer, where the answer would go through
            raise OmniDraftError("what was said last was not learned from: close() what learns")
        self._flushed.clear()
        self._messages.put(_Flush())
        until = time.monotonic() + PATIENCE_S
        while not self._flushed.wait(LOOK_S):
            if not self.alive:
                raise OmniDraftError(DEAD)
            if time.monotonic() > until:
                raise OmniDraftError(f"the background trainer is not done after {PATIENCE_S:g} s: leave it more pauses")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process; what it has not learned yet is lost."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        self._messages.put(None)

    def _write(self) -> None:
        pipe = self._process.stdin
        try:
            while pipe is not None and (message := self._messages.get()) is not None:
                pickle.dump(message, pipe, pickle.HIGHEST_PROTOCOL)
                pipe.flush()
        except OSError:
            pass  # the process has died, which `alive` tells
        finally:  # also where a model cannot be pickled: who waits must learn of it
            if self.alive:
                self._process.kill()
            with contextlib.suppress(OSError):
                pipe and pipe.close()

    def _read(self) -> None:
        pipe = self._process.stdout
        while pipe is not None and (learned := _received(pipe)) is not None:
            with self._lock:
                self.counters = learned.counters
                self._state = self._state if learned.state is None else learned.state
            if learned.flushed:
                self._flushed.set()
        if pipe is not None:
            pipe.close()


def _received(pipe: IO[bytes]) -> Any:
    """The next message, or None where none will come."""
    try:
        return pickle.load(pipe)  # noqa: S301  from a process of our own
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        return None


# ---------------------------------------------------------------- in the process


def work() -> None:
    """What the process does: learn from what comes in on stdin, until it ends."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not be taken for a message
    with contextlib.suppress(OSError, AttributeError):  # no such thing on every system
        os.nice(NICEST)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    beginning = _received(source)
    if beginning is not None:
        _Worker(beginning, source, sink).run()


class _Worker:
    def __init__(self, beginning: _Beginning, source: IO[bytes], sink: IO[bytes]) -> None:
        self._learning, self._settings = beginning.learning, beginning.settings
        self._cache = NgramCache(beginning.table)
        self._idle = threading.Event()
        self._idle.set()
        self._trainer = Trainer(
            beginning.model,
            beginning.learning,
            shared_tokens(beginning.table),
            beginning.seed,
            beginning.settings,
            yields=self._yield,
            at_once=1,
        )
        if beginning.state is not None:
            self._trainer.load_state(beginning.state)
        self._source, self._sink = source, sink
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._waiting = 0  # bytes of answers that nobody looked at yet
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while (message := _received(self._source)) is not None:
            if isinstance(message, _Busy):  # heeded at once, in the middle of an update
                (self._idle.clear if message.busy else self._idle.set)()
            else:
                if isinstance(message, _Flush):
                    self._idle.set()
                elif isinstance(message, _Taught):
                    self._waiting += message.nbytes
                    if self._waiting > self._settings.replay_bytes:  # a reply after the other, and no pause
                        self._waiting -= message.nbytes
                        continue
                self._messages.put(message)
        os._exit(0)  # the parent is gone

    def _yield(self) -> None:
        self._idle.wait()

    def run(self) -> None:
        while True:
            message = self._messages.get()
            if isinstance(message, _Taught):
                self._waiting -= message.nbytes
                self._yield()
                self._cache.activate(message.active)
                self._trainer.add(lesson(self._cache, message.answer, self._learning, self._settings))
            flushed = isinstance(message, _Flush)
            if not flushed:
                self._trainer.train_head()
            if flushed or self._trainer.due:
                changed = self._trainer.update() or self._trainer.news
                self._send(self._trainer.state() if changed else None, flushed=flushed)

    def _send(self, state: Weights | None, *, flushed: bool) -> None:
        pickle.dump(_Learned(state, self._trainer.counters, flushed), self._sink, pickle.HIGHEST_PROTOCOL)
        self._sink.flush()
