"""Learning beside decoding: what is said stays what it was, and q is always the one that drafted."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Learning, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.passes import Passes
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stream import decode
from omnidraft.distillation.background_trainer import BackgroundTrainer
from omnidraft.distillation.inline_trainer import InlineTrainer
from omnidraft.distillation.lora import merged, parted
from omnidraft.distillation.online_adaptation import Adaptation, Learned, Learner
from omnidraft.distillation.teacher import Trace
from omnidraft.distillation.trainer import Counters, Trainer
from omnidraft.errors import OmniDraftError
from omnidraft.models.native.weights import PackedWeights
from omnidraft.models.transformers_model import PretrainedModel, TransformersModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Sampler, softmax
from support.enumeration import EXACT, Distribution, distance, distribution_of, first_tokens, plain_distribution
from support.lanes import SMALL, SMALL_PROMPTS, generate, lane, tokens
from support.learning import answered
from support.models import random_model
from support.table_models import PROMPT, TableModel, World, make_world

pytestmark = pytest.mark.medium

LEARNING = Learning(update_every=2, learning_rate=3e-3, replay_steps=1)


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

    def draft(self, length: int, temperature: float, *rest: Any) -> Passes[tuple[list[int], list[Probs]]]:
        drafted, vectors = yield from super().draft(length, temperature, *rest)
        other = TableModel(self.model.vocab_size, ("stale", 0))
        stale = [
            softmax(other.row((*self.text, *drafted[:i])), temperature).astype(vector.dtype)
            for i, vector in enumerate(vectors)
        ]
        return drafted, stale


def law_with_swaps(world: World, drafter: type[Drafter], count: int, **drafting: object) -> Distribution:
    """The law of the first tokens, where each round's drafter has weights of its own."""

    def run(draw: Sampler) -> tuple[int, ...]:
        own = world.lane(NgramCache(world.table, seed="vocabulary"), **drafting)
        assert own.attached is not None
        own.attached = replace(own.attached, drafter=drafter(TableModel(world.drafter_vocab.size, ("swapped", 0))))
        changing = Changing(world, own.attached.drafter)
        said: list[int] = []
        for record in decode(own, [PROMPT], count, Sampling(temperature=1.0), draw):
            said += record.emitted
            changing.after_round()
        return tuple(said)

    return distribution_of(run)


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


# ---------------------------------------------------------------- two languages, and a drafter that may learn


class Perturbing:
    """A learner whose weights are the source's with noise, new ones after every round."""

    def __init__(self, source: PretrainedModel) -> None:
        self.counters = Counters()
        self._base = dict(source.model.named_parameters())
        self._generator = torch.Generator().manual_seed(0)
        self.answers: list[Trace] = []
        self.calls: list[str] = []
        self.polls = 0

    def teach(self, trace: Trace, cache: NgramCache) -> None:
        assert cache.table.target_size
        self.answers.append(trace)
        self.calls.append("teach")

    def poll(self) -> Learned:
        self.polls += 1
        noise = {name: torch.randn(p.shape, generator=self._generator) for name, p in self._base.items()}
        return Learned({name: p.detach() + 0.2 * noise[name] for name, p in self._base.items()})

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def flush(self, meanwhile: Callable[[], None] = lambda: None) -> None: ...

    def close(self) -> None: ...


class Setting:
    """A lane over two small languages, whose drafter of an architecture may learn."""

    def __init__(self, kind: str = "llama", **drafting: Any) -> None:
        (target, drafter), self.eos = SMALL, SMALL[0].vocab.eos
        self.target = random_model("llama", target.vocab.size, 10)
        self.shared = SharedDrafter(random_model(kind, drafter.vocab.size, 2))
        self.lane = lane(self.target, target, self.shared.model, drafter, **{"verification": "block"} | drafting)
        self.lane.teacher_temperature = 1.0
        self.prompts = [target.tokenizer(text)["input_ids"] for text in SMALL_PROMPTS]
        assert self.lane.attached is not None
        self.attached = self.lane.attached

    @property
    def source(self) -> PretrainedModel:
        return self.shared.source

    def adaptation(self, learner: Learner) -> Adaptation:
        return Adaptation(self.attached, self.shared, learner, warn=pytest.fail)

    def inline(self, learning: Learning = LEARNING) -> InlineTrainer:
        return InlineTrainer(Trainer(self.source.model, learning))


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@pytest.mark.parametrize("mode", ["exact", "intersection", "paper"])
def test_greedy_text_is_that_of_transformers_while_weights_change_on_every_round(kind: str, mode: str) -> None:
    setting = Setting(kind, mode=mode)
    learner = Perturbing(setting.source)
    adaptation = setting.adaptation(learner)
    for prompt in setting.prompts[:2]:
        records = answered(adaptation, setting.lane, prompt, 24)
        assert tokens(records) == generate(setting.target, prompt, 24, setting.eos)
        assert len(records) > 3
    assert learner.polls > 2 * 3
    assert [call for call, before in zip(learner.calls, ["", *learner.calls], strict=False) if call != before] == [
        *["resume", "pause", "resume", "teach"] * 2
    ]


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_after_a_change_drafts_are_those_of_the_new_weights_on_the_whole_text(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter's keys and values of before are not used again."""
    setting = Setting(kind)
    setting.lane.counts = None  # drafts are the network's alone
    adaptation = setting.adaptation(Perturbing(setting.source))
    drafter = setting.attached.drafter
    original, base, seen = Drafter.draft, dict(setting.source.model.named_parameters()), list[bool]()

    def watched(*arguments: Any) -> Passes[tuple[list[int], list[Probs]]]:
        text = list(drafter.text)
        drafted, vectors = yield from original(*arguments)
        if drafted:
            fresh = TransformersModel(copy.deepcopy(setting.source.model))
            fresh.model.load_state_dict({**fresh.model.state_dict(), **merged(base, adaptation.state)})
            step = SharedDrafter(fresh).model  # as the drafter's, in 8 bits where the machine has that step
            wanted = torch.softmax(step.new_sequence().forward(text, 1)[-1], -1)
            seen.append(bool(torch.allclose(torch.from_numpy(vectors[0]).float(), wanted, atol=1e-4)))
        return drafted, vectors

    monkeypatch.setattr(Drafter, "draft", watched)
    answered(adaptation, setting.lane, setting.prompts[0], 24, temperature=1.0)
    assert len(seen) > 4
    assert all(seen)


def test_a_sampled_text_teaches_the_distributions_of_the_target_alone() -> None:
    setting = Setting()
    learner, prompt = Perturbing(setting.source), setting.prompts[1]
    records = answered(setting.adaptation(learner), setting.lane, prompt, 16, temperature=0.7, top_k=3)
    (answer,) = learner.answers
    assert answer.tokens == tuple(tokens(records))
    assert [len(answer.distributions), len(answer.written)] == [16, 16]
    assert answer.prompt == tuple(setting.attached.context.prompt(prompt))
    wanted = torch.softmax(setting.target.new_sequence().forward([*prompt, *answer.tokens[:-1]], 16), -1).numpy()
    for row, p in zip(wanted, answer.distributions, strict=True):
        assert p.probs == pytest.approx(row[p.tokens], abs=1e-5)
        assert p.probs.sum() > 0.999


def test_a_long_text_teaches_its_end_and_what_follows_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.distillation.teacher.LONGEST", 48)
    setting = Setting()
    learner, prompt = Perturbing(setting.source), setting.prompts[0] * 3
    records = answered(setting.adaptation(learner), setting.lane, prompt, 40)
    (answer,) = learner.answers
    assert answer.prompt == tuple(setting.attached.context.prompt(prompt)[-24:])
    assert 24 + sum(map(len, answer.written)) <= 48
    kept = len(answer.tokens)
    assert 40 > kept == len(answer.written) == len(answer.distributions) > 0
    assert answer.tokens == tuple(tokens(records)[:kept])


def test_one_thread_at_a_time_polls_so_that_the_latest_state_is_received_last() -> None:
    setting = Setting()
    learner = Perturbing(setting.source)
    adaptation, states = setting.adaptation(learner), [learner.poll(), latest := learner.poll()]
    other = threading.Thread(target=adaptation.poll)

    def poll() -> Learned:
        learned = states.pop(0)
        if states:
            other.start()
            other.join(0.2)  # it has to wait
        return learned

    learner.poll = poll  # type: ignore[method-assign]
    adaptation.poll()
    other.join()
    assert adaptation.state is latest.state


def test_weights_that_could_not_be_lent_are_lent_in_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    learner = Perturbing(setting.source)
    adaptation = setting.adaptation(learner)
    learner.poll = Mock(side_effect=[learner.poll(), None, None])  # type: ignore[method-assign]
    with monkeypatch.context() as patch:
        patch.setattr(setting.shared, "lend", Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            adaptation.load_weights()
    adaptation.load_weights()
    assert (lent := setting.attached.drafter.model) is not setting.shared.model
    adaptation.load_weights()
    assert setting.attached.drafter.model is lent


def test_what_ends_learning_waits_for_an_answer_that_another_thread_teaches() -> None:
    setting = Setting()
    learner, closed = Perturbing(setting.source), threading.Event()
    adaptation = setting.adaptation(learner)  # which fails at a warning
    ender = threading.Thread(target=adaptation.end)

    def teach(trace: Trace, cache: NgramCache) -> None:  # noqa: ARG001
        ender.start()
        ender.join(0.2)  # it has to wait
        if closed.is_set():
            raise OmniDraftError("the trainer has died")

    learner.teach, learner.close = teach, closed.set  # type: ignore[method-assign]
    answered(adaptation, setting.lane, setting.prompts[0], 4)
    ender.join()
    assert closed.is_set()
    assert adaptation.counters == learner.counters
    assert setting.shared.turns.background == []
    adaptation.teach([Round(emitted=(0,))])  # what comes later is not taught


@pytest.mark.slow
def test_the_background_learns_what_inline_learns() -> None:
    states, waited = [], list[int]()
    for background in (True, False):
        setting = Setting()
        learner: Learner = setting.inline()
        rounds = setting.shared.rounds
        if background:
            learner = BackgroundTrainer(setting.source.model, LEARNING, setting.attached.cache.table, rounds=rounds)
        adaptation = setting.adaptation(learner)
        for prompt in setting.prompts[:2] * 2:
            records = answered(adaptation, setting.lane, prompt, 16)
            assert tokens(records) == generate(setting.target, prompt, 16, setting.eos)
            adaptation.flush(lambda: waited.append(1))
        states.append(adaptation.state)
        assert learner.counters.updates == 4
        assert isinstance(adaptation._weights, PackedWeights) == (background and rounds)  # noqa: SLF001
        adaptation.load_weights()
        base = dict(setting.source.model.named_parameters())
        again = SharedDrafter(setting.source).lend(merged(base, parted(adaptation.state)[0]))
        found, wanted = (each.new_sequence().forward([1, 2, 3], 1) for each in (setting.attached.drafter.model, again))
        assert torch.equal(found, wanted), "rounded there as here"
        learner.close()
    assert waited, "the process takes long to start, and something else may be done meanwhile"
    assert states[0].keys() == states[1].keys()
    for name, weight in states[0].items():  # up to rounding, which Adam enlarges
        assert torch.allclose(weight, states[1][name], atol=2e-3), name
