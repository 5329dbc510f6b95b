"""The command line in a test: its environment, and its lines on stderr."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def environment(home: Path) -> dict[str, str]:
    """The environment of a process that runs `python -m omnidraft`."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "OMNIDRAFT_HOME": str(home), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def lines(text: str) -> list[str]:
    """Lines on stderr without the progress bars of transformers."""
    return [line for line in text.splitlines() if "Loading weights" not in line]
