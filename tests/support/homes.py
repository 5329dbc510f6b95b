"""Homes of processes that tests start."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NATIVE = "OMNIDRAFT_TESTS_NATIVE"  # variable that holds the folder in which the tests keep what they have compiled


def with_native(home: Path) -> Path:
    """The home itself, with what was compiled before: that takes seconds, and is the same for all."""
    kept, native = Path(os.environ[NATIVE]), home / "cache" / "native"
    if not native.exists():
        kept.mkdir(parents=True, exist_ok=True)
        native.parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # not every system lets everyone: then it is compiled again
            native.symlink_to(kept, target_is_directory=True)
    return home
