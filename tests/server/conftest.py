"""A server with two targets behind one drafter, and the first of them without any server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import omnidraft
from omnidraft.api import OmniDraft
from omnidraft.defaults import SMALL
from support.serving import At, Rounds, rounds_of_requests, serving, with_tools


@pytest.fixture(scope="session")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with a chat template that has a place for tools."""
    return with_tools(tmp_path_factory.mktemp("served") / "chat")


@pytest.fixture(scope="session")
def server(chat: Path) -> Iterator[At]:
    with serving([chat, "zoo:target-a"], options={"draft_length": 4}, lanes=4, max_tokens=256) as at:
        yield at


@pytest.fixture(scope="session")
def plain(chat: Path) -> Iterator[At]:
    """Without drafts, whose length depends on the clock and on earlier requests: a seed decides the answer."""
    with serving([chat], None, {"draft_length": 0}, lanes=3, max_queue=20) as at:
        yield at


@pytest.fixture(scope="session")
def alone(chat: Path) -> OmniDraft:
    return omnidraft.load(chat, None, dtype="float32", profile=None, draft_length=0)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    with rounds_of_requests(monkeypatch) as rounds:
        yield rounds


@pytest.fixture(scope="session")
def model(chat: Path) -> OmniDraft:
    return omnidraft.load(chat, SMALL, dtype="float32", profile=None, draft_length=4)
