"""The paper's loss and its two ways to train the acceptance head."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from distillation.test_losses import SIZE, gradients_agree, some_logits
from distillation.test_teacher import entries, nested, trace
from experiments.paper_training import AlternatingTrainer, HybridLoss, shared_tokens, trainer_for
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning
from omnidraft.distillation.batch import Batch
from omnidraft.distillation.lora import Weights, parted
from omnidraft.distillation.losses import FLOOR, TeacherDistributions
from omnidraft.distillation.trainer import Trainer
from support.learning import example_of, same, small_drafter

SHARED = torch.tensor([False, True, True, False, True, True, False])
HYBRID = HybridLoss()


def paper_parts() -> TeacherDistributions:
    """Two distributions at directly mapped tokens, and two labels."""
    return TeacherDistributions(
        positions=torch.tensor([3, 0, 2, 4]),
        rows=torch.tensor([0, 1, 1, 2, 3]),
        symbols=torch.tensor([6, 1, 4, 2, 0]),
        probs=torch.tensor([0.2, 0.6, 0.1, 0.9, 0.2]),
        rest=torch.zeros(4),
        coarse=torch.tensor([True, False, False, True]),
        best=torch.tensor([6, 1, 2, 0]),
    )


def loss_of(logits: torch.Tensor) -> torch.Tensor:
    return HYBRID.loss(logits, paper_parts(), SHARED)


def direct_rows(logits: torch.Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """q, renormalized over what is shared, and p at the directly mapped tokens."""
    rows = []
    for position, law in ((0, {1: 0.6, 4: 0.1}), (2, {2: 0.9})):
        p = np.zeros(SIZE)
        p[list(law)] = list(law.values())
        rows.append((torch.softmax(logits[position][SHARED], -1).numpy(), p[SHARED.numpy()]))
    return rows


def test_the_hybrid_loss_is_written_out() -> None:
    logits = some_logits(3)
    wanted = [float((q * np.log(q / np.maximum(p, FLOOR))).sum()) for q, p in direct_rows(logits)]
    wanted += [-0.2 * float(torch.log_softmax(logits[at], -1)[symbol]) for at, symbol in ((3, 6), (4, 0))]
    assert loss_of(logits).tolist() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.medium
def test_gradients_of_the_hybrid_loss() -> None:
    assert gradients_agree(loss_of)


def test_mass_outside_the_intersection_costs_nothing_at_directly_mapped_tokens() -> None:
    """So it does not pay to push mass out of it either."""
    logits = some_logits()
    more = logits.clone()
    more[:, ~SHARED] += 3
    assert torch.allclose(loss_of(logits)[:2], loss_of(more)[:2])


# ---------------------------------------------------------------- examples


def test_a_hybrid_example_taken_apart() -> None:
    world, cache, laws = nested()
    answer = trace([1, 4], [[0, 1], [1]], laws)
    made = HYBRID.example(cache, answer).teacher
    assert made.positions.tolist() == [0, 1, 2]
    assert made.coarse.tolist() == [True, True, False]  # "b" is mapped directly
    assert entries(made, 2) == pytest.approx({0: 0.4, 1: 0.2, 2: 0.1})  # of a, b and the end of text
    assert [entries(made, row) for row in (0, 1)] == [pytest.approx({0: 0.2}), pytest.approx({1: 0.2})]
    own = HybridLoss(ngram_weight=None).example(cache, answer).teacher
    assert own.probs[:2].tolist() == pytest.approx([0.3, 0.3])  # what the target gave "ab"
    assert shared_tokens(world.table).tolist() == [True, True, True]
    batch, shared = Batch.of([HYBRID.example(cache, answer)] * 2, torch.device("cpu")), torch.ones(3, dtype=torch.bool)
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    both, one = HYBRID.loss(logits.repeat(2, 1), batch.teacher, shared), HYBRID.loss(logits, made, shared)
    assert float(both.sum()) == pytest.approx(2 * float(one.sum()), rel=1e-5)


def test_inactive_ngrams_teach_the_hybrid_loss_nothing() -> None:
    world, _, laws = nested()
    cache = NgramCache(world.table, seed="empty")
    assert HYBRID.example(cache, trace([1], [[0, 1]], laws[:1])).positions == 0


@pytest.mark.medium
def test_it_learns_by_the_hybrid_loss() -> None:
    world, cache, laws = nested()
    model, learning = small_drafter(), Learning(update_every=1, learning_rate=1e-2, replay_steps=0, train="drafter")
    made = trainer_for(model, learning, world.table, 0, "drafter", HYBRID)
    answer, losses = trace([1, 4], [[0, 1], [1]], laws), []
    loss, shared = made.loss, torch.zeros(40, dtype=torch.bool)
    shared[:3] = True
    made.loss = partial(HYBRID.loss, shared=shared)  # the drafter's vocabulary is larger than the table's
    assert loss is not made.loss
    for _ in range(6):
        made.teach(answer, cache)
        batch = made.batch([HYBRID.example(cache, answer)])
        losses.append(float(made.loss(made.read(batch)[0].detach(), batch.teacher).sum()))
        made.update()
    assert losses[-1] < 0.9 * losses[0]


# ---------------------------------------------------------------- the head


def trained(how: str) -> Trainer:
    learning = Learning(update_every=4, learning_rate=1e-2, replay_steps=0)
    made = trainer_for(small_drafter(), learning, nested()[0].table, 0, how, None)
    for seed in range(9):
        made.add(example_of(seed))
        if made.due:
            made.update()
    return made


@pytest.mark.medium
def test_heads_learn_alone_with_the_drafter_or_after_each_answer() -> None:
    alone, none = parted(trained("drafter").state())
    assert none == {}
    heads: list[Weights] = []
    for how in ("joint", "interleaved"):
        found, head = parted(trained(how).state())
        heads.append(head)
        assert same(alone, found)
    assert heads[0].keys() == heads[1].keys() != set()
    assert not same(*heads), "they learn from other batches"
    made = trained("head")
    only, head = parted(made.state())
    assert head
    assert same(only, dict(small_drafter().named_parameters()))
    assert made.counters.updates == 2
    assert made.poll() is not None


def test_the_head_learns_from_the_latest_answer_and_an_earlier_one() -> None:
    seen: list[int] = []

    class Noted(AlternatingTrainer):
        def batch(self, examples: Any) -> Batch:
            seen.append(len(examples))
            return super().batch(examples)

    made = Noted(small_drafter(), Learning(update_every=100), head_alone=False)
    for seed in range(3):
        made.add(example_of(seed))
    assert seen == [1, 2, 2]
    assert replace(made.counters, held_out_loss=0.0).answers == 3
