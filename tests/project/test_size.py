"""What a clone takes; `make wheel-check` holds the wheel to its size."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEGABYTE = 10**6
CLONE_MB = 61


def tracked(root: Path) -> list[Path]:
    """The files of a checkout that git knows; skips where it is none."""
    if not (root / ".git").exists():
        pytest.skip(f"{root} is no checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout  # noqa: S607
    return [path for name in listed.decode().split("\0") if name and (path := root / name).is_file()]


def test_a_clone_is_small() -> None:
    assert sum(path.stat().st_size for path in tracked(ROOT)) <= CLONE_MB * MEGABYTE
