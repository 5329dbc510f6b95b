"""The trainer: what it learns, its guard rails, and what it leaves as it was."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from omnidraft.config import ADAPTERS
from omnidraft.distillation import trainer as trainer_module
from omnidraft.distillation.batch import MAX_LOGITS, Batch, groups
from omnidraft.distillation.replay_buffer import HELD_OUT, ReplayBuffer
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.distillation.trainer import GAINS, SPARE_BYTES, Trainer, UpdateInterval
from omnidraft.distillation.weights import merged
from omnidraft.errors import ConfigError, ModelError
from support.learning import (
    ONES,
    SIZE,
    certain,
    example_of,
    labels_of,
    loss_under,
    make_trainer,
    same,
    settings_of,
    small_drafter,
    teach,
)
from support.models import build


@pytest.mark.parametrize(
    ("kind", "adapter", "loss"),
    [
        ("llama", "full", "forward+tv"),
        ("qwen2", "lora", "forward+tv"),
        ("llama", "lora", "hybrid"),
        ("qwen2", "full", "hybrid"),
    ],
)
def test_answers_that_were_not_learned_from_become_likelier(kind: str, adapter: str, loss: str) -> None:
    hybrid = loss == "hybrid"
    trainer = make_trainer(small_drafter(kind=kind), adapter=adapter, rank=8, loss=loss, learning_rate=3e-2)
    unseen = [example_of(1000, labels=hybrid)]
    before = loss_under(trainer.state(), unseen, loss, kind)
    assert any(teach(trainer, 160, labels=hybrid))
    assert loss_under(trainer.state(), unseen, loss, kind) < 0.8 * before
    counters = trainer.counters
    assert (counters.answers, counters.dropped) == (160, 0)
    assert counters.steps == 2 * counters.updates > 0


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_model_it_was_made_from_stays_as_it_was(adapter: str) -> None:
    model = small_drafter()
    before = copy.deepcopy(model.state_dict())
    trainer = make_trainer(model, adapter=adapter)
    assert any(teach(trainer, 20))
    assert same(model.state_dict(), before)
    assert not any(parameter.grad is not None for parameter in model.parameters())
    state = trainer.state()
    kept = copy.deepcopy(state)
    teach(trainer, 8)
    assert same(state, kept), "a state does not change afterwards"
    assert not same(state, trainer.state())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_same_examples_give_the_same_weights(adapter: str) -> None:
    one, other, third = (make_trainer(adapter=adapter, seed=seed) for seed in (0, 0, 1))
    for each in (one, other, third):
        teach(each, 16)
    assert same(one.state(), other.state())
    assert not same(one.state(), third.state())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_merged_weights_are_those_that_were_trained(adapter: str) -> None:
    """The trainer's own held-out loss is that of the model with its state merged in."""
    trainer = make_trainer(adapter=adapter, rank=4, learning_rate=3e-2, hold_out_every=2)
    assert teach(trainer, 24)[-1]
    held_out = [example_of(seed) for seed in range(1, 22, 2)][-HELD_OUT:]  # when the last update was made
    found = loss_under(trainer.state(), held_out)
    assert found == pytest.approx(trainer.counters.held_out_loss, rel=1e-4)
    assert found != pytest.approx(loss_under({}, held_out), rel=0.1)


def test_nothing_learned_merges_to_nothing() -> None:
    model = small_drafter()
    assert merged(dict(model.named_parameters()), {}) == {}
    lora = merged(dict(model.named_parameters()), make_trainer(model, adapter="lora").state())
    assert lora
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in lora.items())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_it_continues_from_a_state(adapter: str) -> None:
    one, other = make_trainer(adapter=adapter), make_trainer(adapter=adapter, seed=5)
    teach(one, 20)
    other.load_state(one.state())
    assert same(one.state(), other.state())


def test_a_state_of_another_shape_is_refused() -> None:
    state = make_trainer(adapter="lora", rank=4).state()
    for other in (make_trainer(adapter="lora", rank=8), make_trainer(adapter="full")):
        before = other.state()
        with pytest.raises(ModelError, match="another profile"):
            other.load_state(state)
        assert same(other.state(), before)
    with pytest.raises(ModelError, match="lacks"):
        merged({"other.weight": torch.zeros(2, 2)}, state)


def test_lora_is_refused_for_layers_that_it_would_not_fit() -> None:
    with pytest.raises(ConfigError, match="GPT2LMHeadModel: use 'full'"):
        make_trainer(build("gpt2"), adapter="lora")
    make_trainer(build("gpt2"))


@pytest.mark.parametrize(
    ("name", "value"), [("hold_out_every", 1), ("replay_bytes", 3), ("rollback_margin", -1), ("direct_divergence", "x")]
)
def test_settings_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is "):
        TrainerSettings(**{name: value})


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("loss", ["forward", "hybrid"])
def test_examples_side_by_side_give_the_gradient_of_one_after_the_other(loss: str) -> None:
    together, apart = (make_trainer(replays=0, loss=loss, per_pass=per_pass) for per_pass in (8, 1))
    for each in (together, apart):
        for seed, length in enumerate((5, 12, 30, 9)):
            each.add(example_of(seed, length, labels=loss == "hybrid"))
        assert each.update()
    for name, weight in together.state().items():
        assert torch.allclose(weight, apart.state()[name], atol=1e-4), name


def test_a_batch_keeps_only_the_rows_that_are_asked_for() -> None:
    examples = [example_of(0, 12, prompt=4), example_of(1, 9, prompt=6)]
    batch = Batch.of(examples, torch.device("cpu"))
    assert batch.keep == 8
    assert batch.ids.shape == (2, 12)
    assert batch.teacher.positions.tolist() == [*range(8), *range(8 + 2, 8 + 5)]
    assert batch.teacher.rows.tolist() == list(range(8 + 3))


def test_examples_of_unequal_lengths_stay_within_the_bound_on_logits() -> None:
    columns = MAX_LOGITS // 500
    long, short = example_of(0, 400, prompt=390), example_of(1, 8)
    examples = [short, long, *[short] * 5, long]
    assert [example for group in groups(examples, columns, 100) for example in group] == examples
    for group in groups(examples, columns, 100):
        rows = max(len(one.ids) for one in group) - min(one.first for one in group)
        assert len(group) == 1 or len(group) * rows * columns <= MAX_LOGITS


# ---------------------------------------------------------------- guard rails


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was() -> None:
    trainer = make_trainer(replays=0)
    teach(trainer, 8)
    before, counters = trainer.state(), trainer.counters
    bad = example_of(3)
    bad.teacher.probs[0] = torch.nan
    for example in (bad, example_of(4)):
        trainer.add(example)
    assert not trainer.update()
    assert same(trainer.state(), before)
    assert trainer.counters.dropped == counters.dropped + 1
    assert trainer.counters.steps == counters.steps


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was() -> None:
    model, factor = small_drafter(), [torch.inf]
    model.get_output_embeddings().register_full_backward_hook(lambda *_: (_[1][0] * factor[0],))
    trainer = make_trainer(model, replays=0)
    before = trainer.state()
    assert teach(trainer, 4) == [False]
    assert trainer.counters.dropped == 1
    assert same(trainer.state(), before)
    factor[0] = 1.0
    assert teach(trainer, 4) == [True]


def harmful(trainer: Trainer) -> bool:
    """An update on answers taught wrongly, while those held out are right."""
    for seed in range(300, 308):
        trainer.add(example_of(seed, shift=3 if seed % 2 else 10))
    return trainer.update()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_update_that_makes_held_out_answers_unlikelier_is_rolled_back(adapter: str) -> None:
    options: dict[str, Any] = {"adapter": adapter, "hold_out_every": 2, "learning_rate": 3e-2}
    trainer = make_trainer(**options, replays=0)
    assert any(teach(trainer, 120))
    before, counters = trainer.state(), trainer.counters
    assert not harmful(trainer)
    assert same(trainer.state(), before)
    assert trainer.counters.rolled_back == counters.rolled_back + 1
    assert trainer.counters.held_out_loss == counters.held_out_loss
    without = make_trainer(**options, replays=0, rollback_margin=1e6)
    teach(without, 120)
    assert harmful(without), "without the guard it would stay"


def test_a_learning_rate_that_does_harm_is_halved_until_it_does_not() -> None:
    trainer = make_trainer(learning_rate=1.0, replays=0, rollback_margin=0.0)
    changed = teach(trainer, 120)
    assert not changed[0]
    assert any(changed)


def test_held_out_answers_are_not_learned_from() -> None:
    one, other = (make_trainer(hold_out_every=3, rollback_margin=1e6) for _ in range(2))
    for seed in range(30):
        one.add(example_of(seed))
        other.add(example_of(seed if (seed + 1) % 3 else seed + 100))
        assert one.due == other.due
        if one.due:
            assert one.update() == other.update()
    assert one.counters.updates == 5
    assert one.counters.held_out_loss != other.counters.held_out_loss
    assert same(one.state(), other.state())


def test_without_held_out_answers_no_loss_is_told() -> None:
    trainer = make_trainer(hold_out_every=1000)
    assert any(teach(trainer, 8))
    assert math.isnan(trainer.counters.held_out_loss)


def test_an_example_without_positions_is_left_out() -> None:
    trainer = make_trainer()
    trainer.add(TrainingExample(torch.arange(3, dtype=torch.int32), certain([], []), labels_of([], [])))
    assert trainer.counters.answers == 0
    assert not trainer.due
    assert not trainer.update()


def test_gradients_are_clipped() -> None:
    """AdamW does not see the size of gradients, until they are as small as its epsilon."""
    moved = []
    for norm in (1.0, 1e-10):
        trainer = make_trainer(replays=0, max_gradient_norm=norm)
        before = trainer.state()
        teach(trainer, 4)
        moved.append(max(float((weight - before[name]).abs().max()) for name, weight in trainer.state().items()))
    assert moved[1] < 0.05 * moved[0]


def test_it_yields_between_passes() -> None:
    calls = []
    learning, settings = settings_of({"interval": 4})
    trainer = Trainer(small_drafter(), learning, ONES, settings=settings, yields=lambda: calls.append(1), per_pass=1)
    teach(trainer, 4)
    assert len(calls) >= 2 * 4


def test_an_interrupted_update_is_as_if_it_had_not_begun() -> None:
    left = [12]

    def interrupt() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    learning, settings = settings_of({"interval": 4})
    trainer = Trainer(small_drafter(), learning, ONES, settings=settings, yields=interrupt, per_pass=1)
    before = trainer.state()
    with pytest.raises(KeyboardInterrupt):
        teach(trainer, 4)
    assert trainer.counters.steps > 0, "it was in the middle"
    assert same(trainer.state(), before)
    assert trainer.due
    assert trainer.update()


@pytest.mark.parametrize("made_inside", [True, False])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_it_learns_in_inference_mode(adapter: str, *, made_inside: bool) -> None:
    wanted = make_trainer(adapter=adapter, trains="joint")
    model = small_drafter()
    with torch.inference_mode(mode=made_inside):
        trainer = make_trainer(model, adapter=adapter, trains="joint")
    with torch.inference_mode():
        trainer.load_state(trainer.state())
        assert teach(trainer, 8) == teach(wanted, 8) == [True, True]
        trainer.train_head()
        state = trainer.state()
    assert same(state, wanted.state())
    assert teach(trainer, 5) == [True], "and outside of it afterwards"


# ---------------------------------------------------------------- memory


def test_it_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()
    monkeypatch.setattr(trainer_module, "SPARE_BYTES", 2**62)
    before = trainer.state()
    assert teach(trainer, 8)
    assert trainer.counters.paused > 0
    assert same(trainer.state(), before)
    monkeypatch.undo()
    assert trainer.due, "nothing that it was taught is lost"
    assert trainer.update()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_update_needs_memory_for_more_than_logits(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_drafter()
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    trainer = make_trainer(model, adapter=adapter, rank=4, trains="drafter")
    trained = 4 * sum(weight.numel() for weight in trainer.state().values())
    logits = 16 * (12 - 4) * SIZE
    for free, updates in ((logits, 0), (5 * trained + logits, 0), (5 * trained + whole + logits + 1, 1)):
        monkeypatch.setattr(trainer_module, "free_bytes", lambda _, free=free: SPARE_BYTES + free)
        teach(trainer, 4)
        assert trainer.counters.updates == updates


def test_a_copy_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module, "free_bytes", lambda _: SPARE_BYTES + 1000)
    with pytest.raises(ModelError, match="use adapt='off'"):
        make_trainer()


def test_what_it_keeps_is_bounded_in_bytes() -> None:
    buffer = ReplayBuffer(TrainerSettings(replay_bytes=2**20), 0)
    size = example_of(0, 2000).nbytes
    for seed in range(2 * 2**20 // size):
        example = example_of(seed, 2000)
        buffer.add(example)
        kept = buffer.sample(10**6)
        assert sum(one.nbytes for one in kept) <= 2**20
        assert all(any(new is one for one in kept) for new in buffer.new)
    assert len(buffer.sample(10**6)) > 2**20 // size - 2
    trainer = make_trainer(replay_bytes=2**20, interval=10**6)
    for seed in range(2 * 2**20 // size):
        trainer.add(example_of(seed, 2000))
    assert trainer.due, "what cannot wait is due"


# ---------------------------------------------------------------- updates that bring little


def test_updates_that_bring_little_become_rarer() -> None:
    interval = UpdateInterval(4, 1e-3)
    for _ in range(GAINS - 1):
        interval.record(0.0)
        assert interval.answers == 4
    for _ in range(3 * GAINS):
        interval.record(0.0)
        assert interval.answers == 8
    interval.record(0.005)  # more than little: they stay as they are
    assert interval.answers == 8
    interval.record(0.02)  # another task
    assert interval.answers == 4
    for interval, gain in ((UpdateInterval(4, 1e-3), 0.002), (UpdateInterval(4, 0.0), -0.002)):
        for _ in range(5 * GAINS):
            interval.record(gain)
            assert interval.answers == 4


def test_rarer_updates_learn_from_the_latest_answers_and_cost_no_more() -> None:
    trainer = make_trainer(interval=2, batch_size=2, replays=0, min_gain=1.0, hold_out_every=2, learning_rate=1e-4)
    waits: list[int] = []
    while len(waits) < 2 * GAINS:
        waits.append(0)
        while not trainer.due:
            trainer.add(example_of(len(waits)))
            waits[-1] += 1
        steps = trainer.counters.steps
        trainer.update()
        assert trainer.counters.steps == steps + 1
    assert max(waits[:GAINS]) == 4, "half of the answers are held out"
    assert waits[-1] == 8
