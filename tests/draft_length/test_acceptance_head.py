"""The acceptance head: its labels, what it learns, and what it says at work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import omnidraft
from distillation.test_losses import some_laws, some_logits
from distillation.test_teacher import whole
from distillation.test_trainer import SIZE, drafter, some_lesson
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Learning, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.distillation import head_trainer
from omnidraft.distillation import trainer as trainer_module
from omnidraft.distillation.adaptation import InlineTrainer
from omnidraft.distillation.batch import Batch
from omnidraft.distillation.head_trainer import HeadTrainer
from omnidraft.distillation.losses import acceptance
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import TrainingExample, marginal_lesson
from omnidraft.distillation.trainer import Trainer
from omnidraft.draft_length.acceptance_head import (
    EXTRA,
    SURE,
    WIDTH,
    Head,
    HeadNetwork,
    bound,
    hidden_size,
    spread,
    tap,
)
from omnidraft.draft_length.policy import Entropy, Fixed, HeadThreshold
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.cpu_llama import LeanLlama
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.verification.walk import Walk
from support.enumeration import FAR, SAMPLED, enumerate_draws
from support.learning_users import FAST, PROMPTS, alone, answers, saved, side_of
from support.models import random_model
from support.table_models import ACTIVE, PROMPT, SHAPES, World, frozen_cache, make_world
from support.training import settings_of

NEVER = Sampling()


# ---------------------------------------------------------------- labels, against an enumeration of the engine


def taught(world: World, cache: NgramCache, token: int) -> tuple[list[int], torch.Tensor]:
    """The positions of a lesson on one token after the prompt, counted from its first; the labels (N, 2) at each."""
    prompt = world.table.spelling(PROMPT).tolist()
    written = world.table.spelling(token).tolist()
    lesson = marginal_lesson(cache, prompt, [token], [written], [whole(world.target.probs((PROMPT,)))])
    logits = torch.stack([world.drafter.row(tuple(lesson.ids[: i + 1].tolist())) for i in range(len(lesson.ids))])
    batch = Batch.of([lesson], torch.device("cpu"))
    return [int(at) - len(prompt) + 1 for at in lesson.laws.positions], acceptance(logits[-batch.keep :], batch.laws, 1)


def enumerated(world: World, cache: NgramCache, written: list[int], sampling: Sampling) -> dict[int, float]:
    """For each number of symbols of a spelling that were drafted and accepted, how often the next one is."""
    reached: dict[int, float] = {}
    accepted: dict[int, float] = {}
    engine = world.engine(cache, draft_length=len(written), verification="token")
    for probability, record in enumerate_draws(lambda draw: next(engine.rounds([PROMPT], FAR, sampling, draw))):
        walk = Walk(cache, world.vocab.eos)
        for draft in record.draft:
            walk.push(draft)
        for depth in range(len(written)):
            if list(record.draft[:depth]) != written[:depth] or record.counts.symbols_accepted < depth:
                break
            if len(record.draft) > depth:
                reached[depth] = reached.get(depth, 0.0) + probability
                accepted[depth] = accepted.get(depth, 0.0) + probability * (record.counts.symbols_accepted > depth)
    return {depth: accepted[depth] / share for depth, share in reached.items() if share > 1e-9}


def spelled(world: World, cache: NgramCache) -> Iterator[tuple[int, list[int]]]:
    for token in range(world.vocab.size):
        if cache.active[token] and world.table.node[token] >= 0:
            yield token, world.table.spelling(token).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("shape", [name for name in SHAPES if not name.startswith("long")])
def test_labels_are_how_often_the_engine_accepts(shape: str, active: str, temperature: float) -> None:
    compared = deep = 0
    for seed in range(4):
        world = make_world(shape, seed)
        cache = frozen_cache(world, active, seed)
        for token, written in spelled(world, cache):
            positions, labels = taught(world, cache, token)
            sampling = SAMPLED if temperature else NEVER
            found = enumerated(world, cache, written, sampling)
            for at, label in zip(positions, labels[:, round(temperature)].tolist(), strict=True):
                if at in found:
                    assert found[at] == pytest.approx(label, abs=1e-5)
                    compared += 1
                    deep += at > 0
    assert compared > (10 if active == "all" else 4)
    assert deep > 2 or temperature == 0 or active != "all"


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("shape", [name for name in SHAPES if not name.startswith("long")])
def test_a_greedy_target_goes_on_as_lessons_say(shape: str, active: str) -> None:
    """In the middle of a draft, where the walk may go on into a longer token."""
    accepted = refused = 0
    for seed in range(8):
        world = make_world(shape, seed)
        cache = frozen_cache(world, active, seed)
        first = int(world.target.probs((PROMPT,)).argmax())
        laws = [whole(world.target.probs((PROMPT,))), whole(world.target.probs((PROMPT, first)))]
        second = int(world.target.probs((PROMPT, first)).argmax())
        spelled_ = [world.table.spelling(token).tolist() for token in (first, second)]
        if not all(spelled_) or not cache.active[first] or first in world.vocab.eos:
            continue
        prompt = world.table.spelling(PROMPT).tolist()
        made = marginal_lesson(cache, prompt, [first, second], spelled_, laws).laws
        best = dict(zip(made.positions.tolist(), made.best.tolist(), strict=True))
        length = len(spelled_[0])
        engine = world.engine(cache, draft_length=length + 1, drafter_temperature=1.0)
        for _, record in enumerate_draws(lambda draw, engine=engine: next(engine.rounds([PROMPT], FAR, NEVER, draw))):  # type: ignore[misc]
            if list(record.draft[:length]) == spelled_[0] and len(record.draft) > length:
                right = record.draft[length] == best[len(prompt) + length - 1]
                assert (record.counts.draft_accepted > length) is right
                accepted += right
                refused += not right
    assert accepted > 0 or active != "all"
    assert refused > 1


# ---------------------------------------------------------------- at work


def learned(size: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """The weights of a head that says something."""
    net = HeadNetwork(size, seed)
    torch.manual_seed(seed)
    torch.nn.init.normal_(net.outer.weight)
    return {name: p.detach() for name, p in net.named_parameters()}


def test_an_untrained_head_is_the_bound_by_entropy() -> None:
    head, entropy, policy = Head(8), Entropy(0.55), HeadThreshold(0.55, Head(8))
    for seed in range(20):
        logits, hidden = some_logits(seed)[0] * seed / 4, torch.randn(8)
        for temperature in (0.0, 0.5, 1.0):
            assert head.chance(logits, hidden, temperature) == bound(spread(logits, temperature)[0])
            assert policy.begin(None)
            assert policy.draws(logits, temperature, hidden) is entropy.draws(logits, temperature, hidden)
            assert policy.no_draft_reason == entropy.no_draft_reason
    net = HeadNetwork(8)
    chances = torch.sigmoid(net(torch.randn(5, 8), some_logits().float())).detach()
    bounds = [min(1 - SURE, max(SURE, bound(spread(row, 1.0)[0]))) for row in some_logits()]
    assert chances[:, 0].tolist() == chances[:, 1].tolist() == pytest.approx(bounds, abs=1e-5)


def test_the_head_at_work_says_what_the_trained_one_does() -> None:
    net, head = HeadNetwork(8), Head(8)
    weights = learned(8)
    net.load_state_dict(weights)
    head.take(weights)
    found = set()
    for seed in range(20):
        logits, hidden = some_logits(seed)[0].float() * 2, torch.randn(8) * 10
        log_odds = net(hidden[None], logits[None])[0].detach()
        for temperature, wanted in ((0.0, log_odds[0]), (0.25, 0.75 * log_odds[0] + 0.25 * log_odds[1])):
            chance = head.chance(logits, hidden, temperature)
            assert chance == pytest.approx(float(torch.sigmoid(wanted)), abs=1e-4)
            found.add(round(chance, 3))
        assert head.chance(logits, hidden, 1.5) == pytest.approx(float(torch.sigmoid(log_odds[1])), abs=1e-4)
    assert len(found) > 20
    assert head.chance(torch.zeros(3), None, 1.0) == bound(spread(torch.zeros(3), 1.0)[0]), "nothing to read"
    head.take({})
    assert not head.trained


def test_a_head_of_another_drafter_is_refused() -> None:
    for weights in (learned(9), {"inner.weight": torch.zeros(WIDTH, 8 + EXTRA)}, {"other": torch.zeros(3)}):
        with pytest.raises(ModelError, match="use another profile"):
            Head(8).take(weights)
        with pytest.raises(ModelError, match="use another profile"):
            HeadTrainer(8, Learning(), TrainerSettings(), torch.device("cpu")).load_state(weights)


def test_a_draft_ends_where_its_chance_as_a_whole_is_low() -> None:
    head = Head(8)
    head.take(learned(8))
    policy = HeadThreshold(0.3, head)
    for seed in range(30):
        assert policy.begin(None)
        reach, torch_seed = 1.0, seed
        for length in range(20):
            logits, hidden = some_logits(torch_seed)[length % 5] * 3, torch.randn(8)
            reach *= head.chance(logits, hidden, 1.0)
            drawn = policy.draws(logits, 1.0, hidden)
            assert drawn is (reach >= 0.3)
            if not drawn:
                assert policy.no_draft_reason is not None
                break
            assert policy.no_draft_reason is None
        else:
            pytest.fail("no draft of twenty tokens has a chance of that")


class Listening(Fixed):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:  # noqa: ARG002
        self.seen.append((logits.clone(), hidden if hidden is None else hidden.clone()))
        return True


@pytest.mark.parametrize("lean", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_it_reads_what_the_next_law_is_made_of(kind: str, *, lean: bool) -> None:
    source = random_model(kind, SIZE, 0)
    if lean and kind != "llama":
        pytest.skip("there is a lean step for Llamas only")
    model: LanguageModel = LeanLlama(source) if lean else source
    listening, one = Listening(), Drafter(model)
    one.start([3, 1, 4, 1, 5])
    one.draft(4, 0.0, lambda _: 0, lambda _: True, None, listening)
    assert len(listening.seen) == 4
    weight = source.model.get_output_embeddings().weight.detach()
    for logits, hidden in listening.seen:
        assert hidden is not None
        torch.testing.assert_close(weight @ hidden, logits, atol=0.05 if lean else 1e-4, rtol=0.05 if lean else 1e-4)


def test_a_model_without_an_output_layer_has_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_model("llama", SIZE, 0)
    monkeypatch.setattr(type(source.model), "get_output_embeddings", lambda _: None)
    assert hidden_size(source.model) is None
    listening, one = Listening(), Drafter(TransformersModel(source.model))
    one.start([3, 1])
    one.draft(2, 0.0, lambda _: 0, lambda _: True, None, listening)
    assert [hidden for _, hidden in listening.seen] == [None, None]
    trainer = Trainer(source.model, Learning(interval=1), np.ones(SIZE, np.bool_))
    trainer.add(some_lesson(0))
    trainer.train_head()
    assert not any("acceptance_head" in name for name in trainer.state())


def test_a_model_is_tapped_once_and_its_copies_have_taps_of_their_own() -> None:
    model = random_model("llama", SIZE, 0).model
    own = tap(model)
    assert own is not None
    assert tap(model) is own
    model(torch.tensor([[1, 2, 3]]))
    assert own.last is not None
    assert own.last.shape == (1, 3, 32)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301  of our own making
        its = tap(other)
        assert its is not None
        assert its is not own
        assert vars(its) == {"last": None}, "nothing of a text goes along"
        other(torch.tensor([[4, 5]]))
        assert its.last is not None
        assert its.last.shape == (1, 2, 32)
    assert own.last.shape == (1, 3, 32)


# ---------------------------------------------------------------- learning


def head_trainer_of(**learning: object) -> HeadTrainer:
    return HeadTrainer(8, *settings_of(learning), torch.device("cpu"))


def chances(trainer: HeadTrainer, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    head = Head(8)
    head.take({name.removeprefix("acceptance_head."): p for name, p in trainer.state().items()})
    return torch.tensor([[head.chance(row, h, t) for t in (0.0, 1.0)] for row, h in zip(logits, hidden, strict=True)])


def test_it_learns_the_labels() -> None:
    trainer = head_trainer_of(teacher_temperature=1.0)
    logits, laws = some_logits(2), some_laws()
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert trainer.state() == {}
    for _ in range(400):
        trainer.learn(hidden, logits, laws)
    labels = acceptance(logits, laws, 1.0).float()
    found = chances(trainer, hidden[laws.positions], logits[laws.positions])
    torch.testing.assert_close(found, labels, atol=0.03, rtol=0)


def test_a_weight_on_refusals_makes_it_careful() -> None:
    logits, laws = some_logits(2), some_laws()
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for weight in (1.0, 6.0):
        trainer = head_trainer_of(teacher_temperature=1.0, rejection_weight=weight)
        for _ in range(400):
            trainer.learn(hidden, logits, laws)
        found.append(chances(trainer, hidden[laws.positions], logits[laws.positions])[:, 1])
    label = acceptance(logits, laws, 1.0)[:, 1].float()
    torch.testing.assert_close(found[1], label / (label + 6 * (1 - label)), atol=0.03, rtol=0)
    assert bool((found[1] <= found[0] + 0.01).all())


def test_a_batch_that_is_not_finite_is_left_out() -> None:
    trainer = head_trainer_of()
    logits, laws = some_logits(2), some_laws()
    hidden = torch.randn(5, 8)
    trainer.learn(hidden, logits, laws)
    before = trainer.state()
    trainer.learn(hidden * torch.nan, logits, laws)
    assert all(torch.equal(before[name], p) for name, p in trainer.state().items())


def trained(trains: str, **learning: object) -> Trainer:
    own, settings = settings_of({"interval": 4, "batch_size": 4, "learning_rate": 1e-2, "trains": trains} | learning)
    trainer = Trainer(drafter(), own, np.ones(SIZE, np.bool_), settings=settings)
    for seed in range(12):
        trainer.add(some_lesson(seed))
        trainer.train_head()
        if trainer.due:
            trainer.update()
    return trainer


def parts(trainer: Trainer) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    state = trainer.state()
    head = {name: p for name, p in state.items() if name.startswith("acceptance_head.")}
    return {name: p for name, p in state.items() if name not in head}, head


def test_the_head_changes_nothing_for_the_drafter() -> None:
    alone, none = parts(trained("drafter"))
    assert none == {}
    for trains in ("joint", "interleaved"):
        found, head = parts(trained(trains))
        assert head
        assert all(torch.equal(alone[name], found[name]) for name in alone)
    only, head = parts(trained("head"))
    assert head
    assert all(torch.equal(only[name], p) for name, p in drafter().named_parameters())


def test_joint_and_interleaved_teach_it_from_other_batches() -> None:
    joint, interleaved = trained("joint"), trained("interleaved")
    # two updates of two steps of 4 lessons each; against 12 answers, each with an earlier one but the first
    assert joint._head is not None
    assert interleaved._head is not None
    assert (joint._head.steps, interleaved._head.steps) == (4 * 4, 12 * 2 - 1)


def test_labels_are_made_anew_of_the_drafter_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trained("interleaved")
    seen: list[torch.Tensor] = []
    true = acceptance

    def spy(logits: torch.Tensor, *rest: object) -> torch.Tensor:
        seen.append(logits.clone())
        return true(logits, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(head_trainer, "acceptance", spy)
    lesson = some_lesson(50)
    trainer.add(lesson)
    trainer.train_head()
    before = seen[0]
    for seed in range(60, 64):
        trainer.add(some_lesson(seed))
    assert trainer.update()
    trainer._memory.append(lesson)
    seen.clear()
    trainer.train_head()
    with torch.no_grad():
        now = trainer._pass([lesson])[1]
    assert torch.equal(seen[0], now)
    assert not torch.equal(seen[0], before)


def test_it_practises_on_the_latest_answer_and_an_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(drafter(), Learning(interval=100), np.ones(SIZE, np.bool_))
    read: list[list[int]] = []
    true = trainer._pass

    def spy(lessons: Sequence[TrainingExample]) -> Any:
        read.append([seen[id(lesson)] for lesson in lessons])
        return true(lessons)

    monkeypatch.setattr(trainer, "_pass", spy)
    seen: dict[int, int] = {}
    for number in range(9):
        lesson = some_lesson(number)
        seen[id(lesson)] = number
        trainer.add(lesson)
        read.clear()
        trainer.train_head()
        latest, *earlier = (number for row in read for number in row)
        assert latest == number
        assert len(earlier) == (number > 0)
        assert all(other < number for other in earlier)


def test_without_memory_it_does_not_practise(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(drafter(), Learning(interval=100), np.ones(SIZE, np.bool_))
    trainer.add(some_lesson(0))
    monkeypatch.setattr(trainer_module, "_roomy", lambda _: False)
    trainer.train_head()
    assert not trainer.news
    monkeypatch.undo()
    trainer.train_head()
    assert trainer.news


def test_the_head_is_handed_over_though_an_update_is_rolled_back() -> None:
    trainer = trained("interleaved", interval=100, hold_out_every=2, rollback_margin=0.0, learning_rate=1.0)
    learner = InlineTrainer(trainer)
    learner.flush()
    assert trainer.counters.rolled_back == trainer.counters.updates == 1
    state = learner.poll()
    assert state is not None
    assert any(name.startswith("acceptance_head.") for name in state)


def test_where_no_head_is_trained_an_earlier_one_is_kept(target: Path, drafter: Path, home: Path) -> None:
    with omnidraft.load(target, drafter, dtype="float32", adapt="inline", **FAST) as model:
        answers(model, 5)
    assert len(saved(home)) == 1
    with omnidraft.load(target, drafter, dtype="float32", adapt="inline", trains="drafter", **FAST) as model:
        before = dict(side_of(model).adaptation.state)
        answers(model, 5)
        assert model.learned["updates"] > 0
    again = side_of(omnidraft.load(target, drafter, dtype="float32")).adaptation
    assert again.pair.head.trained
    heads = [name for name in before if name.startswith("acceptance_head.")]
    assert heads
    assert all(torch.equal(again.state[name], before[name]) for name in heads)


def test_the_hybrid_loss_has_no_head() -> None:
    for trains in ("head", "joint"):
        with pytest.raises(ConfigError, match="forward"):
            Learning(loss="hybrid", trains=trains)
    trainer = Trainer(drafter(), Learning(loss="hybrid"), np.ones(SIZE, np.bool_))
    trainer.add(some_lesson(0, labels=True))
    trainer.train_head()
    assert not trainer.news


def test_it_goes_on_from_an_earlier_state() -> None:
    first = trained("interleaved")
    second = Trainer(drafter(), Learning(), np.ones(SIZE, np.bool_))
    second.load_state(first.state())
    assert all(torch.equal(p, second.state()[name]) for name, p in first.state().items())


# ---------------------------------------------------------------- kept


@pytest.mark.parametrize("adapt", ["inline", "background"])
def test_the_head_survives_save_and_load(
    target: Path,
    drafter: Path,
    home: Path,
    adapt: str,
) -> None:
    options = {"dtype": "float32", **FAST}
    with omnidraft.load(target, drafter, adapt=adapt, **options) as model:
        head = side_of(model).adaptation.pair.head
        assert head.chance(torch.zeros(3), None, 1.0) == bound(spread(torch.zeros(3), 1.0)[0])
        answers(model, 5)
        side_of(model).adaptation.flush()
        assert head.trained
        logits, hidden = torch.randn(50), torch.randn(side_of(model).loaded.lm.model.config.hidden_size)
        said = head.chance(logits, hidden, 1.0)
    assert len(saved(home)) == 1
    later = omnidraft.load(target, drafter, dtype="float32")
    again = side_of(later).adaptation.pair.head
    assert again.trained
    assert again.chance(logits, hidden, 1.0) == said
    assert later.generate(PROMPTS[0], max_new_tokens=8).token_ids == alone(model, PROMPTS[0], 8)


def test_a_head_alone_does_not_have_the_text_read_again(target: Path, drafter: Path) -> None:
    model = omnidraft.load(target, drafter, dtype="float32", adapt="inline", profile=None, trains="head", **FAST)
    answers(model, 1)
    swaps = side_of(model).adaptation.swaps
    answers(model, 5)
    assert side_of(model).adaptation.pair.head.trained
    assert side_of(model).adaptation.swaps <= swaps + 1
    model.close()
