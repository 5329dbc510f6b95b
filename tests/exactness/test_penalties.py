"""What depends on the answer so far keeps the target's distribution with drafts: enumerated, with planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from exactness.test_planted_faults import PLAIN, Calls, Rewrite
from omnidraft.config import VERIFICATIONS, Sampling
from omnidraft.errors import ConfigError
from omnidraft.verification.penalties import Bias, NoEnd, Recent, Repeats
from omnidraft.verification.sampling import Processing, TargetDistribution
from support.enumeration import EXACT, SAMPLED, distance, first_tokens, plain_distribution, run_distribution
from support.table_models import frozen_cache, make_world

BIASES = ((0, 1.5), (2, -2.0))
VARIANTS: dict[str, dict[str, Any]] = {
    "frequency": {"frequency_penalty": 1.3},
    "presence": {"presence_penalty": -0.9},
    "both": {"frequency_penalty": -0.6, "presence_penalty": 1.2},
    "repetition": {"repetition_penalty": 1.7},
    "repetition in a window": {"repetition_penalty": 1.9, "repetition_window": 1},
    "bias": {"logit_bias": BIASES},
    "least length": {"min_new_tokens": 2},
    "all": {
        "frequency_penalty": 0.7,
        "presence_penalty": 0.4,
        "repetition_penalty": 1.3,
        "logit_bias": BIASES,
        "min_new_tokens": 2,
    },
}
WAYS: dict[str, dict[str, Any]] = {
    "sampled": {"temperature": 1.0},
    "cut": {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
    "greedy": {"temperature": 0.0},
}
TOKENS = 3
# of each shape; over-long drafter tokens have so many ways to go on that a second round must do
SHAPES = {"inner": TOKENS, "tiny": TOKENS, "long nested": 2, "written end": TOKENS}


def deviation(shape: str, seed: int, sampling: Sampling, **drafting: object) -> float:
    """Of whole runs, whose rounds go on from one another, so that an answer is more than its last round."""
    world = make_world(shape, seed)
    count = SHAPES[shape]
    ours = run_distribution(world.lane(frozen_cache(world, "all", seed), **drafting), count, sampling)
    assert abs(sum(ours.values()) - 1) < EXACT
    return distance(ours, first_tokens(plain_distribution(world, sampling), count, world.vocab.eos))


def deviations(variant: str, way: str) -> Iterator[float]:
    """One for each shape; over all ways, every variant meets each shape with each verification."""
    turn = [*VARIANTS].index(variant) + [*WAYS].index(way)
    sampling = Sampling(**WAYS[way], **VARIANTS[variant])
    for number, shape in enumerate(SHAPES):
        how: dict[str, Any] = {"draft_length": 2, "verification": VERIFICATIONS[(turn + number) % 3]}
        yield deviation(shape, number, sampling, drafter_temperature=1.0, **how)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_tokens_have_the_targets_distribution(variant: str, way: str) -> None:
    assert max(deviations(variant, way)) < EXACT


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_changes_the_distribution(variant: str) -> None:
    world = make_world("written end", 3)
    changed, plain = (
        first_tokens(plain_distribution(world, sampling), TOKENS, world.vocab.eos)
        for sampling in (Sampling(temperature=1.0, **VARIANTS[variant]), SAMPLED)
    )
    assert distance(changed, plain) > 0.01


FAULTS: dict[str, tuple[Rewrite, str]] = {
    "ignores the tokens drafted before a place": (
        Rewrite(TargetDistribution._scores, "self._length + index", "self._length"),
        "both",
    ),
    "looks one token ahead": (
        Rewrite(TargetDistribution._scores, "self._length + index", "self._length + index + 1"),
        "both",
    ),
    "takes the prompt for a part of the answer": (
        Rewrite(Repeats.__call__, "ids[0, self.prompt :]", "ids[0]"),
        "frequency",
    ),
    "counts a token once": (
        Rewrite(Repeats.__call__, "self.frequency * counts.to(scores.dtype)", "self.frequency"),
        "both",
    ),
    "the oldest tokens for the latest": (
        Rewrite(Recent.__call__, "-self.count :", ": self.count"),
        "repetition in a window",
    ),
    "bars an end too long": (Rewrite(NoEnd.__call__, ">= self.until", "> self.until"), "least length"),
    "the least length goes by the round's own tokens": (
        Rewrite(TargetDistribution._scores, "self._ids[:, : self._length + index]", "self._ids[:, self._length :]"),
        "least length",
    ),
    "a bias at the first place alone": (
        Rewrite(Bias.__call__, "if (last :=", "if ids.shape[1] > 1:\n        return scores\n    if (last :="),
        "bias",
    ),
    "penalties left out where tokens are drawn": (
        Rewrite(TargetDistribution._compute, "not (warping.cuts or penalties)", "not warping.cuts"),
        "both",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite, variant = FAULTS[name]
    calls: Calls = []
    rewrite(monkeypatch, calls)
    assert any(each > PLAIN for each in deviations(variant, "sampled"))
    assert calls


def test_scores_that_are_given_stay_as_they_are() -> None:
    scores, ids = torch.zeros(1, 8), torch.tensor([[1, 2, 2]])
    processing = Processing(Sampling(temperature=1.0, **VARIANTS["all"]), prompt=1, eos=(7,))
    for processor in processing.penalties:
        processor(ids, scores)
    assert not scores.any()
    assert len(processing.penalties) == 4


@pytest.mark.parametrize(
    "given",
    [{"a": 1.0}, {"²": 1.0}, {"1" * 5000: 1.0}, {1: float("nan")}, {-1: 1.0}, {1: "x"}, 3, {1.5: 2.0}, {True: 1}],
)
def test_biases_that_are_none(given: object) -> None:
    with pytest.raises(ConfigError, match="finite numbers by the ids"):
        Sampling(logit_bias=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"5": -100, "12": 1}, {12: 1, 5: -100.0}, [["5", -100], [12, 1]]])
def test_the_ids_of_biases_may_be_the_keys_of_json(given: Any) -> None:
    assert Sampling(logit_bias=given).logit_bias == ((5, -100.0), (12, 1.0))


def test_a_bias_of_a_token_that_the_target_lacks() -> None:
    with pytest.raises(ConfigError, match="the target has ids below 8"):
        Bias(((8, 1.0),))(torch.tensor([[1]]), torch.zeros(1, 8))
