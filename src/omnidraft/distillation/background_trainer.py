"""Training beside the traffic: a low-priority process with a trainer, which stands still while a reply is made.

A process and not a thread, which would compete with the engine for the interpreter; started by `subprocess` and not by
`multiprocessing`, which would import the user's main module again.  Messages go to it in order; counters and states
come back; `online_adaptation.py` has the drafter take the weights.  It ends with its parent.
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
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from omnidraft import systems
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.config import Learning
from omnidraft.cores import threads_that_pay
from omnidraft.distillation.lora import Weights, merged, parted
from omnidraft.distillation.online_adaptation import Learned
from omnidraft.distillation.replay_buffer import REPLAY_BYTES
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Counters, Trainer
from omnidraft.errors import OmniDraftError
from omnidraft.models.native.model import native_of
from omnidraft.models.transformers_model import TransformersModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_log = logging.getLogger("omnidraft")
WORKER = "from omnidraft.distillation.background_trainer import work; work()"
DEAD = "the background trainer has died: load the models again, or use adapt='inline'"
FLUSH_S = 900.0  # that a flush takes at most
SAID_S = 10.0  # after which a flush says that it takes its time
LOOK_S = 0.2  # between looks at whether the process is alive


class _Signal(Enum):
    """A message to the process, beside answers."""

    PAUSE = auto()  # a reply is being made
    RESUME = auto()
    FLUSH = auto()  # learn from everything now, and say so


class _Taught(NamedTuple):
    """An answer, with the n-grams that were active."""

    trace: Trace
    active: npt.NDArray[np.bool_]  # (V_p,)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.active.nbytes + sum(p.tokens.nbytes + p.probs.nbytes for p in self.trace.distributions)


class _Progress(NamedTuple):
    """A message from the process: counters, a state after an update, and True at the end of a flush."""

    counters: Counters
    learned: Learned | None
    flushed: bool


class BackgroundTrainer:
    """A `Learner` with a `trainer.Trainer` in a process of its own, which `rounds` the weights for the native step.

    `model` may be what loads it: a file need then be read in that process alone.
    """

    def __init__(
        self,
        model: PreTrainedModel | Callable[[], PreTrainedModel],
        learning: Learning,
        table: SpellingTable,
        state: Weights | None = None,
        warn: Callable[[str], None] = _log.warning,
        *,
        rounds: bool = False,
    ) -> None:
        self.counters = Counters()
        self._warn = warn
        self._states: deque[Learned] = deque(maxlen=1)  # the latest, until it is polled
        self._flushed = threading.Event()
        self._messages: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603  a constant of our own
            [sys.executable, "-P", "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **systems.background_options(),  # Ctrl-C is for the parent, which says when to end
            env=os.environ
            | {
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path and isinstance(path, str)),
                "PYTHONWARNINGS": "ignore",
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            },
        )
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._write, self._read)]
        for thread in self._threads:
            thread.start()
        self._messages.put((model, learning, table, state, rounds))

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Hand over an answer and the active n-grams; raises OmniDraftError where the process has died."""
        if not self.alive:
            raise OmniDraftError(DEAD)
        self._messages.put(_Taught(trace, cache.active.copy()))

    def pause(self) -> None:
        """Stand still: a reply is being made."""
        self._messages.put(_Signal.PAUSE)

    def resume(self) -> None:
        """Train again."""
        self._messages.put(_Signal.RESUME)

    def poll(self) -> Learned | None:
        """The state after the last update, once; None where nothing changed."""
        return self._states.pop() if self._states else None

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Wait until everything taught so far is learned, and call `meanwhile` often.

        Raises OmniDraftError where the process has died or takes over FLUSH_S; the state after its last update can be
        polled all the same.
        """
        if threading.current_thread() in self._threads:  # a finalizer, where the answer would go through
            raise OmniDraftError("the last answers were not used for training: call close() before exit")
        self._flushed.clear()
        began = time.perf_counter()
        self._messages.put(_Signal.FLUSH)
        said = False
        while not self._flushed.wait(LOOK_S):
            meanwhile()
            waited = time.perf_counter() - began
            if not self.alive:
                raise OmniDraftError(DEAD)
            if waited > FLUSH_S:
                raise OmniDraftError(
                    f"the background trainer was given up after {waited:.0f} s, and what it had not learned from "
                    "is lost: pause between prompts, or use a smaller drafter"
                )
            if waited > SAID_S and not said:
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
            if progress.learned is not None:
                self._states.append(progress.learned)
            self.counters = progress.counters  # last: who saves polls what they count
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
    systems.lower_priority()
    torch.set_num_threads(max(1, threads_that_pay() // 2))
    if (start := _received(source)) is None:
        return
    try:
        worker = _Worker(source, sink, *start)
    except OmniDraftError as error:  # of memory that is used up meanwhile, or of a file that is gone
        sys.exit(f"omnidraft: {error}")
    worker.run()


class _Worker:
    """The trainer of the process, a thread that listens, and the messages between the two."""

    def __init__(
        self,
        source: IO[bytes],
        sink: IO[bytes],
        model: PreTrainedModel | Callable[[], PreTrainedModel],
        learning: Learning,
        table: SpellingTable,
        state: Weights | None,
        rounds: bool = False,
    ) -> None:
        self._model = model = cast("PreTrainedModel", model if isinstance(model, torch.nn.Module) else model())
        self._native = native_of(TransformersModel(model), drafts=True) if rounds else None
        self._source, self._sink, self._cache = source, sink, NgramCache(table)
        self._idle = threading.Event()  # no reply is being made
        self._idle.set()
        self._trainer = Trainer(model, learning, yields=self._idle.wait)
        if state is not None:
            self._trainer.load_state(state)
        self._messages: queue.SimpleQueue[_Taught | _Signal] = queue.SimpleQueue()
        # bytes of answers: each count is written by one thread alone, and the difference waits to be learned from
        self._came = self._begun = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while (message := _received(self._source)) is not None:
            if message is _Signal.PAUSE:  # heeded at once, in the middle of an update
                self._idle.clear()
            elif message is _Signal.RESUME:
                self._idle.set()
            elif message is _Signal.FLUSH:
                self._idle.set()
                self._messages.put(message)
            elif (
                self._came - self._begun + message.nbytes <= REPLAY_BYTES
            ):  # more, of replies without a pause: left out
                self._came += message.nbytes
                self._messages.put(message)
        os._exit(0)  # the parent is gone

    def run(self) -> None:
        trainer = self._trainer
        while True:
            message, learned = self._messages.get(), None
            if isinstance(message, _Taught):
                self._begun += message.nbytes
                self._idle.wait()
                self._cache.activate(message.active)
                trainer.teach(message.trace, self._cache)
            if message is _Signal.FLUSH or trainer.due:
                trainer.update()
                state = trainer.poll()
                learned = None if state is None else self._learned(state)
            progress = _Progress(trainer.counters, learned, flushed=message is _Signal.FLUSH)
            pickle.dump(progress, self._sink, pickle.HIGHEST_PROTOCOL)
            self._sink.flush()

    def _learned(self, state: Weights) -> Learned:
        """The state, with rounded weights where the drafter takes those: making them would cost time in a round."""
        if self._native is None:
            return Learned(state)
        weights = merged(dict(self._model.named_parameters()), parted(state)[0])
        return Learned(state, self._native.with_weights(weights).packed_weights())
