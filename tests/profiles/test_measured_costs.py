"""Measurements of a pair that does not learn: kept for the next run, and never in the way of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft import storage
from omnidraft.api import OmniDraft, load
from omnidraft.draft_length.goodput_policy import Goodput
from omnidraft.profiles import measured_costs
from omnidraft.profiles.measured_costs import MeasuredCosts

pytestmark = pytest.mark.usefixtures("home")
LOAD = MeasuredCosts.load  # before any test


@pytest.fixture(autouse=True)
def _read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MeasuredCosts, "load", LOAD)


def opened(target: Path, drafter: Path, **options: Any) -> tuple[OmniDraft, Goodput]:
    model = load(target, drafter, device="cpu", warn=pytest.fail, **options)
    assert isinstance(model.lane.policy, Goodput)
    return model, model.lane.policy


def answered(target: Path, drafter: Path, **options: Any) -> list[float]:
    """The state of the policy after an answer of a model that is closed then."""
    model, policy = opened(target, drafter, **options)
    with model:
        model.generate("one two three one two three", max_new_tokens=40)
    return list(policy.state())


def files() -> list[Path]:
    return sorted((storage.cache_folder() / measured_costs.FOLDER).rglob("*.json"))


@pytest.mark.medium
def test_the_second_run_knows_what_the_first_measured(target: Path, drafter: Path) -> None:
    before = answered(target, drafter)
    assert len(files()) == 1
    model, policy = opened(target, drafter)
    assert list(policy.state()) == before
    assert policy.costs.steps.seen > 1
    model.close()
    assert list(np.array(opened(target, drafter)[1].state())) == before, "a run that measures nothing changes nothing"


@pytest.mark.medium
def test_without_a_profile_nothing_is_read_or_written(target: Path, drafter: Path) -> None:
    answered(target, drafter, profile=None)
    assert files() == []
    answered(target, drafter)
    assert list(opened(target, drafter, profile=None)[1].state()) == list(Goodput(16).state())


@pytest.mark.medium
def test_a_pair_that_learns_keeps_them_in_its_profile(target: Path, drafter: Path) -> None:
    answered(target, drafter, adapt="inline")
    assert files() == []


@pytest.mark.medium
def test_numbers_of_threads_have_files_of_their_own(target: Path, drafter: Path) -> None:
    answered(target, drafter)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert opened(target, drafter)[1].costs.steps.seen == 1
        answered(target, drafter)
    finally:
        torch.set_num_threads(threads)
    assert len(files()) == 2


@pytest.mark.medium
@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1, 2", b"[1, 2]", b'{"a": 1}', b"[null]", b"[" * 100_000, b"\xff", b"NaN"]
)
def test_a_damaged_file_is_as_none(target: Path, drafter: Path, data: bytes) -> None:
    before = answered(target, drafter)
    (file,) = files()
    file.write_bytes(data)
    model, policy = opened(target, drafter)
    assert list(policy.state()) == list(Goodput(16).state()) != before
    with model:
        model.generate("one two three one two three", max_new_tokens=40)
    assert opened(target, drafter)[1].costs.steps.seen > 1, "the next run replaces it"


@pytest.mark.medium
def test_a_file_that_cannot_be_written_is_let_be(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = answered(target, drafter)
    monkeypatch.setattr(storage, "replace_file", refuse)
    assert answered(target, drafter) != before
    assert list(opened(target, drafter)[1].state()) == before
