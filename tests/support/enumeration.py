"""The distribution of what a lane emits, by taking every choice it can make.

A lane's one source of randomness is its `Sampler`.  Replaced by a driver that takes every choice in turn, it makes
the production code itself - draft, walk, forward, verification, commit - yield each outcome and its probability.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.stream import decode
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import Processor, Sampler
from support.table_models import PROMPT, Ids, World, frozen_cache, make_world

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
Distribution = dict[Ids, float]
SAMPLED = Sampling(temperature=1.0)
EXACT = 1e-9  # below it a distribution is the target's; rounding stays below 1e-14
FAR = 100  # more tokens than any enumeration looks at: no round is cut short


def enumerate_draws(run: Callable[[Sampler], R]) -> Iterator[tuple[float, R]]:
    """Call `run` once for every sequence of choices it can make; yields the probability and result of each."""
    path: list[list[tuple[int, float]]] = []  # for each choice, the options still to take; the last one is current
    while True:
        position, probability = 0, 1.0

        def draw(weights: Probs) -> int:
            nonlocal position, probability
            if position == len(path):
                assert weights.min() >= 0
                total = weights.sum()
                path.append([(int(i), float(weights[i] / total)) for i in np.flatnonzero(weights)])
            option, chance = path[position][-1]
            position += 1
            probability *= chance
            return option

        result = run(draw)
        yield probability, result
        while path and len(path[-1]) == 1:
            path.pop()
        if not path:
            return
        path[-1].pop()


def distribution_of(run: Callable[[Sampler], K]) -> dict[K, float]:
    """The distribution of what `run` gives."""
    found: dict[K, float] = {}
    for probability, outcome in enumerate_draws(run):
        found[outcome] = found.get(outcome, 0.0) + probability
    return found


# ---------------------------------------------------------------- the lane's distribution


def round_distribution(
    lane: Lane,
    context: Ids,
    sampling: Sampling = SAMPLED,
    processors: Sequence[Processor] = (),
    seen: Callable[[float, Round], None] | None = None,
    prompt: Sequence[int] = (PROMPT,),
) -> Distribution:
    """The distribution of the tokens that one round emits after `prompt` and `context`."""
    found: Distribution = {}
    ids = [*prompt, *context]
    for probability, record in enumerate_draws(lambda draw: next(decode(lane, ids, FAR, sampling, draw, processors))):
        found[record.emitted] = found.get(record.emitted, 0.0) + probability
        if seen is not None:
            seen(probability, record)
    return found


def first_tokens(round_of: Callable[[Ids], Distribution], count: int, eos: Sequence[int]) -> Distribution:
    """The joint distribution of the first `count` tokens, over as many rounds as that takes."""
    result: Distribution = {}
    todo: Distribution = {(): 1.0}
    while todo:
        context = min(todo, key=len)  # the shortest first: no context comes up twice
        mass = todo.pop(context)
        for emitted, probability in round_of(context).items():
            tokens = context + emitted
            end = len(tokens) >= count or tokens[-1] in eos
            into, key = (result, tokens[:count]) if end else (todo, tokens)
            into[key] = into.get(key, 0.0) + mass * probability
    return result


def run_distribution(lane: Lane, tokens: int, sampling: Sampling = SAMPLED) -> Distribution:
    """The distribution of whole runs of at most so many tokens, each round continuing the one before."""

    def run(draw: Sampler) -> Ids:
        records = decode(lane, [PROMPT], tokens, sampling, draw)
        return tuple(token for record in records for token in record.emitted)

    return distribution_of(run)


def clone(cache: NgramCache) -> NgramCache:
    """Another that learns by itself: all that changes in one is numbers and arrays."""
    same = copy.copy(cache)
    vars(same).update({name: value.copy() for name, value in vars(cache).items() if isinstance(value, np.ndarray)})
    return same


def learning_distribution(
    world: World, cache: NgramCache, count: int, seen: Callable[[NgramCache], None], **drafting: object
) -> Distribution:
    """`first_tokens` where the n-gram cache learns from each round; its states are followed one by one."""
    result: Distribution = {}
    todo: dict[tuple[Ids, bytes], tuple[float, NgramCache]] = {((), b""): (1.0, cache)}
    while todo:
        (context, state), (mass, cache) = min(todo.items(), key=lambda item: len(item[0][0]))
        del todo[context, state]
        seen(cache)

        def run(draw: Sampler, cache: NgramCache = cache, context: Ids = context) -> tuple[Ids, NgramCache]:
            after = clone(cache)
            lane = world.lane(after, **drafting)
            return next(decode(lane, [PROMPT, *context], FAR, SAMPLED, draw)).emitted, after

        for probability, (emitted, after) in enumerate_draws(run):
            tokens = context + emitted
            if len(tokens) >= count or tokens[-1] in world.vocab.eos:
                result[tokens[:count]] = result.get(tokens[:count], 0.0) + mass * probability
                continue
            record = (after.active, after.hits, after.false_merges, after.last_use)
            key = (tokens, b"".join(array.tobytes() for array in record))
            todo[key] = (todo.get(key, (0.0, after))[0] + mass * probability, after)
    return result


# ---------------------------------------------------------------- the target's distribution


def penalized(row: torch.Tensor, ids: Ids, sampling: Sampling, eos: Sequence[int], prompt: int = 1) -> torch.Tensor:
    """Scores after biases, the least length and the penalties, computed apart from the package."""
    scores = row.clone()
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    answer = ids[prompt:]
    if len(answer) < sampling.min_new_tokens:
        scores[[*eos]] = -torch.inf
    for token in set(ids[-sampling.repetition_window :]):
        penalty = sampling.repetition_penalty
        scores[token] *= penalty if scores[token] < 0 else 1 / penalty
    for token in answer:
        scores[token] -= sampling.frequency_penalty
    for token in set(answer):
        scores[token] -= sampling.presence_penalty
    return scores


def filtered(scores: Probs, sampling: Sampling) -> Probs:
    """The distribution that temperature and filters make of scores, computed apart from the package."""
    if sampling.greedy:
        one_hot = np.zeros(len(scores))
        one_hot[scores.argmax()] = 1
        return one_hot
    p = np.exp(scores / sampling.temperature)
    p /= p.sum()
    if sampling.top_k:
        p[p < np.sort(p)[-min(sampling.top_k, len(p))]] = 0
        p /= p.sum()
    if sampling.top_p < 1:
        order = np.argsort(-p)
        p[order[np.cumsum(p[order]) - p[order] >= sampling.top_p]] = 0
        p /= p.sum()
    p[p < sampling.min_p * p.max()] = 0
    result: Probs = p / p.sum()
    return result


def plain_distribution(
    world: World, sampling: Sampling = SAMPLED, processor: Processor | None = None
) -> Callable[[Ids], Distribution]:
    """The target's own next-token distribution; `processor` comes before temperature and filters here."""

    def next_token(context: Ids) -> Distribution:
        ids = (PROMPT, *context)
        scores = penalized(world.target.row(ids), ids, sampling, world.vocab.eos)
        if processor is not None:
            scores = processor(torch.tensor([ids]), scores[None])[0]
        return {(token,): float(p) for token, p in enumerate(filtered(scores.numpy(), sampling)) if p > 0}

    return next_token


def distance(a: Distribution, b: Distribution) -> float:
    """Total variation."""
    return 0.5 * sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys())


def deviation(world: World, lane: Lane, count: int, sampling: Sampling = SAMPLED) -> float:
    """Total variation between the lane's and the target's joint distribution of the first `count` tokens."""
    ours = first_tokens(lambda context: round_distribution(lane, context, sampling), count, world.vocab.eos)
    assert abs(sum(ours.values()) - 1) < EXACT
    return distance(ours, first_tokens(plain_distribution(world, sampling), count, world.vocab.eos))


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A world, what is active in it, and how it is drafted and verified."""

    shape: str
    seed: int = 0
    zero: float = 0.0
    active: str = "all"
    count: int = 2
    drafting: dict[str, object] = field(default_factory=dict)
    sampling: Sampling = SAMPLED

    def deviation(self) -> float:
        world = make_world(self.shape, self.seed, self.zero)
        lane = world.lane(frozen_cache(world, self.active, self.seed), **self.drafting)
        return deviation(world, lane, self.count, self.sampling)
