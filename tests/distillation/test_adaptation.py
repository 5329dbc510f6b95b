"""Learning beside decoding: what is said stays what it was, and q is always the one that drafted."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psutil
import pytest
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Learning, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.background import BackgroundTrainer
from omnidraft.distillation.inline import InlineTrainer
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import Trace, shared_tokens
from omnidraft.distillation.trainer import DEFAULTS, Counters, Trainer
from omnidraft.distillation.weights import Weights, merged
from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import TransformersModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler, Sampler, tempered
from support.engines import SMALL, SMALL_PROMPTS, engine, generate, tokens
from support.enumeration import EXACT, Distribution, distance, enumerate_draws, first_tokens, plain_distribution
from support.models import random_model
from support.table_models import PROMPT, TableModel, World, make_world

LEARNING = Learning(interval=2, learning_rate=3e-3, replays=1)


# ---------------------------------------------------------------- the law, while weights change on every round


class Changing:
    """Gives the drafter other weights after every round: tables of another seed."""

    def __init__(self, world: World, drafter: Drafter) -> None:
        self._world, self._drafter, self._count = world, drafter, 0

    def after_round(self) -> None:
        self._count += 1
        self._drafter.load_model(TableModel(self._world.drafter_vocab.size, ("swapped", self._count)))


class Stale(Drafter):
    """Draws with one set of weights and records what another set would have said."""

    def draft(self, length: int, temperature: float, *rest: Any) -> tuple[list[int], list[Probs]]:
        drafted, vectors = super().draft(length, temperature, *rest)
        other = TableModel(self.model.vocab_size, ("stale", 0))
        stale = [
            tempered(other.row((*self.text, *drafted[:i])), temperature).astype(vector.dtype)
            for i, vector in enumerate(vectors)
        ]
        return drafted, stale


def law_with_swaps(world: World, drafter: type[Drafter], count: int, **drafting: object) -> Distribution:
    """The law of the first tokens, where each round's drafter has weights of its own."""

    def run(draw: Sampler) -> tuple[int, ...]:
        own = world.engine(NgramCache(world.table, seed="vocabulary"), **drafting)
        assert own.attached is not None
        own.attached = replace(own.attached, drafter=drafter(TableModel(world.drafter_vocab.size, ("swapped", 0))))
        changing = Changing(world, own.attached.drafter)
        said: list[int] = []
        for record in own.rounds([PROMPT], count, Sampling(temperature=1.0), draw):
            said += record.emitted
            changing.after_round()
        return tuple(said)

    law: Distribution = {}
    for probability, said in enumerate_draws(run):
        law[said] = law.get(said, 0.0) + probability
    return law


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("shape", ["tiny", "nested", "inner"])
def test_the_joint_law_holds_while_every_round_has_other_weights(shape: str, verification: str) -> None:
    world = make_world(shape, 1)
    ours = law_with_swaps(world, Drafter, 2, draft_length=1, verification=verification)
    assert distance(ours, first_tokens(plain_distribution(world), 2, world.vocab.eos)) < EXACT


@pytest.mark.parametrize("shape", ["tiny", "nested"])
def test_a_stale_q_breaks_the_law(shape: str) -> None:
    world = make_world(shape, 1)
    ours = law_with_swaps(world, Stale, 2, draft_length=1)
    assert distance(ours, first_tokens(plain_distribution(world), 2, world.vocab.eos)) > 0.01


# ---------------------------------------------------------------- greedy identity, while weights change


class Perturbing:
    """A learner whose weights are the source's with noise, new ones after every round."""

    def __init__(self, model: TransformersModel, answers: list[Trace]) -> None:
        self.counters = Counters()
        self._base = dict(model.model.named_parameters())
        self._generator = torch.Generator().manual_seed(0)
        self._answers = answers
        self.calls: list[str] = []

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        assert cache.table.target_size
        self._answers.append(trace)
        self.calls.append("teach")

    def poll(self) -> Weights | None:
        noise = {name: torch.randn(p.shape, generator=self._generator) for name, p in self._base.items()}
        return {name: p.detach() + 0.2 * noise[name] for name, p in self._base.items()}

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None: ...

    def close(self) -> None: ...


def setting(kind: str = "llama", **drafting: Any) -> tuple[Engine, SharedDrafter, TransformersModel]:
    """An engine over two languages whose drafter may learn; drafter of this architecture."""
    target_language, drafter_language = SMALL
    target = random_model("llama", target_language.vocab.size, 10)
    small = random_model(kind, drafter_language.vocab.size, 2)
    serving = SharedDrafter(small)
    engine_ = engine(target, target_language, serving.model, drafter_language, **drafting)
    engine_.teacher_temperature = 1.0
    return engine_, serving, target


def prompts() -> list[list[int]]:
    return [SMALL[0].tokenizer(text)["input_ids"] for text in SMALL_PROMPTS]


def said(adaptation: Adaptation, engine_: Engine, prompt: list[int], count: int, **sampling: float) -> list[Round]:
    draw = GeneratorSampler(torch.Generator().manual_seed(3))
    return list(adaptation.following(engine_.rounds(prompt, count, Sampling(**sampling), draw)))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("mode", ["exact", "intersection", "paper"])
def test_greedy_text_is_that_of_transformers_while_weights_change_on_every_round(kind: str, mode: str) -> None:
    engine_, serving, target = setting(kind, mode=mode)
    assert engine_.attached is not None
    learner = Perturbing(serving.source, [])
    adaptation = Adaptation(engine_.attached, serving, learner)
    for prompt in prompts():
        records = said(adaptation, engine_, prompt, 24)
        assert tokens(records) == generate(target, prompt, 24, SMALL[0].vocab.eos)
    assert adaptation.swaps > len(prompts()) * 3
    assert learner.calls == ["pause", "resume", "teach"] * len(prompts())


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_after_a_swap_drafts_are_those_of_the_new_weights_on_the_whole_text(kind: str) -> None:
    """The drafter's keys and values of before are not used again."""
    engine_, serving, _ = setting(kind)
    assert engine_.attached is not None
    adaptation = Adaptation(engine_.attached, serving, Perturbing(serving.source, []))
    drafter = engine_.attached.drafter
    seen: list[bool] = []
    original = drafter.draft

    def watched(*arguments: Any) -> tuple[list[int], list[Probs]]:
        text = list(drafter.text)
        drafted, vectors = original(*arguments)
        if drafted:
            fresh = TransformersModel(copy.deepcopy(serving.source.model))
            learned = merged(dict(serving.source.model.named_parameters()), adaptation.state)
            fresh.model.load_state_dict({**fresh.model.state_dict(), **learned})
            wanted = torch.softmax(fresh.forward(text, 1)[-1], -1)
            seen.append(bool(torch.allclose(torch.from_numpy(vectors[0]).float(), wanted, atol=1e-4)))
        return drafted, vectors

    drafter.draft = watched  # type: ignore[method-assign, assignment]
    said(adaptation, engine_, prompts()[0], 24, temperature=1.0)
    assert len(seen) > 4
    assert all(seen[1:])  # the first round drafts before anything is learned


def inline(
    engine_: Engine, serving: SharedDrafter, learning: Learning = LEARNING, settings: TrainerSettings = DEFAULTS
) -> Adaptation:
    assert engine_.attached is not None
    trainer = Trainer(serving.source.model, learning, shared_tokens(engine_.attached.cache.table), settings=settings)
    return Adaptation(engine_.attached, serving, InlineTrainer(trainer))


@pytest.mark.parametrize("loss", ["forward+tv", "hybrid"])
@pytest.mark.parametrize("adapter", ["full", "lora"])
def test_the_loss_falls_acceptance_rises_and_the_target_stays(adapter: str, loss: str) -> None:
    engine_, serving, target = setting()
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    pristine = {name: weight.clone() for name, weight in serving.source.model.state_dict().items()}
    learning = replace(LEARNING, adapter=adapter, loss=loss, learning_rate=1e-2)
    adaptation = inline(engine_, serving, learning, TrainerSettings(hold_out_every=5, ngram_weight=1.0))
    prompt = prompts()[0]
    records = [said(adaptation, engine_, prompt, 32) for _ in range(24)]
    wanted = generate(target, prompt, 32, SMALL[0].vocab.eos)
    assert all(tokens(one) == wanted for one in records)
    first, last = (
        sum(record.counts.symbols_accepted for one in part for record in one) for part in (records[:4], records[-4:])
    )
    assert last > first + (8 if adapter == "full" else 3)  # an adapter has fewer weights to learn with
    assert adaptation.learner is not None
    assert adaptation.learner.counters.updates >= 5
    assert all(torch.equal(weight, before[name]) for name, weight in target.model.state_dict().items())
    assert all(torch.equal(weight, pristine[name]) for name, weight in serving.source.model.state_dict().items())


def test_a_sampled_text_teaches_the_laws_of_the_target_alone() -> None:
    engine_, serving, target = setting()
    assert engine_.attached is not None
    answers: list[Trace] = []
    adaptation = Adaptation(engine_.attached, serving, Perturbing(serving.source, answers))
    prompt = prompts()[1]
    records = said(adaptation, engine_, prompt, 16, temperature=0.7, top_k=3)
    answer = answers[0]
    assert answer.tokens == tuple(tokens(records))
    assert [len(answer.distributions), len(answer.written)] == [16, 16]
    assert answer.prompt == tuple(engine_.attached.context.prompt(prompt))
    target.crop(0)
    laws = torch.softmax(target.forward([*prompt, *answer.tokens[:-1]], 16), -1).numpy()
    for row, law in zip(laws, answer.distributions, strict=True):
        assert law.probs == pytest.approx(row[law.tokens], abs=1e-5)
        assert law.probs.sum() > 0.999


def test_a_long_text_teaches_what_the_drafter_can_hold() -> None:
    engine_, serving, _ = setting()
    assert engine_.attached is not None
    room = engine_.attached.drafter.model.context
    answers: list[Trace] = []
    adaptation = Adaptation(engine_.attached, serving, Perturbing(serving.source, answers))
    prompt = prompts()[0] * 40
    said(adaptation, engine_, prompt[:400], 60)
    for answer in answers:
        length = len(answer.prompt) + sum(map(len, answer.written))
        assert length <= room
        assert len(answer.tokens) == len(answer.written) == len(answer.distributions) > 0


def test_a_text_left_half_way_teaches_nothing() -> None:
    engine_, serving, _ = setting()
    assert engine_.attached is not None
    learner = Perturbing(serving.source, [])
    adaptation = Adaptation(engine_.attached, serving, learner)
    rounds = adaptation.following(engine_.rounds(prompts()[0], 16, Sampling(), GeneratorSampler(torch.Generator())))
    assert isinstance(rounds, Iterator)
    next(rounds)
    rounds.close()
    assert learner.calls == ["pause", "resume"]


# ---------------------------------------------------------------- one drafter, several targets


def test_one_drafter_serves_two_targets_and_comes_back() -> None:
    engine_, serving, _ = setting()
    other, _, _ = setting()
    assert engine_.attached is not None
    assert other.attached is not None
    other.attached = replace(other.attached, drafter=Drafter(serving.model))
    one, two = inline(engine_, serving), inline(other, serving)
    prompt = prompts()[0]
    for _ in range(6):
        said(one, engine_, prompt, 24)
    assert one.swaps > 0
    assert serving.held_by(one)

    def drafts() -> list[tuple[int, ...]]:
        frozen = Adaptation(engine_.attached, serving, None, one.state)  # type: ignore[arg-type]
        return [record.draft for record in said(frozen, engine_, prompt, 24)]

    learned = drafts()
    for _ in range(6):
        said(two, other, prompts()[1], 24)
    assert serving.held_by(two)
    assert not all(torch.equal(one.state[name], two.state[name]) for name in one.state)
    assert drafts() == learned


# ---------------------------------------------------------------- in a process of its own


@pytest.mark.slow
def test_in_the_background_the_text_stays_and_the_drafter_learns() -> None:
    engine_, serving, target = setting()
    assert engine_.attached is not None
    learner = BackgroundTrainer(
        serving.source.model, replace(LEARNING, learning_rate=1e-2), engine_.attached.cache.table
    )
    adaptation = Adaptation(engine_.attached, serving, learner)
    prompt = prompts()[0]
    wanted = generate(target, prompt, 32, SMALL[0].vocab.eos)
    accepted, waited = [], list[int]()
    try:
        for number in range(16):
            records = said(adaptation, engine_, prompt, 32)
            assert tokens(records) == wanted
            accepted.append(sum(record.counts.symbols_accepted for record in records))
            adaptation.flush(partial(waited.append, number))
        assert 0 in waited, "the process takes long to start, and something else may be done meanwhile"
        assert learner.counters.updates >= 4
        assert adaptation.swaps >= 4
        assert accepted[-1] > accepted[0] + 2
    finally:
        learner.close()
    assert not learner.alive


@pytest.mark.slow
def test_the_background_learns_what_inline_learns() -> None:
    states = []
    for background in (True, False):
        engine_, serving, _ = setting()
        assert engine_.attached is not None
        if background:
            learner = BackgroundTrainer(serving.source.model, LEARNING, engine_.attached.cache.table)
            adaptation = Adaptation(engine_.attached, serving, learner)
        else:
            adaptation = inline(engine_, serving)
        for prompt in prompts()[:2] * 2:
            said(adaptation, engine_, prompt, 24)
            adaptation.flush()
        states.append(adaptation.state)
        assert adaptation.learner is not None
        adaptation.learner.close()
    assert states[0].keys() == states[1].keys()
    for name, weight in states[0].items():  # passes of one lesson each, so up to rounding, which Adam enlarges
        assert torch.allclose(weight, states[1][name], atol=2e-3), name


@pytest.mark.slow
def test_a_dead_trainer_ends_no_reply() -> None:
    engine_, serving, target = setting()
    assert engine_.attached is not None
    before = set(psutil.Process().children())
    learner = BackgroundTrainer(serving.source.model, LEARNING, engine_.attached.cache.table)
    (process,) = set(psutil.Process().children()) - before
    said_: list[str] = []
    adaptation = Adaptation(engine_.attached, serving, learner, warn=said_.append)
    process.kill()
    while learner.alive:
        time.sleep(0.05)
    prompt = prompts()[0]
    for _ in range(3):
        assert tokens(said(adaptation, engine_, prompt, 16)) == generate(target, prompt, 16, SMALL[0].vocab.eos)
    assert len(said_) == 1
    assert "the background trainer has died" in said_[0]
    assert adaptation.learner is None
    with pytest.raises(OmniDraftError, match="has died"):
        learner.flush()
    learner.close()
