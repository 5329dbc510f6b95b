"""Hybrids and mixtures of experts as targets: greedy text is that of `generate`, with drafts and without."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from omnidraft.config import Drafting, Sampling
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import AGAIN, commit
from omnidraft.decoding.stream import decode
from omnidraft.models.hybrid_checks import ONE_BY_ONE as REASON
from omnidraft.models.language_model import LanguageModel
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.verification.round import Round
from support.drafts import OWN, TARGET, adversary
from support.generating import helped, load
from support.hybrids import HYBRIDS, MIXTURES, ONE_BY_ONE, hybrid
from support.lanes import generate, lane, sampler, tokens, written
from support.models import Constant, Knowing
from support.rounds import begun, verified

pytestmark = pytest.mark.medium

PROMPT = [40, 50, 60, 70]
COUNT = 40
OFTEN = ("qwen3_5_text", "lfm2", "granitemoehybrid", "falcon_h1", "mamba2", "qwen3_moe", "gpt_oss")
DRAFTED = (  # by whom, and how many tokens: each length with what is right and with what is not
    ("right", 1), ("right", "goodput"), ("two of three", 4), ("two of three", "goodput"), ("random", 4),
    ("always wrong", 1),
)  # fmt: skip
EVERY = [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in HYBRIDS | MIXTURES]


def target_of(kind: str) -> TransformersModel:
    return TransformersModel(hybrid(kind, vocab_size=TARGET.vocab.size))


def run(lane_: Lane, prompt: list[int] = PROMPT, count: int = COUNT) -> list[Round]:
    return list(decode(lane_, prompt, count, Sampling(), sampler()))


def drafters(prompt: list[int], text: list[int]) -> dict[str, LanguageModel]:
    whole = written(TARGET.vocab, [*prompt, *text])
    return {
        "right": Knowing(OWN.vocab, OWN.speller, whole),
        "two of three": Knowing(OWN.vocab, OWN.speller, whole, wrong=3),
        "random": adversary(),
        "always wrong": Constant(OWN.vocab.size, 3),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", EVERY)
def test_greedy_text_is_that_of_generate(kind: str) -> None:
    target = target_of(kind)
    expected = generate(target, PROMPT, COUNT)
    assert len(set(expected)) > 4
    assert tokens(run(Lane(target, ()))) == expected
    accepted = refused = 0
    by_name = drafters(PROMPT, expected)
    for name, length in DRAFTED:
        records = run(lane(target, TARGET, by_name[name], OWN, draft_length=length, drafter_temperature=1.0))
        assert tokens(records) == expected, (name, length)
        accepted += sum(record.counts.accepted for record in records)
        refused += sum(record.counts.accepted < len(record.proposals) for record in records)
    assert refused > 5
    assert accepted > 5


@pytest.mark.parametrize("kind", ["qwen3_5_text", "granitemoehybrid", "lfm2"])
def test_an_answer_is_drafted_from_one_before_without_a_drafter(kind: str) -> None:
    target, memory = target_of(kind), AnswerMemory()
    expected = generate(target, PROMPT, COUNT)
    lane_ = Lane(target, (), None, Drafting(draft_length=4))
    for turn in range(2):
        request, records = begun(lane_, PROMPT, COUNT, Sampling(), sampler(), memory=memory), list[Round]()
        while request.open:
            records.append(commit(lane_, request, verified(lane_, request)))
        assert tokens(records) == expected
        assert bool(turn) <= (sum(record.counts.accepted for record in records) > COUNT // 2)


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_a_model_that_reads_one_by_one_has_no_drafts_and_says_why(kind: str) -> None:
    target = target_of(kind)
    expected = generate(target, PROMPT, COUNT)
    records = run(lane(target, TARGET, drafters(PROMPT, expected)["right"], OWN))
    assert tokens(records) == expected
    assert {(record.no_draft_reason, record.draft) for record in records} == {(REASON, ())}


@pytest.mark.parametrize("kind", ["qwen3_5_text", "falcon_h1", "jamba"])
def test_what_is_kept_of_the_request_before_changes_no_text(kind: str) -> None:
    """A chat that goes on, the same prompt again, one that parts early, and one that shares nothing."""
    target = target_of(kind)
    start = [(11 * i) % 300 for i in range(90)]
    first = generate(target, start, 20)
    prompts = ([*start, *first, 7, 8], start, [*start[:80], 5, 9], [*start[:80], 6], [*start[:80], 4, 4], [9, 9, 9])
    drafter = Knowing(OWN.vocab, OWN.speller, written(TARGET.vocab, [*start, *first]), wrong=3)
    pair = lane(target, TARGET, drafter, OWN)
    keeping = Lane(target, (), pair.attached, pair.drafting, keeps=True)
    assert tokens(run(keeping, start, 20)) == first
    held = []
    for prompt in prompts:
        held.append(begun(keeping, prompt, 12, Sampling(), sampler()).cached)
        assert tokens(run(keeping, list(prompt), 12)) == generate(target, list(prompt), 12)
    assert kind == "jamba" or held[0] > len(start)
    assert held[-1] == 0


def test_a_text_to_read_again_that_grows_is_read_alone() -> None:
    target = target_of("qwen3_5_text")
    expected = generate(target, PROMPT, 120)
    text = written(TARGET.vocab, [*PROMPT, *expected])
    records = run(lane(target, TARGET, Knowing(OWN.vocab, OWN.speller, text, wrong=4), OWN, draft_length=7), count=120)
    assert tokens(records) == expected
    assert max(record.counts.again for record in records if record.draft) <= 16
    alone = [record for record in records if record.no_draft_reason == AGAIN]
    assert all(record.counts.again > 16 for record in alone)
    after = [later for record, later in pairwise(records) if record in alone]
    assert alone
    assert all(record.counts.again == 0 for record in after)


def test_a_long_prompt_is_read_before_anything_is_drafted() -> None:
    """Else a rejection would have it read again."""
    target = target_of("qwen3_5_text")
    prompt = [(11 * i) % 300 for i in range(40)]
    expected = generate(target, prompt, 10)
    records = run(lane(target, TARGET, drafters(prompt, expected)["right"], OWN), prompt, 10)
    assert records[0].no_draft_reason == AGAIN
    assert any(record.draft for record in records)
    assert all(record.counts.again == 0 for record in records[:2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_5_text", "granitemoehybrid", "jamba"])
def test_inside_generate_of_transformers(kind: str, target: Path, drafter: Path, tmp_path: Path, home: Path) -> None:  # noqa: ARG001
    source = load(target)
    size, eos = source.config.vocab_size, source.generation_config.eos_token_id
    model: Any = hybrid(kind, vocab_size=size)
    model.name_or_path = source.name_or_path
    ids = torch.tensor([[(7 * i + 3) % size for i in range(30)]])
    options: dict[str, Any] = {"ids": ids, "do_sample": False, "eos_token_id": eos}
    plain = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=32, pad_token_id=0, eos_token_id=eos
    )
    for given in (drafter, load(target)):
        assert torch.equal(helped(model, given, **options), plain)
