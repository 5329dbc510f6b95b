"""What `omnidraft inspect` counts, and the break-even, against brute force."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from omnidraft.alignment.spelling_table import SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.attach import make_cache
from omnidraft.config import Drafting
from omnidraft.draft_length.cost_model import CONTEXT, LAPS, SIZES, CostModel, PassTimes, time_passes
from omnidraft.inspection.break_even import LENGTHS, acceptance_at, break_evens
from omnidraft.inspection.models import Language
from omnidraft.inspection.texts import measure
from omnidraft.inspection.vocabularies import Spellings, specials, spellings, vocabulary
from omnidraft.models.language_model import SingleSequence
from support.small_tokenizers import PARTIAL, SPECIAL, WHOLE, WORDS, sentencepiece, with_added_tokens, wrap
from support.table_models import Greedy
from support.table_models import vocabulary as small_vocabulary

KINDS = {**WHOLE, **PARTIAL}
PAIRS = [(drafter, target) for drafter in KINDS for target in ("sentencepiece", "byte-level", "unigram", "plain")]


def language(tokenizer: Tokenizer, size: int | None = None) -> Language:
    wrapped = wrap(tokenizer)
    vocab = read_vocab(wrapped, size)
    return Language(tokenizer=wrapped, vocab=vocab, speller=Speller(wrapped, vocab))


def id_of(language: Language, token: str) -> int:
    return int(cast(int, language.tokenizer.convert_tokens_to_ids(token)))


def table_of(drafter: Language, target: Language) -> SpellingTable:
    return build_table(drafter.vocab, target.vocab, drafter.speller, target.speller)


# ------------------------------------------------------------ vocabularies


def test_the_spelling_figures_are_those_of_brute_force() -> None:
    found = [check_spellings(*pair) for pair in PAIRS]
    for name in ("unspelled", "ngrams", "duplicates", "overlong", "idle"):
        assert any(getattr(one, name) for one in found), name
    assert any(one.spelled > one.spelled_in_use for one in found)
    assert any(one.byte_matches > one.byte_matches_in_use for one in found)


def check_spellings(drafter_kind: str, target_kind: str) -> Spellings:
    drafter = language(KINDS[drafter_kind]())
    target = language(KINDS[target_kind](), language(KINDS[target_kind]()).vocab.size + 3)  # padded
    found = spellings(table_of(drafter, target), drafter, target)
    written = {t: drafter.speller.spell(data) for t, data in enumerate(target.vocab.tokens) if data is not None}
    spelled = {t: ids for t, ids in written.items() if ids}
    assert found.unspelled == len(written) - len(spelled)
    assert [token.id for token in found.unspelled_examples] == [t for t in written if not written[t]][:5]
    spelled[target.vocab.eos[0]] = drafter.vocab.eos[:1]
    assert found.spelled_in_use == len(spelled)
    assert found.ngrams == sum(len(ids) > 1 for ids in spelled.values())
    assert found.mean_length == pytest.approx(sum(map(len, spelled.values())) / len(spelled))
    assert found.duplicates == len(spelled) - len(set(spelled.values()))
    names = [drafter.speller.spell(name.encode()) for t, name in target.vocab.special.items() if t not in spelled]
    assert found.spelled == len(spelled) + sum(ids is not None for ids in names)
    texts = {data for data in target.vocab.tokens if data is not None}
    assert found.byte_matches_in_use == sum(data in texts for data in drafter.vocab.tokens)
    texts |= {name.encode() for name in target.vocab.special.values()}
    own = [(drafter.vocab.special.get(d) or "").encode() or data for d, data in enumerate(drafter.vocab.tokens)]
    assert found.byte_matches == sum(data in texts for data in own)
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
        ("sentencepiece", "SentencePiece BPE with byte fallback"),
        ("sentencepiece, metaspace", "SentencePiece BPE with byte fallback"),
        ("sentencepiece, no byte tokens", "SentencePiece BPE without byte fallback"),
        ("byte-level", "byte-level BPE"),
        ("unigram", "SentencePiece Unigram with byte fallback"),
        ("unigram, no byte tokens", "SentencePiece Unigram without byte fallback"),
        ("plain", "BPE without byte fallback"),
    ],
)
def test_a_vocabulary_is_described(kind: str, name: str) -> None:
    tokenizer = KINDS[kind]()
    rows = tokenizer.get_vocab_size()
    found = vocabulary(language(tokenizer, rows + 7))
    assert found.kind == name
    assert (found.size, found.special, found.unused, found.writing) == (rows + 7, 3, 7, rows - 3)
    assert found.bos is not None
    assert (found.bos.id, found.bos.text) == (tokenizer.token_to_id("<s>"), "<s>")
    assert [(token.id, token.text) for token in found.eos] == [(tokenizer.token_to_id("</s>"), "</s>")]


def test_special_tokens_become_what_the_drafter_reads() -> None:
    target, drafter = language(with_added_tokens()), language(sentencepiece())
    vocab = read_vocab(target.tokenizer, eos=[id_of(target, "<|end|>")])
    target = Language(tokenizer=target.tokenizer, vocab=vocab, speller=target.speller)
    found = {one.token.text: one.becomes and one.becomes.text for one in specials(drafter, target)}
    assert found == {"<unk>": "<unk>", "<s>": "<s>", "</s>": "</s>", "<|start|>": None, "<|end|>": "</s>"}
    for one in specials(drafter, target):
        assert one.token.id == id_of(target, one.token.text)
    # an end of text that writes something is its text, and a row that is not there is no token
    ends = read_vocab(target.tokenizer, eos=[id_of(target, "<tool>")])
    own = Language(tokenizer=target.tokenizer, vocab=ends, speller=target.speller)
    texts = [one.token.text for one in specials(drafter, own)]
    assert sorted(texts) == sorted([*SPECIAL, "<|start|>", "<|end|>"])


# ------------------------------------------------------------ texts


def reading(draft: Sequence[int], spelled: dict[tuple[int, ...], int], long: dict[int, tuple[int, ...]]) -> list[Any]:
    """What a draft is read as, told by dictionaries: target tokens, and None for each draft token of a dead end."""
    begun = {ids[:size] for ids in spelled for size in range(1, len(ids) + 1)}
    read: list[Any] = []
    now: tuple[int, ...] = ()
    for d in draft:
        if now and (*now, d) not in begun:
            read += [spelled[now]] if now in spelled else [None] * len(now)
            now = ()
        if not now and (d,) not in begun:
            read += long.get(d, (None,))
            continue
        now = (*now, d)
    return read + ([spelled[now]] if now in spelled else [])


@pytest.mark.parametrize(("drafter_kind", "target_kind"), PAIRS)
def test_the_figures_of_a_text_are_those_of_brute_force(drafter_kind: str, target_kind: str) -> None:
    drafter, target = language(KINDS[drafter_kind]()), language(KINDS[target_kind]())
    table = table_of(drafter, target)
    cache = make_cache(table, Drafting())
    spelled = {tuple(table.spelling(t).tolist()): t for t in np.flatnonzero(table.node >= 0).tolist()}
    long = {d: tuple(map(int, cache.long(d))) for d in range(drafter.vocab.size) if len(cache.long(d))}
    draw, looked_at = random.Random(1), 0
    for _ in range(40):
        text = "".join(draw.choices([*WORDS, *"hewdo ing", "  "], k=draw.randint(1, 12)))
        ids, draft = target.speller.spell(text.encode()), drafter.speller.spell(text.encode())
        if ids is None or draft is None:
            continue
        found = measure("text", text, cache, drafter, target)
        lengths = [len(table.spelling(t)) for t in ids]
        assert (found.target_tokens, found.drafter_tokens, found.left_out) == (len(ids), len(draft), 0)
        assert found.ngrams == sum(length > 1 for length in lengths)
        assert (found.spelled_tokens, found.unspelled) == (sum(lengths), lengths.count(0))
        read = reading(draft, spelled, long)
        if None not in read:  # how a dead end is left is tested on its own
            starts = set(
                zip(np.cumsum([0, *(len(target.vocab.tokens[t] or b"") for t in ids)]).tolist(), ids, strict=False)
            )
            places = np.cumsum([0, *(len(target.vocab.tokens[t] or b"") for t in read)]).tolist()
            assert found.missed == len(ids) - len(starts & set(zip(places, read, strict=False)))
            looked_at += 1
    assert looked_at > 14 or (drafter_kind in PARTIAL or target_kind == "plain")


def greedy(*tokens: bytes) -> Language:
    """A vocabulary of a few tokens, of which the longest that fits is written."""
    vocab = small_vocabulary(*tokens)
    return Language(tokenizer=cast(Any, None), vocab=vocab, speller=Greedy(vocab))


@pytest.mark.parametrize(
    ("target", "drafter", "text", "tokens", "missed"),
    [
        # "ab" could go on to "abc" only: the walk ends there, and d opens the next one
        ((b"abc", b"a", b"b", b"d"), (b"ab", b"c", b"d"), "abd", 3, 2),
        # "ab" is nothing that the target could write: the next draft that begins where a token does is z after it
        ((b"q", b"a", b"bz"), (b"q", b"ab", b"z", b"a", b"b"), "qabzq", 4, 2),
        # nor does it open a token that the target could not open there, such as "zq", and miss the last one
        ((b"q", b"a", b"bz", b"zq"), (b"q", b"ab", b"z", b"a", b"b"), "qabzq", 4, 2),
        # where the target splits, the draft merges, and the other way round
        ((b"a", b"b", b"ab", b"c", b"bc"), (b"a", b"b", b"c"), "abc", 2, 0),
        ((b"bc", b"a", b"b", b"c"), (b"abc", b"a", b"b", b"c"), "abc", 2, 0),
        ((b"bc", b"a", b"b", b"c", b"abcd"), (b"abc", b"a", b"b", b"c", b"d"), "abc", 2, 2),
        ((b"a", b"b", b"ab", b"abc", b"c"), (b"a", b"b", b"cd", b"c", b"d"), "ab", 1, 0),
    ],
)
def test_dead_ends_and_merges(
    target: tuple[bytes, ...], drafter: tuple[bytes, ...], text: str, tokens: int, missed: int
) -> None:
    ours, theirs = greedy(*drafter), greedy(*target)
    found = measure("text", text, make_cache(table_of(ours, theirs), Drafting()), ours, theirs)
    assert (found.target_tokens, found.missed) == (tokens, missed)


def test_what_one_of_the_two_cannot_write_is_left_out_by_lines() -> None:
    drafter, target = language(WHOLE["sentencepiece"]()), language(PARTIAL["plain"]())
    cache = make_cache(table_of(drafter, target), Drafting())
    found = measure("text", "\u0436", cache, drafter, target)
    assert (found.left_out, found.target_tokens, found.ratio) == (2, 0, None)
    text = "hello\nthe \u0436\nworld\n"
    target = language(PARTIAL["sentencepiece, no byte tokens"]())
    cache = make_cache(table_of(drafter, target), Drafting())
    found = measure("text", text, cache, drafter, target)
    assert found.left_out == len("the \u0436\n".encode())
    kept = [target.speller.spell(line) for line in (b"hello\n", b"world\n")]
    assert found.target_tokens == sum(len(ids or ()) for ids in kept)


def test_tokens_without_a_spelling_are_counted() -> None:
    drafter, target = greedy(b"ab", b"c", b"d"), greedy(b"abc", b"a", b"b", b"d")
    found = measure("text", "abd", make_cache(table_of(drafter, target), Drafting()), drafter, target)
    assert (found.unspelled, found.ratio) == (2, 1.5)


# ------------------------------------------------------------ break-even


@pytest.mark.parametrize("ratio", [0.25, 0.8, 1.0, 1.3])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_break_even_is_the_root_of_the_polynomial(length: int, ratio: float) -> None:
    for cost in np.linspace(1.01, 1 + ratio * length - 0.01, 7).tolist():
        # ratio (a + … + a^k) + 1 - cost = 0
        roots = np.roots([*[ratio] * length, 1 - cost])
        (root,) = [r.real for r in roots if abs(r.imag) < 1e-9 and r.real > 0]
        assert acceptance_at(cost, length, ratio) == pytest.approx(root, abs=1e-9)


def test_the_edges_of_the_break_even() -> None:
    assert acceptance_at(1.0, 4) == acceptance_at(0.7, 4) == 0.0
    assert acceptance_at(5.0, 4) == pytest.approx(1.0)
    assert acceptance_at(5.001, 4) is acceptance_at(3.1, 4, ratio=0.5) is None
    assert acceptance_at(2.9, 4, ratio=0.5) is not None


def test_the_cost_of_a_round_is_linear_in_what_was_measured() -> None:
    times = PassTimes(target={1: 10.0, 2: 12.0, 3: 13.0, 5: 15.0}, drafter=1.0, context=64, laps=5)
    rows = break_evens(CostModel.profiled(times), {None: 1.0, "text": 0.5})
    costs = {(one.text, one.length): one.cost for one in rows}
    assert [costs[None, length] for length in LENGTHS] == pytest.approx([1.3, 1.5, 1.9, 2.7])
    assert costs["text", 4] == pytest.approx((4 + 13) / 10)
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
    assert steps.target == pytest.approx({size: 5e-3 + 1e-3 * size for size in SIZES})
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
        self.lap += len(ids) == SIZES[0]
        interrupted = 3.0 if len(ids) == SIZES[0] and self.lap in (2, 3, 4, 5) else 1.0
        self.clock[0] = began + (self.clock[0] - began) * (1 + self.lap) * interrupted
        return logits


def test_a_machine_that_becomes_slower_changes_no_ratio() -> None:
    clock = [0.0]
    quiet = time_passes(Clocked(clock, 5e-3, 1e-3, 0), Clocked(clock, 0, 0, 0), clock=lambda: clock[0])
    busy = time_passes(Slowing(clock, 5e-3, 1e-3, 0), Clocked(clock, 0, 0, 0), clock=lambda: clock[0])
    assert busy.target[9] > 2 * quiet.target[9]
    found = [break_evens(CostModel.profiled(times), {None: 1.0}) for times in (quiet, busy)]
    assert [one.cost for one in found[1]] == pytest.approx([one.cost for one in found[0]])


def test_a_short_window_is_not_overrun() -> None:
    clock = [0.0]
    target, drafter = Clocked(clock, 5e-3, 1e-3, 0), Clocked(clock, 1e-3, 0, 0)
    target.context = drafter.context = 12
    steps = time_passes(target, drafter, clock=lambda: clock[0])
    assert set(steps.target) == {1, 2, 3, 5, 9}
    assert max(target.longest, drafter.longest) <= 12
