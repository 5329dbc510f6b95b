"""Training in the calling process, between replies."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.distillation.lora import Weights
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Counters, Trainer

_log = logging.getLogger("omnidraft")
MAX_COST = 1.0  # seconds of updates per second of decoding
MINOR_S = 2.0  # an update that takes less never waits


class InlineTrainer:
    """A `Learner` that trains where it is called, and is deterministic as long as updates cost less than decoding.

    All that an update can save is decoding time.  So one that would take longer than the replies since the last update
    did, going by the quicker of the last two, waits for more replies, and `warn` is told once.
    """

    def __init__(self, trainer: Trainer, warn: Callable[[str], None] = _log.warning) -> None:
        self._trainer, self._warn = trainer, warn
        self._changed = False
        self._warned = False
        self._paused_at: float | None = None
        self._decoding_s = 0.0  # of replies since the last update; 0 where none was timed
        self._update_s: deque[float] = deque([0.0], maxlen=2)  # of the last two updates

    @property
    def counters(self) -> Counters:
        return self._trainer.counters

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        """Learn from an answer, and update the weights where an update is due and affordable."""
        self._trainer.teach(trace, cache)
        if self._trainer.due and self._affordable():
            self._update()

    def poll(self) -> Weights | None:
        """The state after the last update, once; None where nothing changed."""
        changed, self._changed = self._changed, False
        return self._trainer.state() if changed else None

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None:  # noqa: ARG002
        """Update the weights now."""
        self._update()

    def pause(self) -> None:
        """Note that a reply begins."""
        self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Note that the reply has ended."""
        if self._paused_at is not None:
            self._decoding_s += time.perf_counter() - self._paused_at
            self._paused_at = None

    def close(self) -> None:
        """Do nothing: there is no process to end."""

    def _affordable(self) -> bool:
        cost = min(self._update_s)  # of which the slower may have met other work
        if self._decoding_s == 0 or cost <= max(MINOR_S, MAX_COST * self._decoding_s):
            return True
        if not self._warned:
            self._warn(
                f"an update of the drafter takes {cost:.1f} s, the replies since the last one took "
                f"{self._decoding_s:.1f} s: updates wait for more replies; use adapt='background', or a smaller drafter"
            )
        self._warned = True
        return False

    def _update(self) -> None:
        began, paused = time.perf_counter(), self.counters.paused
        changed = self._trainer.update()
        self._changed |= changed or self._trainer.head_changed  # the head is kept where an update is rolled back
        if self.counters.paused == paused:
            self._update_s.append(time.perf_counter() - began)
            self._decoding_s = 0.0
        elif paused == 0:
            self._warn("an update of the drafter waits for free memory: use a smaller drafter, or adapter='lora'")
