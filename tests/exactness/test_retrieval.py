"""Copied drafts keep the target's distribution: alone, in place of the drafter's and after it, in one request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import AttachedDrafter, Drafter
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.proposals import TrieDraft
from omnidraft.draft_length.policy import Fixed
from omnidraft.retrieval.source import Retrieval
from omnidraft.retrieval.token_index import TokenIndex
from omnidraft.verification import round as round_module
from omnidraft.verification.rejection_sampling import Outcome, verify_copied
from omnidraft.verification.round import Draft, Round
from omnidraft.verification.sampling import Sampler
from support.enumeration import (
    EXACT,
    SAMPLED,
    Distribution,
    distance,
    enumerate_draws,
    first_tokens,
    plain_distribution,
)
from support.table_models import Ids, World, frozen_cache, make_world

FAULT = 1e-3  # a fault that moves less than this could hide


class Copying(Fixed):
    """Copies wherever it can: in place of the drafter, after it, or one or the other by what the text was."""

    def __init__(self, way: str) -> None:
        self._way = way

    def copies(self, chances: Sequence[float], *, alone: bool) -> int:
        odd = len(chances) % 2 == 1
        return len(chances) if alone or self._way == "instead" or (self._way == "either" and odd) else 0

    def extends(self, chances: Sequence[float]) -> int:
        return len(chances) if self._way != "instead" else 0


@dataclass(frozen=True)
class CopyCase:
    """A world with a prompt that repeats itself, and how copied tokens take part."""

    shape: str
    seed: int
    way: str  # of `Copying`, or "alone" without a drafter
    prompt: Ids
    stored: Ids = ()
    length: int = 2
    verification: str = "block"
    sampling: Sampling = SAMPLED
    tokens: int = 3

    def engine(self, world: World) -> Engine:
        store = TokenIndex(64) if self.stored else None
        if store is not None:
            store.extend(self.stored)
        translator = DrafterContext(world.table, world.vocab, world.drafter_vocab, world.speller)
        cache = frozen_cache(world, "all", self.seed)
        attached = AttachedDrafter(drafter=Drafter(world.drafter), context=translator, cache=cache)
        drafting = Drafting(
            draft_length="goodput",
            max_draft_length=self.length,
            verification=self.verification,
            sources="retrieval" if self.way == "alone" else "auto",
            drafter_temperature=1.0,
        )
        return Engine(world.target, world.vocab.eos, attached, drafting, Copying(self.way), store=store)

    def deviation(self, seen: Callable[[Round], None] | None = None) -> float:
        """Total variation between what whole requests emit and the target's joint distribution."""
        world = make_world(self.shape, self.seed)
        ours: Distribution = {}

        def run(draw: Sampler) -> Ids:
            # made anew for each path, since a store takes in the answers
            records = list(self.engine(world).rounds(self.prompt, self.tokens, self.sampling, draw))
            for record in records:
                if seen is not None:
                    seen(record)
            return tuple(token for record in records for token in record.emitted)

        for probability, emitted in enumerate_draws(run):
            ours[emitted] = ours.get(emitted, 0.0) + probability
        assert abs(sum(ours.values()) - 1) < EXACT
        plain = plain_distribution(world, self.sampling)
        begun = self.prompt[1:]  # the worlds' own prompt is the first token
        truth = first_tokens(lambda context: plain((*begun, *context)), self.tokens, world.vocab.eos)
        return distance(ours, truth)


PROMPTS = {"tiny": (0, 1, 2, 0, 1, 2, 0, 1), "full": (0, 2, 1, 0, 2, 3, 0, 2), "nested": (0, 1, 1, 4, 0, 1, 1)}


def cases() -> Iterator[CopyCase]:
    for shape, prompt in PROMPTS.items():
        for way in ("alone", "instead", "after", "either"):
            for verification in ("block", "token"):
                if way == "alone" and verification == "token":
                    continue  # nothing is drafted
                yield CopyCase(shape, 1, way, prompt, verification=verification, length=2)
    yield CopyCase("tiny", 2, "alone", (0, 1, 2, 0, 1, 2, 0, 1), length=3, tokens=4)
    yield CopyCase("full", 2, "either", (0, 2, 1, 0, 2), length=3, tokens=2)
    yield CopyCase("full", 3, "alone", (0, 2, 1, 0), stored=(3, 1, 0, 1, 4, -1, 2, 0, 1), length=3)
    yield CopyCase("nested", 3, "either", (0, 1, 1, 4), stored=(1, 4, 0, 5, -1, 4, 0, 1, 1), length=2)
    yield CopyCase("full", 4, "either", PROMPTS["full"], sampling=Sampling(temperature=0.7, top_k=3))
    yield CopyCase("full", 5, "either", PROMPTS["full"], sampling=Sampling())


def test_the_distribution_of_whole_requests_is_the_targets_whatever_happens() -> None:
    events: Counter[str] = Counter()

    def seen(record: Round) -> None:
        drafted = len(record.proposals) - record.retrieved
        if not record.retrieved:
            events["no copy"] += 1
            return
        where = "after a draft" if drafted else "alone"
        counts = record.counts
        assert counts.retrieved_accepted == max(0, counts.accepted - drafted)
        if counts.accepted < drafted:
            events["the draft before a copy rejected"] += 1
        elif counts.retrieved_accepted < record.retrieved:
            events[f"copy {where} rejected at {counts.retrieved_accepted}"] += 1
        else:
            events[f"copy {where} accepted"] += 1
        if record.finish == "eos":
            events["end of text in a round with a copy"] += 1

    for case in cases():
        assert case.deviation(seen) < EXACT, case
    expected = {"no copy", "the draft before a copy rejected", "end of text in a round with a copy"}
    expected |= {
        f"copy {where} {what}" for where in ("alone", "after a draft") for what in ("accepted", "rejected at 0")
    }
    assert expected | {"copy alone rejected at 1"} <= events.keys()


# ---------------------------------------------------------------- negative controls


def chosen_by_the_drawn_token(draft: Draft, copied: Sequence[int]) -> Draft:
    """The copy replaces the draft wherever the drafter drew something else."""
    if isinstance(draft, TrieDraft) and draft.proposals and draft.proposals[0] != copied[0]:
        return Draft(proposals=copied, retrieved=len(copied))
    return draft


def test_a_choice_by_the_drawn_token_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that the drafter has drawn are dropped where they differ from the copy: only its hits are verified."""

    def extended(self: Retrieval, draft: Draft, ids: Sequence[int], room: int) -> Draft:
        copy = self._find(ids, room)
        return draft if copy is None else chosen_by_the_drawn_token(draft, copy.tokens)

    monkeypatch.setattr(Retrieval, "extended", extended)
    assert CopyCase("full", 1, "after", PROMPTS["full"]).deviation() > FAULT


def test_a_copied_token_verified_with_the_drafters_q_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted with min(1, P/Q) of some q below one, a copied token comes up too often."""

    def verify(before: Outcome, copied: Sequence[int], next_token: Any, eos: Collection[int]) -> Outcome:
        emitted, accepted = list(before.emitted), before.accepted
        for token in copied:
            if emitted[-1] != token and next_token(accepted) != token:  # P is counted twice, as with Q of one half
                break
            emitted[-1] = token
            accepted += 1
            if token in eos:
                break
            emitted.append(next_token(accepted))
        return Outcome(tuple(emitted), accepted, before.symbols_accepted, None)

    monkeypatch.setattr(round_module, "verify_copied", verify)
    assert CopyCase("full", 1, "alone", PROMPTS["full"]).deviation() > FAULT


def test_a_correction_drawn_from_the_whole_distribution_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refused copy the token must differ from it: the one that was compared, not another draw."""

    def verify(before: Outcome, copied: Sequence[int], next_token: Any, eos: Collection[int]) -> Outcome:
        outcome = verify_copied(before, copied, next_token, eos)
        if outcome.accepted - before.accepted == len(copied):
            return outcome
        return replace(outcome, emitted=(*outcome.emitted[:-1], next_token(outcome.accepted)))

    monkeypatch.setattr(round_module, "verify_copied", verify)
    assert CopyCase("full", 1, "alone", PROMPTS["full"]).deviation() > FAULT


def test_only_committed_tokens_are_indexed() -> None:
    """A rejected proposal is never copied: what is found depends on the text alone."""
    case = CopyCase("full", 1, "either", PROMPTS["full"], length=3, tokens=3)
    world = make_world(case.shape, case.seed)

    def run(draw: Sampler) -> list[tuple[Ids, Ids]]:
        engine, found, text = case.engine(world), [], list(case.prompt)
        for record in engine.rounds(case.prompt, case.tokens, SAMPLED, draw):
            if record.retrieved and record.retrieved == len(record.proposals):
                fresh = Retrieval(Copying("instead"), world.vocab.eos)
                fresh.start(text, case.tokens)
                draft = fresh.draft(text, len(record.proposals), alone=False)
                assert draft is not None
                found.append((tuple(draft.proposals), record.proposals))
            text += record.emitted
        return found

    pairs = [pair for _, found in enumerate_draws(run) for pair in found]
    assert len(pairs) > 5
    assert all(expected == proposed for expected, proposed in pairs)
