"""The acceptance head: its labels against an enumeration of the lane, and what it learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from distillation.test_losses import some_logits, some_teacher
from distillation.test_teacher import whole
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.config import Sampling
from omnidraft.decoding.stream import decode
from omnidraft.distillation import head_trainer as head_trainer_module
from omnidraft.distillation.head_trainer import HeadTrainer
from omnidraft.distillation.lora import parted
from omnidraft.distillation.losses import acceptance
from omnidraft.distillation.teacher import Trace, exact_example
from omnidraft.distillation.trainer import Trainer
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.verification.round import Round
from support.enumeration import FAR, SAMPLED, enumerate_draws
from support.learning import example_of, make_trainer, same, small_drafter
from support.table_models import ACTIVE, PROMPT, SHAPES, World, frozen_cache, make_world

pytestmark = pytest.mark.medium

NEVER = Sampling()


# ---------------------------------------------------------------- labels, against an enumeration of the lane


def taught(world: World, cache: NgramCache, token: int) -> tuple[list[int], torch.Tensor]:
    """The positions of an example of one token after the prompt, counted from its first; the labels (N, 2) at each."""
    prompt = world.table.spelling(PROMPT).tolist()
    written = world.table.spelling(token).tolist()
    p = whole(world.target.probs((PROMPT,)))
    example = exact_example(cache, Trace(tuple(prompt), (token,), (tuple(written),), (p,)))
    logits = torch.stack([world.drafter.row(tuple(example.ids[: i + 1].tolist())) for i in range(len(example.ids))])
    positions = [int(at) + example.first - len(prompt) + 1 for at in example.teacher.positions]
    return positions, acceptance(logits[example.first :], example.teacher, 1)


def rounds_with_drafts_of(
    length: int, world: World, cache: NgramCache, sampling: Sampling
) -> list[tuple[float, Round]]:
    lane = world.lane(cache, draft_length=length, verification="token")
    return list(enumerate_draws(lambda draw: next(decode(lane, [PROMPT], FAR, sampling, draw))))


def enumerated(rounds: list[tuple[float, Round]], written: list[int]) -> dict[int, float]:
    """For each number of symbols of a spelling that were drafted and accepted, how often the next one is."""
    reached: dict[int, float] = {}
    accepted: dict[int, float] = {}
    for probability, record in rounds:
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
    sampling = SAMPLED if temperature else NEVER
    for seed in range(4):
        world = make_world(shape, seed)
        cache = frozen_cache(world, active, seed)
        rounds: dict[int, list[tuple[float, Round]]] = {}  # by the length of a draft
        for token, written in spelled(world, cache):
            positions, labels = taught(world, cache, token)
            if (length := len(written)) not in rounds:
                rounds[length] = rounds_with_drafts_of(length, world, cache, sampling)
            found = enumerated(rounds[length], written)
            for at, label in zip(positions, labels[:, round(temperature)].tolist(), strict=True):
                if at in found:
                    assert found[at] == pytest.approx(label, abs=1e-5)
                    compared += 1
                    deep += at > 0
    assert compared > (10 if active == "all" else 4)
    assert deep > 2 or temperature == 0 or active != "all"


@pytest.mark.parametrize("active", ACTIVE)
@pytest.mark.parametrize("shape", [name for name in SHAPES if not name.startswith("long")])
def test_a_greedy_target_goes_on_as_the_teacher_says(shape: str, active: str) -> None:
    """In the middle of a draft, where the walk may go on into a longer token."""
    accepted = refused = 0
    for seed in range(8):
        world = make_world(shape, seed)
        cache = frozen_cache(world, active, seed)
        first = int(world.target.probs((PROMPT,)).argmax())
        distributions = [whole(world.target.probs((PROMPT,))), whole(world.target.probs((PROMPT, first)))]
        second = int(world.target.probs((PROMPT, first)).argmax())
        spelled_ = [world.table.spelling(token).tolist() for token in (first, second)]
        if not all(spelled_) or not cache.active[first] or first in world.vocab.eos:
            continue
        prompt = world.table.spelling(PROMPT).tolist()
        trace = Trace(tuple(prompt), (first, second), tuple(map(tuple, spelled_)), tuple(distributions))
        example = exact_example(cache, trace)
        made = example.teacher
        best = dict(zip((made.positions + example.first).tolist(), made.best.tolist(), strict=True))
        length = len(spelled_[0])
        lane = world.lane(cache, draft_length=length + 1, drafter_temperature=1.0)
        for _, record in enumerate_draws(lambda draw, lane=lane: next(decode(lane, [PROMPT], FAR, NEVER, draw))):  # type: ignore[misc]
            if list(record.draft[:length]) == spelled_[0] and len(record.draft) > length:
                right = record.draft[length] == best[len(prompt) + length - 1]
                assert (record.counts.draft_accepted > length) is right
                accepted += right
                refused += not right
    assert accepted > 0 or active != "all"
    assert refused > 1


# ---------------------------------------------------------------- learning


def head_trainer() -> HeadTrainer:
    return HeadTrainer(8, 1.0, torch.device("cpu"))


def test_it_learns_the_labels() -> None:
    trainer = head_trainer()
    logits, teacher = some_logits(2), some_teacher()
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert trainer.state() == {}
    for _ in range(400):
        trainer.learn(hidden, logits, teacher)
    head = Head(8)
    head.load_weights({name.removeprefix("acceptance_head."): p for name, p in trainer.state().items()})
    at = teacher.positions
    found = [[head.chance(row, h, t) for t in (0.0, 1.0)] for row, h in zip(logits[at], hidden[at], strict=True)]
    torch.testing.assert_close(torch.tensor(found), acceptance(logits, teacher, 1.0).float(), atol=0.03, rtol=0)


def test_a_batch_that_is_not_finite_is_left_out() -> None:
    trainer = head_trainer()
    logits, teacher = some_logits(2), some_teacher()
    hidden = torch.randn(5, 8)
    trainer.learn(hidden, logits, teacher)
    before = trainer.state()
    trainer.learn(hidden * torch.nan, logits, teacher)
    assert same(before, trainer.state())


def trained(train: str) -> Trainer:
    trainer = make_trainer(train=train)
    for seed in range(9):
        trainer.add(example_of(seed))
        if trainer.due:
            trainer.update()
    return trainer


def test_the_head_changes_nothing_for_the_drafter() -> None:
    alone, none = parted(trained("drafter").state())
    assert none == {}
    found, head = parted(trained("joint").state())
    assert same(alone, found)
    assert head


def test_labels_are_made_anew_of_the_drafter_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(learning_rate=3e-2, update_every=1)
    seen: list[torch.Tensor] = []

    def spy(logits: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(logits.clone())
        return acceptance(logits, *rest)

    monkeypatch.setattr(head_trainer_module, "acceptance", spy)
    for _ in range(2):
        trainer.add(example_of(50))
        assert trainer.update()
    assert len(seen) == 2
    assert not torch.allclose(seen[0], seen[1], atol=1e-1)


def test_without_an_output_layer_no_head_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_drafter()
    monkeypatch.setattr(type(model), "get_output_embeddings", lambda _: None)
    trainer = make_trainer(model, update_every=1)
    trainer.add(example_of(0))
    assert trainer.update()
    assert parted(trainer.state())[1] == {}


@pytest.mark.parametrize("train", ["joint", "drafter"])
def test_it_continues_from_an_earlier_state(train: str) -> None:
    first, second = trained("joint").state(), make_trainer(train=train)
    second.load_state(first)
    assert same(second.state(), first), "kept where none is trained, too"
