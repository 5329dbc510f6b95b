"""A sampled answer is a function of model, prompt, settings and seed: whatever is drafted, remembered or run beside it.

Faults are planted, for each of which the texts must differ or have another distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exactness.test_planted_faults import PLAIN, Calls, Rewrite
from omnidraft.api import OmniDraft
from omnidraft.config import Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.proposals import TrieDraft
from omnidraft.decoding.round import commit
from omnidraft.decoding.schedule import step_together
from omnidraft.decoding.stream import Stream
from omnidraft.verification import drawn
from support.assembling import load_with
from support.compilers import needs_the_8_bit_step
from support.enumeration import EXACT, Case
from support.lanes import sampler
from support.rounds import begun, verified
from support.table_models import PROMPT, SHAPES, frozen_cache, make_world

pytestmark = pytest.mark.medium

SETTINGS = (Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=3), Sampling(temperature=1.3, top_p=0.8))
SEEDS, TOKENS = 10, 10
TEXT = "hello world, the world was hello"


def texts(engine: Lane, sampling: Sampling, memory: AnswerMemory | None = None) -> tuple[list[list[int]], int]:
    """The answers of all seeds, one after the other on one engine, and how many draft tokens were accepted."""
    answers, accepted = [], 0
    for seed in range(SEEDS):
        request = begun(engine, [PROMPT], TOKENS, sampling, sampler(seed), memory=memory)
        while request.open:
            accepted += commit(engine, request, verified(engine, request)).counts.accepted
        answers.append(request.ids)
    return answers, accepted


def differing(shape: str, seed: int = 0) -> tuple[int, int]:
    """How many of the ways to draft give another text than plain decoding, and how many draft tokens were accepted."""
    world, wrong, accepted = make_world(shape, seed), 0, 0
    for sampling in SETTINGS:
        expected, _ = texts(
            world.lane(frozen_cache(world, "all", seed), draft_length=0, verification="seeded"), sampling
        )
        for length, reuse in ((1, "nothing"), (4, "nothing"), (2, "request"), (3, "memory")):
            how = {"draft_length": length, "reuse_answers": reuse, "verification": "seeded"}
            engine = world.lane(frozen_cache(world, "all", seed), **how)
            memory = AnswerMemory(256) if reuse == "memory" else None
            for _ in range(2 if memory else 1):  # the second time all of them are remembered
                found, more = texts(engine, sampling, memory)
                wrong, accepted = wrong + (found != expected), accepted + more
    return wrong, accepted


@pytest.mark.parametrize("shape", SHAPES)
def test_drafts_and_memory_leave_the_text_alone(shape: str) -> None:
    wrong, accepted = differing(shape)
    assert wrong == 0
    assert accepted > 0


FAULTS: dict[str, Rewrite] = {
    "a refusal takes a number of its own": Rewrite(
        drawn.verify_walk,
        "return rejected(walk, _first_refused(walk, accepted, token), token)",
        "next_token(accepted); return rejected(walk, _first_refused(walk, accepted, token), token)",
    ),
    "the token after a draft is not drawn where it was proposed": Rewrite(
        drawn.verify_walk, "if token != walk.tokens[accepted]:", "if token != walk.tokens[accepted] and accepted:"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_changes_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Calls = []
    FAULTS[name](monkeypatch, calls)
    assert sum(differing(shape)[0] for shape in ("full", "nested", "tiny")) > 0
    assert calls


def test_numbers_that_drafts_use_up_change_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    verify = TrieDraft.verify

    def shifted(draft: TrieDraft, target: Any, draw: Any, **how: Any) -> Any:
        for _ in draft.tokens:
            draw(np.ones(2))
        return verify(draft, target, draw, **how)

    monkeypatch.setattr(TrieDraft, "verify", shifted)
    assert sum(differing(shape)[0] for shape in ("full", "nested", "tiny")) > 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if token != walk.tokens[accepted]:", "if token < walk.tokens[accepted]:"),
        (
            "token = next_token(accepted)\n        if",
            "token = max(next_token(accepted), next_token(accepted))\n        if",
        ),
    ],
)
def test_a_fault_changes_the_distribution(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        Case(shape, 1, count=2, drafting={"draft_length": 2, "verification": "seeded"})
        for shape in ("full", "nested", "wide", "tiny")
    ]
    assert max(case.deviation() for case in cases) < EXACT
    Rewrite(drawn.verify_walk, old, new)(monkeypatch, [])
    assert max(case.deviation() for case in cases) > PLAIN


# ---------------------------------------------------------------- whole models


@pytest.fixture(params=["int8", "float32"])
def load(request: pytest.FixtureRequest, target: Path, drafter: Path, home: Path) -> Callable[..., OmniDraft]:  # noqa: ARG001
    needs_the_8_bit_step()

    def loaded(drafts: bool = True, **options: Any) -> OmniDraft:
        own: dict[str, Any] = {"profile": None} if drafts else {}
        return load_with(target, drafter if drafts else None, dtype=request.param, **own, **options)

    return loaded


def sampled(model: OmniDraft, seed: int, **options: Any) -> tuple[int, ...]:
    return model.generate(TEXT, max_new_tokens=40, seed=seed, temperature=0.8, top_p=0.95, **options).token_ids


def test_a_seed_gives_one_text_with_and_without_drafts(load: Callable[..., OmniDraft]) -> None:
    plain = load(drafts=False, draft_length=0)
    expected = [sampled(plain, seed) for seed in range(6)]
    assert len(set(expected)) == 6
    for options in (
        {"draft_length": 1, "reuse_answers": "nothing"},
        {"draft_length": 6},
        {"draft_length": "goodput"},
        {"drafts": False, "draft_length": 4},
        {"draft_length": 3, "adapt": "inline"},
    ):
        model, drafted = load(**options), 0
        for _ in range(2):  # the second time from what is remembered, and by a drafter that has learned
            for seed in range(6):
                with model.stream(TEXT, max_new_tokens=40, seed=seed, temperature=0.8, top_p=0.95) as stream:
                    for _ in stream:
                        pass
                assert stream.result.token_ids == expected[seed], options
                drafted += stream.result.stats.proposed
        assert drafted > 0


def test_requests_beside_leave_the_text_alone(load: Callable[..., OmniDraft]) -> None:
    plain = load(drafts=False, draft_length=0)
    expected = [sampled(plain, seed) for seed in range(4)]
    model = load(draft_length=3)
    lanes = model.lanes(4)
    streams: Sequence[Stream] = [
        lane.stream(TEXT, max_new_tokens=40, seed=seed, temperature=0.8, top_p=0.95) for seed, lane in enumerate(lanes)
    ]
    while any(step.text is not None or step.waits for step in step_together(streams)):
        pass
    assert [stream.result.token_ids for stream in streams] == expected


def test_a_stateful_processor_sees_the_texts_of_plain_decoding(load: Callable[..., OmniDraft]) -> None:
    shown: list[list[int]] = []

    def processor(ids: Any, scores: Any) -> Any:
        shown.append(ids[0].tolist())
        scores[:, ids[0, -1]] -= 1.0
        return scores

    plain = sampled(load(drafts=False, draft_length=0), 3, logits_processor=[processor])
    expected, shown[:] = list(shown), []
    assert sampled(load(draft_length=4), 3, logits_processor=[processor]) == plain
    assert shown == expected
