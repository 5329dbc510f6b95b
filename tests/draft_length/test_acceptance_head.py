"""The acceptance head at work, and in the profile."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch

import omnidraft
from distillation.test_losses import some_logits
from omnidraft.config import Sampling
from omnidraft.decoding.drafter import Drafter
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
from omnidraft.errors import ModelError
from omnidraft.models.cpu_llama import LeanLlama
from omnidraft.models.language_model import LanguageModel, TransformersModel
from support.learning import FAST, PROMPTS, SIZE, alone, answers, saved, side_of
from support.models import random_model

NEVER = Sampling()


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
    head.load_weights(weights)
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
    head.load_weights({})
    assert not head.trained


def test_a_head_of_another_drafter_is_refused() -> None:
    for weights in (learned(9), {"inner.weight": torch.zeros(WIDTH, 8 + EXTRA)}, {"other": torch.zeros(3)}):
        with pytest.raises(ModelError, match="use another profile"):
            Head(8).load_weights(weights)


def test_a_draft_ends_where_its_chance_as_a_whole_is_low() -> None:
    head = Head(8)
    head.load_weights(learned(8))
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


# ---------------------------------------------------------------- kept


def test_where_no_head_is_trained_an_earlier_one_is_kept(target: Path, drafter: Path, home: Path) -> None:
    with omnidraft.load(target, drafter, dtype="float32", adapt="inline", **FAST) as model:
        answers(model, 5)
    assert len(saved(home)) == 1
    with omnidraft.load(target, drafter, dtype="float32", adapt="inline", trains="drafter", **FAST) as model:
        before = dict(side_of(model).adaptation.state)
        answers(model, 5)
        assert model.learned["updates"] > 0
    again = side_of(omnidraft.load(target, drafter, dtype="float32")).adaptation
    assert again.attached.head.trained
    heads = [name for name in before if name.startswith("acceptance_head.")]
    assert heads
    assert all(torch.equal(again.state[name], before[name]) for name in heads)


@pytest.mark.parametrize("adapt", ["inline", "background"])
def test_the_head_survives_save_and_load(
    target: Path,
    drafter: Path,
    home: Path,
    adapt: str,
) -> None:
    options = {"dtype": "float32", **FAST}
    with omnidraft.load(target, drafter, adapt=adapt, **options) as model:
        head = side_of(model).adaptation.attached.head
        assert head.chance(torch.zeros(3), None, 1.0) == bound(spread(torch.zeros(3), 1.0)[0])
        answers(model, 5)
        side_of(model).adaptation.flush()
        assert head.trained
        logits, hidden = torch.randn(50), torch.randn(side_of(model).loaded.lm.model.config.hidden_size)
        said = head.chance(logits, hidden, 1.0)
    assert len(saved(home)) == 1
    later = omnidraft.load(target, drafter, dtype="float32")
    again = side_of(later).adaptation.attached.head
    assert again.trained
    assert again.chance(logits, hidden, 1.0) == said
    assert later.generate(PROMPTS[0], max_new_tokens=8).token_ids == alone(model, PROMPTS[0], 8)


def test_a_head_alone_does_not_have_the_text_read_again(target: Path, drafter: Path) -> None:
    model = omnidraft.load(target, drafter, dtype="float32", adapt="inline", profile=None, trains="head", **FAST)
    answers(model, 1)
    swaps = side_of(model).adaptation.swaps
    answers(model, 5)
    assert side_of(model).adaptation.attached.head.trained
    assert side_of(model).adaptation.swaps <= swaps + 1
    model.close()
