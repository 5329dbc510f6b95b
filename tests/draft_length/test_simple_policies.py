"""Draft-length policies: the distribution under each of them, and when each ends a draft."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from omnidraft.config import DRAFT_LENGTHS, Drafting, Sampling
from omnidraft.counts.counts import Guess
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import commit
from omnidraft.decoding.stats import Stats
from omnidraft.decoding.stream import decode
from omnidraft.draft_length.acceptance_head import Head, spread
from omnidraft.draft_length.goodput_policy import MEASURED, UNSURE, Goodput
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, Fixed, HeadThreshold, make_policy
from omnidraft.errors import ConfigError
from omnidraft.verification.round import Round, RoundCounts, RoundTimes
from omnidraft.verification.sampling import Sampler
from omnidraft.verification.trie_walk import Walk
from support.assembling import load_with
from support.enumeration import EXACT, SAMPLED, deviation, enumerate_draws
from support.learning import PROMPTS, alone
from support.rounds import begun, verified
from support.table_models import ACTIVE, PROMPT, SHAPES, World, frozen_cache, make_world

LONGEST = 3


def made(
    drafted: int = 0, emitted: int = 1, counts: dict[str, int] | None = None, finish: str | None = None, **times: float
) -> Round:
    """The record of a round."""
    return Round(
        emitted=(1,) * emitted,
        draft=(1,) * drafted,
        proposals=(1,) * drafted,
        finish=finish,
        counts=RoundCounts(**({"draft_passes": drafted, "draft_read": drafted} | (counts or {}))),
        times=RoundTimes(**times),
    )


class Steady(Fixed):
    """A goodput policy that has measured a machine and a drafter, and decides the same again: to be enumerated."""

    def __init__(self, step: float, row: float) -> None:
        super().__init__()
        measured = Goodput(LONGEST)
        for turn in range(400):
            drafted, score = turn % 3, turn % 10 / 10 + 0.05
            measured.costs.learn(made(drafted, draft_s=step * drafted, verify_s=1 + row * drafted), first=False)
            measured.acceptance.learn([measured.acceptance.meet(score)], int(turn // 10 % 10 < 10 * score))
        self._state = measured.state()

    def begin(self, walk: Walk | None, chance: float = 0.0) -> bool:
        self._policy = Goodput(LONGEST)
        self._policy.resume(self._state)
        self._policy.open((), 100)
        for _ in range(2):  # the first round of a request has the prefill in it
            self._policy.learn(made(verify_s=1.0))
        drafts = self._policy.begin(walk, chance)
        self.no_draft_reason = self._policy.no_draft_reason
        return drafts

    def should_use_counts(self, chance: float) -> bool:
        return self._policy.should_use_counts(chance)

    def should_draw(
        self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None, guess: Guess | None = None
    ) -> bool:
        draws = self._policy.should_draw(logits, temperature, hidden, guess)
        self.no_draft_reason = self._policy.no_draft_reason
        return draws

    def should_step(self, token: int) -> bool:
        return self._policy.should_step(token)


class Told(Head):
    """A trained head that thinks a token the likelier to be accepted the likelier the drafter's best is."""

    @property
    def trained(self) -> bool:
        return True

    def chance(self, logits: torch.Tensor, hidden: torch.Tensor | None, temperature: float) -> float:  # noqa: ARG002
        return float(torch.softmax(logits / (temperature or 1.0), -1).max())


POLICIES: dict[str, DraftLengthPolicy] = {
    "fixed": Fixed(),
    "untrained head": HeadThreshold(0.65, Head()),
    "head": HeadThreshold(0.4, Told()),
    "goodput": Steady(0.05, 0.1),
    "goodput, dear steps": Steady(0.2, 0.1),
    "goodput, exploring": Steady(0.9, 0.3),
}


# ---------------------------------------------------------------- the distribution


def with_policy(world: World, policy: DraftLengthPolicy, cache: str, seed: int, **drafting: object) -> Lane:
    lane = world.lane(frozen_cache(world, cache, seed), draft_length=LONGEST, **drafting)
    lane.policy = policy
    return lane


@pytest.mark.medium
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fixed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_distribution_holds_wherever_a_draft_ends(shape: str, policy: str) -> None:
    count = 1 if shape.startswith("long") else 2
    turn = [*SHAPES].index(shape) + [*POLICIES].index(policy)  # each shape and each policy has both by turns
    active, seed, verification = (("all", 0, "block"), ("random", 1, "token"))[turn % 2]
    world = make_world(shape, seed, 0.2 * seed)
    lane = with_policy(world, POLICIES[policy], active, seed, verification=verification)
    assert deviation(world, lane, count) < EXACT


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, top_k=3)])
@pytest.mark.parametrize("mode", ["exact", "intersection"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_distribution_holds_in_other_modes_and_temperatures(policy: str, mode: str, sampling: Sampling) -> None:
    for active in ACTIVE:
        world = make_world("nested", 3)
        assert deviation(world, with_policy(world, POLICIES[policy], active, 3, mode=mode), 2, sampling) < EXACT


def lengths(lane: Lane) -> Iterator[int]:
    for _, record in enumerate_draws(lambda draw: next(decode(lane, [PROMPT], 100, SAMPLED, draw))):
        yield len(record.draft)


@pytest.mark.medium
@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fixed"])
def test_these_policies_do_end_drafts(policy: str) -> None:
    """Else the tests of the distribution would say nothing."""
    found: set[int] = set()
    for seed in range(4):
        found |= set(lengths(with_policy(make_world("nested", seed), POLICIES[policy], "all", seed)))
    assert len(found) > 1 or policy == "goodput, exploring"  # which sets the length
    assert min(found) < LONGEST


@pytest.mark.medium
def test_a_policy_that_takes_back_a_drawn_token_changes_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Drafter.draft

    def dropping(drafter: Drafter, length: int, temperature: float, draw: Sampler, read: Any, *rest: Any) -> Any:
        tokens, vectors = yield from true(drafter, length, temperature, draw, lambda _: True, *rest)
        while tokens and vectors[len(tokens) - 1][tokens[-1]] < 0.4:
            tokens.pop()
        for position, token in enumerate(tokens):
            if not read(token):
                return tokens[: position + 1], vectors[: position + 1]
        return tokens, vectors[: len(tokens)]

    world = make_world("nested", 0)
    lane = with_policy(world, Fixed(), "all", 0)
    assert deviation(world, lane, 2) < EXACT
    monkeypatch.setattr(Drafter, "draft", dropping)
    assert deviation(world, lane, 2) > 1e-3


# ---------------------------------------------------------------- what each goes by


def test_entropy_is_that_of_the_distribution() -> None:
    p = torch.tensor([0.5, 0.25, 0.25])
    assert spread(torch.log(p), 1.0)[0] == pytest.approx(1.5 * math.log(2))
    assert spread(torch.log(p), 0.0)[0] == spread(torch.log(p), 1.0)[0]
    hot = torch.softmax(torch.log(p) / 2, -1)
    assert spread(torch.log(p), 2.0)[0] == pytest.approx(float(-(hot * hot.log()).sum()), abs=1e-6)
    assert spread(torch.tensor([0.0, -torch.inf, -torch.inf]), 1.0)[0] == pytest.approx(0, abs=1e-6)


def test_without_a_trained_head_the_entropy_ends_a_draft_before_an_unsure_token() -> None:
    policy = HeadThreshold(0.6, Head())
    for equal, draws in ((1, True), (2, True), (3, False)):  # log 2 nats: 1 − √0.139 = 0.63; log 3: 0.53
        assert policy.should_draw(torch.zeros(equal), 1.0, None) is draws


def test_the_setting_chooses_the_policy() -> None:
    kinds = {name: type(make_policy(Drafting(draft_length=name), Head())) for name in (4, *DRAFT_LENGTHS)}
    kinds_of = {4: Fixed, "head": HeadThreshold, "goodput": Goodput}
    assert kinds == kinds_of
    kinds = {name: type(make_policy(Drafting(draft_length=name))) for name in (4, *DRAFT_LENGTHS)}
    assert kinds == dict.fromkeys(kinds_of, Fixed) | {"goodput": Goodput}, "without a drafter"
    assert Drafting() == Drafting(draft_length="goodput")
    assert Drafting(draft_length=20).longest == 20
    assert Drafting(draft_length="goodput").longest == 16
    assert Drafting(draft_length="goodput", max_draft_length=3).longest == 3
    bad: dict[str, Any]
    for bad in ({"draft_length": "never"}, {"threshold": 1.5}, {"threshold": "high"}, {"threshold": 0.5}):
        with pytest.raises(ConfigError):
            Drafting(**bad)


def test_a_round_without_a_draft_says_why() -> None:
    world = make_world("nested", 0)
    lane = with_policy(world, Goodput(LONGEST), "all", 0)
    record = next(decode(lane, [PROMPT], 5, SAMPLED, lambda weights: int(weights.argmax())))
    assert (record.draft, record.no_draft_reason, record.counts.draft_passes) == ((), MEASURED, 0)


class Unlikely(Told):
    """A trained head that thinks nothing of any token."""

    def chance(self, logits: torch.Tensor, hidden: torch.Tensor | None, temperature: float) -> float:  # noqa: ARG002
        return 0.01


@pytest.mark.parametrize("policy", [HeadThreshold(1.0, Head()), HeadThreshold(0.5, Unlikely())])
def test_a_first_token_that_is_not_drawn_is_no_draft_and_says_why(policy: DraftLengthPolicy) -> None:
    lane = with_policy(make_world("nested", 0), policy, "all", 0)
    record = next(decode(lane, [PROMPT], 5, SAMPLED, lambda weights: int(weights.argmax())))
    assert (record.draft, record.no_draft_reason, record.counts.draft_passes) == ((), UNSURE, 1)
    stats = Stats.of([record])
    assert (stats.rounds_without_draft, stats.no_draft_reason) == (1, UNSURE)
    drafted = with_policy(make_world("nested", 0), HeadThreshold(0.0, Head()), "all", 0)
    record = next(decode(drafted, [PROMPT], 5, SAMPLED, lambda weights: int(weights.argmax())))
    assert record.draft
    assert record.no_draft_reason is None


class Dawdling(Fixed):
    """Takes a second to begin a text with, and two to learn from a round."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.told = 0.0, list[Round]()

    def open(self, prompt: Sequence[int], new_tokens: int, window: int = 0) -> None:  # noqa: ARG002
        self.now += 1.0

    def learn(self, record: Round) -> None:
        self.told.append(record)
        self.now += 2.0


def test_the_time_that_a_policy_takes_is_in_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Dawdling()
    lane = with_policy(make_world("nested", 0), policy, "all", 0)
    monkeypatch.setattr("omnidraft.decoding.lane.time.perf_counter", lambda: policy.now)
    records = list(decode(lane, [PROMPT], 3, SAMPLED, lambda weights: int(weights.argmax())))
    assert [record.times.policy_s for record in records] == [1.0] + [2.0] * (len(records) - 1)
    assert Stats.of(records).seconds == policy.now - 2.0, "what it learned from the last round comes after it"
    assert all(told is record for told, record in zip(policy.told, records, strict=True)), "one record for everybody"


class Once(HeadThreshold):
    """Is sure of the first token only."""

    def should_draw(
        self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None, guess: Guess | None = None
    ) -> bool:
        sure = self.no_draft_reason is None
        super().should_draw(logits, temperature, hidden, guess)
        self.no_draft_reason = UNSURE
        return sure


def test_a_draft_of_which_a_stop_string_keeps_nothing_was_a_draft() -> None:
    lane = with_policy(make_world("nested", 0), Once(0.5, Head()), "all", 0)
    request = begun(lane, [PROMPT], 5, SAMPLED, lambda weights: int(weights.argmax()))
    record = commit(lane, request, verified(lane, request), kept=0)
    assert record.counts.draft_passes > 0
    assert (record.draft, record.emitted, record.no_draft_reason) == ((), (), None)


@pytest.mark.slow
def test_near_the_end_of_the_context_drafts_become_shorter() -> None:
    world = make_world("long", 0)
    lane = with_policy(world, Fixed(), "all", 0)
    assert lane.attached is not None
    widest = lane.attached.longest
    assert widest > 1
    lengths = []
    for left in range(LONGEST * widest + 2, 0, -1):
        world.target.context = 1 + left
        records = [
            record for _, record in enumerate_draws(lambda draw: next(decode(lane, [PROMPT], 100, SAMPLED, draw)))
        ]
        lengths.append(max(len(record.draft) for record in records))
    assert lengths == sorted(lengths, reverse=True)
    assert set(lengths) == {0, 1, 2, 3}, "step by step, not all or nothing"


@pytest.mark.medium
@pytest.mark.parametrize("policy", ["head", "goodput"])
def test_greedy_text_is_that_of_transformers(target: Path, drafter: Path, policy: str) -> None:
    model = load_with(target, drafter, dtype="float32", profile=None, draft_length=policy)
    for _ in range(3):  # what was measured holds for later texts
        for prompt in PROMPTS:
            assert model.generate(prompt, max_new_tokens=24).token_ids == alone(model, prompt, 24)


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["exact", "intersection", "paper"])
@pytest.mark.parametrize("shape", SHAPES)
def test_accepted_draft_tokens_are_those_whose_bytes_were_accepted(shape: str, mode: str) -> None:
    """Counted anew from the bytes that were emitted and proposed."""
    world = make_world(shape, 2)
    lane = world.lane(None, draft_length=3, mode=mode)
    spelled = [data or b"|" for data in world.vocab.tokens]
    for _, record in enumerate_draws(lambda draw: next(decode(lane, [PROMPT], 100, SAMPLED, draw))):
        accepted = b"".join(spelled[token] for token in record.proposals[: record.counts.accepted])
        drafted = [world.drafter_vocab.tokens[token] or b"|" for token in record.draft]
        ends = [len(b"".join(drafted[: count + 1])) for count in range(len(drafted))]
        whole = sum(end <= len(accepted) for end in ends)
        assert whole <= record.counts.draft_accepted <= len(drafted), record
        # of a target token that was refused, what it has in common with the target's own was accepted
        most = len(accepted) + max(map(len, spelled)) - 1
        assert sum(end <= most for end in ends) >= record.counts.draft_accepted - (
            record.counts.accepted == len(record.proposals)
        )
        if mode == "paper":
            assert record.counts.draft_accepted == whole, record
