"""vLLM with the proposer: answers stay its own.

Runs where vLLM is installed, in the environment that `make vllm-test` makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="no vLLM in this environment: make vllm-test has one")

from support.inside_vllm import LONGEST, answered, counts, save_target, started


@pytest.fixture(scope="module")
def small_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def expected(small_target: Path) -> list[list[int]]:
    return answered(started(small_target, None))


@pytest.fixture(scope="module")
def drafting(small_target: Path, drafter: Path, expected: object) -> Any:  # noqa: ARG001
    """vLLM with our drafts; made after vLLM alone, which takes over its counters else."""
    return started(small_target, {"drafter": str(drafter), "draft_length": LONGEST})


def test_greedy_answers_in_mixed_batches_are_those_of_vllm_alone(drafting: Any, expected: list[list[int]]) -> None:
    before = counts(drafting)
    assert answered(drafting) == expected
    after = counts(drafting)
    assert after["num_draft_tokens"] - before["num_draft_tokens"] > 100
