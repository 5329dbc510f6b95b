"""Processes forked once models are there: a fork copies no threads, and torch would wait for its own without end."""

from __future__ import annotations

import os
import threading
from functools import cache, partial
from typing import Self

import torch

from omnidraft import systems
from omnidraft.errors import OmniDraftError


@cache
def mind_forks() -> None:
    """Have processes that are forked from now on compute with one thread of torch's, the only one that they have."""
    systems.after_fork(partial(torch.set_num_threads, 1))


class ForkLock:
    """A re-entrant lock; where it was held at a fork, the new process gets an OmniDraftError, as nobody releases it."""

    def __init__(self) -> None:
        self._lock, self._process = threading.RLock(), os.getpid()

    def acquire(self, timeout: float = -1) -> bool:
        """Wait for the lock, at most `timeout` seconds; return True if it was acquired."""
        if self._process == os.getpid():
            return self._lock.acquire(timeout=timeout)
        if not self._lock.acquire(blocking=False):
            fix = "fork while they are idle, or load them in the new process"
            raise OmniDraftError(f"this process was forked while another thread used the models: {fix}")
        self._process = os.getpid()
        return True

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
