"""Draws from weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from omnidraft.verification.sampling import BLOCK_WEIGHTS, GeneratorSampler


def test_what_has_no_weight_is_never_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thirds of three times 0.1 lie where the third block begins, but for rounding: just below it."""
    weights = np.zeros(3 * BLOCK_WEIGHTS)
    weights[5::BLOCK_WEIGHTS] = 0.1
    for u, token in ((0.0, 5), (2 / 3, 2 * BLOCK_WEIGHTS + 5), (1 - 2**-53, 2 * BLOCK_WEIGHTS + 5)):
        monkeypatch.setattr(torch, "rand", lambda *_, u=u, **__: torch.tensor(u, dtype=torch.float64))
        assert GeneratorSampler(torch.Generator())(weights) == token


def test_draws_do_not_follow_the_default_device() -> None:
    with torch.device("meta"):
        assert GeneratorSampler(torch.Generator("cpu"))(np.array([0.0, 1.0])) == 1
