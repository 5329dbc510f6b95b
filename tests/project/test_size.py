"""What a clone and an installation take: sizes of the tracked files and of the wheel."""

from __future__ import annotations

import subprocess
import tomllib
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEGABYTE = 10**6
CLONE_MB, WHEEL_MB = 61, 45


def tracked(root: Path) -> list[Path]:
    """The files of a checkout that git knows; skips where it is none."""
    if not (root / ".git").exists():
        pytest.skip(f"{root} is no checkout of git")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout  # noqa: S607
    return [path for name in listed.decode().split("\0") if name and (path := root / name).is_file()]


def shipped(root: Path) -> list[Path]:
    """The modules and the data files of the wheel."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    package = root / "src" / "omnidraft"
    found = set(package.rglob("*.py"))
    for pattern in settings["package-data"]["omnidraft"]:
        found |= {path for path in package.glob(pattern) if path.is_file()}
    return sorted(found)


def test_a_clone_is_small() -> None:
    assert sum(path.stat().st_size for path in tracked(ROOT)) <= CLONE_MB * MEGABYTE


def test_the_wheel_is_small() -> None:
    files = shipped(ROOT)
    assert {"model.int8.safetensors", "step.c", "py.typed"} <= {path.name for path in files}
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) <= WHEEL_MB * MEGABYTE
