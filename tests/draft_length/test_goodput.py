"""The goodput policy on scripted costs and chances: how near it comes to the best draft, and never slower."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from draft_length.test_policy import made
from omnidraft.draft_length import plan
from omnidraft.draft_length.acceptance import EARLIER, EDGES, ENDS, FIRST, LATER, OPENING, TEXTS, Chance, Chances
from omnidraft.draft_length.acceptance import FEW as FEW_TOKENS
from omnidraft.draft_length.acceptance_head import Head, bound
from omnidraft.draft_length.cost_model import ENOUGH, HALF, WINDOW, Costs
from omnidraft.draft_length.cost_model import FRESH as FEW
from omnidraft.draft_length.cost_model import _median as costs_median
from omnidraft.draft_length.cost_model import _solved as costs_solved
from omnidraft.draft_length.exploration import FIRST_TRIAL, LEARNED_SHARE, SHARE, STALL, Trials, plausible
from omnidraft.draft_length.goodput import (
    AGAIN,
    ASK_EVERY,
    ASK_FIRST,
    FRESH,
    GIVEN_UP,
    MEASURED,
    QUIET,
    TOO_DEAR,
    TOO_SHORT,
    Goodput,
)
from omnidraft.draft_length.plan import GRID, NEVER, Known, Plan, make_plan, saved
from omnidraft.draft_length.policy import DraftLengthPolicy, Fixed
from omnidraft.draft_length.request_state import BEGINNING

LONGEST = 16
PROMPT_PASS = 60.0  # target steps that reading a prompt takes
NO_LOGITS = torch.zeros(1)


@dataclass(frozen=True)
class Scene:
    """Costs in target steps, and entropies that come up equally often, with the chance of acceptance of each."""

    step: float
    verify: Callable[[int], float]
    chances: dict[float, float]
    read: float = 0.0  # of a token of the prompt
    opening: dict[float, float] | None = None  # `chances` of the first tokens of a text, where they are others


def even(slope: float) -> Callable[[int], float]:
    return lambda tokens: 1 + slope * (tokens - 1)


SCENES = {
    "an easy text": Scene(0.14, even(0.07), {0.1: 0.97, 0.3: 0.92, 0.6: 0.85, 1.2: 0.7, 2.0: 0.5}),
    "a hard text": Scene(0.14, even(0.07), {0.1: 0.73, 0.5: 0.64, 1.2: 0.49, 2.2: 0.27, 3.0: 0.09}),
    "a large target": Scene(0.05, even(0.01), {0.05: 0.99, 0.3: 0.94, 0.6: 0.88, 1.2: 0.76}),
    "two tokens at twice the cost": Scene(
        0.1, lambda m: 1.0 if m == 1 else 2 + 0.05 * (m - 2), {0.1: 0.97, 0.3: 0.92, 0.6: 0.85, 1.2: 0.7}
    ),
    "a hopeless drafter": Scene(0.14, even(0.07), {3.0: 0.02, 4.5: 0.02}),
    "a drafter slower than the target": Scene(1.3, even(0.05), {0.1: 0.9}),
    "two tokens at twice the cost, and few accepted": Scene(0.1, float, {0.5: 0.5, 2.0: 0.3}),
}


class Clock:
    """Decodes by a policy in a scene; counts time, and the target tokens that are to be expected."""

    def __init__(self, policy: DraftLengthPolicy, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.policy: Any = policy
        self.slow = 1.0  # how much slower the machine is at present
        self.tokens, self.seconds = 0.0, 0.0
        self.drafted: list[int] = []
        self.passes = 0  # of the drafter
        self._random = random.Random(seed)
        self._nats = 0.0
        if isinstance(policy, Goodput):
            monkeypatch.setattr(policy._head, "chance", lambda *_: bound(self._nats))

    def text(self, scene: Scene, rounds: int, prompt: int | list[int] = 20, new_tokens: int = 10**6) -> None:
        """Decode a text of so many rounds."""
        ids = range(prompt) if isinstance(prompt, int) else prompt
        self.policy.open(ids, new_tokens)
        read, said = False, 0
        for number in range(rounds):
            passes, drafted, accepted, whole, reach = 0, 0, 0, True, 1.0
            chances = scene.opening if scene.opening and said < BEGINNING else scene.chances
            self.tokens += 1
            if self.policy.begin(None):
                passes = 1
                while True:
                    self._nats = self._random.choice(list(chances))
                    if not self.policy.draws(NO_LOGITS, 0.0, None):
                        break
                    drafted += 1
                    whole &= self._random.random() < chances[self._nats]
                    accepted += whole
                    reach *= chances[self._nats]
                    self.tokens += reach
                    if drafted == LONGEST or not self.policy.steps(0):
                        break
                    passes += 1
            reads = 0 if read or not passes else len(ids)
            read |= passes > 0
            draft_s, verify_s = passes * scene.step + reads * scene.read + self.asking(), scene.verify(drafted + 1)
            self.seconds += draft_s + verify_s
            self.drafted.append(drafted)
            self.passes += passes
            said += accepted + 1
            noise = self.slow * self._random.uniform(0.93, 1.07)  # of a real clock
            own_prompt = 0.0 if number else PROMPT_PASS * self.slow
            counts = {"draft_accepted": accepted, "draft_passes": passes, "draft_read": passes + reads}
            draft_s, verify_s = draft_s * noise, verify_s * noise + own_prompt
            self.policy.learn(made(drafted, accepted + 1, counts, draft_s=draft_s, verify_s=verify_s))

    def asking(self) -> float:
        """What asking for chances has taken since the last time."""
        return 0.0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    def after(self, scene: Scene, texts: int, rounds: int = 40, **text: int) -> float:
        """The rate over so many texts from now on."""
        self.tokens, self.seconds, self.drafted, self.passes = 0.0, 0.0, [], 0
        for _ in range(texts):
            self.text(scene, rounds, **text)
        return self.rate


class UpTo(Fixed):
    """Drafts of one length."""

    def __init__(self, length: int) -> None:
        self._length, self._drafted = length, 0

    def begin(self, walk: object) -> bool:  # noqa: ARG002
        self._drafted = 0
        return self._length > 0

    def steps(self, token: int) -> bool:  # noqa: ARG002
        self._drafted += 1
        return self._drafted < self._length


def optimum(scene: Scene) -> float:
    """The highest rate that any policy can have, by the chances so far: no grid, no thresholds."""
    chances = list(scene.chances.values())
    known: dict[tuple[object, ...], float] = {}

    def stepping(drawn: tuple[int, ...], rate: float) -> float:
        """What going on is worth over `rate`, after laws of these places; their order says nothing."""
        length = len(drawn)
        if length == LONGEST:
            return 0.0
        if (drawn, rate) not in known:
            longer = scene.verify(length + 2) - scene.verify(length + 1)
            found = []
            for place in range(len(chances)):
                after = tuple(sorted((*drawn, place)))
                reach = float(np.prod([chances[i] for i in after]))
                worth = 0.0 if reach < 1e-3 else reach - rate * longer + stepping(after, rate)
                found.append(max(0.0, worth))
            known[drawn, rate] = max(0.0, float(np.mean(found)) - rate * scene.step)
        return known[drawn, rate]

    low, high = 0.5, 20.0
    while high - low > 2e-3:
        rate = (low + high) / 2
        known.clear()
        low, high = (rate, high) if 1 + stepping((), rate) > rate * scene.verify(1) else (low, rate)
    return low


# ---------------------------------------------------------------- how good it is


@pytest.mark.parametrize("name", SCENES)
def test_it_is_within_two_percent_of_the_best_policy_there_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, policy = SCENES[name], Goodput(LONGEST)
    clock = Clock(policy, 0, monkeypatch)
    clock.after(scene, 20)
    assert clock.after(scene, 80) > 0.98 * optimum(scene)


@pytest.mark.parametrize("name", SCENES)
def test_no_fixed_length_beats_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = SCENES[name]
    fixed = {k: Clock(UpTo(k), 1, monkeypatch).after(scene, 40) for k in range(9)}
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(scene, 20)
    assert clock.after(scene, 60) > 0.98 * max(fixed.values())


def test_it_beats_every_fixed_length_where_texts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    easy, hard = SCENES["an easy text"], SCENES["a hard text"]

    def alternating(policy: DraftLengthPolicy) -> float:
        clock = Clock(policy, 2, monkeypatch)
        for turn in range(100):
            clock.text((easy, hard)[turn % 2], 40)
        return clock.rate

    assert alternating(Goodput(LONGEST)) > max(alternating(UpTo(k)) for k in range(9))


# What the embedded drafter comes to for word problems and for code: what is worth a draft token, and what hardly is,
# comes up in both, one more often in these, the other in those.  Answers begin with what is hard to guess.
HARD = {3.0: 0.15, 4.0: 0.05}
WORDS = Scene(0.17, even(0.25), {0.3: 0.85, 0.8: 0.7, 1.5: 0.55, 2.5: 0.35, 3.5: 0.15}, 0.01, HARD)
CODE = Scene(0.17, even(0.25), {0.8: 0.7, 1.5: 0.5, 2.5: 0.3, 3.5: 0.1, 4.5: 0.05}, 0.01, HARD)


@pytest.mark.parametrize("order", [(WORDS, CODE), (WORDS, CODE, CODE), (WORDS, WORDS, CODE)], ids=len)
def test_texts_in_which_drafts_pay_are_told_from_others_whatever_their_order(
    order: tuple[Scene, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, drafted = [], {id(WORDS): [0, 0], id(CODE): [0, 0]}
    for seed in range(8):
        clock = Clock(Goodput(LONGEST), seed, monkeypatch)
        for turn in range(90):
            scene = order[turn % len(order)]
            before = len(clock.drafted)
            clock.text(scene, 70)
            drafted[id(scene)][0] += sum(length > 0 for length in clock.drafted[before:])
            drafted[id(scene)][1] += 70
        found.append(clock.rate)
    fixed = []
    for length in range(4):
        clock = Clock(UpTo(length), 0, monkeypatch)
        for turn in range(90):
            clock.text(order[turn % len(order)], 70)
        fixed.append(clock.rate)
    words, code = (drafts / rounds for drafts, rounds in drafted.values())
    assert words > 0.5
    assert code < 0.75 * words
    assert np.mean(found) > max(fixed[1:]) + 0.02
    assert np.mean(found) > fixed[0]


def test_what_a_text_is_like_is_known_from_texts_with_such_prompts() -> None:
    """Half of the tokens of prompts are the same in all of them, as those of a template are."""
    chances = Chances()
    for turn in range(40):
        chances.open([*range(40), *range(1000 * (turn % 2) + turn, 1000 * (turn % 2) + turn + 40)])
        for _ in range(20):
            chances.meet((0.99, 0.05)[turn % 2], FIRST)
    likely, unlikely = [], []
    for kind in range(2):
        chances.open([*range(40), *range(1000 * kind + 40, 1000 * kind + 80)])
        shares = chances.here(opening=False, hope=False)[0]
        likely.append(shares[0])
        unlikely.append(shares[-1])
    assert likely == [pytest.approx(1, abs=0.2), pytest.approx(0, abs=0.2)]
    assert unlikely == [pytest.approx(0, abs=0.2), pytest.approx(1, abs=0.2)]
    chances.fade(1.0)  # so that the average of all counts more
    assert unlikely[1] > chances.here(opening=False, hope=False)[0][-1] > unlikely[0]


def test_no_more_is_remembered_than_so_many_texts_and_nothing_of_those_without_drafts() -> None:
    chances = Chances()
    for turn in range(3 * TEXTS):
        chances.open(range(turn, turn + 500))
        for _ in range(FEW_TOKENS - turn % 2):
            chances.meet(0.5, FIRST)
    assert len(chances._texts) == TEXTS
    assert all(sum(own) == FEW_TOKENS for _, own in chances._texts)
    assert max(len(prompt) for prompt, _ in chances._texts) == 2 * ENDS


def test_a_text_goes_on_where_its_chances_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    head, prompts = Head(), [[99, *range(10 * turn, 10 * turn + 10)] for turn in range(4)]
    clock = Clock(Goodput(LONGEST, head), 0, monkeypatch)
    clock.text(SCENES["an easy text"], 40, prompts[0])
    monkeypatch.setattr(Head, "trained", True)
    for prompt in (*prompts[1:], []):
        clock.text(SCENES["an easy text"], 40, prompt)
    clock.policy.open([], 40)
    assert [set(prompt) for prompt, _ in clock.policy._chances._texts] == [set(prompt) for prompt in prompts[1:]]


def test_prompts_without_a_token_in_common_say_nothing() -> None:
    chances = Chances()
    for prompt in ([99, *range(10)], [99, *range(10, 20)]):
        chances.open(prompt)
        for _ in range(FEW_TOKENS):
            chances.meet(0.99, FIRST)
    chances.open([99, *range(20, 30)])  # but for the beginning of text
    average = chances.here(opening=False, hope=False)[0]
    assert average == pytest.approx(chances._shares())
    chances.open(range(5))
    assert chances.here(opening=False, hope=False)[0][0] > average[0]


def test_beginnings_that_are_hard_do_not_speak_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = replace(SCENES["an easy text"], opening={4.5: 0.0})
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.after(scene, 20)
    clock.after(scene, 20)
    texts = [clock.drafted[at : at + 40] for at in range(0, 800, 40)]
    assert sum(sum(text[:BEGINNING]) for text in texts) < 20, "where nothing is accepted next to nothing is drafted"
    later = [sum(length > 0 for length in text[BEGINNING:]) / (40 - BEGINNING) for text in texts]
    assert min(later) > 0.8


def test_beginnings_that_are_easy_are_drafted_though_the_rest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = replace(SCENES["a hopeless drafter"], opening={0.1: 0.97, 0.3: 0.92})
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.after(scene, 20)
    clock.after(scene, 20)
    texts = [clock.drafted[at : at + 40] for at in range(0, 800, 40)]
    assert np.mean([text[0] for text in texts]) > 2
    assert np.mean([sum(text[4:]) for text in texts]) < 4, "by then more than eight tokens are said"


def test_a_text_of_which_the_drafter_is_unsure_throughout_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its steps is refused by its chance: there is no draft, yet each costs a step."""
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    scene = replace(WORDS, verify=even(0.15), opening=None)
    clock.after(scene, 30, rounds=70)
    clock.after(replace(scene, chances={4.5: 0.02}), 1, rounds=70)
    assert sum(clock.drafted) < 3, "some are drawn all the same"
    assert 0 < clock.passes < 25
    assert clock.policy.no_draft_reason == TOO_DEAR


# ---------------------------------------------------------------- never slower, and noticed again


@pytest.mark.parametrize("name", [name for name in SCENES if "hopeless" in name or "slower" in name or "few" in name])
def test_it_is_never_slower_from_the_first_text_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = replace(SCENES[name], read=0.02)
    clock = Clock(Goodput(LONGEST), 3, monkeypatch)
    assert clock.after(scene, 200, rounds=60, prompt=100) > 0.97
    clock.policy.open(range(100), 60)
    assert not clock.policy.begin(None)
    assert clock.policy.no_draft_reason in GIVEN_UP


# To find out that steps take nine times as long as they did is a loss of its own.
@pytest.mark.parametrize(("name", "least"), [("a hopeless drafter", 0.975), ("a drafter slower than the target", 0.96)])
def test_what_drafts_have_gained_for_long_is_not_lost_where_they_cease_to_pay(
    name: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.after(replace(SCENES["an easy text"], read=0.02), 1000, rounds=30, prompt=100)
    assert clock.after(replace(SCENES[name], read=0.02), 200, rounds=48, prompt=100) > least


@pytest.mark.parametrize(("chance", "mean"), [(0.36, 0.995), (0.3, 0.99), (0.26, 0.99), (0.22, 0.98)])
def test_in_doubt_drafts_go_on_as_long_as_that_costs_little(
    chance: float, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a draft token takes 0.26 steps of the target
    scene = Scene(0.16, even(0.1), {2.0: chance + 0.1, 3.0: chance, 4.0: chance - 0.1})
    found = []
    for seed in range(6):
        clock = Clock(Goodput(LONGEST), seed, monkeypatch)
        clock.after(scene, 10)
        fixed = Clock(UpTo(1), seed, monkeypatch).after(scene, 50)
        found.append(clock.after(scene, 100) / max(1.0, fixed))
    assert min(found) > 0.97
    assert np.mean(found) > mean


def test_what_may_well_be_is_near_what_was_seen_often() -> None:
    chance = Chance(0.5)
    assert chance.hopeful == pytest.approx(0.75)
    for number in range(1000):
        chance.learn(happened=number % 2 == 0)
    assert chance.hopeful == pytest.approx(0.55, abs=0.01)
    for _ in range(2000):
        chance.learn(happened=False)
    assert chance.hopeful < 0.01


def test_long_prompts_with_short_answers_are_left_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter is good, but has more to read than it could save; in a longer text it is used."""
    scene = replace(SCENES["an easy text"], read=0.02)
    clock = Clock(Goodput(LONGEST), 4, monkeypatch)
    clock.after(scene, 10, prompt=100)
    clock.after(scene, 30, rounds=4, prompt=1500, new_tokens=8)
    clock.after(scene, 100, rounds=4, prompt=1500, new_tokens=8)
    assert clock.rate > 0.97
    assert clock.policy.no_draft_reason == TOO_SHORT
    clock.after(scene, 1, rounds=300, prompt=1500)  # a text that goes on: it pays after all
    assert sum(clock.drafted) > 0


@pytest.mark.parametrize(("read", "prompt"), [(0.0, 20), (0.02, 100)])
def test_a_drafter_that_becomes_useful_is_noticed_within_twenty_texts(
    read: float, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        hopeless = replace(SCENES["a hopeless drafter"], read=read)
        clock = Clock(Goodput(LONGEST), seed, monkeypatch)
        clock.after(hopeless, 60, prompt=prompt)
        assert clock.policy.no_draft_reason == TOO_DEAR
        useful = replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.8))
        clock.after(useful, 20, prompt=prompt)
        best = max(Clock(UpTo(length), seed, monkeypatch).after(useful, 40, prompt=prompt) for length in range(9))
        assert clock.after(useful, 40, prompt=prompt) > 0.97 * (best if read else optimum(useful))


def test_a_stall_within_a_trial_does_not_end_all_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    hopeless = SCENES["a hopeless drafter"]
    clock = Clock(Goodput(LONGEST), 5, monkeypatch)
    clock.after(hopeless, 60)
    clock.policy.trials.start((1, (2,)))
    clock.text(replace(hopeless, verify=even(1000.0)), BEGINNING + 1)
    assert clock.drafted[-1] == 2
    useful = replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.8))
    clock.after(useful, 20)
    assert clock.after(useful, 40) > 0.97 * optimum(useful)


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_stall_while_an_early_prompt_is_read_ends_no_drafts(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = replace(SCENES["an easy text"], read=0.02)
    clock = Clock(Goodput(LONGEST), before, monkeypatch)
    clock.after(scene, before, prompt=100)
    clock.text(replace(scene, read=5.0), 40, prompt=100)
    for _ in range(3):
        clock.after(scene, 1, prompt=100)
        assert sum(drafted > 0 for drafted in clock.drafted) > 20


def test_a_drafter_that_cannot_pay_is_hardly_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    slow = SCENES["a drafter slower than the target"]
    clock.after(slow, 10)
    assert 0 < sum(clock.drafted) < 20
    clock.after(slow, 200)
    assert 0 < sum(clock.drafted) < 0.03 * len(clock.drafted)
    assert max(clock.drafted) == 1
    clock.after(replace(slow, step=0.1), 20)  # it has got a device of its own
    assert sum(clock.drafted[-40:]) > 100


def test_a_drafter_that_is_better_than_its_entropy_says_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(0.14, even(0.07), {3.0: 0.8, 4.5: 0.7})  # the bound gives such tokens .23 and .05
    clock = Clock(Goodput(LONGEST), 4, monkeypatch)
    clock.after(scene, 2)
    assert clock.after(scene, 20) > 0.97 * optimum(scene)


def test_a_drafter_that_gets_worse_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 6, monkeypatch)
    assert clock.after(SCENES["an easy text"], 20) > 1.5
    clock.after(SCENES["a hopeless drafter"], 5)
    assert clock.after(SCENES["a hopeless drafter"], 100) > 0.97


@pytest.mark.parametrize(("before", "now"), [(0.05, 1.3), (0.05, 0.3), (0.8, 0.05)])
def test_a_drafter_that_becomes_slower_or_faster_while_drafts_are_long_is_noticed(
    before: float, now: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all drafts are alike, their steps are not told apart by what some of them were once."""
    scene = replace(SCENES["a large target"], step=before)
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.after(scene, 20)
    other = replace(scene, step=now)
    clock.after(other, 20)
    assert clock.after(other, 30) > 0.97 * optimum(other)


@pytest.mark.parametrize("rounds", [16, 24])
def test_verification_that_becomes_cheap_is_noticed_within_twenty_texts(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dear = Scene(0.1, even(1.5), {0.1: 0.9, 0.3: 0.8})
    for seed in range(4):
        clock = Clock(Goodput(LONGEST), seed, monkeypatch)
        clock.after(dear, 100, rounds=rounds)
        assert not clock.drafted[-1]
        clock.after(replace(dear, verify=even(0.07)), 15, rounds=rounds)
        assert clock.after(replace(dear, verify=even(0.07)), 5, rounds=rounds) > 1.3


@pytest.mark.parametrize("rounds", [32, 64])
def test_the_target_alone_is_measured_whatever_the_length_of_texts(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round of a text says nothing of it, as the prompt is in it."""
    scene = SCENES["two tokens at twice the cost"]
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.after(scene, 200 * 64 // rounds, rounds=rounds)
    assert [clock.policy.costs.verify(m) for m in (1, 2, 5)] == pytest.approx([1.0, 2.0, 2.15], rel=0.1)
    assert clock.policy.costs.seconds == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("texts", [1, 5, 20])
def test_a_machine_that_was_slow_for_a_while_is_believed_again(texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = SCENES["an easy text"]
    best = max(Clock(UpTo(k), 8, monkeypatch).after(scene, 40) for k in range(1, 6))
    clock = Clock(Goodput(LONGEST), 8, monkeypatch)
    clock.after(scene, 10)
    clock.slow = 2.0
    clock.after(scene, texts)
    clock.slow = 1.0
    clock.after(scene, 20)
    assert clock.after(scene, 60) > 0.97 * best


def test_the_first_rounds_measure_the_target_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 7, monkeypatch)
    clock.text(SCENES["an easy text"], 1 + ENOUGH)  # the first has the prompt in it
    assert clock.drafted == [0] * (1 + ENOUGH)
    assert clock.policy.no_draft_reason == MEASURED
    clock.text(SCENES["an easy text"], 5)
    assert sum(clock.drafted) > ENOUGH


def test_the_first_trial_has_rounds_of_the_target_alone_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.text(SCENES["an easy text"], 1 + ENOUGH + FIRST_TRIAL[0])
    trial = clock.drafted[-FIRST_TRIAL[0] :]
    assert sorted(trial) == sorted([*FIRST_TRIAL[1]] * (FIRST_TRIAL[0] // len(FIRST_TRIAL[1])))
    assert trial.count(0) >= FIRST_TRIAL[0] / 4


@pytest.mark.parametrize(("chance", "fewest", "most"), [(0.39, 12, 20), (0.47, 18, 32), (0.9, 60, 70)])
def test_the_less_drafts_gain_the_more_often_the_target_is_measured_alone(
    chance: float, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One draft token gains 5, 12 and 42 % here; what is lost to rounds without a draft stays below 1 %."""
    scene = Scene(0.17, lambda m: 1 + 0.15 * (m > 1) + 0.5 * max(0, m - 2), {1.0: chance})
    clock = Clock(Goodput(LONGEST), 0, monkeypatch)
    clock.after(scene, 60)
    clock.after(scene, 60)
    plain = clock.drafted.count(0)
    assert fewest <= len(clock.drafted) / plain <= most
    alone = 1 / (1 + 0.15 + 0.17)
    best = (1 + chance) * alone
    assert plain / len(clock.drafted) * (best - 1) < 0.01


def test_a_clock_that_stands_still_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    still = Scene(0.0, lambda _: 0.0, {0.1: 0.9})
    monkeypatch.setattr("test_rate.PROMPT_PASS", 0.0)
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    for _ in range(12):
        clock.text(still, 20)
    assert clock.drafted


def test_texts_that_can_have_no_draft_have_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(replace(SCENES["an easy text"], read=0.02), 40, prompt=100)
    before, due = [chance.seen for chance in clock.policy._chances.bins], 0
    for _ in range(40):
        clock.policy.open(range(100), 1)
        due += clock.policy._due is not None
        clock.policy.learn(made(verify_s=1.0))  # nothing was asked
    assert due > 0, "one may be thought of"
    assert [chance.seen for chance in clock.policy._chances.bins] == before
    assert clock.policy.trials.left == 0
    clock.text(replace(SCENES["an easy text"], read=0.02), 40, prompt=100)
    assert clock.policy.trials.left == 0


def test_what_drafts_gain_is_not_spent_on_texts_that_are_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    easy = replace(SCENES["an easy text"], read=0.02)
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(easy, 60, prompt=100)
    wasted = 0
    for _ in range(60):
        clock.text(easy, 30, prompt=100)
        before = clock.passes
        clock.text(easy, 4, prompt=1500, new_tokens=8)
        wasted += clock.passes > before
    assert wasted < 6


def test_a_text_that_becomes_easy_after_its_beginning_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hopeless = replace(SCENES["a hopeless drafter"], opening={0.1: 0.95})
    clock = Clock(Goodput(LONGEST), 2, monkeypatch)
    clock.after(hopeless, 60)
    assert any(clock.drafted), "beginnings are drafted"
    useful = replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.8))
    clock.after(useful, 20)
    assert clock.after(useful, 40) > 0.97 * optimum(useful)


def test_a_long_text_is_looked_at_again_though_its_rounds_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt is long and answers were short: the drafter is left out until the text has gone on for long enough."""
    scene = replace(SCENES["an easy text"], read=0.02)
    clock = Clock(Goodput(LONGEST), 4, monkeypatch)
    clock.after(scene, 10, prompt=100)
    clock.after(scene, 60, rounds=4, prompt=1500, new_tokens=8)
    clock.after(scene, 1, rounds=200, prompt=1500)
    first = next(number for number, drafted in enumerate(clock.drafted) if drafted)
    assert AGAIN <= first < 4 * AGAIN
    assert sum(drafted > 0 for drafted in clock.drafted[first:]) > 0.8 * (200 - first)


@pytest.mark.parametrize("rounds", [7, 40, 75])
def test_rounds_that_nobody_looked_at_are_made_up_for(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for quiet in (1, QUIET):
        monkeypatch.setattr("omnidraft.draft_length.goodput.QUIET", quiet)
        clock = Clock(Goodput(LONGEST), 1, monkeypatch)
        clock.after(SCENES["a hopeless drafter"], 30, rounds=rounds)
        assert clock.policy.no_draft_reason == TOO_DEAR
        assert len(clock.policy._quiet) < quiet
        clock.policy.open(range(20), 100)
        assert not clock.policy._quiet
        policy = clock.policy
        found.append(
            (clock.drafted, policy.trials._all, policy._length, policy.costs.seconds, policy.costs._rounds, policy.rate)
        )
    assert found[0] == found[1]
    assert found[0][4] == 30 * rounds


def test_a_trial_lets_what_comes_count_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(SCENES["a hopeless drafter"], 60)
    seen = max(chance.seen for chance in clock.policy._chances.bins)
    observed = max(map(len, clock.policy.costs._verify.values()))
    assert seen > FRESH
    assert observed > FEW
    for _ in range(200):
        clock.text(SCENES["a hopeless drafter"], 40)
        clock.policy.open(range(20), 100)
        clock.policy.begin(None)
        if clock.policy.trials.left:
            assert max(chance.seen for chance in clock.policy._chances.bins) == FRESH
            assert max(map(len, clock.policy.costs._verify.values())) == FEW
            assert len(clock.policy.costs._asking) == FEW
            return
    pytest.fail("there was no trial")


def test_a_trial_waits_until_a_text_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter whose every draft is accepted but at the beginning of a text, where none is."""
    hopeless = SCENES["a hopeless drafter"]
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(hopeless, 60)
    clock.after(replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.9), opening={4.5: 0.0}), 20)
    texts = [clock.drafted[at : at + 40] for at in range(0, 800, 40)]
    first = next(text for text in texts if any(text))
    assert not any(first[:BEGINNING])
    assert sum(length > 0 for length in first) > 20, "and the first trial was enough"


def test_no_plan_is_made_within_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be time of the draft, which would seem dearer than it is."""
    clock, left = Clock(Goodput(LONGEST), 1, monkeypatch), []

    def noted(*given: Any) -> Plan:
        left.append(clock.policy.trials.left)
        return make_plan(*given)

    clock.after(SCENES["a hopeless drafter"], 60)
    monkeypatch.setattr("omnidraft.draft_length.goodput.make_plan", noted)
    clock.policy._catch_up()
    clock.policy.trials.start((5, (2,)))
    clock.after(SCENES["a hopeless drafter"], 1, rounds=BEGINNING + 20)
    assert clock.drafted[BEGINNING : BEGINNING + 5] == [2] * 5
    assert set(left) <= {5, 0}, "before its first round, and after its last"


def test_short_answers_are_tried_where_they_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    hopeless = SCENES["a hopeless drafter"]
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(hopeless, 200, rounds=6, new_tokens=6)
    assert sum(clock.drafted[-300:]) < 60
    useful = replace(hopeless, chances=dict.fromkeys(hopeless.chances, 0.9))
    clock.after(useful, 40, rounds=6, new_tokens=6)
    assert sum(clock.drafted[-120:]) > 60


def test_nothing_is_tried_before_the_first_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter learns before it is known what a step of the target alone takes."""
    head = Head()
    clock = Clock(Goodput(LONGEST, head), 1, monkeypatch)
    for _ in range(4):
        clock.text(SCENES["an easy text"], 1)
        head.load_weights({})
    assert not any(clock.drafted)
    clock.after(SCENES["an easy text"], 1, rounds=ENOUGH + 1 + FIRST_TRIAL[0])
    trial = clock.drafted[-FIRST_TRIAL[0] :]
    assert sorted(trial) == sorted([*FIRST_TRIAL[1]] * (FIRST_TRIAL[0] // len(FIRST_TRIAL[1])))


def test_a_trial_that_a_short_text_left_over_is_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(SCENES["a hopeless drafter"], 60)
    clock.policy._catch_up()
    clock.policy.trials.start((5, (2,)))
    clock.after(SCENES["a hopeless drafter"], 1, rounds=BEGINNING + 2)
    assert clock.drafted == [0] * BEGINNING + [2, 2]
    clock.after(SCENES["a hopeless drafter"], 1, rounds=BEGINNING + 5)
    assert clock.drafted == [0] * BEGINNING + [2, 2, 2, 0, 0]


def test_a_round_can_have_lost_a_few_times_what_it_should_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(Goodput(LONGEST), 1, monkeypatch)
    clock.after(SCENES["an easy text"], 60)
    policy = clock.policy
    should = 0.28 + 1.14
    assert plausible(policy.costs, policy.worth, made(2, 1)) == pytest.approx(STALL * should, rel=0.05)
    stalled, before = made(2, 1, draft_s=0.28, verify_s=1e4), policy.trials._spent
    policy._text.hoping = True
    policy.learn(stalled)
    assert policy.trials._spent - before == pytest.approx(STALL * should, rel=0.05)


def test_drafts_that_were_thought_to_pay_neither_put_a_trial_off_nor_pay_for_one() -> None:
    policy = Goodput(LONGEST)
    policy.learn(made(verify_s=9.0))
    for _ in range(ENOUGH):
        policy.learn(made(verify_s=1.0))
    policy.trials.left = 0
    for emitted in (1, 3):
        policy.trials._spent = 5.0
        policy.learn(made(2, emitted, draft_s=0.3, verify_s=1.2))
        assert policy.trials._spent == 5.0
    policy._text.hoping = True
    policy.learn(made(2, 1, draft_s=0.3, verify_s=1.2))
    assert policy.trials._spent == pytest.approx(5.5)


@pytest.mark.parametrize("period", [2, 3, 4])
def test_trials_fall_in_with_no_order_of_texts(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, tried = Clock(Goodput(LONGEST), 0, monkeypatch), [0] * period
    clock.after(SCENES["a hopeless drafter"], 30)
    for turn in range(600):
        before = len(clock.drafted)
        clock.text(SCENES["a hopeless drafter"], 40)
        tried[turn % period] += any(clock.drafted[before:])
    assert min(tried) > 0.4 * sum(tried) / period
    assert sum(tried) < 200


def test_what_drafts_gain_makes_up_for_trials_and_noise_for_nothing() -> None:
    trials, drafted = Trials(), made(2, 1, draft_s=0.3, verify_s=1.2)
    trials.learn(100.0)
    for record, first, most, lost in (
        (drafted, False, 9.0, 0.5),
        (made(2, 1, draft_s=0.3, verify_s=9.0), False, 1.0, 1.5),  # no more than that
        (made(2, 1, draft_s=0.3, verify_s=9.0), True, 1.0, 1.8),  # whose pass reads the prompt
        (made(2, 1, draft_s=0.3, verify_s=3.0), False, 9.0, 4.1),
        (made(2, 3, draft_s=0.3, verify_s=1.2), False, 1.0, 2.6),
        (made(9, 9, draft_s=0.3, verify_s=1.2), False, 1.0, 0.0),
        (drafted, False, 1.0, 0.5),
    ):
        trials.charge(record, 1.0, first=first, most=most)
        assert trials._spent == pytest.approx(lost)
    assert trials.affords(0.5)
    assert not trials.affords(0.6)
    assert trials.affords(1.0, learned=True)
    assert not trials.affords(1.1, learned=True)


def test_a_drafter_that_has_learned_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head()
    clock = Clock(Goodput(LONGEST, head), 1, monkeypatch)
    clock.after(SCENES["a hopeless drafter"], 100)
    while not any(clock.drafted[-40:]):  # until just after a trial
        clock.text(SCENES["a hopeless drafter"], 40)
    clock.text(SCENES["a hopeless drafter"], 40)
    assert not any(clock.drafted[-40:])
    assert clock.policy.trials._spent > SHARE / 2 * clock.policy.trials._all
    head.load_weights({})
    clock.text(SCENES["an easy text"], 40)
    assert any(clock.drafted[-40:])


def test_what_a_drafter_learns_brings_no_more_trials_than_a_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head()
    clock = Clock(Goodput(LONGEST, head), 1, monkeypatch)
    for _ in range(300):
        head.load_weights({})
        clock.text(SCENES["a hopeless drafter"], 40)
    assert SHARE < clock.policy.trials._spent / clock.policy.trials._all < 1.1 * LEARNED_SHARE


@pytest.mark.parametrize("rounds", [10, 40])
def test_trials_of_what_was_learned_cost_little_where_long_drafts_pay(
    rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = []
    for learns in (False, True):
        head, scene = Head(), SCENES["a large target"]
        clock = Clock(Goodput(LONGEST, head), 0, monkeypatch)
        clock.after(scene, 20, rounds=rounds)
        clock.tokens = clock.seconds = 0.0
        for _ in range(60):
            if learns:
                head.load_weights({})
            clock.text(scene, rounds)
        rates.append(clock.rate)
    assert rates[1] > 0.96 * rates[0]


def test_a_head_that_becomes_trained_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head()
    policy = Goodput(LONGEST, head)
    for chance in policy._chances.bins:
        chance.yes, chance.seen = 0.0, 100.0
    policy.begin(None)
    assert max(chance.value for chance in policy._chances.bins) == 0
    monkeypatch.setattr(Head, "trained", True)
    policy.begin(None)
    values = [chance.value for chance in policy._chances.bins]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(0.985)
    assert values[-1] == pytest.approx(0.05)


def test_tokens_that_did_not_seem_to_pay_are_drawn_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(0.01, even(0.5), {0.1: 0.9, 3.0: 0.9})
    clock = Clock(Goodput(LONGEST), 2, monkeypatch)
    clock.after(scene, 2)
    unlikely = sum(bound(3.0) < edge for edge in EDGES)
    chance = clock.policy._chances.bins[unlikely]
    chance.yes, chance.seen = 1.0, 100.0  # which is wrong
    clock.policy._plan = None
    clock.after(scene, 60)
    assert chance.value > 0.2


def test_a_machine_half_as_fast_costs_as_much_in_its_own_steps() -> None:
    costs = Costs()
    for _ in range(20):
        costs.learn(made(0, verify_s=1.0), first=False)
    for _ in range(8):  # drafts begin while it is slow
        costs.learn(made(0, verify_s=2.0), first=False)
    for _ in range(10):
        costs.learn(made(3, draft_s=0.6, verify_s=2.6), first=False)
    assert costs.verify(4) == pytest.approx(1.3, rel=0.05)
    assert sum(costs.steps) == pytest.approx(0.2, rel=0.1)
    assert costs.seconds == pytest.approx(2.0, rel=0.05)


# ---------------------------------------------------------------- its parts


def test_the_first_pass_over_so_many_tokens_does_not_count() -> None:
    costs = Costs()
    for _ in range(5):
        costs.learn(made(0, 1, verify_s=1.0), first=False)
    costs.learn(made(2, 1, verify_s=9.0), first=False)
    for seconds in (1.2, 1.3, 1.4):
        costs.learn(made(2, 1, verify_s=seconds), first=False)
    for _ in range(WINDOW - 7):
        costs.learn(made(0, 1, verify_s=1.0), first=False)
    assert costs.verify(3) == pytest.approx(1.3, abs=0.01)


@pytest.mark.parametrize("believed", [1.0, 1.4])
def test_costs_are_found_where_nearly_all_rounds_are_alike(believed: float) -> None:
    """Set against what they are thought to cost themselves, they would stay what they are thought to be."""
    costs, clock = Costs(), random.Random(1)

    def round_(drafted: int, cost: float) -> None:
        costs.learn(made(drafted, verify_s=cost * clock.uniform(0.93, 1.07)), first=False)

    for _ in range(30):
        round_(0, 1.0)
        round_(1, believed)
    for number in range(64 * 40):
        round_(*((0, 1.0) if number % 64 == 0 else (1, 1.15)))
    assert costs.verify(2) == pytest.approx(1.15, abs=0.03)


def test_what_hardly_more_than_one_token_costs_says_little_of_many() -> None:
    costs = Costs()
    for drafted in (0, 0, *(0, 1) * WINDOW):
        costs.learn(made(drafted, verify_s=1.0 + (drafted > 0)), first=False)
    assert costs.verify(2) == pytest.approx(2.0, rel=0.02)
    assert costs.verify(5) == pytest.approx(5.0, rel=0.05), "a guess"
    assert costs.at_least(5) == pytest.approx(2.0, rel=0.02)
    for drafted in (4, *(0, 4) * WINDOW):
        costs.learn(made(drafted, verify_s=1.0 + (drafted > 0)), first=False)
    assert costs.verify(5) == costs.at_least(9) == pytest.approx(2.0, rel=0.02)


def test_a_comparison_of_long_ago_counts_where_there_is_no_later_one() -> None:
    costs = Costs()

    def rounds(drafts: Sequence[int], slope: float) -> None:
        for drafted in drafts:
            costs.learn(made(drafted, verify_s=1 + slope * drafted), first=False)

    rounds([0, 2, *(0, 2) * WINDOW, 4, *(0, 4) * WINDOW], 0.2)
    rounds([3] * int(4 * HALF), 0.2)
    rounds([0, 2] * WINDOW, 0.1)
    assert costs.verify(3) == pytest.approx(1.2, rel=0.02), "that of before hardly counts"
    assert costs.verify(5) == pytest.approx(1.8, rel=0.02), "nobody knows better"
    rounds([3] * int(40 * HALF), 0.2)
    rounds([0, 2] * WINDOW, 0.1)
    assert costs.verify(5) == pytest.approx(1.8, rel=0.02), "nor later"


def test_comparisons_of_long_ago_weigh_little_beside_those_of_others() -> None:
    costs = Costs()

    def rounds(drafts: Sequence[int], costs_: Sequence[float]) -> None:
        for drafted in drafts:
            costs.learn(made(drafted, verify_s=costs_[drafted]), first=False)

    rounds([0, 1, 2, *(0, 1, 0, 2) * WINDOW], [1.0, 1.15, 0.8])  # of three tokens much too little
    assert costs.verify(2) < 1.1, "it is no more than of three"
    rounds([0, *[1] * 11] * 60, [1.0, 1.15])
    assert costs.verify(2) == pytest.approx(1.15, abs=0.02)


def test_a_single_comparison_with_one_pass_says_too_little() -> None:
    costs = Costs()
    for drafted in (0, 1, 8, *(0, 1) * WINDOW):
        costs.learn(made(drafted, verify_s=1 + 0.1 * drafted), first=False)
    costs.learn(made(8, verify_s=9.0), first=False)
    for _ in range(WINDOW):
        costs.learn(made(0, verify_s=1.0), first=False)
    assert costs.verify(9) == pytest.approx(1.8, rel=0.05), "on the line through what is known"
    for _ in range(2):
        costs.learn(made(8, verify_s=9.0), first=False)
        for _ in range(WINDOW - 1):
            costs.learn(made(0, verify_s=1.0), first=False)
    assert costs.verify(9) > 5


def test_a_second_token_that_seems_to_make_a_pass_cheaper_changes_no_unit() -> None:
    costs = Costs()
    for drafted in (0, 1, *(0, 1) * WINDOW):
        costs.learn(made(drafted, verify_s=1.0 - 0.2 * drafted), first=False)
    assert costs.verify(1) == costs.verify(2) == 1
    for _ in range(5):
        costs.learn(made(0, verify_s=1.0), first=False)
    assert costs.seconds == pytest.approx(1.0)


@pytest.mark.parametrize(("before", "now"), [(0.05, 1.3), (1.3, 0.05)])
def test_where_all_is_looked_at_anew_steps_of_long_ago_are_forgotten(before: float, now: float) -> None:
    """The first steps of drafts were seen by themselves long ago, later ones just now, and now there are short ones."""
    costs = Costs()

    def rounds(drafted: int, step: float, count: int) -> None:
        for _ in range(count):
            costs.learn(made(drafted, draft_s=step * drafted, verify_s=1.0), first=False)

    rounds(0, 0.0, 4)
    rounds(1, before, 12)
    rounds(8, now, 40)
    assert costs.steps == pytest.approx((now, now), rel=0.05)
    costs.fade()
    rounds(1, now, 2)
    assert costs.steps == pytest.approx((now, now), rel=0.05)


def test_asking_is_no_part_of_a_step() -> None:
    costs = Costs()
    for drafted in (0, 2, *(0, 2) * WINDOW):
        costs.learn(made(drafted, draft_s=0.2 * drafted, verify_s=1.0), first=False, asking=(0.05, 0.15)[:drafted])
    assert costs.asking == pytest.approx(0.1, rel=0.01)
    assert costs.steps == pytest.approx((0.1, 0.1), rel=0.01)


def test_a_round_that_a_stop_string_ends_says_nothing_of_costs() -> None:
    costs = Costs()
    for drafted in (0, 2, *(0, 2) * WINDOW):
        costs.learn(made(drafted, verify_s=1 + 0.1 * drafted), first=False)
        costs.learn(made(2, finish="stop", verify_s=9.0), first=False)
    assert costs.verify(3) == pytest.approx(1.2, rel=0.02)


def test_a_median_lies_between_two_that_weigh_the_same() -> None:
    seen = [(1.2, 2.0), (1.0, 0.5), (1.4, 2.0), (1.6, 0.5)]
    assert costs_median(seen) == pytest.approx((1.3, 5.0))
    assert costs_median(seen[:3]) == pytest.approx((1.2, 4.5))
    assert costs_median([(1.0, 1 / 3), (2.0, 1 / 6), (4.0, 1 / 2)]) == pytest.approx((3.0, 1.0))


def test_comparisons_that_do_not_fit_are_settled_between() -> None:
    pairs = {(1, 2): (1.2, 4.0), (2, 3): (1.1, 4.0), (1, 3): (1.2, 8.0), (4, 5): (1.5, 3.0)}
    found = {tokens: cost for tokens, (cost, _) in costs_solved(pairs).items()}
    assert found[1] == pytest.approx(1.0)
    assert 1.2 * 1.1 > found[3] > 1.2
    assert found[2] < 1.2
    assert found[5] / found[4] == pytest.approx(1.5, rel=0.02), "and what was compared with no other stays near a guess"


# ---------------------------------------------------------------- drafts whose chance nobody asks for


class Asking(Clock):
    """A clock on which asking for a chance takes so many steps of the target."""

    def __init__(self, policy: Goodput, seed: int, monkeypatch: pytest.MonkeyPatch, asking: float) -> None:
        super().__init__(policy, seed, monkeypatch)
        self.asked = 0
        self._now = self._told = 0.0
        known = policy._head.chance

        def chance(*given: Any) -> float:
            self._now += asking
            self.asked += 1
            return known(*given)

        monkeypatch.setattr(policy._head, "chance", chance)
        monkeypatch.setattr("omnidraft.draft_length.goodput.time.perf_counter", lambda: self._now)

    def asking(self) -> float:
        taken, self._told = self._now - self._told, self._now
        return taken


ALIKE = Scene(0.15, even(0.11), {1.0: 0.5, 2.0: 0.4, 3.0: 0.3})  # a single token pays, and more do not


@pytest.mark.parametrize(("asking", "often"), [(0.1, False), (0.0, True)])
def test_nobody_asks_where_that_takes_more_than_it_brings(
    asking: float, often: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = ALIKE if not often else Scene(0.05, even(0.25), {0.1: 0.9, 3.0: 0.02})
    clock = Asking(Goodput(LONGEST), 0, monkeypatch, asking)
    clock.after(scene, 30)
    clock.asked = 0
    clock.after(scene, 30)
    drafts = sum(drafted > 0 for drafted in clock.drafted)
    assert drafts > 300
    assert (clock.asked > 0.9 * drafts) is often
    assert clock.asked > drafts / 2 / ASK_EVERY, "now and then, to know whether that has changed"
    assert clock.policy.costs.asking == pytest.approx(asking, rel=0.1)
    assert clock.policy.costs.steps[0] == pytest.approx(scene.step, rel=0.1), "asking is no part of a step"


def test_the_first_drafts_of_a_text_are_asked_for_once_it_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Asking(Goodput(LONGEST), 0, monkeypatch, 0.1)
    clock.after(ALIKE, 30)
    assert clock.policy.plan.blind
    for rounds, often in ((5 + ASK_FIRST, True), (100, False)):
        clock.asked = 0
        clock.after(ALIKE, 1, rounds=rounds)
        drafts = sum(drafted > 0 for drafted in clock.drafted)
        assert drafts > ASK_FIRST
        assert clock.asked > ASK_FIRST
        assert (clock.asked >= drafts) is often


def test_what_becomes_of_tokens_of_no_known_bin_counts_for_all_bins() -> None:
    chances = Chances()
    for _ in range(50):
        for likely in (0.95, 0.45):
            chances.learn(chances.meet(likely, 0), happened=likely > 0.9)
    before = [each.value for each in chances.bins]
    first = chances.first()
    for _ in range(60):
        chances.learn_blindly(happened=True)
    assert chances.first() > first + 0.1
    after = [each.value for each in chances.bins]
    sure, unsure = chances.meet(0.95, 0), chances.meet(0.45, 0)
    assert after[unsure] > before[unsure]
    assert after[sure] >= before[sure] - 1e-9
    assert chances.first() == pytest.approx(chances.first()), "it is taken in once"
    for _ in range(400):
        chances.learn_blindly(happened=False)
    assert chances.first() < 0.2
    assert max(each.seen for each in chances.bins) < 101, "as many as are remembered"


def learned(*likely: float, accepted: float = 0.5) -> Chances:
    """What is known after many texts with first tokens that were thought to be so likely."""
    chances = Chances()
    for turn in range(400):
        for each in likely:
            chances.learn(chances.meet(each, FIRST), happened=turn % 10 < 10 * accepted)
    chances.open(())
    return chances


def test_what_comes_up_in_a_text_counts_for_that_text() -> None:
    chances = learned(0.95, 0.05)
    sure, unsure = (chances.meet(likely, LATER) for likely in (0.95, 0.05))
    shares, _, _ = chances.here(opening=False, hope=False)
    assert shares[[sure, unsure]] == pytest.approx([0.5, 0.5], abs=0.02)
    for _ in range(int(EARLIER)):
        chances.meet(0.05, FIRST)
    shares, _, _ = chances.here(opening=False, hope=False)
    assert shares[unsure] == pytest.approx(0.75, abs=0.03)
    assert shares.sum() == pytest.approx(1)
    chances.open(())
    shares, _, _ = chances.here(opening=False, hope=False)
    assert shares[unsure] == pytest.approx(0.5, abs=0.06), "of many texts it was one"


def test_tokens_of_a_bin_may_be_worth_less_in_a_text() -> None:
    chances = learned(0.5)
    place = chances.meet(0.5, FIRST)
    before = chances.value(place)
    for _ in range(30):
        chances.learn(place, happened=False)
    assert chances.value(place) < chances.bins[place].value - 0.05
    for known in (0.0, 1.0):
        chances.bins[place].yes = known * chances.bins[place].seen
        assert chances.value(place) == known
    chances.bins[place].yes = before * chances.bins[place].seen
    chances.open(())
    assert chances.value(place) == chances.bins[place].value


def test_tokens_of_no_known_bin_tell_of_the_text_as_well() -> None:
    chances = learned(0.5)
    before = chances.here(opening=False, hope=False)[2]
    for _ in range(20):
        chances.learn_blindly(happened=False)
    shares, values, first = chances.here(opening=False, hope=False)
    assert first < before - 0.1
    assert first == pytest.approx(float(shares @ values))
    for _ in range(5):
        chances.learn_blindly(happened=False)
    chances.open(())  # takes them in, as of the text that ends
    place = chances.meet(0.5, LATER)
    assert chances.value(place) == chances.bins[place].value


def test_beginnings_of_texts_are_kept_apart() -> None:
    chances = learned(0.95)
    before = chances.here(opening=False, hope=False)
    for _ in range(300):
        chances.meet(0.05, OPENING)
    shares, _, _ = chances.here(opening=False, hope=False)
    assert (shares == before[0]).all()
    shares, _, first = chances.here(opening=True, hope=False)
    assert shares[chances.meet(0.05, LATER)] > 0.9
    assert first < before[2]


@pytest.mark.parametrize("opening", [False, True])
def test_the_less_is_known_of_a_text_the_more_may_be_hoped(opening: bool) -> None:
    chances = learned(0.5)
    first = chances.here(opening=opening, hope=False)[2]
    early = chances.here(opening=opening, hope=True)[2] - first
    assert 0.03 < early < 0.2
    for _ in range(60):
        chances.meet(0.5, OPENING if opening else FIRST)
    _, values, hopeful = chances.here(opening=opening, hope=True)
    assert 0 < hopeful - chances.here(opening=opening, hope=False)[2] < 0.6 * early
    assert values.max() <= 1


def test_what_became_of_tokens_of_no_known_bin_fades_too() -> None:
    chances = Chances()
    for _ in range(300):
        chances.learn(chances.meet(0.5, 0), happened=True)
        chances.learn_blindly(happened=True)
    chances.fade(FRESH)
    before = chances.first()
    assert chances.first() == before
    assert max(each.seen for each in chances.bins) <= FRESH


def test_likelier_tokens_take_more_of_what_is_accepted_in_vain_and_less_of_what_is_not() -> None:
    """By odds: what is nearly sure stays so where more is accepted than was thought."""
    chances = Chances()
    for _ in range(400):
        for likely in (0.95, 0.45):
            chances.learn(chances.meet(likely, 0), happened=likely > 0.9)
    for _ in range(100):
        chances.learn_blindly(happened=True)
    chances.first()
    sure, unsure = (chances.bins[chances.meet(likely, 0)].value for likely in (0.95, 0.45))
    assert 1 >= sure > 0.99
    assert 0.3 < unsure < 0.6, "half of the tokens are of this bin, and all of them were accepted"


def test_what_was_always_accepted_is_no_more_than_sure() -> None:
    for seed in range(50):
        likely = [random.Random(seed + turn).random() for turn in (0, 100, 200)]
        chances = Chances()
        for each in chances.bins:
            each.yes = each.seen = 100.0
        for turn in range(200):
            chances.meet(likely[turn % 3], 0)
        for _ in range(60):
            chances.learn_blindly(happened=True)
        values, first = chances.thought(hope=True)
        assert max(values) == 1
        assert first == pytest.approx(1.0)


def test_a_trial_that_brought_what_it_cost_counts_for_nothing() -> None:
    policy = Goodput(LONGEST)
    for _ in range(ENOUGH + BEGINNING):
        policy.begin(None)
        policy.learn(made(0, 1, verify_s=1.0))
    assert policy.trials.left > 0
    policy.trials.start((99, (2,)))  # the first trial is free
    for emitted, lost in ((3, 0.0), (1, 0.5), (2, 0.0), (1, 0.5), (1, 1.0)):  # drafting and verifying cost half a step
        policy.begin(None)
        policy.learn(made(2, emitted, draft_s=0.3, verify_s=1.2))
        assert policy.trials._spent == pytest.approx(lost, abs=0.05)


def test_costs_are_medians_with_lines_between() -> None:
    costs = Costs()
    seen = ((0, 2.0), (0, 2.0), (0, 9.0), (0, 2.0), (4, 3.0), (4, 3.0), (4, 9.0), (4, 3.0))
    for drafted, seconds in seen * 2:
        costs.learn(made(drafted, draft_s=0.2 * drafted, verify_s=seconds), first=False)
    assert costs.known
    assert costs.seconds == pytest.approx(2.0, rel=0.05)
    assert costs.steps == pytest.approx((0.1, 0.1), rel=0.05)
    assert [costs.verify(m) for m in (1, 3, 5, 9)] == pytest.approx([1.0, 1.25, 1.5, 2.0], rel=0.05)
    assert costs.verify(1.5) == pytest.approx((costs.verify(1) + costs.verify(2)) / 2)
    guess = costs.reading(1000)
    for _ in range(ENOUGH):
        assert costs.reading(1000) == guess, "too little is known"
        costs.learn(made(1, counts={"draft_passes": 2, "draft_read": 101}, draft_s=2.2), first=True)
    assert costs.reading(1000) == pytest.approx(10.0, rel=0.1)
    for _ in range(20):
        costs.learn(made(5, draft_s=0.5, verify_s=0.8), first=False)
    assert costs.verify(6) >= costs.verify(5), "noise makes nothing cheaper for more tokens"


def planned(
    step: float, verify: list[float], chances: list[float], weights: list[float], rate: float, **more: Any
) -> Plan:
    settings: dict[str, Any] = {"worth": np.ones(len(verify) - 1)} | more
    both = np.array([weights, weights])
    return make_plan(
        Known(step=(step, step), verify=np.array(verify), chances=np.array(chances), weights=both, **settings), rate
    )


def test_the_plan_weighs_what_a_step_may_show() -> None:
    verify = [1.0, 1.1, 1.2]
    plan = planned(0.05, verify, [0.9, 0.1], [1.0, 3.0], 1.2)
    assert plan.draw[1] == pytest.approx([0.12 / 0.9, NEVER], rel=0.03)  # its verification alone is to be paid
    # a quarter of the steps show a likely token: 0.25 · (0.9 · reach − 0.12) against 0.06
    assert plan.step[1] == pytest.approx(0.36 / 0.9, rel=0.03)
    better = planned(0.05, verify, [0.9, 0.1], [1.0, 3.0], 1.0)
    promised = (1 + better.tokens) / (1 + better.steps)
    assert 1.1 < promised < 1.2
    # what is gained is set against what it promises
    assert better.draw[1, 0] == pytest.approx(0.1 * promised / 0.9, rel=0.03)
    dear = planned(0.3, verify, [0.9, 0.1], [1.0, 3.0], 1.0)
    assert (dear.step > 1).all()
    assert (dear.tokens, dear.steps) == (0, 0)
    assert all(a < b for a, b in pairwise(GRID))


@pytest.mark.parametrize("asking", [0.0, 0.02])
def test_a_round_is_worth_in_a_text_what_comes_up_there(asking: float) -> None:
    verify, chances = [1.0, 1.1, 1.2], np.array([0.9, 0.1])
    even_ = np.array([0.5, 0.5])
    plan = make_plan(
        Known((0.2, 0.2), np.array(verify), chances, np.array([even_, even_]), np.ones(2), asking=asking), 1.0
    )
    tokens, steps = plan.expected(even_, chances, 0.5)
    assert (tokens, steps) == pytest.approx((plan.tokens, plan.steps), rel=0.01)
    assert saved(tokens, steps) == pytest.approx(1 - (1 + steps) / (1 + tokens))
    sure, unsure = (plan.expected(shares, chances, 0.5) for shares in np.eye(2))
    assert saved(*sure) > saved(tokens, steps) > 0 > saved(*unsure)
    assert unsure == pytest.approx((0.0, 0.2 + asking)), "it is not drawn, but asked for"
    assert plan.expected(np.eye(2)[0], chances / 2, 0.5)[0] == pytest.approx(sure[0] / 2)


def test_a_round_of_a_single_token_is_worth_its_chance() -> None:
    plan = planned(0.2, [1.0, 1.1], [0.5], [1.0], 1.0, worth=np.array([0.9]), asking=0.1, first=0.5)
    assert plan.blind
    assert plan.expected(np.ones(1), np.array([0.9]), 0.7) == pytest.approx((0.63, 0.3))


def test_the_plan_knows_what_tokens_are_worth() -> None:
    verify = [1.0, 1.1, 1.2]
    assert planned(0.1, verify, [0.5], [1.0], 1.0, worth=np.array([0.9, 0.9])).step[0] <= 1
    assert planned(0.1, verify, [0.5], [1.0], 1.0, worth=np.array([0.35, 0.35])).step[0] == NEVER
    alike, less = (planned(0.05, verify, [0.5], [1.0], 1.4, worth=np.array([1.0, second])) for second in (1.0, 0.6))
    # worth · 0.5 · reach against 0.21
    assert alike.step[1] == pytest.approx(0.21 / 0.5, rel=0.03)
    assert less.step[1] == pytest.approx(0.21 / 0.3, rel=0.03)
    nothing_by_itself = planned(0.05, verify, [0.9], [1.0], 1.0, worth=np.array([0.0, 2.0]))
    assert nothing_by_itself.step[0] <= 1, "the second token makes up for the first"


@pytest.mark.parametrize("dear", [0, 2, 9], ids="verifying {} is dear".format)
@pytest.mark.parametrize("little", [1, 3, 9], ids="token {} brings little".format)
def test_what_is_skipped_makes_no_difference(little: int, dear: int, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = list(1 + np.cumsum([0.0, *(0.3 if length == dear else 0.05 for length in range(LONGEST))]))
    worth = np.array([0.2 if length == little else 1.0 for length in range(LONGEST)])
    quick = planned(0.05, verify, [0.9, 0.7, 0.4], [3.0, 2.0, 1.0], 1.3, worth=worth)
    monkeypatch.setattr(plan, "CLOSE", 0.0)
    whole = planned(0.05, verify, [0.9, 0.7, 0.4], [3.0, 2.0, 1.0], 1.3, worth=worth)
    assert quick.step == pytest.approx(whole.step, rel=0.02)
    assert quick.draw == pytest.approx(whole.draw, rel=0.02)
    assert quick.step[little] > 1.2 * quick.step[little + 1]


def test_first_tokens_may_be_less_likely_than_later_ones() -> None:
    both = np.array([[0.0, 1.0], [1.0, 0.0]])
    known = Known(
        step=(0.1, 0.1),
        verify=np.array([1.0, 1.1, 1.2]),
        chances=np.array([0.9, 0.1]),
        weights=both,
        worth=np.ones(2),
    )
    plan = make_plan(known, 1.0)
    assert plan.step[0] == NEVER
    assert plan.step[1] < 0.3


def test_the_plan_looks_past_a_first_token_that_does_not_pay() -> None:
    verify = [1.0, *(2 + 0.05 * np.arange(8))]
    plan = planned(0.1, verify, [0.95], [1.0], 1.0)
    assert plan.step[0] <= 1
    assert (1 + plan.tokens) / (1 + plan.steps) > 1.5
    assert planned(0.1, verify[:2], [0.95], [1.0], 1.0).step[0] > 1


def test_it_learns_what_accepted_tokens_bring() -> None:
    policy = Goodput(LONGEST)
    for drafted, accepted, brought in ((2, 2, 1), (3, 3, 2), (4, 2, 1), (4, 0, 0), (1, 1, 1)) * 200:
        policy.learn(made(drafted, brought + 1, {"draft_accepted": accepted}, verify_s=1.0))
    # one brings 1, two bring 1, three bring 2; of more it is known what tokens bring on average
    assert policy.worth.values[:3] == pytest.approx([1, 0, 1], abs=0.03)
    assert policy.worth.values[3:] == pytest.approx(4 / 6, rel=0.03)  # of each length alike
    before = policy.worth.values
    policy.learn(made(9, 1, {"draft_accepted": 9}, "length", verify_s=1.0))  # cut short: nobody knows what it was worth
    assert (policy.worth.values == before).all()
