"""Several training examples in one pass: what each of them is taught stays as it is alone."""

from __future__ import annotations

import pytest
import torch

from distillation.test_teacher import nested, trace
from omnidraft.distillation.batch import Batch, LossPositions, passes
from omnidraft.distillation.losses import divergence
from omnidraft.distillation.teacher import TrainingExample, exact_example
from support.learning import SIZE, example_of, small_drafter

CPU = torch.device("cpu")


@torch.no_grad()
def losses(examples: list[TrainingExample], loss: str) -> list[float]:
    """The loss at every position of a batch, in the order of the examples."""
    batch, model, output = Batch.of(examples, CPU), small_drafter(), LossPositions()
    model.get_output_embeddings().register_forward_pre_hook(output)
    output.places = batch.places
    logits = model(batch.ids).logits[0]
    assert logits.shape == (len(batch.places), SIZE), "no logits but those of the loss"
    return sorted(divergence(logits, batch.teacher, loss).tolist())


@pytest.mark.parametrize("loss", ["forward+tv", "reverse"])
def test_a_pass_over_several_texts_gives_the_losses_of_each(loss: str) -> None:
    examples = [example_of(1, 9), example_of(2, 14), example_of(3, 11)]
    alone = sorted(value for example in examples for value in losses([example], loss))
    assert len(alone) == sum(example.positions for example in examples)
    assert losses(examples, loss) == pytest.approx(alone, abs=1e-5)


def test_distributions_of_several_entries_stay_together() -> None:
    _, cache, laws = nested()
    one = exact_example(cache, trace([1, 4], [[0, 1], [1]], laws))
    joined = Batch.of([one, example_of(0), one], CPU).teacher
    count, entries = len(one.teacher.positions), len(one.teacher.probs)
    assert count < entries
    assert joined.positions.tolist() == list(range(len(joined.rest)))
    last = joined.rows[-entries:] - (len(joined.rest) - count)
    assert last.tolist() == joined.rows[:entries].tolist() == one.teacher.rows.tolist()


def test_indices_are_widened_in_a_batch_alone() -> None:
    _, cache, laws = nested()
    example = exact_example(cache, trace([1, 4], [[0, 1], [1]], laws))
    assert example.ids.dtype == example.teacher.symbols.dtype == torch.int32
    batch = Batch.of([example], CPU)
    kinds = [tensor.dtype for tensor in (batch.ids, batch.places, *vars(batch.teacher).values())]
    assert kinds == [*[torch.int64] * 5, *[torch.float32] * 2, torch.bool, torch.int64]


def test_passes_hold_as_many_texts_as_fit() -> None:
    lengths = [12, 12, 12, 30, 12, 60, 5]
    made = [[len(one.ids) for one in part] for part in passes([example_of(0, length) for length in lengths], 40)]
    assert made == [[12, 12, 12], [30], [12], [60], [5]]
