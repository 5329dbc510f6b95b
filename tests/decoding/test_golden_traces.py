"""Greedy decoding of the models that ship gives the recorded traces (tools/record_traces.py records them)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omnidraft.decoding.drafter import Drafter
from support.project_files import tool

recorder = tool("record_traces")


def recorded(target: str, reuse_answers: str = "request") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(recorder.path_of(target, reuse_answers).read_text(encoding="utf-8"))
    return found


def ids(trace: dict[str, Any]) -> list[list[int]]:
    return [answer["ids"] for answer in trace["answers"]]


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("target", recorder.TARGETS)
@pytest.mark.parametrize("reuse_answers", recorder.ASKED)
def test_greedy_decoding_gives_the_recorded_trace(target: str, reuse_answers: str) -> None:
    wanted, found = recorded(target, reuse_answers), recorder.trace(target, reuse_answers)
    assert ids(found) == ids(wanted)
    assert found == wanted  # and the same proposals and accepted tokens in each round
    assert json.loads(recorder.lines_of(found)) == found


@pytest.mark.parametrize("target", recorder.TARGETS)
def test_an_answer_that_is_remembered_is_drafted_from_its_first_token_on(target: str) -> None:
    wanted, twice = recorded(target), recorded(target, "memory")
    assert ids(twice) == 2 * ids(wanted)
    half = len(recorder.PROMPTS)
    rounds = [len(answer["rounds"]) for answer in twice["answers"]]
    assert all(later < first for first, later in zip(rounds[:half], rounds[half:], strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("home")
def test_a_drafter_that_reads_another_context_changes_the_rounds_and_not_the_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = Drafter.start
    monkeypatch.setattr(Drafter, "start", lambda self, tokens, **keep: start(self, tokens[1:], **keep))
    monkeypatch.setattr(recorder, "PROMPTS", recorder.PROMPTS[:1])
    target = recorder.TARGETS[0]
    wanted, found = recorded(target)["answers"][0], recorder.trace(target)["answers"][0]
    assert found["ids"] == wanted["ids"]
    assert found["rounds"] != wanted["rounds"]
