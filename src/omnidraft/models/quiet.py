"""Reports of transformers, which are for its own users."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


def silence(*, bars: bool) -> None:
    """Silence the advice of transformers from now on, and its progress bars unless they are asked for.

    It is not imported for that, as not every model needs it: it reads these variables when it is.
    """
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if not bars:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    if "transformers" in sys.modules:
        from transformers.utils import logging as reports

        reports.set_verbosity_error()
        if not bars:
            reports.disable_progress_bar()


class _Silence:
    """The reports of transformers, silenced by any number of threads at a time."""

    def __init__(self) -> None:
        self._reports = logging.getLogger("transformers")
        self._lock = Lock()
        self._inside = 0
        self._level = logging.NOTSET

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._level = self._reports.level
            self._inside += 1
            if self._level != logging.NOTSET:  # else it has not been imported, and will set its own level
                self._reports.setLevel(logging.ERROR)

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._level != logging.NOTSET:
                self._reports.setLevel(self._level)


_silence = _Silence()


@contextmanager
def silenced() -> Iterator[None]:
    """Silence the reports of transformers inside, if it has been imported.

    Nothing is imported for that: another thread may be at it, and two that import parts of transformers get half of it.
    """
    _silence.enter()
    try:
        yield
    finally:
        _silence.leave()
