"""The truncated distribution is that of the processors of transformers, and is made without them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch

from omnidraft.config import Sampling
from omnidraft.errors import NumericsError
from omnidraft.verification.sampling import Processing, TargetDistribution, softmax, target_processors
from omnidraft.verification.top_k_top_p import Probs, Row, Truncation

CUTS = (
    (1, 1.0, 0),
    (50, 1.0, 0),
    (0, 0.5, 0),
    (0, 0.95, 0),
    (0, 1.0, 0.05),
    (40, 0.9, 0),
    (40, 0.9, 0.1),
    (0, 0.9, 0.2),
)
SETTINGS = [
    Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    for temperature, (top_k, top_p, min_p) in itertools.product((0.001, 0.01, 0.3, 1.0, 1.7), CUTS)
]
AT_ONE = [sampling for sampling in SETTINGS if sampling.temperature == 1]
BESIDE = (-1e-4, -1e-6, 1e-6, 1e-5, 1e-4)  # of a real cumulative sum


def rows() -> Iterator[torch.Tensor]:
    """Logits (V,): flat and peaked, few and many, with ties, with -inf, all equal."""
    generator = torch.Generator().manual_seed(0)
    for size in (2, 7, 500, 5_000, 60_000):
        for scale in (0.01, 1.0, 4.0, 12.0):
            row = torch.randn(size, generator=generator) * scale
            yield row
            yield row.double()
            yield row.round()
            yield torch.where(row > 0, row, -torch.inf) if bool((row > 0).any()) else row
        yield torch.zeros(size)


def rounded_rows() -> Iterator[torch.Tensor]:
    """Logits (V,) as models in bf16 give them: the distribution of Zipf with some noise, in few distinct values."""
    for size in (500, 60_000, 152_000):
        generator = torch.Generator().manual_seed(size)
        for _ in range(6):
            row = 15 - 1.5 * torch.arange(1, size + 1).log() + 0.3 * torch.randn(size, generator=generator)
            yield row[torch.randperm(size, generator=generator)].bfloat16().float()


def by_transformers(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    scores = row[None]
    for processor in target_processors(sampling):
        scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
    return torch.from_numpy(softmax(scores[0]))


def compare(sampling: Sampling, given: Iterable[torch.Tensor], cut: Truncation | None = None) -> tuple[int, int]:
    """Rows whose distribution was made here, and rows left to transformers."""
    cut = cut or Truncation(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    made = left = 0
    for row in given:
        distribution = cut.probs(row.numpy())
        if distribution is None:
            left += 1
            continue
        made += 1
        wanted = by_transformers(row, sampling).numpy()
        kept, theirs = distribution > 1e-30, wanted > 1e-30  # float32 has nothing below
        other = row.numpy()[kept != theirs]
        if len(other):  # of equal ones at the edge of top-p torch keeps any
            assert sampling.top_p < 1
            assert set(other) == {row.numpy()[kept].min()}
        assert kept.sum() == theirs.sum()
        assert np.allclose(np.sort(distribution), np.sort(wanted), atol=1e-6)
        assert np.allclose(distribution[kept == theirs], wanted[kept == theirs], atol=1e-6)
        assert distribution.sum() == pytest.approx(1)
    return made, left


@pytest.mark.medium
@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
def test_the_distribution_is_that_of_transformers(sampling: Sampling) -> None:
    made, left = compare(sampling, rows())
    assert made > left


@pytest.mark.medium
@pytest.mark.parametrize("temperature", [0.001, 0.01, 0.3, 1.0])
def test_edges_beside_real_sums(temperature: float) -> None:
    """Top-p is aimed at the sums that a row really has: what is not left to transformers must be cut where they cut."""
    generator = torch.Generator().manual_seed(1)
    made = left = 0
    for row in rows():
        if row.dtype != torch.float32:
            continue
        sums = (row / temperature).double().softmax(-1).sort().values.cumsum(-1)
        edges = sums[(sums > 0.01) & (sums < 0.99)]
        for edge in edges[torch.randint(len(edges), (2,), generator=generator)] if len(edges) else ():
            for beside in BESIDE:
                sampling = Sampling(temperature=temperature, top_p=1 - edge.item() + beside)
                counts = compare(sampling, [row])
                made, left = made + counts[0], left + counts[1]
    assert made > 0 < left


@pytest.mark.medium
@pytest.mark.parametrize("temperature", [0.8, 1.0])
@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.95])
def test_equal_scores_at_the_edge_are_settled(top_p: float, temperature: float) -> None:
    made, left = compare(Sampling(temperature=temperature, top_p=top_p), rounded_rows())
    assert left < 0.1 * (made + left)


@pytest.mark.parametrize(
    ("sampling", "wrong"),
    [
        (Sampling(temperature=1.0, top_k=50), Truncation(1.0, 51, 1.0, 0.0)),
        (Sampling(temperature=1.0, top_p=0.9), Truncation(1.0, 0, 0.81, 0.0)),
        (Sampling(temperature=1.0, min_p=0.1), Truncation(1.0, 0, 1.0, 0.11)),
    ],
)
def test_a_wrong_edge_would_be_noticed(sampling: Sampling, wrong: Truncation) -> None:
    with pytest.raises(AssertionError):
        compare(sampling, rows(), wrong)


def test_close_calls_are_left_to_transformers() -> None:
    row = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))

    def kept(top_p: float, min_p: float = 0.0) -> int | None:
        distribution = Truncation(1.0, 0, top_p, min_p).probs(row)
        return None if distribution is None else int((distribution > 0).sum())

    assert kept(0.6) == 2
    assert kept(0.75) is None  # the edge lies between two tokens
    assert kept(0.8) == 3  # and here between two equal ones, of which the lower id is dropped
    distribution = Truncation(1.0, 0, 0.8, 0.0).probs(row)
    assert distribution is not None
    assert distribution[2] == 0 < distribution[3]
    assert kept(0.3) == 1
    assert kept(1e-9) == 1  # one token is kept whatever it weighs
    assert kept(1.0, 0.4) == 2
    assert kept(1.0, 0.5) is None


def test_unusable_rows_are_left_to_transformers() -> None:
    for value in (torch.nan, torch.inf):
        row = torch.randn(100)
        row[3] = value
        assert Truncation(1.0, 5, 0.9, 0.0).probs(row.numpy()) is None


@pytest.mark.parametrize("sampling", [AT_ONE[1], AT_ONE[3], Sampling(temperature=0.7, top_k=5, repetition_penalty=1.5)])
def test_the_engine_s_distribution_takes_the_short_way(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the penalties come before it; with any other processor, all of them are called."""
    logits = torch.randn(2, 3_000, generator=torch.Generator().manual_seed(2)) * 4
    scores = logits[1:]
    for processor in target_processors(sampling):
        scores = processor(torch.tensor([[5, 6, 7]]), scores)
    calls: list[str] = []
    distribution = Truncation.probs

    def counted(self: Truncation, row: Row) -> Probs | None:
        calls.append("short")
        return distribution(self, row)

    monkeypatch.setattr(Truncation, "probs", counted)
    for more in ([], [lambda _ids, given: given]):
        found = TargetDistribution(logits, [5, 6], [7], Processing(sampling, more)).probs(1)
        assert np.allclose(found, softmax(scores[0]), atol=1e-6)
        assert len(calls) == 1


def test_what_is_never_cut_off() -> None:
    assert Processing(Sampling()).warping is None
    assert Processing(Sampling(temperature=0.0, top_k=4)).warping is None
    warping = Processing(Sampling(temperature=0.5)).warping
    assert warping is not None
    assert not warping.cuts


def test_temperature_alone_takes_all_rows_at_once() -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(3))
    distribution = TargetDistribution(logits, [1], [2, 3], Processing(Sampling(temperature=0.5)))
    assert [np.allclose(distribution.probs(i), softmax(logits[i] / 0.5), atol=1e-7) for i in range(3)] == [True] * 3
    assert distribution.probs(0).base is distribution.probs(2).base
    logits[1, 7] = torch.nan
    with pytest.raises(NumericsError):
        TargetDistribution(logits, [1], [2, 3], Processing(Sampling(temperature=0.5))).probs(0)
