"""The trainer: what it learns, what it refuses to learn, and what it leaves as it was."""

from __future__ import annotations

import copy
import math
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from omnidraft.config import Learning
from omnidraft.distillation import trainer as trainer_module
from omnidraft.distillation.batch import Batch
from omnidraft.distillation.teacher import Arrays, Tokens, TrainingExample
from omnidraft.distillation.trainer import JUDGES, RING, Trainer
from omnidraft.distillation.update_interval import LOOKED_AT, RAREST
from omnidraft.distillation.weights import merged
from omnidraft.errors import ModelError
from support.models import random_model
from support.training import settings_of

SIZE = 40
ADAPTERS = ("full", "lora")


def drafter(seed: int = 0, kind: str = "llama") -> PreTrainedModel:
    model: PreTrainedModel = random_model(kind, SIZE, seed).model
    return model


def arrays(positions: list[int], symbols: list[int]) -> Arrays:
    count = len(positions)
    return Arrays(
        positions=np.array(positions, np.int32),
        rows=np.arange(count, dtype=np.int32),
        symbols=np.array(symbols, np.int32),
        probs=np.ones(count, np.float32),
        rest=np.zeros(count, np.float32),
        coarse=np.zeros(count, np.bool_),
        best=np.array(symbols, np.int32),
    )


def some_lesson(seed: int, length: int = 12, *, labels: bool = False, prompt: int = 4) -> TrainingExample:
    """A text in which each token is followed by the one three above it, for certain."""
    ids = (np.random.default_rng(seed).integers(SIZE) + 3 * np.arange(length)) % SIZE
    positions = list(range(prompt, length))
    laws = arrays(positions, [int(ids[i] + 3) % SIZE for i in positions])
    if not labels:
        return TrainingExample(ids.astype(np.int32), laws)
    half = len(positions) // 2
    following = np.array([int(ids[i] + 3) % SIZE for i in positions[half:]], np.int32)
    own = Tokens(np.array(positions[half:], np.int32), following, np.full(len(following), 0.2, np.float32))
    return TrainingExample(ids.astype(np.int32), arrays(positions[:half], laws.symbols[:half].tolist()), own)


def make(
    model: PreTrainedModel | None = None, *, seed: int = 0, at_once: int | None = None, **learning: Any
) -> Trainer:
    own, settings = settings_of({"interval": 4, "batch_size": 4, "learning_rate": 1e-2} | learning)
    return Trainer(model or drafter(), own, np.ones(SIZE, np.bool_), seed, settings, at_once=at_once)


def teach(trainer: Trainer, count: int, **lesson: Any) -> list[bool]:
    changes = []
    for seed in range(count):
        trainer.add(some_lesson(seed, **lesson))
        if trainer.due:
            changes.append(trainer.update())
    return changes


def loss_of(trainer: Trainer, lesson: TrainingExample) -> float:
    with torch.no_grad():
        return float(trainer._losses(trainer._pass([lesson])).mean())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("loss", ["forward+tv", "hybrid"])
def test_what_was_not_learned_from_is_predicted_better(kind: str, adapter: str, loss: str) -> None:
    trainer = make(drafter(kind=kind), adapter=adapter, rank=8, loss=loss, learning_rate=3e-2)
    unseen = some_lesson(1000, labels=loss == "hybrid")
    before = loss_of(trainer, unseen)
    assert any(teach(trainer, 160, labels=loss == "hybrid"))
    assert loss_of(trainer, unseen) < 0.8 * before
    counters = trainer.counters
    assert counters.answers == 160
    assert counters.steps == 2 * counters.updates > 0
    assert counters.dropped == 0


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_model_it_was_made_from_stays_as_it_was(adapter: str) -> None:
    model = drafter()
    before = copy.deepcopy(model.state_dict())
    trainer = make(model, adapter=adapter)
    assert any(teach(trainer, 20))
    assert same(model.state_dict(), before)
    assert not any(parameter.grad is not None for parameter in model.parameters())
    state = trainer.state()
    teach(trainer, 8)
    assert not same(state, trainer.state())  # and a state does not change afterwards


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_same_lessons_give_the_same_weights(adapter: str) -> None:
    one, other, third = make(adapter=adapter), make(adapter=adapter), make(adapter=adapter, seed=1)
    for each in (one, other, third):
        teach(each, 16)
    assert same(one.state(), other.state())
    assert not same(one.state(), third.state())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_merged_weights_are_those_that_were_trained(adapter: str) -> None:
    model = drafter()
    trainer = make(model, adapter=adapter, rank=4, learning_rate=3e-2)
    teach(trainer, 24)
    serving = copy.deepcopy(model)
    serving.load_state_dict(merged(dict(model.named_parameters()), trainer.state()), strict=False)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        trained, served, base = (each(ids).logits for each in (trainer._inner, serving, model))
    assert torch.allclose(trained, served, atol=1e-4)
    assert not torch.allclose(served, base, atol=1e-2)


def test_nothing_learned_merges_to_nothing() -> None:
    model = drafter()
    assert merged(dict(model.named_parameters()), {}) == {}
    lora = merged(dict(model.named_parameters()), make(model, adapter="lora").state())
    assert lora
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in lora.items())


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_state_is_resumed(adapter: str) -> None:
    one, other = make(adapter=adapter), make(adapter=adapter, seed=5)
    teach(one, 20)
    other.load_state(one.state())
    assert same(one.state(), other.state())
    assert loss_of(one, some_lesson(77)) == pytest.approx(loss_of(other, some_lesson(77)))


def test_a_state_of_another_shape_is_refused() -> None:
    state = make(adapter="lora", rank=4).state()
    for other in (make(adapter="lora", rank=8), make(adapter="full")):
        before = other.state()
        with pytest.raises(ModelError, match="another profile"):
            other.load_state(state)
        assert same(other.state(), before)
    with pytest.raises(ModelError, match="lacks"):
        merged({"other.weight": torch.zeros(2, 2)}, state)


# ---------------------------------------------------------------- batches


def test_side_by_side_is_as_one_after_the_other() -> None:
    trainer = make()
    lessons = [some_lesson(seed, length) for seed, length in enumerate((5, 12, 30, 8))]
    with torch.no_grad():
        together = trainer._losses(trainer._pass(lessons))
        apart = torch.cat([trainer._losses(trainer._pass([lesson])) for lesson in lessons])
    assert torch.allclose(together, apart, atol=1e-5)


def test_side_by_side_with_labels() -> None:
    trainer = make(loss="hybrid")
    lessons = [some_lesson(seed, length, labels=True) for seed, length in enumerate((9, 20))]
    with torch.no_grad():
        together = float(trainer._losses(trainer._pass(lessons)).sum())
        apart = sum(float(trainer._losses(trainer._pass([lesson])).sum()) for lesson in lessons)
    assert together == pytest.approx(apart, rel=1e-5)


def test_passes_of_one_lesson_give_the_gradient_of_the_batch() -> None:
    at_once, apart = make(replays=0, at_once=8), make(replays=0)
    for each in (at_once, apart):
        teach(each, 8)
    for name, weight in at_once.state().items():
        assert torch.allclose(weight, apart.state()[name], atol=1e-4), name


def test_a_batch_keeps_only_the_rows_that_are_asked_for() -> None:
    lessons = [some_lesson(0, 12, prompt=4), some_lesson(1, 9, prompt=6)]
    batch = Batch.of(lessons, torch.device("cpu"))
    assert batch.keep == 8
    assert batch.ids.shape == (2, 12)
    assert batch.laws.positions.tolist() == [*range(8), *range(8 + 2, 8 + 5)]


# ---------------------------------------------------------------- guard rails


def test_a_loss_that_is_not_finite_leaves_everything_as_it_was() -> None:
    trainer = make(replays=0)
    teach(trainer, 8)
    before, counters = trainer.state(), trainer.counters
    bad = some_lesson(3)
    bad.laws.probs[0] = np.nan
    trainer._new = [bad, some_lesson(4)]
    assert not trainer.update()
    assert same(trainer.state(), before)
    assert trainer.counters.dropped == counters.dropped + 1
    assert trainer.counters.steps == counters.steps
    assert all(bool(torch.isfinite(weight).all()) for weight in trainer.state().values())


def test_a_gradient_that_is_not_finite_leaves_everything_as_it_was() -> None:
    trainer = make(replays=0)
    before = trainer.state()
    broken = trainer._parameters[0].register_hook(lambda gradient: gradient * torch.inf)
    teach(trainer, 4)
    assert trainer.counters.dropped == 1
    assert same(trainer.state(), before)
    broken.remove()
    assert any(teach(trainer, 4))


def unhelpful(lesson: TrainingExample) -> TrainingExample:
    """The same text taught wrongly."""
    return TrainingExample(
        lesson.ids, arrays(lesson.laws.positions.tolist(), ((lesson.laws.symbols + 7) % SIZE).tolist())
    )


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_update_that_makes_held_out_answers_unlikelier_is_taken_back(adapter: str) -> None:
    trainer = make(adapter=adapter, hold_out_every=2, learning_rate=3e-2)
    teach(trainer, 120)
    assert len(trainer._ring) == RING
    before, rate, undone = trainer.state(), trainer._optimizer.param_groups[0]["lr"], trainer.counters.rolled_back
    held_out = trainer._loss_of(list(trainer._ring))
    trainer._new = [unhelpful(some_lesson(seed)) for seed in range(4)]
    trainer._memory.clear()
    trainer._memory.extend(trainer._new)
    assert not trainer.update()
    assert same(trainer.state(), before)
    assert trainer.counters.rolled_back == undone + 1
    assert trainer._optimizer.param_groups[0]["lr"] == rate / 2
    assert trainer._loss_of(list(trainer._ring)) == held_out


def test_a_judge_is_not_taken_for_one_that_is_gone() -> None:
    """An object's id is another's once it is gone."""
    trainer = make(hold_out_every=2)
    for seed in range(200):
        judge = some_lesson(seed) if seed % 2 else unhelpful(some_lesson(seed))
        assert trainer._loss_of([judge]) == pytest.approx(loss_of(trainer, judge), rel=1e-5)
        del judge


def test_without_the_guard_that_update_would_stay() -> None:
    trainer = make(hold_out_every=2, learning_rate=3e-2, rollback_margin=1e6)
    teach(trainer, 120)
    trainer._new = [unhelpful(some_lesson(seed)) for seed in range(4)]
    assert trainer.update()


def test_held_out_answers_are_not_learned_from() -> None:
    trainer = make(hold_out_every=3)
    lessons = [some_lesson(seed) for seed in range(9)]
    for lesson in lessons:
        trainer.add(lesson)
    assert list(trainer._ring) == lessons[2::3]
    assert not any(lesson is kept for lesson in trainer._ring for kept in [*trainer._new, *trainer._memory])


def test_it_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make()
    monkeypatch.setattr(trainer_module, "FREE_BYTES", 2**62)
    before = trainer.state()
    assert teach(trainer, 8)
    assert trainer.counters.paused > 0
    assert same(trainer.state(), before)
    monkeypatch.undo()
    assert trainer.due  # what it was taught is not lost
    assert trainer.update()


def test_what_it_keeps_is_bounded_in_bytes() -> None:
    trainer = make(replay_bytes=2**20, interval=10**6)
    long = 2000
    size = some_lesson(0, long).nbytes
    for seed in range(2 * 2**20 // size):
        trainer.add(some_lesson(seed, long))
        assert sum(lesson.nbytes for lesson in trainer._memory) == trainer._bytes <= 2**20
        assert all(any(new is kept for kept in trainer._memory) for new in trainer._new)
    assert trainer.nbytes <= 2**20 + RING * size


def test_a_lesson_without_positions_is_left_out() -> None:
    trainer = make()
    trainer.add(TrainingExample(np.arange(3, dtype=np.int32), arrays([], [])))
    assert trainer.counters.answers == 0
    assert not trainer.due
    assert not trainer.update()


def test_no_held_out_answers_no_judgement() -> None:
    trainer = make(hold_out_every=1000)
    assert any(teach(trainer, 8))
    assert math.isnan(trainer.counters.held_out_loss)


def test_clipping_bounds_the_gradient() -> None:
    seen = []
    trainer = make(max_gradient_norm=0.01, replays=0)
    step = trainer._optimizer.step

    def watched() -> None:
        seen.append(math.hypot(*(float(p.grad.norm()) for p in trainer._parameters if p.grad is not None)))
        step()

    trainer._optimizer.step = watched  # type: ignore[method-assign, assignment]
    teach(trainer, 8)
    assert len(seen) == 2
    assert all(norm == pytest.approx(0.01, rel=1e-3) for norm in seen)


def test_it_yields_between_passes() -> None:
    calls = []
    trainer = Trainer(
        drafter(), Learning(interval=4), np.ones(SIZE, np.bool_), yields=lambda: calls.append(1), at_once=1
    )
    teach(trainer, 4)
    assert len(calls) >= 2 * 4


def test_a_trainer_on_a_llama_is_on_a_copy() -> None:
    model = drafter()
    assert isinstance(make(model)._inner, LlamaForCausalLM)
    assert make(model)._inner is not model


# ---------------------------------------------------------------- updates that bring little


def rounds_until_due(trainer: Trainer, seed: int) -> int:
    """Answers that it takes for the next update to be due; those held out are not counted."""
    count = 0
    while not trainer.due:
        before = len(trainer._memory)
        trainer.add(some_lesson(seed + 1000 * count))
        count += len(trainer._memory) - before
    return count


def test_updates_that_bring_little_become_rarer_and_cost_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(interval=2, batch_size=2, replays=0, min_gain=1e-3, hold_out_every=2)
    gain = 0.0
    losses: list[float] = []

    def loss(*_: object) -> float:
        losses.append(1.0 if len(losses) % 2 == 0 else 1.0 - gain)
        return losses[-1]

    monkeypatch.setattr(trainer, "_loss_of", loss)

    def update(seed: int) -> tuple[int, int]:
        waited, steps = rounds_until_due(trainer, seed), trainer.counters.steps
        assert trainer.update()
        return waited, trainer.counters.steps - steps

    for seed in range(LOOKED_AT + JUDGES):  # the first ones have no judges yet
        update(seed)
    found = [update(100 + seed) for seed in range(3 * LOOKED_AT)]
    assert {waited for waited, _ in found} <= {2, 2 * RAREST}
    assert {steps for _, steps in found} == {1}, "only the latest answers are learned from at once"
    assert found[-1][0] == 2 * RAREST
    gain = 0.005  # more than little: they stay as they are
    assert [update(200 + seed)[0] for seed in range(2 * LOOKED_AT)][-1] == 2 * RAREST
    gain = 0.02  # another task
    update(300)
    assert update(301)[0] == 2


def test_updates_that_bring_something_stay_as_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(interval=2, batch_size=2, replays=0, min_gain=1e-3, hold_out_every=2)
    losses: list[float] = []

    def loss(*_: object) -> float:
        losses.append(1.0 if len(losses) % 2 == 0 else 0.998)
        return losses[-1]

    monkeypatch.setattr(trainer, "_loss_of", loss)
    for seed in range(5 * LOOKED_AT):
        assert rounds_until_due(trainer, seed) == 2
        trainer.update()


def test_updates_need_not_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(interval=2, batch_size=2, replays=0, min_gain=0, hold_out_every=2)
    losses = cycle((1.0, 1.002))  # they even do a little harm
    monkeypatch.setattr(trainer, "_loss_of", lambda _: next(losses))
    for seed in range(5 * LOOKED_AT):
        assert rounds_until_due(trainer, seed) == 2
        trainer.update()
    assert trainer.counters.rolled_back == 0
