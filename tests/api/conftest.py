"""A model that all tests of the Python interface share, and what `transformers` answers alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft.api import OmniDraft
from support.assembling import load_with
from support.learning import adaptive_of
from support.models import save_model
from support.small_tokenizers import byte_level


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


@pytest.fixture(scope="session")
def other_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "other", byte_level(), seed=5)


class Trainer:
    """Background work that notes whether it may go on."""

    running = True

    def pause(self) -> None:
        self.running = False

    def resume(self) -> None:
        self.running = True

    def runs(self) -> bool:
        return self.running


@pytest.fixture
def trainer(model: OmniDraft) -> Iterator[Trainer]:
    background, trainer = adaptive_of(model).shared.turns.background, Trainer()
    background.append(trainer)
    yield trainer
    background.remove(trainer)
