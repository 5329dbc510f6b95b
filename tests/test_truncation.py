"""Top-k and top-p keep exactly what the processors of transformers keep."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from omnidraft import truncation
from omnidraft.truncation import TopK, TopP, kth_largest, smallest_kept

IDS = torch.zeros(1, 1, dtype=torch.long)


def rows() -> Iterator[torch.Tensor]:
    """Scores (1, V): flat and peaked, small and large, with ties, with -inf, all equal."""
    generator = torch.Generator().manual_seed(0)
    for size in (1, 2, 7, 500, 5_000, 60_000):
        for scale in (0.01, 1.0, 4.0, 12.0):
            row = torch.randn(1, size, generator=generator) * scale
            yield row
            yield row.round()
            yield torch.where(row > 0, row, -torch.inf) if bool((row > 0).any()) else row
        yield torch.zeros(1, size)


@pytest.mark.parametrize("k", [1, 2, 50, 1000])
def test_top_k_is_that_of_transformers(k: int) -> None:
    for row in rows():
        assert torch.equal(TopK(k)(IDS, row), TopKLogitsWarper(top_k=k)(IDS, row))


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.5, 0.9, 0.99, 0.99999])
def test_top_p_is_that_of_transformers(p: float) -> None:
    for row in rows():
        assert torch.equal(TopP(p)(IDS, row), TopPLogitsWarper(top_p=p)(IDS, row))


def test_real_rows_are_not_sorted() -> None:
    """The short way is taken where it matters, or the test above compares transformers with itself."""
    generator = torch.Generator().manual_seed(1)
    found = 0
    for _ in range(20):
        row = torch.randn(60_000, generator=generator).numpy() * 4
        found += smallest_kept(row, 0.9) is not None
    assert found >= 15


def test_a_wrong_edge_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "kth_largest", lambda row, k: kth_largest(row, k + 1))
    with pytest.raises(AssertionError):
        test_top_k_is_that_of_transformers(50)
    monkeypatch.undo()
    monkeypatch.setattr(truncation, "smallest_kept", lambda row, p: smallest_kept(row, p * 0.99))
    with pytest.raises(AssertionError):
        test_top_p_is_that_of_transformers(0.9)


def test_close_calls_are_left_to_transformers() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    assert smallest_kept(row, 0.6) == pytest.approx(np.log(0.25))
    assert smallest_kept(row, 0.75) is None  # the edge lies between two tokens
    assert smallest_kept(row, 0.8) is None  # and here between two equal ones


def test_nan_is_passed_on() -> None:
    row = torch.randn(1, 100)
    row[0, 3] = torch.nan
    for processor in (TopK(5), TopP(0.9)):
        assert bool(processor(IDS, row).isnan().any())


def test_several_rows_take_the_common_way() -> None:
    row = torch.randn(3, 50)
    assert torch.equal(TopK(5)(IDS, row), TopKLogitsWarper(top_k=5)(IDS, row))
    assert torch.equal(TopP(0.5)(IDS, row), TopPLogitsWarper(top_p=0.5)(IDS, row))
