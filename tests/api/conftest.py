"""A model that all tests of the Python interface share, and what `transformers` answers alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft.api import OmniDraft
from support.assembling import load_with


@pytest.fixture(scope="session")
def model(target: Path, drafter: Path, tmp_path_factory: pytest.TempPathFactory) -> OmniDraft:
    """A target and a drafter of random weights; tests leave them as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        options: dict[str, Any] = {"dtype": "float32", "profile": None, "draft_length": 4, "reuse_answers": "nothing"}
        return omnidraft.load(target, drafter, warn=pytest.fail, **options)


@pytest.fixture(scope="session")
def steady(target: Path, drafter: Path) -> OmniDraft:
    """In the one mode in which no answer changes how a later one is drafted: a seed decides what is drawn."""
    return load_with(target, drafter, dtype="float32", profile=None, draft_length=4, mode="intersection")
