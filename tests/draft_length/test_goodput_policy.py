"""The goodput policy on a scripted clock: near the best fixed length, never slower, and able to change its mind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from draft_length.test_simple_policies import made
from omnidraft.draft_length.acceptance import Acceptance
from omnidraft.draft_length.acceptance_head import Head, bound
from omnidraft.draft_length.cost_model import CostModel, PassTimes
from omnidraft.draft_length.goodput_policy import TOO_DEAR, TOO_SHORT, Goodput
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, Fixed

LONGEST = 16
PROMPT_PASS = 60.0  # plain steps of the target's prefill
NO_LOGITS = torch.zeros(1)


@dataclass(frozen=True)
class Scene:
    """Costs in plain steps of the target; acceptance probabilities by entropy, which comes up evenly."""

    step: float
    verify: Callable[[int], float]
    chances: dict[float, float]
    read: float = 0.0  # of a token of the prompt


def even(slope: float) -> Callable[[int], float]:
    return lambda tokens: 1 + slope * (tokens - 1)


SCENES = {
    "easy": Scene(0.14, even(0.07), {0.1: 0.97, 0.3: 0.92, 0.6: 0.85, 1.2: 0.7, 2.0: 0.5}),
    "hard": Scene(0.14, even(0.07), {0.1: 0.73, 0.5: 0.64, 1.2: 0.49, 2.2: 0.27, 3.0: 0.09}),
    "large target": Scene(0.05, even(0.01), {0.05: 0.99, 0.3: 0.94, 0.6: 0.88, 1.2: 0.76}),
    "two tokens at twice the cost": Scene(
        0.1, lambda m: 1.0 if m == 1 else 2 + 0.05 * (m - 2), {0.1: 0.97, 0.3: 0.92, 0.6: 0.85, 1.2: 0.7}
    ),
    "hopeless drafter": Scene(0.14, even(0.07), {3.0: 0.02, 4.5: 0.02}),
    "slow drafter": Scene(1.3, even(0.05), {0.1: 0.9}),
    "verified one by one": Scene(0.1, float, {0.5: 0.5, 2.0: 0.3}),
}
HOPELESS = ("hopeless drafter", "slow drafter", "verified one by one")


class Scored(Head):
    """A head whose score is that of the scripted token."""

    nats = 0.0

    def chance(self, logits: torch.Tensor, hidden: torch.Tensor | None, temperature: float) -> float:  # noqa: ARG002
        return bound(self.nats)


class UpTo(Fixed):
    """Drafts of one length."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length, self._drafted = length, 0

    def begin(self, walk: object, chance: float = 0.0) -> bool:  # noqa: ARG002
        self._drafted = 0
        return self._length > 0

    def should_step(self, token: int) -> bool:  # noqa: ARG002
        self._drafted += 1
        return self._drafted < self._length


class Clock:
    """Decodes in a scene with a policy; counts time, and the target tokens that are to be expected."""

    def __init__(self, policy: DraftLengthPolicy | None = None, seed: int = 0) -> None:
        self.head = Scored()
        self.policy: Any = policy or Goodput(LONGEST, self.head)
        self.slow = 1.0  # how much slower the machine is at present
        self.tokens = self.seconds = 0.0
        self.drafted: list[int] = []
        self._random = random.Random(seed)

    def request(self, scene: Scene, rounds: int, prompt: int = 20, new_tokens: int = 10**6) -> None:
        """Decode a request of so many rounds."""
        self.policy.open(range(prompt), new_tokens)
        read, left = False, new_tokens
        for number in range(rounds):
            if left <= 0:
                break
            passes, drafted, accepted, whole, survival = 0, 0, 0, True, 1.0
            self.tokens += 1
            if self.policy.begin(None):
                passes = 1
                while True:
                    self.head.nats = self._random.choice(list(scene.chances))
                    if not self.policy.should_draw(NO_LOGITS, 0.0, None):
                        break
                    drafted += 1
                    whole &= self._random.random() < scene.chances[self.head.nats]
                    accepted += whole
                    survival *= scene.chances[self.head.nats]
                    self.tokens += survival
                    if drafted == min(LONGEST, max(1, left - 1)) or not self.policy.should_step(0):
                        break
                    passes += 1
            reads = 0 if read or not passes else prompt
            read |= passes > 0
            draft_s, verify_s = passes * scene.step + reads * scene.read, scene.verify(drafted + 1)
            self.seconds += draft_s + verify_s
            self.drafted.append(drafted)
            noise = self.slow * self._random.uniform(0.93, 1.07)  # of a real clock
            prefill = 0.0 if number else PROMPT_PASS * self.slow
            counts = {"draft_accepted": accepted, "draft_passes": passes, "draft_read": passes + reads}
            times = {"draft_s": draft_s * noise, "verify_s": verify_s * noise + prefill}
            self.policy.learn(made(drafted, min(left, accepted + 1), counts, None, **times))
            left -= accepted + 1

    def after(self, scene: Scene, requests: int, rounds: int = 40, **request: int) -> float:
        """Goodput over so many requests from now on."""
        self.tokens = self.seconds = 0.0
        self.drafted = []
        for _ in range(requests):
            self.request(scene, rounds, **request)
        return self.tokens / self.seconds


def best_fixed(scene: Scene, requests: int = 20, **request: int) -> float:
    return max(Clock(UpTo(length), 1).after(scene, requests, **request) for length in range(9))


# ---------------------------------------------------------------- how good it is


@pytest.mark.medium
@pytest.mark.parametrize("name", SCENES)
def test_no_fixed_length_is_much_faster(name: str) -> None:
    clock = Clock()
    clock.after(SCENES[name], 20)
    assert clock.after(SCENES[name], 30) > 0.97 * best_fixed(SCENES[name])
    assert max(clock.drafted) <= LONGEST


@pytest.mark.medium
def test_it_beats_every_fixed_length_where_requests_differ() -> None:
    def alternating(policy: DraftLengthPolicy | None) -> float:
        clock = Clock(policy, 2)
        for number in range(80):
            clock.request(SCENES[("easy", "hard")[number % 2]], 40)
        return clock.tokens / clock.seconds

    assert alternating(None) > max(alternating(UpTo(length)) for length in range(7))


@pytest.mark.medium
def test_a_dearer_machine_shortens_drafts() -> None:
    clock, scene = Clock(), SCENES["easy"]
    clock.after(scene, 30)
    before = np.mean(clock.drafted[-400:])
    clock.after(replace(scene, step=0.3, verify=even(0.2)), 30)
    assert np.mean(clock.drafted[-400:]) < 0.7 * before


# ---------------------------------------------------------------- never slower, and noticed again


@pytest.mark.medium
@pytest.mark.parametrize("name", HOPELESS)
def test_it_is_hardly_slower_than_the_target_alone_from_the_first_request_on(name: str) -> None:
    scene, clock, drafted = replace(SCENES[name], read=0.02), Clock(seed=3), []
    for least in (0.975, 0.985, 0.985, 0.985):
        assert clock.after(scene, 40, rounds=60, prompt=60) > least
        drafted.append(sum(length > 0 for length in clock.drafted))
    assert clock.policy.no_draft_reason == TOO_DEAR
    assert 0 < drafted[-1] < drafted[0], "exploration backs off, and never stops for good"


@pytest.mark.medium
@pytest.mark.parametrize(("read", "prompt"), [(0.0, 20), (0.02, 100)])
def test_a_drafter_that_becomes_useful_is_noticed(read: float, prompt: int) -> None:
    hopeless = replace(SCENES["hopeless drafter"], read=read)
    useful = replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.8))
    clock = Clock()
    clock.after(hopeless, 40, prompt=prompt)
    assert clock.policy.no_draft_reason == TOO_DEAR
    clock.after(useful, 80, prompt=prompt)
    assert clock.after(useful, 40, prompt=prompt) > 0.95 * best_fixed(useful, prompt=prompt)


@pytest.mark.medium
def test_new_weights_are_explored_soon() -> None:
    hopeless = SCENES["hopeless drafter"]
    useful = replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.8))
    found = []
    for learns in (False, True):
        clock = Clock()
        clock.after(hopeless, 120)
        if learns:
            clock.head.load_weights({})  # what is learned comes with a new version
        clock.after(useful, 16)
        found.append(sum(length > 0 for length in clock.drafted))
    assert found[1] > found[0] + 100


@pytest.mark.medium
def test_a_drafter_that_becomes_useless_is_dropped() -> None:
    clock = Clock()
    clock.after(SCENES["easy"], 40)
    clock.after(SCENES["hopeless drafter"], 4)
    assert clock.after(SCENES["hopeless drafter"], 60) > 0.98


def test_no_more_is_unread_than_the_drafter_would_read() -> None:
    policy = Goodput(LONGEST, Scored())
    policy.open(range(300), 10**6, window=512)
    for _ in range(1000):
        policy.learn(made(0, 1, {"draft_passes": 0}, None, draft_s=0.0, verify_s=1.0))
    assert policy._behind == 512  # noqa: SLF001


@pytest.mark.medium
def test_long_prompts_with_short_answers_are_left_to_the_target() -> None:
    """The drafter is good, but its prefill costs more than it could save; in a longer answer it is used."""
    scene = replace(SCENES["easy"], read=0.02)
    clock = Clock(seed=4)
    clock.after(scene, 10, prompt=100)
    clock.after(scene, 30, rounds=4, prompt=1500, new_tokens=8)
    assert clock.after(scene, 100, rounds=4, prompt=1500, new_tokens=8) > 0.97
    assert clock.policy.no_draft_reason == TOO_SHORT
    clock.after(scene, 1, rounds=300, prompt=1500)
    assert sum(clock.drafted) > 0


@pytest.mark.medium
@pytest.mark.parametrize("first_prompt", [12, 200])
def test_a_cheap_drafter_is_not_sent_through_a_prompt_for_a_few_tokens(first_prompt: int) -> None:
    """Its prefill of 4000 tokens takes eight plain steps, and an answer has six tokens."""
    scene, clock = replace(SCENES["large target"], step=0.03, read=0.002), Clock(seed=1)
    clock.after(scene, 5, prompt=first_prompt)
    clock.after(scene, 200, rounds=6, prompt=4000, new_tokens=6)
    assert sum(length > 0 for length in clock.drafted) < 0.05 * len(clock.drafted)


@pytest.mark.medium
@pytest.mark.parametrize(("slow", "rounds", "lasts"), [(200.0, 2, False), (3.0, 1, True)])
def test_neither_a_stall_nor_a_slower_machine_changes_much(slow: float, rounds: int, *, lasts: bool) -> None:
    clock, scene = Clock(), SCENES["hard"]
    clock.after(scene, 30)
    before = clock.after(scene, 40)
    clock.slow = slow
    clock.request(scene, rounds)
    clock.slow = slow if lasts else 1.0
    assert clock.after(scene, 40) > 0.96 * before


@pytest.mark.medium
def test_a_request_that_is_harder_than_others_is_left_to_the_target() -> None:
    clock = Clock()
    clock.after(SCENES["easy"], 30)
    clock.request(replace(SCENES["easy"], chances={4.5: 0.0}), 80)
    assert sum(length > 0 for length in clock.drafted[-40:]) < 12, "an exploration at most"
    clock.after(SCENES["easy"], 3)
    assert np.mean(clock.drafted[-40:]) > 1


# ---------------------------------------------------------------- what is kept


@pytest.mark.medium
def test_a_resumed_policy_goes_on_where_the_other_was() -> None:
    clock, scene = Clock(), SCENES["hopeless drafter"]
    clock.after(scene, 56)  # no exploration is due soon
    again = Clock(seed=7)
    again.policy.resume(clock.policy.state())
    assert again.policy.state().tolist() == clock.policy.state().tolist()
    again.after(scene, 5)
    assert sum(again.drafted) == 0, "nothing is measured again"
    easy, new = Clock(), Clock(seed=7)
    easy.after(SCENES["easy"], 60)
    new.policy.resume(easy.policy.state())
    new.request(SCENES["easy"], 12)
    assert sum(new.drafted) > 8, "a short answer is drafted at once"


@pytest.mark.parametrize("state", [np.zeros(3), np.full(Goodput(1).state().shape, np.nan)])
def test_a_state_that_does_not_fit_is_left_alone(state: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    policy = Goodput(LONGEST)
    before = policy.state().tolist()
    policy.resume(state)
    assert policy.state().tolist() == before


# ---------------------------------------------------------------- its parts


def test_the_cost_model_finds_the_costs_it_is_shown() -> None:
    costs, order = CostModel(), random.Random(0)
    for _ in range(600):
        drafted = order.choice((0, 0, 1, 2, 3, 5))
        phase = order.uniform(0.95, 1.05)
        times = {"draft_s": drafted and (0.05 + 0.1 * drafted) * phase, "verify_s": phase * (1 + bool(drafted) * 0.2)}
        times["verify_s"] += 0.03 * drafted * phase
        costs.learn(made(drafted, 1, None, None, **times), first=False)
    passes = PassTimes(target={1: 2.0, 2: 2.46, 3: 2.52, 5: 2.64}, drafter=0.2, context=64, laps=5)
    profiled = CostModel.profiled(passes)
    assert costs.seconds == pytest.approx(1, rel=0.05)
    assert costs.steps.of(1) == pytest.approx(0.15, abs=0.03)
    assert costs.steps.of(4) == pytest.approx(0.45, abs=0.05)
    assert profiled.steps.of(4) == pytest.approx(0.4)
    for tokens, cost in ((1, 0.23), (4, 0.32)):
        assert costs.tokens.of(tokens) == pytest.approx(cost, abs=0.05)
        assert profiled.tokens.of(tokens) == pytest.approx(cost)


def test_a_prefill_that_seems_to_cost_nothing_is_measured_again() -> None:
    """A first draft whose steps are cheaper than the prior leaves nothing for the prefill."""
    costs = CostModel()
    for _ in range(3):
        costs.learn(made(0, 1, None, None, verify_s=1.0), first=False)
    for read, draft_s in ((14, 0.03), *[(2001, 2.03)] * 30):
        counts = {"draft_passes": 1, "draft_read": read}
        costs.learn(made(1, 1, counts, None, draft_s=draft_s, verify_s=1.0), first=False)
    assert costs.prefill(2000) == pytest.approx(2, rel=0.5)


def test_acceptance_is_calibrated_by_bin_and_shifted_for_the_request() -> None:
    acceptance, order = Acceptance(), random.Random(0)
    for _ in range(2000):
        score = order.random()
        acceptance.learn([acceptance.meet(score)], int(order.random() < score / 2))
        acceptance.start_request()
    found = [acceptance.probability(place) for place in range(12)]
    assert found[-1] == pytest.approx(0.49, abs=0.12)
    assert found[0] < 0.1
    assert acceptance.mean == pytest.approx(0.25, abs=0.08)
    for _ in range(40):
        acceptance.learn([acceptance.meet(0.55)], 1)
    assert acceptance.probability(10) > found[-2] + 0.1, "other bins too"
    acceptance.start_request()
    assert acceptance.probability(10) == pytest.approx(found[-2])


def test_faded_estimates_follow_new_observations_sooner() -> None:
    found = []
    for fades in (False, True):
        acceptance = Acceptance()
        for _ in range(300):
            acceptance.learn([acceptance.meet(0.5)], 0)
            acceptance.start_request()
        if fades:
            acceptance.fade()
        for _ in range(6):
            acceptance.learn([acceptance.meet(0.5)], 1)
            acceptance.start_request()
        found.append(acceptance.mean)
    assert found[1] > 2 * found[0]
