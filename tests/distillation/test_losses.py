"""The losses against sums over written-out options, and their gradients against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from omnidraft.distillation.losses import DIVERGENCES, FLOOR, TeacherDistributions, acceptance, divergence
from omnidraft.verification.sparse_probs import NONE, OTHER

SIZE = 7


def some_teacher() -> TeacherDistributions:
    """Four distributions for five positions: sparse, coarse, coarse without a rest, and one token for certain."""
    return TeacherDistributions(
        positions=torch.tensor([0, 1, 3, 4]),
        rows=torch.tensor([0, 0, 0, 1, 1, 2, 2, 3]),
        symbols=torch.tensor([1, 4, 6, 0, 5, 2, 3, 6]),
        probs=torch.tensor([0.5, 0.3, 0.2, 0.25, 0.0, 0.4, 0.6, 1.0]),
        rest=torch.tensor([0.0, 0.75, 0.0, 0.0]),
        coarse=torch.tensor([False, True, True, False]),
        best=torch.tensor([1, OTHER, 3, NONE]),
    )


def some_logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(5, SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2


def options(logits: torch.Tensor, teacher: TeacherDistributions, row: int) -> tuple[np.ndarray, np.ndarray]:
    """q and r of one distribution, an entry for each option."""
    q = torch.softmax(logits[teacher.positions[row]], -1).numpy()
    mine = teacher.rows == row
    symbols, probs = teacher.symbols[mine].numpy(), teacher.probs[mine].numpy().astype(np.float64)
    if teacher.coarse[row]:
        return np.append(q[symbols], 1 - q[symbols].sum()), np.append(probs, float(teacher.rest[row]))
    r = np.zeros(SIZE)
    r[symbols] = probs
    return q, r


def written_out(kind: str, q: np.ndarray, r: np.ndarray) -> float:
    some = r > 0
    parts = {
        "forward": float((r[some] * np.log(r[some] / q[some])).sum()),
        "reverse": float((q * np.log(q / np.maximum(r, FLOOR))).sum()),
        "tv": float(np.abs(q - r).sum() / 2),
    }
    return sum(parts[name] for name in kind.split("+"))


@pytest.mark.parametrize("kind", DIVERGENCES)
@pytest.mark.parametrize("seed", range(5))
def test_divergences_are_those_of_the_options(kind: str, seed: int) -> None:
    logits, teacher = some_logits(seed), some_teacher()
    found = divergence(logits, teacher, kind)
    wanted = [written_out(kind, *options(logits, teacher, row)) for row in range(4)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_divergences_of_a_distribution_from_itself_are_nothing(kind: str) -> None:
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1])
    teacher = TeacherDistributions(
        positions=torch.tensor([0, 0]),
        rows=torch.tensor([0, 0, 0, 0, 1, 1]),
        symbols=torch.tensor([0, 1, 2, 3, 0, 2]),
        probs=torch.cat([probs, probs[[0, 2]]]),
        rest=torch.tensor([0.0, 0.4]),
        coarse=torch.tensor([False, True]),
        best=torch.tensor([0, 0]),
    )
    assert divergence(probs.log()[None], teacher, kind).tolist() == pytest.approx([0, 0], abs=1e-5)


def gradients_agree(loss: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    return bool(torch.autograd.gradcheck(loss, some_logits().requires_grad_(), atol=1e-6, rtol=1e-5))


@pytest.mark.parametrize("kind", DIVERGENCES)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    assert gradients_agree(lambda logits: divergence(logits, some_teacher(), kind))


def test_a_wrong_gradient_is_seen() -> None:
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradients_agree(lambda logits: divergence(logits * 1.1 - logits.detach() * 0.1, some_teacher(), "forward"))


# ---------------------------------------------------------------- acceptance


@pytest.mark.parametrize("seed", range(5))
def test_acceptance_is_the_overlap_of_the_options(seed: int) -> None:
    logits, teacher = some_logits(seed), some_teacher()
    found = acceptance(logits, teacher, 1.0)
    overlaps = [np.minimum(*options(logits, teacher, row)).sum() for row in range(4)]
    assert found[:, 1].tolist() == pytest.approx(overlaps, abs=1e-6)
    first = logits[teacher.positions].argmax(-1).tolist()
    # the second has entries for 0 and 5, and the target would end the token; the last has no best
    assert found[:, 0].tolist() == [first[0] == 1, first[1] not in (0, 5), first[2] == 3, False]


def test_a_teacher_of_a_lower_temperature_is_raised_to_temperature_one() -> None:
    logits, teacher = some_logits(1), some_teacher()
    squares = replace(teacher, probs=teacher.probs**2, rest=teacher.rest**2)
    total = torch.zeros(4).index_add(0, teacher.rows, squares.probs) + torch.where(teacher.coarse, squares.rest, 0.0)
    colder = replace(squares, probs=squares.probs / total[teacher.rows], rest=squares.rest / total)
    torch.testing.assert_close(acceptance(logits, colder, 0.5), acceptance(logits, teacher, 1.0))


def test_logits_of_half_precision_are_summed_in_single() -> None:
    logits = some_logits().bfloat16()
    assert divergence(logits, some_teacher(), "forward").dtype == torch.float32
