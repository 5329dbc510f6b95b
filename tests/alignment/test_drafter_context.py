"""The drafter's text: bytes are never lost, words in any script are written as the drafter would, prompts stay."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.alignment import drafter_context as context
from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.spelling_table import Probs
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.config import Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.draft_length.policy import Fixed
from omnidraft.models.language_model import LanguageModel, TransformersModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler, Sampler, tempered
from support.engines import Language, engine, generate, language, table, tokens
from support.enumeration import EXACT, Distribution, distance, enumerate_draws, first_tokens, plain_distribution
from support.models import Knowing, Scripted, random_model
from support.project_files import shared
from support.table_models import PROMPT, Greedy, Shape, TableModel, make_world
from support.texts import ROUNDS, TEXTS, chunks
from support.tokenizer_families import PARTIAL, WHOLE, family

SCRIPTS = [script for script in TEXTS if script not in ("English", "code")]
SIZES = {"llama2": 32_000, "llama3": 128_256, "qwen2": 152_064}


@cache
def small(name: str) -> Language:
    tokenizer = family(name)
    vocab = read_vocab(tokenizer)
    return Language(tokenizer, vocab, Speller(tokenizer, vocab))


@cache
def real(name: str) -> Language:
    return language(shared("tokenizers") / name, SIZES[name])


def translator(drafter: Language, target: Language) -> DrafterContext:
    return DrafterContext(table(drafter, target), target.vocab, drafter.vocab, drafter.speller)


def committed(other: DrafterContext, ids: Sequence[int], prompt: Sequence[int] = ()) -> list[int]:
    """A drafter's text after these target tokens were committed, some at a time."""
    text = list(prompt)
    for part in chunks(ids):
        added, kept = other.after(text, len(prompt), part)
        assert kept >= len(prompt)
        text[kept:] = added
    return text


def written(vocab: Vocab, ids: Sequence[int]) -> bytes:
    return b"".join(vocab.tokens[i] or b"" for i in ids)


def excess(drafter: Language, text: Sequence[int]) -> float:
    """How many more tokens a text has than the drafter would write it in."""
    canonical = drafter.speller.spell(written(drafter.vocab, text))
    assert canonical is not None
    return len(text) / len(canonical) - 1


# ---------------------------------------------------------------- what is committed


@pytest.mark.parametrize("drafter", WHOLE)
@given(data=st.lists(st.binary(max_size=6) | st.text(max_size=6).map(str.encode), max_size=10).map(b"".join))
@settings(max_examples=20, deadline=None)
def test_bytes_are_never_lost(drafter: str, data: bytes) -> None:
    own = small(drafter)
    for target in ("llama2", "qwen2", "unigram_with_bytes"):
        ids = small(target).speller.spell(data)
        assert ids is not None
        assert written(own.vocab, committed(translator(own, small(target)), ids)) == data
        pieces = [i for byte in data for i in small("llama2").speller.spell(bytes([byte])) or ()]  # as fine as can be
        assert written(own.vocab, committed(translator(own, small("llama2")), pieces)) == data


@pytest.mark.parametrize("drafter", WHOLE)
@pytest.mark.parametrize("target", ["llama2", "gemma", "gpt2", "qwen2", "deepseek", "unigram_with_bytes"])
def test_words_in_any_script_are_written_as_the_drafter_would(drafter: str, target: str) -> None:
    own, other = small(drafter), small(target)
    for script in SCRIPTS:
        ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)
        text = committed(translator(own, other), ids)
        assert written(own.vocab, text) == written(other.vocab, ids)
        assert excess(own, text) < (0.05 if script != "emoji" else 0.1), script  # that one has English in it


def test_the_words_of_the_other_tests_have_something_to_gain() -> None:
    own, other = small("llama2"), small("qwen2")
    gains = []
    for script in SCRIPTS:
        spelled = translator(own, other).tokens(other.tokenizer.encode(TEXTS[script], add_special_tokens=False))
        gains.append(excess(own, spelled))
    assert min(gains) > 0.05


@pytest.mark.parametrize("drafter", ["gemma", "llama2", "llama3"])
def test_runs_of_white_space_stay_together(drafter: str) -> None:
    own, other = small(drafter), small("qwen2")
    ids = other.tokenizer.encode("слово    \n\n   слово  \n  " * 4, add_special_tokens=False)
    text = committed(translator(own, other), ids)
    assert excess(own, text) <= 0.02


def test_text_in_ascii_stays_as_it_is_spelled() -> None:
    own, other = small("gpt2"), small("llama2")
    changed = translator(own, other)
    for script in ("English", "code"):
        ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)
        assert committed(changed, ids) == changed.tokens(ids)


def test_a_prompt_stays_as_it_was_read() -> None:
    own, other = small("llama2"), small("qwen2")
    changed = translator(own, other)
    prompt_ids = other.tokenizer.encode("С самого утра шёл дож", add_special_tokens=False)
    prompt = changed.prompt(prompt_ids)
    text = committed(changed, other.tokenizer.encode("дь, и дорога", add_special_tokens=False), prompt)
    assert text[: len(prompt)] == prompt
    assert written(own.vocab, text).decode() == "С самого утра шёл дождь, и дорога"


def test_a_text_that_ends_keeps_its_end() -> None:
    own, other = small("llama2"), small("qwen2")
    ids = other.tokenizer.encode("дорога", add_special_tokens=False)
    text = committed(translator(own, other), [*ids, other.vocab.eos[0], *ids])
    assert text.count(own.vocab.eos[0]) == 1
    assert written(own.vocab, text).decode() == "дорогадорога"


def test_what_follows_an_end_is_written_as_the_drafter_would() -> None:
    own, other = small("llama2"), small("qwen2")
    changed = translator(own, other)
    first, second = (other.tokenizer.encode(text, add_special_tokens=False) for text in ("дорога", " дорога"))
    end = own.vocab.eos[0]
    for before in (first[:0], first):
        added, kept = changed.after([], 0, [*before, other.vocab.eos[0], *second])
        assert kept == 0
        at = added.index(end)
        assert added[at + 1 :] == list(own.speller.spell(" дорога".encode()) or ())
        assert len(added) - at - 1 < len(changed.tokens(second)), "fewer than token by token"
        assert written(own.vocab, added[:at]) == "дорога".encode() * bool(before)


class Counting(Speller):
    """Keeps how many bytes it was asked to spell."""

    def spell(self, data: bytes) -> tuple[int, ...] | None:
        self.longest = max(getattr(self, "longest", 0), len(data))
        return super().spell(data)


@pytest.mark.parametrize("text", ["日本語の長い文章" * 40, "नमस्ते" * 60, "é" * 500, "слово " * 100])
def test_what_is_written_again_is_bounded(text: str) -> None:
    own, other = small("llama2"), small("gpt2")
    counting = Counting(own.tokenizer, own.vocab)
    ids = other.tokenizer.encode(text, add_special_tokens=False)
    committed(DrafterContext(table(own, other), other.vocab, own.vocab, counting), ids)
    longest = max(len(data or b"") for data in (*own.vocab.tokens, *other.vocab.tokens))
    assert counting.longest <= context.WINDOW + 4 + longest * (1 + max(ROUNDS))


# ---------------------------------------------------------------- the drafter that reads it


def test_after_a_change_the_drafter_reads_the_text_as_it_is_now() -> None:
    lm = random_model("llama", 64, seed=1)
    drafter, fresh = Drafter(lm), TransformersModel(lm.model)

    def check() -> None:
        fresh.crop(0)
        wanted = torch.softmax(fresh.forward(drafter.text, 1)[-1], -1)
        _, vectors = drafter.draft(3, 1.0, GeneratorSampler(torch.Generator().manual_seed(0)), lambda _: True)
        assert torch.allclose(torch.from_numpy(vectors[0]), wanted, atol=1e-5)

    drafter.start([1, 2, 3, 4, 5])
    check()
    drafter.extend([6, 7, 8, 9], 5)
    check()
    drafter.extend([10, 9], 7)  # in place of 8 and 9
    assert drafter.text == [1, 2, 3, 4, 5, 6, 7, 10, 9]
    check()
    drafter.extend([11], 9)
    check()
    assert drafter.read < 5  # and no more than it has to
    drafter.extend([12], 6)
    assert drafter.text == [1, 2, 3, 4, 5, 6, 12]
    check()
    drafter.extend([13])
    assert drafter.text[-2:] == [12, 13]
    assert drafter.begun == 5
    check()


def test_a_change_before_the_window_begins_it_anew() -> None:
    lm = random_model("llama", 64, seed=1)
    lm.context = 16
    drafter, fresh = Drafter(lm), TransformersModel(lm.model)
    draw = GeneratorSampler(torch.Generator().manual_seed(0))
    drafter.start(list(range(1, 15)))
    drafter.draft(4, 1.0, draw, lambda _: True)  # slides the window
    assert drafter._base > 4
    for kept, added in ((3, [20, 21]), (4, [22]), (2, list(range(30, 50)))):
        drafter.extend(added, kept)
        _, vectors = drafter.draft(4, 1.0, draw, lambda _: True)
        fresh.crop(0)
        wanted = torch.softmax(fresh.forward(drafter.text[drafter._base :], 1)[-1], -1)
        assert torch.allclose(torch.from_numpy(vectors[0]), wanted, atol=1e-5)


def rounds(target: LanguageModel, drafter: LanguageModel, prompt: list[int], count: int, k: int) -> list[Round]:
    engine_ = engine(target, small("qwen2"), drafter, small("llama2"), draft_length=k)
    return list(engine_.rounds(prompt, count, Sampling(), GeneratorSampler(torch.Generator().manual_seed(0))))


@pytest.mark.parametrize("script", TEXTS)
def test_greedy_text_is_that_of_the_target_in_any_script(script: str) -> None:
    """The drafter knows the text, so drafts are accepted from one change of its text to the next."""
    own, other = small("llama2"), small("qwen2")
    ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)[:90]
    prompt, answer = ids[:10], ids[10:]
    drafter = Knowing(own.vocab, own.speller, TEXTS[script].encode(), wrong=7)
    for k in (1, 4):
        target = Scripted(other.vocab.size, ids)
        records = rounds(target, drafter, prompt, len(answer), k)
        assert tokens(records) == answer
        assert sum(record.counts.accepted for record in records) > len(answer) // 5


class Seldom(Fixed):
    """Wants a draft in every fifth round."""

    def __init__(self) -> None:
        self._rounds = 0

    def begin(self, walk: object) -> bool:  # noqa: ARG002
        self._rounds += 1
        return self._rounds % 5 == 0


@pytest.mark.parametrize("script", TEXTS)
def test_the_drafter_reads_all_that_was_said_since_its_last_draft(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = small("llama2"), small("qwen2")
    ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)[:70]
    drafter = Knowing(own.vocab, own.speller, TEXTS[script].encode(), wrong=7)
    engine_ = engine(Scripted(other.vocab.size, ids), other, drafter, own, draft_length=3)
    engine_.policy = Seldom()
    assert engine_.attached is not None
    began = len(engine_.attached.context.prompt(ids[:10]))
    read: list[bytes] = []
    draft = Drafter.draft

    def noted(self: Drafter, *arguments: Any) -> tuple[list[int], list[Probs]]:
        read.append(written(own.vocab, self.text[began:]))
        return draft(self, *arguments)

    monkeypatch.setattr(Drafter, "draft", noted)
    said: list[bytes] = []
    records: list[Round] = []
    for record in engine_.rounds(ids[:10], 50, Sampling(), GeneratorSampler(torch.Generator().manual_seed(0))):
        if record.draft:
            said.append(written(other.vocab, tokens(records)))
        records.append(record)
    assert tokens(records) == ids[10:60]
    assert read == said
    assert len(read) > 5
    assert sum(record.counts.draft_accepted for record in records) > 5, "as the drafter knows where it is"


@pytest.mark.parametrize("k", [1, 4, 7])
def test_greedy_identity_where_the_text_is_broken_characters(k: int) -> None:
    """A random target says parts of characters; a random drafter reads what becomes of them."""
    size = small("qwen2").vocab.size
    target = random_model("qwen2", size, seed=5)
    prompt = small("qwen2").tokenizer.encode(TEXTS["Hindi"], add_special_tokens=False)[:20]
    expected = generate(target, prompt, 60)
    assert len(set(expected)) > 20
    drafter = random_model("llama", small("llama2").vocab.size, seed=2, layers=1)
    assert tokens(rounds(target, drafter, prompt, 60, k)) == expected


FAMILIES = [*WHOLE, *PARTIAL]


@pytest.mark.parametrize("place", range(len(FAMILIES)), ids=FAMILIES)
def test_greedy_identity_for_every_family_of_tokenizers(place: int) -> None:
    """Each drafts for the one before it, for a random target and one that says a text in two scripts."""
    own, other = small(FAMILIES[place]), small(FAMILIES[place - 1])
    size = other.vocab.size
    known = TEXTS["English"][:60] + TEXTS["Russian"][:60]
    ids = other.tokenizer.encode(known, add_special_tokens=False)
    random = random_model("llama", size, seed=4)
    for target, said in ((Scripted(size, ids), ids[5:45]), (random, generate(random, ids[:5], 40, other.vocab.eos))):
        drafter = Knowing(own.vocab, own.speller, written(other.vocab, [*ids[:5], *said]), wrong=4)
        engine_ = engine(target, other, drafter, own, draft_length=4)
        draw = GeneratorSampler(torch.Generator().manual_seed(0))
        records = list(engine_.rounds(ids[:5], 40, Sampling(), draw))
        assert tokens(records) == said
        assert target is random or sum(record.counts.accepted for record in records) > 3


@pytest.mark.parametrize("script", ["Russian", "Hindi"])
def test_lessons_are_spelled_token_by_token_after_the_prompt_as_it_was_read(script: str) -> None:
    own, other = small("llama2"), small("qwen2")
    ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)[:40]
    serving = SharedDrafter(random_model("llama", own.vocab.size, seed=2, layers=1))
    engine_ = engine(Scripted(other.vocab.size, ids), other, serving.model, own, draft_length=2)
    assert engine_.attached is not None
    engine_.teacher_temperature = 1.0
    adaptation = Adaptation(engine_.attached, serving, None)
    draw = GeneratorSampler(torch.Generator().manual_seed(0))
    records = list(adaptation.following(engine_.rounds(ids[:10], 30, Sampling(), draw)))
    answer, spelled = adaptation.answer(records), engine_.attached.context
    assert answer.prompt == tuple(spelled.prompt(ids[:10]))
    assert answer.tokens == tuple(ids[10:])
    assert [list(part) for part in answer.written] == [spelled.tokens([token]) for token in ids[10:]]
    assert len(answer.distributions) == 30
    text = engine_.attached.drafter.text
    assert text != [*answer.prompt, *itertools.chain.from_iterable(answer.written)]  # which is what it drafted from


# ---------------------------------------------------------------- the distribution, while texts are written again

LETTERS = Shape((b"\xc3", b"\xa9", b"\xc3\xa9"), (b"\xc3", b"\xa9", b"\xa9\xc3", b"\xc3\xa9"), long={b"\xc3\xa9": (3,)})


class Late(Drafter):
    """Draws from its text, and records what it would have said before that was written again."""

    changes = 0

    def extend(self, tokens: Sequence[int], kept: int | None = None) -> None:
        before = list(self.text)
        super().extend(tokens, kept)
        self.was = before if self.text[: len(before)] != before else self.text
        self.changes += self.was is not self.text

    def draft(self, length: int, temperature: float, *rest: Any) -> tuple[list[int], list[Probs]]:
        drafted, vectors = super().draft(length, temperature, *rest)
        model = cast(TableModel, self.model)
        was = getattr(self, "was", self.text)
        late = [tempered(model.row((*was, *drafted[:i])), temperature) for i in range(len(drafted))]
        return drafted, [row.astype(vector.dtype) for row, vector in zip(late, vectors, strict=True)]


class Watched(Late):
    """Only counts."""

    def draft(self, length: int, temperature: float, *rest: Any) -> tuple[list[int], list[Probs]]:
        return Drafter.draft(self, length, temperature, *rest)


def joint_distribution(drafter: type[Late], count: int, **drafting: Any) -> tuple[float, int]:
    """How far the first tokens are from the target's distribution, and how often the context was rewritten."""
    world = make_world("letters", 3, shape=LETTERS)
    world.speller = cast(Any, Greedy(world.drafter_vocab))  # é as one token
    changes = 0

    def run(draw: Sampler) -> tuple[int, ...]:
        nonlocal changes
        own = world.engine(**drafting)
        assert own.attached is not None
        watched = drafter(world.drafter)
        own.attached = replace(own.attached, drafter=watched)
        rounds = own.rounds([PROMPT], count, Sampling(temperature=1.0), draw)
        said = tuple(token for record in rounds for token in record.emitted)
        changes += watched.changes
        return said

    distribution: Distribution = {}
    for probability, said in enumerate_draws(run):
        distribution[said] = distribution.get(said, 0.0) + probability
    return distance(distribution, first_tokens(plain_distribution(world), count, world.vocab.eos)), changes


@pytest.mark.parametrize("mode", ["exact", "intersection"])
@pytest.mark.parametrize("verification", ["block", "token"])
def test_the_joint_distribution_holds_while_texts_are_written_again(mode: str, verification: str) -> None:
    deviation, changes = joint_distribution(Watched, 4, draft_length=1, mode=mode, verification=verification)
    assert deviation < EXACT
    assert changes > 10


def test_the_q_of_a_text_as_it_was_breaks_the_distribution() -> None:
    deviation, changes = joint_distribution(Late, 4, draft_length=1)
    assert changes > 10
    assert deviation > 0.001


# ---------------------------------------------------------------- real tokenizers


@pytest.mark.slow
@pytest.mark.parametrize("target", ["llama3", "qwen2"])
@pytest.mark.parametrize("script", TEXTS)
def test_real_tokenizers_lose_next_to_nothing_in_any_script(script: str, target: str) -> None:
    own, other = real("llama2"), real(target)
    ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)
    text = committed(translator(own, other), ids)
    assert written(own.vocab, text).decode() == TEXTS[script]
    assert excess(own, text) < 0.01
    spelled = translator(own, other).tokens(ids)
    if (script, target) in {("Russian", "llama3"), ("Russian", "qwen2"), ("Hindi", "qwen2")}:
        assert excess(own, spelled) > 0.15  # what it would lose


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "target"), [("llama3", "llama2"), ("qwen2", "llama3"), ("llama3", "qwen2")])
@pytest.mark.parametrize("script", SCRIPTS)
def test_drafters_of_large_vocabularies_lose_little_beyond_ascii(script: str, drafter: str, target: str) -> None:
    own, other = real(drafter), real(target)
    ids = other.tokenizer.encode(TEXTS[script], add_special_tokens=False)
    text = committed(translator(own, other), ids)
    assert written(own.vocab, text) == written(other.vocab, ids)
    assert excess(own, text) < 0.05
