"""What `omnidraft inspect` counts, and the break-even, against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch

from omnidraft.alignment.spelling_table import SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.draft_length.cost_model import CONTEXT, LAPS, PASS_SIZES, CostModel, PassTimes, time_passes
from omnidraft.inspection.report import DRAFT_LENGTHS, acceptance_at, break_evens
from omnidraft.inspection.vocabularies import Language, Spellings, specials, spellings, vocabulary
from omnidraft.models.language_model import SingleSequence
from support.tokenizer_families import BY_HAND, family

DRAFTERS = ("llama2", "gpt2", "unigram_with_bytes", "added", "xglm", *BY_HAND)
TARGETS = ("llama2", "gpt2", "xglm", "plain")


def language(name: str, size: int | None = None) -> Language:
    tokenizer = family(name)
    vocab = read_vocab(tokenizer, size)
    return Language(tokenizer=tokenizer, vocab=vocab, speller=Speller(tokenizer, vocab))


def id_of(language: Language, token: str) -> int:
    return int(cast(int, language.tokenizer.convert_tokens_to_ids(token)))


def table_of(drafter: Language, target: Language) -> SpellingTable:
    return build_table(drafter.vocab, target.vocab, drafter.speller, target.speller)


# ------------------------------------------------------------ vocabularies


@pytest.mark.medium
def test_the_spelling_figures_are_those_of_brute_force() -> None:
    found = [check_spellings(*pair) for pair in itertools.product(DRAFTERS, TARGETS)]
    for name in ("unspelled", "ngrams", "duplicates", "overlong", "idle"):
        assert any(getattr(one, name) for one in found), name


def check_spellings(drafter_kind: str, target_kind: str) -> Spellings:
    drafter, target = language(drafter_kind), language(target_kind, len(family(target_kind)) + 3)  # padded
    found = spellings(table_of(drafter, target), drafter, target)
    written = {t: drafter.speller.spell(data) for t, data in enumerate(target.vocab.tokens) if data is not None}
    spelled = {t: ids for t, ids in written.items() if ids}
    assert found.unspelled == len(written) - len(spelled)
    assert [token.id for token in found.unspelled_examples] == [t for t in written if not written[t]][:5]
    spelled[target.vocab.eos[0]] = drafter.vocab.eos[:1]
    assert found.spelled == len(spelled)
    assert found.ngrams == sum(len(ids) > 1 for ids in spelled.values())
    assert found.mean_length == pytest.approx(sum(map(len, spelled.values())) / len(spelled))
    assert found.duplicates == len(spelled) - len(set(spelled.values()))
    texts = {data for data in target.vocab.tokens if data is not None}
    assert found.byte_matches == sum(data in texts for data in drafter.vocab.tokens)
    begins = {ids[0] for ids in spelled.values()}
    rest = [data for d, data in enumerate(drafter.vocab.tokens) if data is not None and d not in begins]
    owners = {ids: t for t, ids in reversed(spelled.items())}
    for ids in owners:
        alone = target.speller.spell(b"".join(drafter.vocab.tokens[d] or b"" for d in ids))
        if alone and len(alone) == 1 and spelled.get(alone[0]) == ids:
            owners[ids] = alone[0]
    overlong = [data for data in rest if set(target.speller.spell(data) or [-1]) <= set(owners.values())]
    assert (found.overlong, found.idle) == (len(overlong), len(rest) - len(overlong))
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama2", "SentencePiece BPE with byte fallback"),
        ("mistral", "SentencePiece BPE with byte fallback"),
        ("sentencepiece, no byte tokens", "SentencePiece BPE without byte fallback"),
        ("gpt2", "byte-level BPE"),
        ("unigram_with_bytes", "SentencePiece Unigram with byte fallback"),
        ("xglm", "SentencePiece Unigram without byte fallback"),
        ("plain", "BPE without byte fallback"),
    ],
)
def test_a_vocabulary_is_described(kind: str, name: str) -> None:
    tokenizer = family(kind)
    rows, special = len(tokenizer), sum(token.special for token in tokenizer.added_tokens_decoder.values())
    found = vocabulary(language(kind, rows + 7))
    assert found.kind == name
    assert (found.size, found.special, found.unused, found.writing) == (rows + 7, special, 7, rows - special)
    assert found.bos is not None
    assert (found.bos.id, found.bos.text) == (tokenizer.bos_token_id, tokenizer.bos_token)
    assert [(token.id, token.text) for token in found.eos] == [(tokenizer.eos_token_id, tokenizer.eos_token)]


def test_special_tokens_become_what_the_drafter_reads() -> None:
    target, drafter = language("mistral"), language("llama2")
    vocab = read_vocab(target.tokenizer, eos=[id_of(target, "[/INST]")])
    target = replace(target, vocab=vocab)
    found = {one.token.text: one.becomes and one.becomes.text for one in specials(drafter, target)}
    assert found == {"<unk>": "<unk>", "<s>": "<s>", "</s>": "</s>", "[INST]": None, "[/INST]": "</s>"}
    for one in specials(drafter, target):
        assert one.token.id == id_of(target, one.token.text)
    # an end of text that writes something is its text, and a row that is not there is no token
    own = replace(target, vocab=read_vocab(target.tokenizer, len(vocab.tokens) + 1, eos=[id_of(target, "a")]))
    assert sorted(one.token.text for one in specials(drafter, own)) == sorted(found)


# ------------------------------------------------------------ break-even


@pytest.mark.parametrize("length", DRAFT_LENGTHS)
def test_the_break_even_is_the_root_of_the_polynomial(length: int) -> None:
    for cost in np.linspace(1.01, 1 + length - 0.01, 7).tolist():
        acceptance = acceptance_at(cost, length)
        assert acceptance is not None
        assert 0 < acceptance < 1
        assert sum(acceptance**position for position in range(length + 1)) == pytest.approx(cost, abs=1e-9)


def test_the_edges_of_the_break_even() -> None:
    assert acceptance_at(1.0, 4) == acceptance_at(0.7, 4) == 0.0
    assert acceptance_at(5.0, 4) == pytest.approx(1.0)
    assert acceptance_at(5.001, 4) is None


def test_the_cost_of_a_round_is_linear_in_what_was_measured() -> None:
    times = PassTimes(target={1: 10.0, 2: 12.0, 3: 13.0, 5: 15.0}, drafter=1.0, context=64, laps=5)
    rows = break_evens(CostModel.profiled(times))
    assert [one.length for one in rows] == list(DRAFT_LENGTHS)
    assert [one.cost for one in rows] == pytest.approx([1.3, 1.5, 1.9, 2.7])
    assert [one.best for one in rows] == pytest.approx([2 / 1.3, 3 / 1.5, 5 / 1.9, 9 / 2.7])
    falling = PassTimes(target={1: 10.0, 2: 9.0, 3: 8.0}, drafter=1.0, context=64, laps=5)
    assert CostModel.profiled(falling).tokens.of(8) == 0


class Clocked(SingleSequence):
    """A model whose passes take a known time on a clock of their own; the first few take longer."""

    context, vocab_size = 1000, 50

    def __init__(self, clock: list[float], first: float, each: float, slow: int) -> None:
        self.clock, self.first, self.each, self.slow = clock, first, each, slow
        self.length = self.longest = self.passes = 0

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        assert min(ids) >= 0
        assert max(ids) < self.vocab_size
        self.passes += 1
        self.clock[0] += self.first + self.each * len(ids) + (100.0 if self.passes <= self.slow else 0.0)
        self.length += len(ids)
        self.longest = max(self.longest, self.length)
        return torch.zeros(keep, self.vocab_size)

    def crop(self, length: int) -> None:
        assert length <= self.length
        self.length = length


def test_steps_are_measured_warm_after_a_short_context() -> None:
    clock = [0.0]
    # the pass over the context and those of the first lap are slow
    target, drafter = Clocked(clock, 5e-3, 1e-3, slow=6), Clocked(clock, 1e-3, 2e-4, slow=5)
    steps = time_passes(target, drafter, clock=lambda: clock[0])
    assert steps.target == pytest.approx({size: 5e-3 + 1e-3 * size for size in PASS_SIZES})
    assert steps.drafter == pytest.approx(1.2e-3)
    assert (steps.context, steps.laps) == (CONTEXT, LAPS)  # the slow ones took all the time there is
    assert (target.length, drafter.length) == (CONTEXT, CONTEXT)
    assert time_passes(Clocked(clock, 1e-3, 0, 0), drafter, clock=lambda: clock[0]).laps > LAPS


class Slowing(Clocked):
    """On a machine that becomes slower with every lap; now and then the first pass of a lap is interrupted."""

    lap = 0

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        began = self.clock[0]
        logits = super().forward(ids, keep)
        self.lap += len(ids) == PASS_SIZES[0]
        interrupted = 3.0 if len(ids) == PASS_SIZES[0] and self.lap in (2, 3, 4, 5) else 1.0
        self.clock[0] = began + (self.clock[0] - began) * (1 + self.lap) * interrupted
        return logits


def test_a_machine_that_becomes_slower_changes_no_ratio() -> None:
    clock = [0.0]
    quiet = time_passes(Clocked(clock, 5e-3, 1e-3, 0), Clocked(clock, 0, 0, 0), clock=lambda: clock[0])
    busy = time_passes(Slowing(clock, 5e-3, 1e-3, 0), Clocked(clock, 0, 0, 0), clock=lambda: clock[0])
    assert busy.target[9] > 2 * quiet.target[9]
    found = [break_evens(CostModel.profiled(times)) for times in (quiet, busy)]
    assert [one.cost for one in found[1]] == pytest.approx([one.cost for one in found[0]])


def test_a_short_window_is_not_overrun() -> None:
    clock = [0.0]
    target, drafter = Clocked(clock, 5e-3, 1e-3, 0), Clocked(clock, 1e-3, 0, 0)
    target.context = drafter.context = 12
    steps = time_passes(target, drafter, clock=lambda: clock[0])
    assert set(steps.target) == {1, 2, 3, 5, 9}
    assert max(target.longest, drafter.longest) <= 12
