"""The trainer: what it learns, its guard rails, and what it leaves as it was."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch

from omnidraft.config import ADAPTERS, Learning
from omnidraft.distillation import lora, replay_buffer, trainer
from omnidraft.distillation.lora import LORA_A, LORA_B, check_fit, merged, parted, trainable
from omnidraft.distillation.replay_buffer import HELD_OUT, ReplayBuffer
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.distillation.trainer import SPARE_BYTES, Trainer
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.loading import has_bfloat16
from support.learning import (
    PROMPT,
    SIZE,
    certain,
    example_of,
    loss_under,
    make_trainer,
    same,
    small_drafter,
    teach,
)
from support.models import build


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "adapter", "loss"),
    [("llama", "full", "forward+tv"), ("qwen2", "lora", "forward+tv"), ("llama", "lora", "forward")],
)
def test_answers_that_were_not_learned_from_become_likelier(kind: str, adapter: str, loss: str) -> None:
    made = make_trainer(small_drafter(kind=kind), adapter=adapter, rank=8, loss=loss, learning_rate=3e-2)
    unseen = [example_of(1000)]
    before = loss_under(made.state(), unseen, loss, kind)
    assert any(teach(made, 80))
    assert loss_under(made.state(), unseen, loss, kind) < 0.9 * before
    assert (made.counters.answers, made.counters.dropped) == (80, 0)
    assert made.counters.steps == made.counters.updates > 0


@pytest.mark.medium
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_model_it_was_made_from_stays_as_it_was(adapter: str) -> None:
    model = small_drafter()
    before = copy.deepcopy(model.state_dict())
    made = make_trainer(model, adapter=adapter)
    assert any(teach(made, 12))
    assert same(model.state_dict(), before)
    assert not any(parameter.grad is not None for parameter in model.parameters())
    state = made.state()
    kept = copy.deepcopy(state)
    teach(made, 8)
    assert same(state, kept), "a state does not change afterwards"
    assert not same(state, made.state())


@pytest.mark.medium
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_same_examples_give_the_same_weights(adapter: str) -> None:
    one, other, third = (make_trainer(adapter=adapter, seed=seed) for seed in (0, 0, 1))
    for each in (one, other, third):
        teach(each, 12)
    assert same(one.state(), other.state())
    assert not same(one.state(), third.state())
    third.load_state(one.state())
    assert same(one.state(), third.state())


@pytest.mark.medium
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_merged_weights_are_those_that_were_trained(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's own held-out loss is that of the model with its state merged in."""
    monkeypatch.setattr(replay_buffer, "HOLD_OUT_EVERY", 2)
    made = make_trainer(adapter=adapter, rank=4, learning_rate=3e-2)
    assert teach(made, 24)[-1]
    held_out = [example_of(seed) for seed in range(1, 22, 2)][-HELD_OUT:]  # when the last update was made
    found = loss_under(made.state(), held_out)
    assert found == pytest.approx(made.counters.held_out_loss, rel=1e-2 if has_bfloat16(torch.device("cpu")) else 1e-4)
    assert found != pytest.approx(loss_under({}, held_out), rel=0.1)


def test_nothing_learned_merges_to_nothing() -> None:
    model = small_drafter()
    base = dict(model.named_parameters())
    assert merged(base, {}) == {}
    state = make_trainer(model, adapter="lora").state()
    check_fit(*({name: weight.to("meta") for name, weight in each.items()} for each in (base, state)))  # shapes alone
    lora = merged(base, state)
    assert lora
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in lora.items())


@pytest.mark.parametrize("pair", ["4, 2x4", "4x2, 2", "4x2, 2x4x1", "4x3, 2x4", "1x2, 2x4"])
def test_matrices_that_cannot_be_merged_are_refused(pair: str) -> None:
    up, down = (torch.zeros([int(size) for size in shape.split("x")]) for shape in pair.split(", "))
    state = {"one" + LORA_B: up, "one" + LORA_A: down}
    with pytest.raises(ModelError, match=r"first 'one(\.weight)?': use another profile"):
        merged({"one.weight": torch.zeros(4, 4)}, state)


def test_matrices_of_two_precisions_are_merged_in_fp32() -> None:
    state = {"one" + LORA_B: torch.full((4, 2), 2.0, dtype=torch.float16), "one" + LORA_A: torch.ones(2, 3)}
    assert same(merged({"one.weight": torch.ones(4, 3).half()}, state), {"one.weight": torch.full((4, 3), 5.0)})


@pytest.mark.medium
def test_a_large_matrix_is_kept_as_most_of_its_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "KEPT_RANK", 4)
    model = small_drafter()
    base = {name: weight.detach() for name, weight in model.named_parameters()}
    made = make_trainer(model, learning_rate=3e-2)
    teach(made, 8)
    state = parted(made.state())[0]
    trained = {name: weight.detach() for name, weight in made._learned.items()}  # noqa: SLF001
    kept = merged(base, state)
    assert kept.keys() == trained.keys()
    large = [name for name in kept if name.removesuffix(".weight") + LORA_B in state]
    assert large
    assert sum(w.nbytes for w in state.values()) < 0.6 * sum(w.nbytes for w in trained.values())
    for name in kept.keys() - set(large):
        assert torch.equal(kept[name], trained[name])
    lost, whole = (sum(float((trained[name] - other[name]).pow(2).sum()) for name in large) for other in (kept, base))
    assert 0 < lost < 0.7 * whole
    assert same(parted(made.state())[0], state), "the same every time"
    made.load_state(made.state())
    assert all(torch.equal(trained[name], kept[name]) for name in kept)
    with pytest.raises(ModelError, match="do not fit"):
        made.load_state({name: weight for name, weight in state.items() if name in base or name in large[:1]})


def test_a_state_of_another_shape_is_refused_and_changes_nothing() -> None:
    made = make_trainer()
    before = made.state()
    name, weight = next((name, weight + 1) for name, weight in before.items() if weight.dim() == 1)
    changed = before | {name: weight}
    for wrong in ({name: weight}, changed | {"x": weight}, changed | {name: weight[:1]}, changed | {name: weight[1:]}):
        with pytest.raises(ModelError, match="do not fit the drafter and its adapter: use another profile"):
            made.load_state(wrong)
        assert same(made.state(), before)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_lora_trains_what_it_merges(kind: str) -> None:
    """Whichever way the weights of a layer lie in memory, its matrices merged into them give the same logits."""
    model = build(kind)
    learned, own = trainable(model, Learning(adapter="lora", rank=3), seed=0)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        before = own(ids).logits
        assert torch.equal(before, model.float().eval()(ids).logits)
        for name, weight in learned.items():
            weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))
        changed = own(ids).logits
        model.load_state_dict(merged(dict(model.named_parameters()), learned), strict=False)
        wanted = model(ids).logits
    assert torch.allclose(changed, wanted, atol=1e-4 * float(wanted.abs().max()))
    assert not torch.allclose(changed, before, atol=0.1 * float(before.abs().max()))


def test_lora_is_refused_for_a_model_that_it_would_not_fit() -> None:
    model = small_drafter()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, torch.nn.Linear) and layer is not model.get_output_embeddings():
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, torch.nn.Identity())
    with pytest.raises(ConfigError, match="LlamaForCausalLM has no layer that it fits: use 'full'"):
        trainable(model, Learning(adapter="lora"), seed=0)


@pytest.mark.medium
def test_an_update_learns_from_the_latest_answers_and_from_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "BATCH", 2)
    made = make_trainer(update_every=4, replay_steps=2)
    for seed in range(9):
        assert made.due == (seed >= 4)
        made.add(example_of(seed))
    assert made.update()
    assert made.counters.steps == 2 * (1 + 2), "four of nine answers, two at a time, each with two replay_steps"
    assert not made.due


# ---------------------------------------------------------------- guard rails


@pytest.mark.medium
@pytest.mark.parametrize("fault", ["loss", "gradient"])
def test_what_is_not_finite_leaves_everything_as_it_was(fault: str) -> None:
    model, factor = small_drafter(), [torch.inf if fault == "gradient" else 1.0]
    model.get_output_embeddings().register_full_backward_hook(lambda *_: (_[1][0] * factor[0],))
    made = make_trainer(model, train="drafter", update_every=2)
    before, bad = made.state(), example_of(3)
    if fault == "loss":
        bad.teacher.probs[0] = torch.nan
    for example in (bad, example_of(4)):
        made.add(example)
    assert not made.update()
    assert same(made.state(), before)
    assert (made.counters.dropped, made.counters.steps, made.counters.rolled_back) == (1, 0, 0)
    factor[0] = 1.0
    assert teach(made, 2) == [True]


def harmful(made: Trainer) -> bool:
    """An update on answers taught wrongly, while those held out are right."""
    for seed in range(300, 308):
        made.add(example_of(seed, shift=3 if seed % 2 else 10))
    return made.update()


@pytest.mark.medium
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_update_that_makes_held_out_answers_unlikelier_is_rolled_back(
    adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_buffer, "HOLD_OUT_EVERY", 2)
    made, without = (make_trainer(adapter=adapter, learning_rate=3e-2, train="drafter") for _ in range(2))
    assert any(teach(made, 64))
    before, counters = made.state(), made.counters
    assert not harmful(made)
    assert same(made.state(), before)
    assert made.counters.rolled_back == counters.rolled_back + 1
    assert made.counters.held_out_loss == counters.held_out_loss
    monkeypatch.setattr(trainer, "ROLLBACK_MARGIN", 1e6)
    teach(without, 64)
    assert harmful(without), "without the guard it would stay"


@pytest.mark.medium
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_weights_that_do_worse_than_the_base_go_half_way_back_to_it(
    adapter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_drafter()
    base = dict(model.named_parameters())
    made = make_trainer(model, adapter=adapter, rank=4, learning_rate=3e-2, train="drafter")
    noise = torch.Generator().manual_seed(0)
    made.load_state({name: w + 0.5 * torch.randn(w.shape, generator=noise) for name, w in made.state().items()})
    before, rate = merged(base, made.state()), made.learning_rate
    monkeypatch.setattr(Trainer, "_learn", lambda *_: None)
    for repeated in (False, True):
        for seed in range(100, 104):
            made.add(example_of(seed))
        assert not made.update()
        assert made.counters.halved == 1 + repeated
    assert made.learning_rate == rate / 4
    for name, weight in merged(base, made.state()).items():
        assert torch.allclose(weight - base[name], (before[name] - base[name]) / 4, atol=1e-6), name
    assert any(not torch.equal(weight, base[name]) for name, weight in before.items())


@pytest.mark.medium
def test_weights_that_do_better_than_the_base_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_trainer(learning_rate=3e-2)
    assert any(teach(made, 16))
    assert made.counters.halved == 0
    monkeypatch.setattr(trainer, "WORSE_MARGIN", -1e6)
    teach(made, 4)
    assert made.counters.halved == 1, "whatever it is, it does not do so much better"


@pytest.mark.medium
def test_answers_are_compared_before_they_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that only know by heart what they were taught do no better than the base."""
    monkeypatch.setattr(trainer, "ROLLBACK_MARGIN", 1e6)
    made = make_trainer(learning_rate=3e-2, train="drafter", replay_steps=8)
    for shift in (10, 3, 17, 24):  # each of which contradicts the one before
        for seed in range(4):
            made.add(example_of(seed, shift=shift))
        made.update()
    assert made.counters.halved >= 2


@pytest.mark.medium
def test_a_learning_rate_that_does_harm_is_halved_until_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "ROLLBACK_MARGIN", 0.0)
    changed = teach(make_trainer(learning_rate=1.0), 64)
    assert not changed[0]
    assert any(changed)


@pytest.mark.medium
def test_a_halved_rate_comes_back_where_updates_help(monkeypatch: pytest.MonkeyPatch) -> None:
    made, losses = (
        make_trainer(learning_rate=1e-3, train="drafter"),
        iter([1, 2, 1, 2, 1, 0.9, 0.9, 0.9, 0.9, 0.8, 0.8, 0.7]),
    )
    monkeypatch.setattr(Trainer, "_loss_of", lambda *_: next(losses))
    rates = []
    for seed in range(6):
        made.add(example_of(seed))
        made.update()
        rates.append(made.learning_rate)
    assert rates == [0.5e-3, 0.25e-3, 0.5e-3, 0.5e-3, 1e-3, 1e-3]


@pytest.mark.medium
def test_updates_get_rarer_while_they_bring_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, losses = make_trainer(), iter([2.0, 1.0, 1.0, 1.0, 1.0, 1.01, 1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.9, 0.8])
    monkeypatch.setattr(made, "_loss_of", lambda _: next(losses))
    learned = []
    for seed in range(200):
        made.add(example_of(seed))
        if made.due:
            learned.append(made.counters.answers)
            made.update()
            if len(learned) == 7:
                break
    waits = [later - earlier for earlier, later in itertools.pairwise(learned)]
    trained = [wait - held_out for wait, held_out in zip(waits, held_out_between(learned), strict=True)]
    assert trained == [4, 8, 16, 32, 32, 4]


def held_out_between(learned: list[int]) -> list[int]:
    """Answers held out among those between two updates each."""
    return [later // 10 - earlier // 10 for earlier, later in itertools.pairwise(learned)]


@pytest.mark.medium
def test_held_out_answers_are_not_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_buffer, "HOLD_OUT_EVERY", 3)
    monkeypatch.setattr(trainer, "ROLLBACK_MARGIN", 1e6)
    one, other = (make_trainer() for _ in range(2))
    for seed in range(18):
        if seed == 10:
            assert math.isnan(one.counters.held_out_loss), "too few to tell a loss"
        one.add(example_of(seed))
        other.add(example_of(seed if (seed + 1) % 3 else seed + 100))
        assert one.due == other.due
        if one.due:
            assert one.update() == other.update()
    assert one.counters.updates == 3
    assert one.counters.held_out_loss != other.counters.held_out_loss
    assert same(one.state(), other.state())


def test_an_example_without_positions_is_left_out() -> None:
    made = make_trainer(update_every=1)
    made.add(TrainingExample(torch.arange(3, dtype=torch.int32), 0, certain([], [])))
    assert made.counters.answers == 0
    assert not made.due
    assert not made.update()


@pytest.mark.medium
def test_gradients_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW does not see the size of gradients, until they are as small as its epsilon."""
    moved = []
    for norm in (1.0, 1e-10):
        monkeypatch.setattr(trainer, "MAX_GRADIENT_NORM", norm)
        made = make_trainer(train="drafter")
        before = made.state()
        teach(made, 4)
        moved.append(max(float((weight - before[name]).abs().max()) for name, weight in made.state().items()))
    assert moved[1] < 0.05 * moved[0]


@pytest.mark.medium
def test_an_interrupted_update_is_as_if_it_had_not_begun() -> None:
    left = [8 + 4]  # eight passes compare four answers with the base

    def interrupt() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    made = make_trainer(train="drafter", yields=interrupt)
    before = made.state()
    with pytest.raises(KeyboardInterrupt):
        teach(made, 4)
    assert made.counters.steps > 0, "it was in the middle"
    assert same(made.state(), before)
    assert made.due
    assert made.update()


@pytest.mark.medium
@pytest.mark.parametrize("made_inside", [True, False])
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_it_learns_in_inference_mode(adapter: str, *, made_inside: bool) -> None:
    wanted = make_trainer(adapter=adapter, train="joint")
    model = small_drafter()
    with torch.inference_mode(mode=made_inside):
        made = make_trainer(model, adapter=adapter, train="joint")
    with torch.inference_mode():
        made.load_state(made.state())
        assert teach(made, 8) == teach(wanted, 8) == [True, True]
        state = made.state()
    assert same(state, wanted.state())
    assert teach(made, 5) == [True], "and outside of it afterwards"


# ---------------------------------------------------------------- memory


def test_it_waits_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_trainer()
    monkeypatch.setattr(trainer, "SPARE_BYTES", 2**62)
    before = made.state()
    assert teach(made, 8)
    assert made.counters.paused > 0
    assert same(made.state(), before)
    monkeypatch.undo()
    assert made.due, "nothing that it was taught is lost"
    assert made.update()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_update_needs_memory_for_more_than_logits(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_drafter()
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    made = make_trainer(model, adapter=adapter, rank=4, train="drafter")
    trained = 4 * sum(weight.numel() for weight in made.state().values())
    logits = 16 * 4 * (12 - PROMPT) * SIZE  # of four answers in a pass
    for free, updates in ((logits, 0), (5 * trained + logits, 0), (5 * trained + whole + logits + 1, 1)):
        monkeypatch.setattr(trainer, "free_bytes", lambda _, free=free: SPARE_BYTES + free)
        teach(made, 4)
        assert made.counters.updates == updates


def test_a_copy_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "free_bytes", lambda _: SPARE_BYTES + 1000)
    with pytest.raises(ModelError, match="use adapt='off'"):
        make_trainer()


@pytest.mark.medium
def test_what_it_keeps_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    size = example_of(0).nbytes
    monkeypatch.setattr(replay_buffer, "REPLAY_BYTES", 6 * size)
    buffer, made = ReplayBuffer(0), make_trainer(update_every=16)
    for seed in range(20):
        buffer.add(example_of(seed))
        made.add(example_of(seed))
        kept = buffer.sample(100)
        assert sum(one.nbytes for one in kept) <= 6 * size
        assert all(any(new is one for one in kept) for new in buffer.new)
    assert len(buffer.sample(100)) == 6
    assert made.due, "those dropped count, too"
    assert made.update()
