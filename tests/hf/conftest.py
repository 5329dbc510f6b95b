"""Models in memory, one of which drafts for the other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from omnidraft.verification.round import Round
from support.generating import load, noisy, recorded


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def model(target: Path) -> PreTrainedModel:
    return load(target)


@pytest.fixture(scope="module")
def twin(target: Path) -> PreTrainedModel:
    return noisy(load(target), 0.01)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    return recorded(monkeypatch)
