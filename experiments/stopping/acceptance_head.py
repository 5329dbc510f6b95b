"""The acceptance head: how it is taught, its calibration, and its worth beside a drafter that learns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from experiments.compared import compared
from experiments.student import Recorded, Student, record
from omnidraft.api import OmniDraft
from omnidraft.bench.interleaved import EngineWay, engine_for, own_cache, sampler
from omnidraft.config import Drafting, Learning, Sampling
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.policy import Fixed
from omnidraft.verification.round import Round

Row = dict[str, Any]
DRAFT_LENGTH = 4  # of what does not decide it
BINS = 10
# what each row of Table 2 learns, and what ends its drafts
METHODS: dict[str, tuple[str | None, str | int]] = {
    "no learning": (None, DRAFT_LENGTH),
    "head alone": ("head", "head"),
    "drafter alone": ("drafter", DRAFT_LENGTH),
    "joint": ("joint", "head"),
    "interleaved": ("interleaved", "head"),
    "interleaved, goodput": ("interleaved", "goodput"),
}


# ---------------------------------------------------------------- a head for comparisons


def examples(model: OmniDraft, prompts: Sequence[list[int]], new_tokens: int) -> list[Recorded]:
    """Answers to learn from, of which every other two are sampled."""
    teacher = Learning().teacher_temperature
    found: list[Recorded] = []
    for number, ids in enumerate(prompts):
        # two and two, as prompts of two tasks may take turns
        sampling = Sampling(temperature=float(number // 2 % 2))
        found += record(model, [ids], new_tokens, sampling, teacher, seed=number)
    return found


def teach(model: OmniDraft, recorded: Sequence[Recorded]) -> Head:
    """A head that learned from these answers beside a drafter that did not."""
    student = _student(model, "head", "head")
    for one in recorded:
        student.learn(one)
    student.adaptation.flush()
    return student.attached.head


def _student(model: OmniDraft, trains: str | None, draft_length: str | int) -> Student:
    """A drafter with weights and a KV cache of its own, so that taking turns with others costs nothing."""
    if model.drafter is None:
        raise ValueError("there is no drafter that could learn")
    drafting = Drafting(draft_length=draft_length)
    return Student(
        model, SharedDrafter(own_cache(model.drafter.lm)), drafting, None if trains is None else Learning(trains=trains)
    )


# ---------------------------------------------------------------- calibration


class Noting(Fixed):
    """Drafts as far as is allowed, and notes what the head thinks of each token."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._thought: list[float] = []
        self.seen: list[tuple[float, bool]] = []  # a chance, and what became of the token

    def draws(self, logits: torch.Tensor, temperature: float, hidden: torch.Tensor | None) -> bool:
        self._thought.append(self._head.chance(logits, hidden, temperature))
        return True

    def learn(self, record: Round) -> None:
        accepted = record.counts.draft_accepted
        self.seen += [
            (chance, at < accepted) for at, chance in enumerate(self._thought[: min(accepted + 1, len(record.draft))])
        ]
        self._thought = []  # a round without a draft begins none


def calibration(
    model: OmniDraft, head: Head, prompts: Sequence[list[int]], new_tokens: int, temperature: float
) -> Iterator[Row]:
    """For the trained head and an untrained one: chances in ten bins beside what was accepted, and the mean error."""
    for name, each in (("head", head), ("entropy", Head())):
        noting = Noting(each)
        drafting = Drafting(draft_length=DRAFT_LENGTH)
        engine, draw = engine_for(model, drafting, policy=noting), sampler()
        for ids in prompts:
            list(engine.rounds(ids, new_tokens, Sampling(temperature=temperature), draw))
        yield {"way": name, "temperature": temperature, **reliability(noting.seen)}


def reliability(seen: Sequence[tuple[float, bool]]) -> Row:
    """Of tokens with what was thought of them: mean chance, share accepted and number in each bin; expected error."""
    thought, happened = np.array([chance for chance, _ in seen]), np.array([was for _, was in seen], float)
    place = np.minimum((thought * BINS).astype(int), BINS - 1)
    bins = [
        {
            "chance": round(float(thought[place == i].mean()), 4),
            "accepted": round(float(happened[place == i].mean()), 4),
            "tokens": int((place == i).sum()),
        }
        for i in range(BINS)
        if (place == i).any()
    ]
    error = sum(one["tokens"] * abs(one["chance"] - one["accepted"]) for one in bins) / max(1, len(seen))
    return {"expected_calibration_error": round(float(error), 4), "bins": bins}


# ---------------------------------------------------------------- Table 2


def schedules(
    model: OmniDraft, stream: Sequence[list[int]], tests: Sequence[list[int]], new_tokens: int, repeats: int
) -> Iterator[Row]:
    """Each method taught by answers to `stream`: what its drafts come to on `tests`, beside plain decoding."""
    recorded = record(model, stream, new_tokens, Sampling(), Learning().teacher_temperature)
    ways = [EngineWay("plain", engine_for(model), Sampling())]
    for name, (trains, draft_length) in METHODS.items():
        student = _student(model, trains, draft_length)
        for one in recorded:
            student.learn(one)
        student.flush()
        student.adaptation.load_weights()
        ways.append(EngineWay(name, student.engine(), Sampling()))
    return (row for row in compared(ways, tests, new_tokens, range(repeats)) if row["way"] != "plain")
