"""Training beside the traffic: a low-priority process with a trainer, which stands still while a reply is made.

A process and not a thread, which would compete with the engine for the interpreter; started by `subprocess` and not by
`multiprocessing`, which would import the user's main module again.  Messages go to it in order; states and signs of
progress come back.  It ends with its parent.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.config import Learning
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import Trace, shared_tokens, training_example
from omnidraft.distillation.trainer import DEFAULTS, Counters, Trainer, check_memory
from omnidraft.distillation.weights import Weights
from omnidraft.errors import OmniDraftError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger("omnidraft")
WORKER = "from omnidraft.distillation.background import work; work()"
NICENESS = 19
DEAD = "the background trainer has died: load the models again, or use adapt='inline'"
STALLED_S = 60.0  # without a sign of progress, after which a flush gives up
FLUSH_S = 900.0  # that a flush takes at most
SAID_S = 10.0  # after which a flush says that it takes its time
PROGRESS_S = 0.5  # between signs of progress
LOOK_S = 0.2  # between looks at whether the process is alive


@dataclass(frozen=True, eq=False)
class _Start:
    """What the process is made from."""

    model: PreTrainedModel
    learning: Learning
    settings: TrainerSettings
    table: SpellingTable
    state: Weights | None
    seed: int


@dataclass(frozen=True, eq=False)
class _Taught:
    """An answer, with the n-grams that were active."""

    trace: Trace
    active: npt.NDArray[np.bool_]  # (V_p,)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.active.nbytes + sum(p.tokens.nbytes + p.probs.nbytes for p in self.trace.distributions)


@dataclass(frozen=True)
class _Busy:
    """Whether a reply is being made."""

    busy: bool


@dataclass(frozen=True)
class _Flush:
    """A request to learn from everything now, and to say so."""


@dataclass(frozen=True, eq=False)
class _Progress:
    """What comes back: counters, a state after an update, and whether a flush is done."""

    counters: Counters
    state: Weights | None = None
    flushed: bool = False


class BackgroundTrainer:
    """A `Learner` with a `trainer.Trainer` in a process of its own."""

    def __init__(
        self,
        model: PreTrainedModel,
        learning: Learning,
        table: SpellingTable,
        state: Mapping[str, torch.Tensor] | None = None,
        seed: int = 0,
        settings: TrainerSettings = DEFAULTS,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        check_memory(model)
        self.counters = Counters()
        self._warn = warn
        self._state: Weights | None = None
        self._heard = time.monotonic()
        self._flushed = threading.Event()
        self._up = False  # the process has sent something
        self._lock = threading.RLock()  # a finalizer may run in the middle of what holds it
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603  a constant of our own
            [sys.executable, "-P", "-c", WORKER],
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
        self._messages.put(_Start(model, learning, settings, table, None if state is None else dict(state), seed))

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Hand over an answer and the active n-grams; raises OmniDraftError where the process has died."""
        if not self.alive:
            raise OmniDraftError(DEAD)
        self._messages.put(_Taught(trace, cache.active.copy()))

    def pause(self) -> None:
        """Stand still: a reply is being made."""
        self._messages.put(_Busy(busy=True))

    def resume(self) -> None:
        """Train again."""
        self._messages.put(_Busy(busy=False))

    def poll(self) -> Weights | None:
        """The state after the last update, once; None where nothing changed."""
        with self._lock:
            state, self._state = self._state, None
        return state

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until everything taught so far is learned, as long as there is progress, and call `meanwhile` often.

        Raises OmniDraftError where the process has died, shows no progress, or takes over FLUSH_S; the state after its
        last update can be polled all the same.
        """
        if threading.current_thread() in self._threads:  # a finalizer, where the answer would go through
            raise OmniDraftError("the last answers were not learned from: close() what learns")
        self._flushed.clear()
        began = self._heard = time.monotonic()
        self._messages.put(_Flush())
        said = False
        while not self._flushed.wait(LOOK_S):
            meanwhile()
            now = time.monotonic()
            if not self.alive:
                raise OmniDraftError(DEAD)
            if (self._up and now - self._heard > STALLED_S) or now - began > FLUSH_S:
                raise OmniDraftError(
                    f"the background trainer was given up after {now - began:.0f} s, and what it had not learned from "
                    "is lost: pause between prompts, or use a smaller drafter"
                )
            if now - began > SAID_S and not said:
                said = True
                self._warn(f"the drafter still learns from the last answers, for {FLUSH_S / 60:.0f} minutes at most")

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
        while pipe is not None and (progress := _received(pipe)) is not None:
            self._heard, self._up = time.monotonic(), True
            with self._lock:
                self.counters = progress.counters
                self._state = self._state if progress.state is None else progress.state
            if progress.flushed:
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
    """Learn from the messages on stdin, until it ends; the main function of the process."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's output must not be taken for a message
    with contextlib.suppress(OSError, AttributeError):  # not on every system
        os.nice(NICENESS)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    start = _received(source)
    if start is not None:
        _Worker(start, source, sink).run()


class _Worker:
    """The trainer of the process, a thread that listens, and the messages between the two."""

    def __init__(self, start: _Start, source: IO[bytes], sink: IO[bytes]) -> None:
        self._cache = NgramCache(start.table)
        self._idle = threading.Event()
        self._idle.set()
        shared = shared_tokens(start.table)
        self._trainer = Trainer(
            start.model, start.learning, shared, start.seed, start.settings, yields=self._yield, per_pass=1
        )
        if start.state is not None:
            self._trainer.load_state(start.state)
        self._source, self._sink = source, sink
        self._sent = time.monotonic()
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._waiting = 0  # bytes of answers that wait to be learned from
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while (message := _received(self._source)) is not None:
            if isinstance(message, _Busy):  # heeded at once, in the middle of an update
                (self._idle.clear if message.busy else self._idle.set)()
                continue
            if isinstance(message, _Flush):
                self._idle.set()
            elif isinstance(message, _Taught):
                if self._waiting + message.nbytes > self._trainer.settings.replay_bytes:  # replies without a pause
                    continue
                self._waiting += message.nbytes
            self._messages.put(message)
        os._exit(0)  # the parent is gone

    def _yield(self) -> None:
        self._idle.wait()
        if time.monotonic() > self._sent + PROGRESS_S:
            self._send()

    def run(self) -> None:
        trainer = self._trainer
        self._send()  # started, which may have taken long on a busy machine
        while True:
            message = self._messages.get()
            if isinstance(message, _Taught):
                self._waiting -= message.nbytes
                self._yield()
                self._cache.activate(message.active)
                trainer.add(training_example(self._cache, message.trace, trainer.learning, trainer.settings))
                trainer.train_head()
            flushed = isinstance(message, _Flush)
            if flushed or trainer.due:
                changed = trainer.update() or trainer.head_changed
                self._send(trainer.state() if changed else None, flushed=flushed)

    def _send(self, state: Weights | None = None, *, flushed: bool = False) -> None:
        pickle.dump(_Progress(self._trainer.counters, state, flushed), self._sink, pickle.HIGHEST_PROTOCOL)
        self._sink.flush()
        self._sent = time.monotonic()
