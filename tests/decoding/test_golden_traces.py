"""Greedy decoding of the models that ship gives the recorded traces (tools/record_traces.py records them)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omnidraft.decoding.drafter import Drafter
from support.project_files import tool

recorder = tool("record_traces")


def recorded(target: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recorder.path_of(target).read_text(encoding="utf-8"))
    return found


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("target", recorder.TARGETS)
def test_greedy_decoding_gives_the_recorded_trace(target: str) -> None:
    wanted, found = recorded(target), recorder.trace(target)
    assert [answer["ids"] for answer in found["answers"]] == [answer["ids"] for answer in wanted["answers"]]
    assert found == wanted  # and the same proposals and accepted tokens in each round
    assert json.loads(recorder.lines_of(found)) == found


@pytest.mark.usefixtures("home")
def test_a_drafter_that_reads_another_context_changes_the_rounds_and_not_the_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = Drafter.start
    monkeypatch.setattr(Drafter, "start", lambda self, tokens, **keep: start(self, tokens[1:], **keep))
    target = recorder.TARGETS[0]
    wanted, found = recorded(target), recorder.trace(target)
    assert [answer["ids"] for answer in found["answers"]] == [answer["ids"] for answer in wanted["answers"]]
    assert found != wanted
