"""Waiting for what must come, on a busy machine as well."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 240.0


def until(holds: Callable[[], object]) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)
