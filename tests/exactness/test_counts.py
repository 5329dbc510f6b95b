"""Drafts with counts keep the target's distribution, whatever was counted, mixed, trusted and rejected."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from exactness.test_planted_faults import Calls, Rewrite
from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import VERIFICATIONS, Drafting, Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.counts import Counts, Guess
from omnidraft.counts.hit_rates import GUESS_KINDS, HitRates
from omnidraft.decoding import drafter as drafter_module
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import commit
from omnidraft.draft_length.simple_policies import Fixed
from omnidraft.verification import round as round_module
from omnidraft.verification.drawn import verify_equal
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler, Sampler, softmax
from support.enumeration import (
    EXACT,
    SAMPLED,
    distance,
    distribution_of,
    first_tokens,
    plain_distribution,
)
from support.rounds import begun, verified
from support.table_models import Ids, frozen_cache, make_world, seeded

pytestmark = pytest.mark.medium

FAULT = 1e-3  # a fault that moves less than this could hide
LEAST = {"always": 0.0, "sometimes": 0.5, "never": 2.0}  # chance from which on the counts are trusted
# that of an odd seed ends with abba a abba b abba, that of an even one repeats what has neither aa nor bb, or once
PROMPTS = {
    "tiny": ((0, 1, 2, 0, 1, 2, 0, 1), (0, 1, 3, 0, 0, 2, 3, 1, 0, 1, 1, 0)),
    "full": ((0, 2, 1, 0, 2, 3, 0, 2), (0, 3, 0, 0, 3, 1, 0, 3)),
    "nested": ((0, 1, 1, 4, 0, 1, 1), (0, 1, 4, 0, 0, 1, 4, 0, 4, 1, 4, 0)),
}


class Watching(Fixed):
    """Trusts from some chance on, and notes where each token of a draft comes from."""

    def __init__(self, trust: str) -> None:
        super().__init__()
        self._trusted = LEAST[trust]
        self.origins: list[str] = []

    def begin(self, walk: object, chance: float = 0.0) -> bool:  # noqa: ARG002
        self.origins.clear()
        return True

    def should_use_counts(self, chance: float) -> bool:
        if super().should_use_counts(chance):
            self.origins.append("counted")
        return super().should_use_counts(chance)

    def should_draw(
        self,
        logits: torch.Tensor,  # noqa: ARG002
        temperature: float,  # noqa: ARG002
        hidden: torch.Tensor | None,  # noqa: ARG002
        guess: Guess | None = None,
    ) -> bool:
        self.origins.append("network" if guess is None else "mixed")
        return True


def learned(rates: HitRates, seed: int) -> None:
    """Some kinds were right more often than others."""
    rng = seeded("rates", seed)
    for kind, often in enumerate(rng.random(GUESS_KINDS)):
        for value in rng.random(3):
            rates.learn(kind, right=bool(value < often))


@dataclass(frozen=True)
class CountsCase:
    """A world with a prompt that repeats itself, and how counts take part."""

    shape: str
    seed: int
    trust: str = "sometimes"
    length: int = 2
    tokens: int = 3
    verification: str = "block"
    alone: bool = False  # without a drafter
    earlier: int = 0  # answers in memory
    temperature: float | None = None  # of the drafter
    sampling: Sampling = SAMPLED
    zero: float = 0.0
    learns: bool = True  # whether rates differ at first
    begins: int | None = None  # tokens of the prompt: few are not repeated

    @property
    def prompt(self) -> Ids:
        return PROMPTS[self.shape][self.seed % 2][: self.begins]

    def deviation(self, seen: Callable[[Lane, Watching, Round, int], None] | None = None) -> float:
        """Total variation between what whole requests emit and the target's joint distribution."""
        world, prompt = make_world(self.shape, self.seed, self.zero), self.prompt
        translator = DrafterContext(world.table, world.vocab, world.drafter_vocab, world.speller)
        ngrams = frozen_cache(world, "all", self.seed)
        drafting = Drafting(
            draft_length=self.length,
            verification=self.verification,
            reuse_answers="memory" if self.earlier else "request",
            drafter_temperature=self.temperature,
        )

        def run(draw: Sampler) -> Ids:
            # all that learns is made anew for each path
            pair = AttachedDrafter(drafter=Drafter(world.drafter), context=translator, cache=ngrams)
            policy = Watching(self.trust)
            lane = Lane(world.target, world.vocab.eos, None if self.alone else pair, drafting, policy)
            memory = AnswerMemory(64) if self.earlier else None
            assert lane.counts is not None
            if self.learns:
                learned(memory.rates if memory else lane.counts._own_rates, self.seed)
            for number in range(self.earlier):
                other = begun(lane, prompt[number:], 5, SAMPLED, lambda w: int(w.argmax()), memory=memory)
                while other.open:
                    commit(lane, other, verified(lane, other))
            request, records = begun(lane, prompt, self.tokens, self.sampling, draw, memory=memory), list[Round]()
            while request.open:
                records.append(commit(lane, request, verified(lane, request)))
                if seen is not None:
                    seen(lane, policy, records[-1], len(records))
            return tuple(token for record in records for token in record.emitted)

        ours = distribution_of(run)
        assert abs(sum(ours.values()) - 1) < EXACT
        plain = plain_distribution(world, self.sampling)
        truth = first_tokens(lambda context: plain((*prompt[1:], *context)), self.tokens, world.vocab.eos)
        return distance(ours, truth)


def cases() -> Iterator[CountsCase]:
    for number, shape in enumerate(PROMPTS):
        for trust in LEAST:
            for verification in VERIFICATIONS:
                yield CountsCase(shape, 1 + number, trust, verification=verification, tokens=2)
        for earlier in (0, 2):
            yield CountsCase(shape, 3, "always", alone=True, earlier=earlier, length=3)
            yield CountsCase(shape, 4, "sometimes", alone=True, earlier=earlier, length=4)
            yield CountsCase(shape, 5, "sometimes", earlier=2, tokens=2, verification=("block", "token")[earlier // 2])
            yield CountsCase(shape, 5, "sometimes", earlier=earlier, tokens=3, verification="seeded")
        yield CountsCase(shape, 6, "sometimes", sampling=Sampling(), length=3, temperature=1.0)
        yield CountsCase(shape, 6, "sometimes", sampling=Sampling(), length=4, tokens=5)
        yield CountsCase(shape, 7, "sometimes", sampling=Sampling(), alone=True, length=3, tokens=6)
        yield CountsCase(shape, 7, "sometimes", temperature=0.5, tokens=2)
        yield CountsCase(shape, 7, "always", temperature=0.0, tokens=2)
        for trust in LEAST:
            yield CountsCase(shape, 3, trust, tokens=3, begins=2)
        yield CountsCase(shape, 8, "sometimes", sampling=Sampling(temperature=0.7, top_k=3), tokens=2, zero=0.3)
    yield CountsCase("tiny", 2, "sometimes", tokens=4)
    yield CountsCase("tiny", 3, "sometimes", length=4, tokens=3, earlier=1)
    yield CountsCase("tiny", 4, "sometimes", length=3, tokens=3, learns=False, verification="token")
    yield CountsCase("nested", 4, "sometimes", tokens=3, learns=False)
    yield CountsCase("full", 4, "never", length=3, tokens=2)


@pytest.mark.slow
def test_the_distribution_of_whole_requests_is_the_targets_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    events: Counter[str] = Counter()
    over = Guess.over

    def noted(guess: Guess, size: int) -> Probs:
        events[f"counted from {'one share' if len(guess.shares) == 1 else 'several'}"] += 1
        return over(guess, size)

    monkeypatch.setattr(Guess, "over", noted)

    def seen(lane: Lane, policy: Watching, record: Round, number: int) -> None:
        accepted, origins = record.counts.draft_accepted, policy.origins
        if len(record.draft) != len(origins):
            assert not record.draft  # no room was left, so that the policy was not asked
        if not record.draft:
            return
        assert record.counts.counted == origins.count("counted")
        assert record.counts.draft_passes == (0 if lane.attached is None else len(origins) - record.counts.counted)
        alone = "" if lane.attached else " alone"
        for place, origin in enumerate(origins[: accepted + 1]):
            events[f"{origin} {'accepted' if place < accepted else 'rejected'}{alone}"] += 1
        events.update(f"{one} before {other}" for one, other in pairwise(origins))
        if number > 1 and "counted" in origins:
            events[f"counted in a later round{alone}"] += 1
        if record.finish == "eos":
            events[f"end of text after {origins[-1]}{alone}"] += 1

    for case in cases():
        assert case.deviation(seen) < EXACT, case
    expected = {f"{origin} {what}" for origin in ("mixed", "counted", "network") for what in ("accepted", "rejected")}
    expected |= {"counted accepted alone", "counted rejected alone", "end of text after counted alone"}
    expected |= {"counted before mixed", "mixed before counted", "network before counted", "counted before counted"}
    expected |= {"counted in a later round", "counted in a later round alone", "end of text after counted"}
    expected |= {"end of text after mixed", "counted from one share", "counted from several"}
    assert expected <= events.keys(), expected - events.keys()


def request_ids(lane: Lane) -> list[int]:
    return list(lane._ids)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_what_a_round_commits_is_counted_in_the_next(*, alone: bool) -> None:
    """And nothing else: a guess is that of the text alone."""
    case = CountsCase("nested", 5, "sometimes", alone=alone, learns=False)
    changed = compared = 0

    def seen(lane: Lane, policy: Watching, record: Round, number: int) -> None:  # noqa: ARG001
        nonlocal changed, compared
        counts, prompt = lane.counts, case.prompt
        assert counts is not None
        text: Sequence[int] = request_ids(lane)
        if lane.attached is not None:
            lane.attached.translate()
            prompt, text = tuple(lane.attached.context.prompt(prompt)), lane.attached.drafter.text
        held = counts._own.tokens()
        assert held == list(text[-len(held) :])
        texts = prompt, held
        before, now = Counts(), Counts()
        for fresh, text in zip((before, now), texts, strict=True):
            fresh.start(text, 9, None)
        for pair in ((0, 0), (0, 1), (1, 0), (1, 1), (4, 0)):
            found = [each._own.followers(pair) for each in (counts, now, before)]
            assert found[0] == found[1]
            compared += 1
            changed += found[0] != found[2]

    assert case.deviation(seen) < EXACT
    assert compared > changed > 20


# ---------------------------------------------------------------- negative controls


def with_the_draft_counted(drafter: Drafter, tokens: list[int], q: Probs, guess: Guess | None) -> Probs:
    """What the counts would say of the last draft token had they counted it before verification."""
    if guess is None:
        return q
    counts, text = copy.deepcopy(drafter.counts), [*drafter.text, *tokens]
    assert counts is not None
    counts.follow(text, len(drafter.text))
    later = counts.guess(text[:-1])
    assert later is not None
    return later.over(len(q))


def surely(weight: float, logits: torch.Tensor, temperature: float, guess: Guess) -> Probs:
    return guess.mixed(softmax(logits, temperature), weight)


KEPT = "vectors.append(q)"
FAULTS = {
    "q without the mixture": ("never", KEPT, "vectors.append(q if guess is None else softmax(logits, temperature))"),
    "q mixed at another weight": (
        "never",
        KEPT,
        "vectors.append(q if guess is None else surely(guess.chance / 2, logits, temperature, guess))",
    ),
    "q of the counts as one-hot": (
        "always",
        KEPT,
        "vectors.append(q if guess is None else one_hot(guess.best, len(q)))",
    ),
    "trust chosen by the drawn token": (
        "never",
        KEPT,
        "vectors.append(q if guess is None or token != guess.best else guess.over(len(q)))",
    ),
    "weight chosen by the drawn token": (
        "never",
        KEPT,
        "vectors.append(q if guess is None or token != guess.best else surely(0.9, logits, temperature, guess))",
    ),
    "the draft counted before verification": (
        "always",
        KEPT,
        "vectors.append(with_the_draft_counted(self, tokens, q, guess))",
    ),
    "a counted token dropped after the draw": (
        "always",
        "tokens.append(token)",
        "if guess is not None and token != guess.best: return tokens, vectors\n        tokens.append(token)",
    ),
}
FAULTY = [
    CountsCase("tiny", 1, tokens=2),
    CountsCase("full", 3, tokens=2, verification="token"),
    CountsCase("nested", 5, tokens=2),
]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trust, old, new = FAULTS[name]
    calls: Calls = []
    for helper in (with_the_draft_counted, surely):
        monkeypatch.setattr(drafter_module, helper.__name__, helper, raising=False)
    tried = [replace(case, trust=trust) for case in FAULTY]
    assert max(case.deviation() for case in tried) < EXACT
    Rewrite(Drafter.draft, old, new)(monkeypatch, calls)
    assert max(case.deviation() for case in tried) > FAULT
    assert calls


def test_a_proposal_of_the_counts_verified_as_if_drawn_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a drafter a refused token is replaced by the one that was compared, not by another draw."""

    def verify(proposals: Any, next_token: Any, *, ended: bool) -> Any:
        outcome = verify_equal(proposals, next_token, ended=ended)
        if outcome.accepted == len(proposals):
            return outcome
        return replace(outcome, emitted=(*outcome.emitted[:-1], next_token(outcome.accepted)))

    case = CountsCase("full", 1, "always", alone=True, tokens=2)
    assert case.deviation() < EXACT
    monkeypatch.setattr(round_module, "verify_equal", verify)
    assert case.deviation() > FAULT


def test_a_draft_that_is_cut_counts_no_tokens_that_are_not_in_it() -> None:
    for alone in (True, False):
        world = make_world("tiny", 3)
        translator = DrafterContext(world.table, world.vocab, world.drafter_vocab, world.speller)
        pair = AttachedDrafter(drafter=Drafter(world.drafter), context=translator, cache=frozen_cache(world, "all"))
        drafting = Drafting(draft_length=4)
        lane = Lane(world.target, world.vocab.eos, None if alone else pair, drafting, Watching("always"))
        cut = 0
        for seed in range(80):
            draw = GeneratorSampler(torch.Generator().manual_seed(seed))
            request = begun(lane, PROMPTS["tiny"][0], 20, SAMPLED, draw)
            outcome = verified(lane, request)
            record = commit(lane, request, outcome, 1)
            cut += len(record.draft) < len(outcome.draft.tokens)
            assert record.counts.counted <= len(record.draft)
        assert cut > 5
