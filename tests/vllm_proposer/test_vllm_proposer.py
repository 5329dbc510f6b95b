"""The proposer class as vLLM makes and calls it; vLLM itself is tested by `make vllm-test`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import omnidraft.vllm
from omnidraft.errors import ConfigError
from omnidraft.vllm import Proposer, check_version


def config(ranks: int = 1, **omnidraft: Any) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        model_config=SimpleNamespace(tokenizer="zoo:target-a", max_model_len=256),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        speculative_config=SimpleNamespace(num_speculative_tokens=3),
        additional_config={"omnidraft": {"drafter": "zoo:drafter", "draft_length": 3} | omnidraft},
    )


def table(ids: list[int]) -> Any:
    rows = np.zeros((4, 256), np.int32)
    rows[0, : len(ids)] = ids
    return rows


@pytest.fixture(autouse=True)
def _a_tested_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omnidraft.vllm, "installed", lambda: "0.32.0+cpu")


@pytest.mark.medium
def test_rows_get_drafts_and_others_none() -> None:
    proposer = Proposer(config())
    proposer.load_model(None)
    proposer.dummy_run(8)
    lengths = np.array([5, 3, 0, 0], np.int32)
    drafts = proposer.propose([[50], []], lengths, table([10, 20, 30, 40, 50]), slot_mappings=None)
    assert [len(draft) for draft in drafts] == [3, 0]
    assert proposer.propose([], np.zeros(4, np.int32), table([])) == []


@pytest.mark.medium
def test_an_error_ends_the_drafts_and_not_the_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    proposer = Proposer(config())
    lengths, rows = np.array([5, 2], np.int32), table([10, 20, 30, 40, 50])
    assert proposer.propose([[50]], lengths, rows)[0]
    monkeypatch.setattr("omnidraft.vllm.rows.propose", lambda *_: 1 / 0)
    for _ in range(3):
        assert proposer.propose([[50], [1]], lengths, rows) == [[], []]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "no more drafts are made (ZeroDivisionError: division by zero): restart vLLM"


class Group:
    """The ranks of tensor parallelism, of which the first says what the others hear."""

    said: Any = None

    def __init__(self, rank: int) -> None:
        self.rank_in_group = rank

    def broadcast_object(self, drafts: Any, src: int) -> Any:
        assert src == 0
        if self.rank_in_group == 0:
            Group.said = drafts
        return Group.said


@pytest.mark.medium
def test_the_first_rank_drafts_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(2):
        monkeypatch.setattr(omnidraft.vllm, "_group", lambda rank=rank: Group(rank))
        proposer = Proposer(config(ranks=2))
        found.append(proposer.propose([[50]], np.array([5], np.int32), table([10, 20, 30, 40, 50])))
    assert found[0] == found[1]
    assert len(found[0][0]) == 3


@pytest.mark.parametrize("version", ["0.31.9", "0.33.0", "1.0", "0.32rc1", "main"])
def test_a_version_that_was_not_tested_is_named(version: str) -> None:
    with pytest.raises(ConfigError, match=f"vLLM {version} may call"):
        check_version(version)


def test_what_is_wrong_is_said_when_the_proposer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean 'device'"):
        Proposer(config(devise="x"))
    monkeypatch.undo()
    monkeypatch.setattr(omnidraft.vllm, "DISTRIBUTIONS", ("no-such-package",))
    with pytest.raises(ConfigError, match="vLLM is not installed"):
        Proposer(config())
