"""vLLM with the proposer: answers stay its own, what is learned elsewhere is adopted, what is said is spooled.

Runs where vLLM is installed, in the environment that `make fleet-test` makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="no vLLM in this environment: make fleet-test has one")

import torch

from omnidraft.config import Drafting
from omnidraft.fleet.pair import load_pair
from omnidraft.fleet.releases import Releases
from omnidraft.fleet.spool import answers, segments
from support.replica import LONGEST, PROMPTS, answered, counts, save_target, started
from support.waiting import until


@pytest.fixture(scope="module")
def small_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fleet")


@pytest.fixture(scope="module")
def expected(small_target: Path) -> list[list[int]]:
    return answered(started(small_target, None))


@pytest.fixture(scope="module")
def drafting(small_target: Path, drafter: Path, folder: Path, expected: object) -> Any:  # noqa: ARG001
    """vLLM with our drafts, and the folders of a fleet; made after vLLM alone, which takes over its counters else."""
    settings = {"drafter": str(drafter), "draft_length": LONGEST, "replica": "one"}
    return started(small_target, settings | {name: str(folder / name) for name in ("spool", "releases")})


def test_greedy_answers_in_mixed_batches_are_those_of_vllm_alone(drafting: Any, expected: list[list[int]]) -> None:
    before = counts(drafting)
    assert answered(drafting) == expected
    after = counts(drafting)
    assert after["num_draft_tokens"] - before["num_draft_tokens"] > 100


def test_answers_are_spooled_as_token_ids(drafting: Any, expected: list[list[int]], folder: Path) -> None:
    assert answered(drafting) == expected
    until(lambda: segments(folder / "spool"))  # once the first answer is old enough
    found = {tuple(each.prompt): list(each.tokens) for path in segments(folder / "spool") for each in answers(path)}
    assert len(found) > len(PROMPTS) / 2
    for prompt, tokens in found.items():
        whole = expected[PROMPTS.index(list(prompt))]
        assert tokens[: len(whole)] == whole[: len(tokens)]
        assert len(tokens) <= len(whole) + LONGEST, "of the last step vLLM may have cut some"


def test_a_version_is_adopted_and_answers_stay(
    drafting: Any, expected: list[list[int]], small_target: Path, drafter: Path, folder: Path
) -> None:
    pair = load_pair(small_target, drafter, Drafting(drafter_step="transformers"), "cpu", pytest.fail)
    releases = Releases(folder / "releases", pair.key)
    changed = {name: weight.detach() + 0.02 * torch.randn_like(weight) for name, weight in pair.base.items()}
    releases.publish(changed, 1.0)

    def adopted() -> bool:
        assert answered(drafting) == expected
        return 1 in versions()

    def versions() -> set[int]:
        return {each.version for path in segments(folder / "spool") for each in answers(path)}

    until(adopted)
    assert versions() == {0, 1}
