"""Over buckets of keys, with passes that are padded, text keeps its law: greedy identity, and enumerated distributions.

On a CPU a graph is a call over the same buffers; OMNIDRAFT_TEST_DEVICE=cuda runs these tests with graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.models.graphs import graphed_model
from omnidraft.models.graphs.bucket_cache import BucketCache
from omnidraft.models.graphs.graphed_model import GraphedModel, GraphedSequence
from omnidraft.models.loading import load_model
from omnidraft.zoo import path as zoo_path
from support.enumeration import Distribution, distance, first_tokens, round_distribution, run_distribution
from support.graphed import BUCKET, DEVICE, graphed, replays_of, small_buckets
from support.lanes import Language, generate, lane, language, sampler, tokens
from support.models import afresh, build
from support.table_models import PROMPT, Ids, World, frozen_cache, make_world

pytestmark = pytest.mark.medium

TEXT = "Question: A baker has 3 trays with 12 rolls each and sells 20 of them. How many rolls are left?\nAnswer:"
LATER = "Question: What is 2 plus 3?\nAnswer:"
WAYS = (("exact", 4), ("exact", 16), ("intersection", 4), ("paper", 2))  # modes and lengths of drafts
COUNT = 40  # tokens of an answer
CLOSE = 1e-5  # logits are rounded to float32


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with small_buckets():
        yield


@pytest.fixture(scope="module")
def pair() -> dict[str, tuple[GraphedModel, Language]]:
    """The embedded target and drafter, both with graphs."""
    models = {}
    for name in ("target-a", "drafter"):
        lm = graphed(load_model(zoo_path(name), "float32", "cpu").lm.model, to_host=name == "drafter")
        models[name] = lm, language(zoo_path(name), lm.vocab_size)
    return models


@pytest.mark.slow
@pytest.mark.parametrize("both", [True, False])
def test_greedy_text_is_that_of_transformers(
    pair: dict[str, tuple[GraphedModel, Language]], both: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With drafts of several lengths and modes and without, over borders of buckets; the drafter with graphs or not."""
    (target, target_language), (drafter, drafter_language) = pair["target-a"], pair["drafter"]
    drafts = drafter if both else load_model(zoo_path("drafter"), "float32", "cpu").lm
    prompt = target_language.tokenizer(TEXT)["input_ids"]
    eos = target_language.vocab.eos
    expected, seen = generate(target, prompt, COUNT, eos), replays_of(monkeypatch)
    plain = Lane(target, eos)
    assert tokens(list(decode(plain, prompt, COUNT, Sampling(), sampler()))) == expected
    accepted = rejected = 0
    for mode, k in WAYS if both else WAYS[:2]:
        with_drafts = lane(target, target_language, drafts, drafter_language, draft_length=k, mode=mode)
        rounds = list(decode(with_drafts, prompt, COUNT, Sampling(), sampler()))
        assert tokens(rounds) == expected, (mode, k)
        accepted += sum(r.counts.accepted for r in rounds)
        rejected += sum(len(r.proposals) - r.counts.accepted for r in rounds)
    assert min(accepted, rejected) > 10
    assert len({capacity for capacity, _ in seen}) > 1, "a border must have been crossed in an answer"
    assert {count for _, count in seen} >= {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_two_requests_in_turn(pair: dict[str, tuple[GraphedModel, Language]]) -> None:
    (target, target_language), (drafter, drafter_language) = pair["target-a"], pair["drafter"]
    eos = target_language.vocab.eos
    one = lane(target, target_language, drafter, drafter_language, draft_length=4)
    keeping = Lane(target, eos, None, Drafting(), keeps=True)
    for text in (TEXT, LATER, TEXT + " 16"):
        prompt = target_language.tokenizer(text)["input_ids"]
        expected = generate(target, prompt, 20, eos)
        for each in (one, keeping):
            assert tokens(list(decode(each, prompt, 20, Sampling(), sampler()))) == expected, text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_sampled_text_is_the_same_with_drafts_and_without(
    pair: dict[str, tuple[GraphedModel, Language]], seed: int
) -> None:
    (target, target_language), (drafter, drafter_language) = pair["target-a"], pair["drafter"]
    prompt, sampling = target_language.tokenizer(TEXT)["input_ids"], Sampling(temperature=0.8, top_p=0.95)
    plain = Lane(target, target_language.vocab.eos)
    expected = tokens(list(decode(plain, prompt, 48, sampling, sampler(seed))))
    drafted = lane(target, target_language, drafter, drafter_language, draft_length=4)
    assert tokens(list(decode(drafted, prompt, 48, sampling, sampler(seed)))) == expected


# ---------------------------------------------------------------- enumerated

PADDED = (1, 5)  # rows of graphs: every pass of several tokens is padded


@pytest.fixture
def _padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_model, "ROWS", PADDED)


def tiny(size: int, seed: int) -> GraphedModel:
    """A model with a few tokens, whose distributions are neither flat nor sharp."""
    model = build("llama", vocab_size=size, max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return graphed(model)


def world_of(shape: str, seed: int, *, drafts: bool) -> World:
    """A world whose target, and drafter where asked for, are such models."""
    world = make_world(shape, seed)
    target: Any = tiny(world.vocab.size, seed)
    drafter: Any = tiny(world.drafter_vocab.size, seed + 1) if drafts else world.drafter
    return replace(world, target=target, drafter=drafter)


def plain(world: World, prompt: Ids = (PROMPT,)) -> Callable[[Ids], Distribution]:
    """The target's own next-token distribution, without any cache."""
    model: Any = world.target

    def next_token(context: Ids) -> Distribution:
        probs = afresh(model.model, [*prompt, *context])[-1].double().softmax(-1)
        return {(token,): float(p) for token, p in enumerate(probs)}

    return next_token


def deviation(world: World, count: int, prompt: Ids = (PROMPT,), **drafting: Any) -> float:
    """From the target's law, of the first tokens of rounds that begin anew."""
    one = world.lane(frozen_cache(world, "all"), **drafting)
    rounds = partial(round_distribution, one, prompt=prompt)
    return distance(
        first_tokens(rounds, count, world.vocab.eos), first_tokens(plain(world, prompt), count, world.vocab.eos)
    )


def of_whole_runs(world: World, count: int) -> float:
    """From the target's law, of runs whose rounds go on from one another."""
    ours = run_distribution(world.lane(frozen_cache(world, "all"), draft_length=2), count)
    return distance(ours, first_tokens(plain(world), count, world.vocab.eos))


@pytest.mark.usefixtures("_padded")
@pytest.mark.parametrize("verification", ["block", "token", "seeded"])
@pytest.mark.parametrize("length", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rounds_have_the_targets_distribution(length: int, verification: str) -> None:
    world = world_of("inner", length, drafts=True)
    assert deviation(world, 2, draft_length=length, verification=verification) < CLOSE


@pytest.mark.usefixtures("_padded")
@pytest.mark.slow
@pytest.mark.parametrize(("shape", "count"), [("inner", 3), ("tiny", 3), ("long nested", 2)])
def test_whole_runs_have_the_targets_distribution(shape: str, count: int) -> None:
    """Each round goes on from what a rejection of the one before has left in the buffers."""
    assert of_whole_runs(world_of(shape, 3, drafts=False), count) < CLOSE


@pytest.mark.usefixtures("_padded")
@pytest.mark.parametrize("before", [BUCKET - 2, BUCKET - 1, BUCKET])
def test_the_distribution_holds_where_an_answer_outgrows_its_bucket(before: int) -> None:
    world = world_of("nested", 5, drafts=True)
    prompt = tuple(place * place % world.vocab.size for place in range(before))
    assert deviation(world, 2, prompt, draft_length=2) < CLOSE


# ---------------------------------------------------------------- planted faults, which must be seen


def _unmasked(self: BucketCache, start: torch.Tensor | None) -> None:
    """A row alone attends to all that lies in the buffers, drafts that were rejected included."""
    for layer in self.layers:
        layer.start = start


def _one_too_late(self: GraphedSequence, cache: BucketCache, rows: int) -> tuple[torch.Tensor, ...]:
    """Keys are written after what lies in the next place: a row of a draft that was rejected."""
    with cache.by_index(self.model.inputs[0] + 1):
        return (self.model.logits(cache, self.model.inputs[None, 1 : 1 + rows]),)


def _of_the_padding(self: GraphedSequence, ids: Any, keep: int) -> torch.Tensor | None:
    """Padding is taken for the text."""
    logits = true_replay(self, ids, keep)
    if logits is not None and len(ids) > 1:
        logits = self.graphs[self.cache.capacity, PADDED[-1]]._outputs[0][-keep:].clone()
    return logits


true_replay = GraphedSequence.replay
FAULTS = {
    "unmasked": (BucketCache, "_set", _unmasked),
    "one too late": (GraphedSequence, "work", _one_too_late),
    "of the padding": (GraphedSequence, "replay", _of_the_padding),
}


@pytest.mark.usefixtures("_padded")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the same runs are right: see the test of whole runs."""
    world = world_of("tiny", 3, drafts=False)  # which its probe finds whole
    monkeypatch.setattr(*FAULTS[fault])
    assert of_whole_runs(world, 3) > 0.01


def test_the_device_is_the_one_that_is_asked_for(pair: dict[str, tuple[GraphedModel, Language]]) -> None:
    assert all(lm.device.type == DEVICE.type for lm, _ in pair.values())
