"""Acceptance head: inference, what it reads of the drafter, and the profile that keeps it."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path

import pytest
import torch

import omnidraft
from distillation.test_losses import some_logits
from omnidraft.config import Drafting
from omnidraft.counts.counts import Guess
from omnidraft.decoding import passes
from omnidraft.decoding.drafter import Drafter
from omnidraft.draft_length.acceptance_head import Head, HeadNetwork, bound, hidden_size, spread, spreads
from omnidraft.draft_length.simple_policies import Fixed, HeadThreshold, make_policy
from omnidraft.errors import ModelError
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.native.model import native_of
from omnidraft.models.transformers_model import TransformersModel, tap
from support.assembling import load_with
from support.learning import FAST, PROMPTS, SIZE, adaptive_of, alone, answers, saved
from support.models import random_model


def learned(size: int) -> dict[str, torch.Tensor]:
    """The weights of a head that corrects the bound."""
    net = HeadNetwork(size)
    torch.nn.init.normal_(net.outer.weight, generator=torch.Generator().manual_seed(0))
    return dict(net.state_dict())


def bound_of(logits: torch.Tensor, temperature: float) -> float:
    return bound(spread(logits, temperature)[0])


def test_an_untrained_head_is_the_bound_by_entropy() -> None:
    head, network = Head(8), HeadNetwork(8)
    for seed in range(20):
        logits, hidden = some_logits(seed)[0] * seed / 4, torch.randn(8)
        for temperature in (0.0, 0.5, 1.0):
            assert head.chance(logits, hidden, temperature) == bound_of(logits, temperature)
        started = torch.sigmoid(network(hidden[None], *spreads(logits[None])))[0]
        assert started.tolist() == pytest.approx([min(0.98, max(0.02, bound_of(logits, 1.0)))] * 2, abs=1e-5)


def test_a_trained_head_interpolates_between_its_two_temperatures() -> None:
    head = Head(8)
    head.load_weights(learned(8))
    found = set()
    for seed in range(20):
        logits, hidden = some_logits(seed)[0].float() * 2, torch.randn(8) * 10
        odds = [math.log(p / (1 - p)) for p in (head.chance(logits, hidden, t) for t in (0.0, 0.25, 1.0, 1.5))]
        assert odds[1] == pytest.approx(0.75 * odds[0] + 0.25 * odds[2], abs=1e-4)
        assert odds[3] == odds[2]
        found |= {round(each, 3) for each in odds[:3]}
    assert len(found) > 20
    assert head.chance(torch.zeros(3), None, 1.0) == bound_of(torch.zeros(3), 1.0), "no hidden state to read"
    head.load_weights({})
    assert not head.trained


@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 8.0])
def test_inference_is_what_the_network_computes(scale: float) -> None:
    head, network = Head(8), HeadNetwork(8)
    network.load_state_dict(learned(8))
    head.load_weights(learned(8))
    for seed in range(10):
        logits, hidden = some_logits(seed)[0].float() * scale, torch.randn(8) * (seed + 1)
        cold, warm = torch.sigmoid(network(hidden[None], *spreads(logits[None])))[0].tolist()
        assert head.chance(logits, hidden, 0.0) == pytest.approx(cold, abs=1e-5)
        assert head.chance(logits, hidden, 1.0) == pytest.approx(warm, abs=1e-5)


@pytest.mark.parametrize("keys", ["inner.weight", "outer.weight", "all"])
def test_a_head_of_another_drafter_is_refused(keys: str) -> None:
    weights = {name: weight for name, weight in learned(9).items() if keys in ("all", name)}
    with pytest.raises(ModelError, match="use another profile"):
        Head(8).load_weights(weights)


@pytest.mark.parametrize("trained", [False, True])
def test_a_draft_ends_where_its_chance_as_a_whole_is_low(*, trained: bool) -> None:
    head = Head(8)
    if trained:
        head.load_weights(learned(8))
    policy = HeadThreshold(0.3, head)
    for seed in range(30):
        assert policy.begin(None)
        reach = 1.0
        for length in range(20):
            logits, hidden = some_logits(seed)[length % 5] * 3, torch.randn(8)
            reach *= head.chance(logits, hidden, 1.0)
            drawn = policy.should_draw(logits, 1.0, hidden)
            assert drawn is (reach >= 0.3 if trained else bound(spread(logits, 1.0)[0]) >= 0.3)
            assert (policy.no_draft_reason is None) is drawn
            if not drawn:
                break


class Listening(Fixed):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    @property
    def reads_hidden(self) -> bool:
        return True

    def should_draw(
        self,
        logits: torch.Tensor,
        temperature: float,  # noqa: ARG002
        hidden: torch.Tensor | None,
        guess: Guess | None = None,  # noqa: ARG002
    ) -> bool:
        self.seen.append((logits.clone(), hidden if hidden is None else hidden.clone()))
        return True


@pytest.mark.parametrize(("kind", "fast"), [("llama", True), ("llama", False), ("qwen2", True), ("qwen2", False)])
def test_it_reads_what_the_next_distribution_is_made_of(kind: str, *, fast: bool) -> None:
    source = random_model(kind, SIZE, 0)
    model: LanguageModel = (native_of(source) if fast else None) or source
    listening, one = Listening(), Drafter(model)
    one.start([3, 1, 4, 1, 5])
    passes.run(one.draft(4, 0.0, lambda _: 0, lambda _: True, None, listening))
    assert len(listening.seen) == 4
    weight = source.model.get_output_embeddings().weight.detach()
    for logits, hidden in listening.seen:
        assert hidden is not None
        torch.testing.assert_close(weight @ hidden, logits, atol=0.05 if fast else 1e-4, rtol=0.05 if fast else 1e-4)


@pytest.mark.parametrize("length", ["goodput", "head"])
def test_a_head_is_shown_the_hidden_state_once_it_is_trained(length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, one = Head(32), Drafter(random_model("llama", SIZE, 0))
    policy = make_policy(Drafting(draft_length=length), head)
    assert not policy.reads_hidden
    head.load_weights(learned(32))
    shown: list[torch.Tensor | None] = []

    def chance(_: torch.Tensor, hidden: torch.Tensor | None, __: float) -> float:
        shown.append(hidden)
        return 1.0

    monkeypatch.setattr(head, "chance", chance)
    one.start([3, 1, 4])
    policy.begin(None)
    passes.run(one.draft(1, 0.0, lambda _: 0, lambda _: True, None, policy))
    assert len(shown) == 1
    assert shown[0] is not None


def test_a_model_without_an_output_layer_has_no_head(monkeypatch: pytest.MonkeyPatch) -> None:
    source = random_model("llama", SIZE, 0)
    monkeypatch.setattr(type(source.model), "get_output_embeddings", lambda _: None)
    assert hidden_size(source.model) is None
    listening, one = Listening(), Drafter(TransformersModel(source.model))
    one.start([3, 1])
    passes.run(one.draft(2, 0.0, lambda _: 0, lambda _: True, None, listening))
    assert [hidden for _, hidden in listening.seen] == [None, None]


def test_a_model_has_one_hook_and_its_copies_have_their_own() -> None:
    model = random_model("llama", SIZE, 0).model
    own = tap(model)
    assert own is not None
    assert tap(model) is own
    model(torch.tensor([[1, 2, 3]]))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301  of our own making
        its = tap(other)
        assert its is not None
        assert its is not own
        assert vars(its) == {"last": None}, "nothing of a text goes along"
        other(torch.tensor([[4, 5]]))
        assert its.last is not None
        assert its.last.shape == (1, 2, 32)
    assert own.last is not None
    assert own.last.shape == (1, 3, 32)


@pytest.mark.slow
def test_where_no_head_is_trained_an_earlier_one_is_kept(target: Path, drafter: Path, home: Path) -> None:
    with omnidraft.load(target, drafter, dtype="float32", adapt="inline", **FAST) as model:
        answers(model, 5)
    assert len(saved(home)) == 1
    with load_with(target, drafter, dtype="float32", adapt="inline", train="drafter", **FAST) as model:
        before = dict(adaptive_of(model).adaptation.state)
        answers(model, 5)
        assert model.learned["updates"] > 0
    again = adaptive_of(omnidraft.load(target, drafter, dtype="float32")).adaptation
    assert again.attached.head.trained
    heads = [name for name in before if name.startswith("acceptance_head.")]
    assert heads
    assert all(torch.equal(again.state[name], before[name]) for name in heads)


@pytest.mark.slow
def test_the_head_survives_save_and_load(target: Path, drafter: Path, home: Path) -> None:
    options = {"dtype": "float32", **FAST}
    with omnidraft.load(target, drafter, adapt="inline", **options) as model:
        head = adaptive_of(model).attached.head
        assert not head.trained
        answers(model, 5)
        adaptive_of(model).adaptation.flush()
        logits, hidden = torch.randn(50), torch.randn(adaptive_of(model).loaded.lm.model.config.hidden_size)
        said = head.chance(logits, hidden, 1.0)
    assert len(saved(home)) == 1
    later = omnidraft.load(target, drafter, dtype="float32")
    again = adaptive_of(later).attached.head
    assert again.trained
    assert again.chance(logits, hidden, 1.0) == said
    assert later.generate(PROMPTS[0], max_new_tokens=8).token_ids == alone(model, PROMPTS[0], 8)


@pytest.mark.slow
def test_a_head_alone_does_not_have_the_text_read_again(
    target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.distillation.trainer.ROLLBACK_MARGIN", -1e6)  # the drafter stays as it is
    model = omnidraft.load(target, drafter, dtype="float32", adapt="inline", profile=None, **FAST)
    answers(model, 3)
    drafting = adaptive_of(model).attached.drafter.model
    answers(model, 5)
    assert adaptive_of(model).attached.head.trained
    assert adaptive_of(model).attached.drafter.model is drafting
    model.close()
