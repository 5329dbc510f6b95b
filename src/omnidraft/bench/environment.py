"""The environment of a run: machine, libraries, commit and command line."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import omnidraft
from omnidraft.systems import logical_processors, processor_name

if TYPE_CHECKING:
    import torch

PACKAGE = Path(omnidraft.__file__)
# folders of a path outside the working one, of any system, behind what may be an option
OUTSIDE = re.compile(r"^([^=]*=)?(?=[/~\\]|[A-Za-z]:[/\\]|(.*[/\\])?\.\.[/\\]).*[/\\]")


def machine(device: torch.device) -> dict[str, Any]:
    """Hardware, versions, threads and device."""
    import torch  # late, so that --help starts fast

    libraries = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "omnidraft": omnidraft.__version__,
        **libraries,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": processor_name(),
        "cores": logical_processors(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
    }


def command(words: Sequence[str]) -> str:
    """The command line, after a compiler that is named for step.c.

    Of paths outside the working folder, also after a `=`, it has the last name alone.
    """
    compiler = OUTSIDE.sub(r"\1", os.environ.get("CC", ""))
    shown = shlex.join(OUTSIDE.sub(r"\1", word) for word in words)
    return f"CC={shlex.quote(compiler)} {shown}" if compiler else shown


def commit(file: Path = PACKAGE) -> str | None:
    """The commit of a file's checkout, with "+dirty" if the file's folder has changes; None outside a checkout."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> str | None:
        done = subprocess.run(  # noqa: S603  fixed arguments
            [git, *arguments], cwd=file.parent, capture_output=True, text=True, check=False, encoding="utf-8"
        )
        return done.stdout.strip() if done.returncode == 0 else None

    if ask("ls-files", "--error-unmatch", file.name) is None:  # an installed copy may lie in another's checkout
        return None
    head = ask("rev-parse", "--short=12", "HEAD")
    return head and head + ("+dirty" if ask("status", "--porcelain", "--", ".") else "")
