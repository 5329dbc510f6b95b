"""Streaming of whole characters, against what the tokenizer itself decodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from transformers import PreTrainedTokenizerFast

from omnidraft.alignment.vocab import Vocab, read_vocab
from omnidraft.text.detokenizer import Detokenizer
from support.small_tokenizers import byte_level, sentencepiece, unigram, wrap


def metaspace() -> Tokenizer:
    tokenizer = sentencepiece(metaspace=True, fallback=False)
    tokenizer.decoder = decoders.Metaspace("▁", "always")
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "sentencepiece": sentencepiece,
    "byte level": byte_level,
    "unigram": unigram,
    "metaspace": metaspace,
}
IDS = st.lists(st.integers(0, 60) | st.integers(170, 290))  # special tokens, ASCII and bytes beyond it
TEXTS = st.text(st.sampled_from(" ahelotdf10\n\té日本😀👩‍👩‍👧▁<>")) | st.text()


@cache
def language(kind: str) -> tuple[PreTrainedTokenizerFast, Vocab]:
    tokenizer = wrap(KINDS[kind]())
    return tokenizer, read_vocab(tokenizer)


def stream(kind: str, prompt: Sequence[int] = ()) -> Detokenizer:
    tokenizer, vocab = language(kind)
    fallback = {i for i in range(vocab.size) if re.fullmatch("<0x..>", str(tokenizer.convert_ids_to_tokens(i)))}
    fallback = fallback if kind in ("sentencepiece", "unigram") else set()
    return Detokenizer(vocab.tokens, prompt, fallback=fallback, opening=lambda token: str(tokenizer.decode([token])))


def decode(kind: str, ids: Sequence[int]) -> str:
    return str(language(kind)[0].decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def pieces(kind: str, prompt: Sequence[int], answer: Sequence[int], cuts: Sequence[int]) -> list[str]:
    text = stream(kind, prompt)
    places = sorted({0, len(answer), *(cut % (len(answer) + 1) for cut in cuts)})
    found = [text.feed(answer[a:b]) for a, b in pairwise(places)]
    return [*found, text.end()]


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(before=TEXTS, after=TEXTS, cuts=st.lists(st.integers(0, 99)))
def test_pieces_add_up_to_what_the_tokenizer_decodes(kind: str, before: str, after: str, cuts: list[int]) -> None:
    tokenizer, _ = language(kind)
    prompt = tokenizer.encode(before)
    answer = tokenizer.encode(after, add_special_tokens=False)
    whole, known = decode(kind, prompt + answer), decode(kind, prompt)
    found = pieces(kind, prompt, answer, cuts)
    assert known + "".join(found) == whole
    if "\ufffd" not in after:
        assert not any("\ufffd" in piece for piece in found)


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(prompt=IDS, answer=IDS, cuts=st.lists(st.integers(0, 99)))
def test_any_ids_at_all(kind: str, prompt: list[int], answer: list[int], cuts: list[int]) -> None:
    size = language(kind)[1].size
    prompt, answer = ([i for i in ids if i < size] for ids in (prompt, answer))
    known, whole = decode(kind, prompt), decode(kind, prompt + answer)
    found = "".join(pieces(kind, prompt, answer, cuts))
    if whole.startswith(known) and not known.endswith("\ufffd"):
        assert known + found == whole
    else:  # the answer mends or breaks the characters that the prompt ends with
        assert whole.endswith(found)


def letter(kind: str) -> int:
    """A token of one letter that is no byte token."""
    return language(kind)[0].get_vocab()["a"]


def ids_of(kind: str, text: str) -> list[int]:
    """One token for each byte."""
    return [language(kind)[1].tokens.index(bytes([byte])) for byte in text.encode()]


def test_a_character_comes_out_with_its_last_byte() -> None:
    text, ids = stream("byte level"), ids_of("byte level", "é😀")
    assert [text.feed([token]) for token in ids] == ["", "é", "", "", "", "😀"]
    assert text.feed(ids[:1]) == ""
    assert text.end() == "\ufffd"


def test_a_run_of_byte_tokens_comes_out_at_its_end() -> None:
    ids = ids_of("sentencepiece", "é😀")
    text, after = stream("sentencepiece"), letter("sentencepiece")
    assert [text.feed([token]) for token in [*ids, after]] == [""] * 6 + ["é😀a"]
    assert [text.feed([token]) for token in [*ids[:3], after]] == [""] * 3 + ["\ufffd" * 3 + "a"]
    assert text.feed(ids[:2]) == ""
    assert text.end() == "é"


@pytest.mark.parametrize("kind", ["sentencepiece", "byte level"])
def test_a_character_that_the_prompt_began_belongs_to_the_answer(kind: str) -> None:
    first, second = ids_of(kind, "é")
    mended = stream(kind, [first])
    assert mended.feed([second]) + mended.end() == "é"
    assert stream(kind, [first]).feed([letter(kind)] * 2) == "aa"  # the broken byte shows in the prompt's text
    assert stream(kind, [first]).end() == ""
