"""Training in the calling process, between replies."""

from __future__ import annotations

import logging
from collections.abc import Callable

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.distillation.online_adaptation import Learned
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Counters, Trainer
from omnidraft.models.forks import ForkLock

_log = logging.getLogger("omnidraft")


class InlineTrainer:
    """A `Learner` that trains where it is called, and is deterministic; `warn` is told once where memory is short."""

    def __init__(self, trainer: Trainer, warn: Callable[[str], None] = _log.warning) -> None:
        self._trainer, self._warn = trainer, warn
        self._lock = ForkLock()  # one thread may end the model that another decodes with

    @property
    def counters(self) -> Counters:
        return self._trainer.counters

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Learn from an answer, and update the weights where an update is due."""
        with self._lock:
            self._trainer.teach(trace, cache)
            if self._trainer.due:
                self.flush()

    def poll(self) -> Learned | None:
        """The state after the last update, once; None where nothing changed."""
        with self._lock:
            state = self._trainer.poll()
        return None if state is None else Learned(state)

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:  # noqa: ARG002
        """Update the weights now."""
        with self._lock:
            waited = self.counters.paused
            self._trainer.update()
        if not waited and self.counters.paused:
            self._warn("an update of the drafter waits for free memory: use a smaller drafter, or adapter='lora'")

    def pause(self) -> None:
        """Do nothing: it trains between replies only."""

    def resume(self) -> None:
        """Do nothing, as `pause`."""

    def close(self) -> None:
        """Do nothing: there is no process to end."""
