"""What a user finds under `omnidraft`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import omnidraft


def test_public_names() -> None:
    assert {name for name in omnidraft.__all__ if getattr(omnidraft, name) is not None} == set(omnidraft.__all__)
    assert set(omnidraft.__all__) <= set(dir(omnidraft))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        omnidraft.lode  # noqa: B018


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert omnidraft.__version__ == project["version"]
