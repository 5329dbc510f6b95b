"""Lines of progress for commands that take minutes."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

EVERY_S = 10.0  # between lines


def progress(console: Console, task: str, steps: int) -> Callable[[], None]:
    """A function to call after each step; every EVERY_S seconds it prints the steps done and the time left."""
    began = said = time.perf_counter()
    done = 0

    def step() -> None:
        nonlocal done, said
        done += 1
        now = time.perf_counter()
        if now - said >= EVERY_S:
            said = now
            left = (now - began) / done * (steps - done)
            console.print(f"{task}: {done} of {steps}, about {left:.0f} s left")

    return step
