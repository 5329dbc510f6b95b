"""Paths of models that the system does not let this process read: the reason, and the fix."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

from omnidraft.errors import ModelError

FIXES = {
    errno.EACCES: "make it readable",
    errno.EPERM: "make it readable",
    errno.ENAMETOOLONG: "give a shorter path",
}


def unreadable(path: str | Path, error: OSError) -> ModelError:
    """The error for a path that cannot be looked at or opened, with the fix of its cause."""
    fix = FIXES.get(error.errno or 0, "give a path that can be read")
    return ModelError(f"model {str(path)!r} cannot be read ({error.strerror or error}): {fix}")


def check_readable(path: Path) -> None:
    """Raise ModelError for a file that cannot be opened, a folder whose files cannot, and what cannot be looked at.

    A path where nothing is may be the name of something else.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last of a null byte
        return
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISDIR(mode):
        check_readable(path / "config.json")  # which lies in all of them
