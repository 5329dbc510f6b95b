"""Files that another user does not let this process read, whoever runs the tests: their superuser may read all."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def deny(patch: pytest.MonkeyPatch, path: Path) -> None:
    """Refuse to open a file, or a folder's entries to be looked at, as their modes 000 and 700 do."""

    def refusing(call: Callable[..., Any], inside: bool) -> Callable[..., Any]:
        def guarded(place: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(place, str | Path) and denied(Path(place), inside):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
            return call(place, *arguments, **options)

        return guarded

    def denied(place: Path, inside: bool) -> bool:
        return path in place.parents or (place == path and not inside)

    opening = refusing(open, inside=False)
    patch.setattr(io, "open", opening)  # of pathlib
    patch.setattr("builtins.open", opening)
    patch.setattr(os, "stat", refusing(os.stat, inside=True))
