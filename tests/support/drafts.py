"""Greedy text of a model with drafts of scripted drafters, and without any."""

from __future__ import annotations

from dataclasses import replace

import torch

from omnidraft.config import Sampling
from omnidraft.decoding.stream import decode
from omnidraft.models.language_model import LanguageModel
from omnidraft.verification.round import Round
from support.lanes import SMALL, lane, sampler, tokens, written
from support.models import Knowing, Scripted

WITH_END, OWN = SMALL
TARGET = replace(WITH_END, vocab=replace(WITH_END.vocab, eos=(), fingerprint="without an end"))
SIZE = TARGET.vocab.size
PROMPT = [(11 * i * i + 5 * i) % 60 + 30 for i in range(24)]
COUNT = 30


class Adversary(Scripted):
    """Says what comes to its mind."""

    def __init__(self, size: int) -> None:
        super().__init__(size, ())
        self._generator = torch.Generator().manual_seed(0)

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG002 (it looks at nothing)
        return 9 * torch.randn(self.vocab_size, generator=self._generator)


def adversary() -> LanguageModel:
    """A drafter that has no idea."""
    return Adversary(OWN.vocab.size)


def knowing(text: list[int]) -> LanguageModel:
    """A drafter that knows how the prompt goes on, and is wrong every third time."""
    return Knowing(OWN.vocab, OWN.speller, written(TARGET.vocab, [*PROMPT, *text]), wrong=3)


def greedy(model: LanguageModel) -> list[int]:
    """Text without drafts."""
    sequence, found = model.new_sequence(), list(PROMPT)
    logits = sequence.forward(PROMPT, 1)
    for _ in range(COUNT):
        found.append(int(logits[-1].argmax()))
        logits = sequence.forward(found[-1:], 1)
    return found[len(PROMPT) :]


def agrees(model: LanguageModel, expected: list[int]) -> None:
    """With drafts that are right two times out of three, and with others, the text is the expected one."""
    accepted = refused = 0
    for drafter in (knowing(expected), adversary()):
        records = rounds_of(model, drafter)
        assert tokens(records) == expected
        accepted += sum(record.counts.accepted for record in records)
        refused += sum(record.counts.accepted < len(record.proposals) for record in records)
    assert refused > 5
    assert accepted > 2


def rounds_of(model: LanguageModel, drafter: LanguageModel) -> list[Round]:
    """Greedy rounds after the prompt."""
    lane_ = lane(model, TARGET, drafter, OWN, draft_length=4, drafter_temperature=1.0)
    return list(decode(lane_, PROMPT, COUNT, Sampling(), sampler()))
