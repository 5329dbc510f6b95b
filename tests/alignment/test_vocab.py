"""What every token writes, and how bytes are written in a tokenizer's own tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from omnidraft.errors import ModelError
from support.project_files import real_tokenizer, shared
from support.small_tokenizers import PARTIAL, WHOLE, bpe, byte_level, plain, sentencepiece, unigram, wrap

Made = tuple[PreTrainedTokenizerFast, Vocab, Speller]


@cache
def made(kind: str) -> Made:
    return make((WHOLE | PARTIAL)[kind]())


def make(backend: Tokenizer) -> Made:
    tokenizer = wrap(backend)
    vocab = read_vocab(tokenizer)
    return tokenizer, vocab, Speller(tokenizer, vocab)


def written(vocab: Vocab, ids: tuple[int, ...]) -> bytes:
    pieces = [vocab.tokens[i] for i in ids]
    assert None not in pieces
    return b"".join(piece for piece in pieces if piece is not None)


def named(tokenizer: PreTrainedTokenizerFast, ids: tuple[int, ...] | None) -> list[str | None]:
    assert ids is not None
    return [tokenizer.backend_tokenizer.id_to_token(i) for i in ids]


def id_of(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    found = tokenizer.backend_tokenizer.token_to_id(word)
    assert found is not None
    return found


# What tends to go wrong: markers, special tokens, byte tokens and aliases that are literal text, broken characters.
SNIPPETS = [
    " hello", " world", "hello", "  ", "   ", "▁", "▁hello", "Ġ", "Ġhello", "</s>", "<s>", "<unk>", "<0x41>", "<0x0A>",
    "<|end|>", "<tool>", " §§ ", "\n\n", "\r\n", "\t", "e\u0301", "été", "日本", "😀", "\u2028", "\x00",
    "\ufffd", "\u0378",
]  # fmt: skip
BROKEN = [b"\xe2\x80", b"\x80", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x96"]
texts = st.lists(
    st.sampled_from([snippet.encode() for snippet in SNIPPETS] + BROKEN)
    | st.text(max_size=6).map(str.encode)
    | st.binary(max_size=5),
    max_size=8,
).map(b"".join)


@pytest.mark.parametrize("kind", WHOLE)
@given(data=st.lists(texts, max_size=3))
@settings(max_examples=60, deadline=None)
def test_bytes_in_are_bytes_out(kind: str, data: list[bytes]) -> None:
    _, vocab, speller = made(kind)
    spellings = speller.spell_many(data)
    assert len(spellings) == len(data)
    for text, ids in zip(data, spellings, strict=True):
        assert ids is not None
        assert written(vocab, ids) == text


@pytest.mark.parametrize("kind", PARTIAL)
@given(data=texts)
@settings(max_examples=60, deadline=None)
def test_without_byte_tokens_bytes_are_written_rightly_or_not_at_all(kind: str, data: bytes) -> None:
    _, vocab, speller = made(kind)
    ids = speller.spell(data)
    assert ids is None or written(vocab, ids) == data


@pytest.mark.parametrize("kind", PARTIAL)
def test_what_cannot_be_written_has_no_spelling_and_its_neighbors_do(kind: str) -> None:
    _, _, speller = made(kind)
    unwritable, broken, writable, empty = speller.spell_many(["a ☃".encode(), b"a\xff", b" hello", b""])
    assert unwritable is None
    assert broken is None
    assert writable is not None
    assert len(writable) == 1
    assert empty == ()


@pytest.mark.parametrize("kind", WHOLE)
def test_text_is_written_by_merges_and_without_a_space_before_it(kind: str) -> None:
    _, vocab, speller = made(kind)
    ids = speller.spell(b"hello world hello")
    assert ids is not None
    assert [vocab.tokens[i] for i in ids] == [b"hello", b" world", b" hello"]


@pytest.mark.parametrize("kind", WHOLE)
@given(words=st.lists(st.sampled_from([" hello", " world", "ing", " the", "été", " don't", " 10", "x", "."])))
@settings(max_examples=30, deadline=None)
def test_ordinary_text_is_written_as_the_tokenizer_itself_does(kind: str, words: list[str]) -> None:
    tokenizer, _, speller = made(kind)
    text = "x" + "".join(words)
    own = tokenizer.encode(text, add_special_tokens=False)
    spaced = kind.startswith(("sentencepiece", "unigram")) or "prefix" in kind
    assert speller.spell((" " if spaced else "").encode() + text.encode()) == tuple(own)


@pytest.mark.parametrize("kind", WHOLE)
@given(text=st.lists(st.sampled_from([" hello", "日本", "ing", "\n", "😀", "  ", "d"])).map("".join))
@settings(max_examples=30, deadline=None)
def test_tokens_are_the_bytes_that_the_tokenizer_decodes(kind: str, text: str) -> None:
    tokenizer, vocab, _ = made(kind)
    ids = tokenizer.encode("x" + text, add_special_tokens=False)
    assert written(vocab, tuple(ids)).decode().removeprefix(" ") == tokenizer.backend_tokenizer.decode(
        ids
    ).removeprefix(" ")


@pytest.mark.parametrize("kind", WHOLE)
def test_special_tokens_in_a_text_are_text(kind: str) -> None:
    _, vocab, speller = made(kind)
    for text in (b"</s>", b"a<s>b", b"<|end|>", b"<unk>"):
        ids = speller.spell(text)
        assert ids is not None
        assert len(ids) > 1
        assert not vocab.special.keys() & set(ids)


def test_a_literal_marker_or_byte_token_is_written_in_bytes_and_spares_the_rest() -> None:
    tokenizer, _, speller = made("sentencepiece")
    marker = ["<0xE2>", "<0x96>", "<0x81>"]
    assert named(tokenizer, speller.spell(" hello▁ hello".encode())) == ["▁hello", *marker, "▁hello"]
    tokenizer, _, speller = made("unigram")
    ids = speller.spell(b" hello<0x41> hello")
    assert named(tokenizer, ids)[0] == named(tokenizer, ids)[-1] == "▁hello"
    assert id_of(tokenizer, "<0x41>") not in (ids or ())


def test_bytes_of_a_broken_character_are_byte_tokens_beside_merged_text() -> None:
    tokenizer, _, speller = made("sentencepiece")
    ids = speller.spell(b" hello\xe2\x80 world\xff")
    assert named(tokenizer, ids) == ["▁hello", "<0xE2>", "<0x80>", "▁world", "<0xFF>"]


def test_a_token_that_breaks_off_inside_a_character_is_written_by_itself() -> None:
    quote = "Ġâ\u0122"  # the aliases of a space, E2 and 80
    tokenizer, vocab, speller = make(byte_level(more=[quote]))
    token = id_of(tokenizer, quote)
    assert vocab.tokens[token] == b" \xe2\x80"
    assert speller.spell(b" \xe2\x80") == (token,)
    assert vocab.tokens[(speller.spell(b"\xe2\x80") or ())[0]] == b"\xe2"


def test_literal_added_tokens_are_used_under_their_own_ids() -> None:
    tokenizer, vocab, speller = made("added tokens")
    tool, spaces = id_of(tokenizer, "<tool>"), id_of(tokenizer, "   ")
    assert (vocab.tokens[tool], vocab.tokens[spaces]) == (b"<tool>", b"   ")
    hello = id_of(tokenizer, "hello")
    assert speller.spell(b"hello<tool>   hello") == (hello, tool, spaces, hello)
    assert named(tokenizer, speller.spell("a §§ b".encode())) == ["a", "Ġ", "§§", "Ġ", "b"]


def test_a_marked_added_token_of_the_model_is_read_as_the_decoder_does() -> None:
    backend = sentencepiece()
    backend.add_tokens(["▁▁"])
    tokenizer, vocab, speller = make(backend)
    token = id_of(tokenizer, "▁▁")
    assert vocab.tokens[token] == b"  "
    assert written(vocab, speller.spell("▁▁".encode()) or ()) == "▁▁".encode()


def test_characters_that_stand_for_no_byte_are_read_literally() -> None:
    tokenizer, vocab, _ = make(byte_level(more=["\xa0\xa0"]))  # below 256, yet no alias
    token = id_of(tokenizer, "\xa0\xa0")
    assert vocab.tokens[token] == tokenizer.backend_tokenizer.decode([token]).encode() == b"\xc2\xa0\xc2\xa0"


def test_special_unused_and_padded_ids_write_nothing() -> None:
    tokenizer = wrap(sentencepiece())
    length = len(tokenizer)
    vocab = read_vocab(tokenizer, size=length + 3)
    assert len(vocab.tokens) == vocab.size == length + 3
    assert vocab.tokens[:3] == (None, None, None)
    assert vocab.tokens[length:] == (None, None, None)
    assert vocab.special == {0: "<unk>", 1: "<s>", 2: "</s>"}
    assert vocab.bos == 1
    assert None not in vocab.tokens[3:length]
    assert b"" not in vocab.tokens


def test_all_256_bytes_have_a_token() -> None:
    for kind in ("sentencepiece", "byte-level"):
        assert {bytes([byte]) for byte in range(256)} <= set(made(kind)[1].tokens)


def test_end_of_text_ids_are_the_tokenizers_own_first_and_each_once() -> None:
    tokenizer = wrap(sentencepiece())
    assert read_vocab(tokenizer).eos == (2,)
    assert read_vocab(tokenizer, eos=[7, 2, 7]).eos == (2, 7)
    assert read_vocab(tokenizer, eos=[7]).eos == (7,), "generation does not end with the tokenizer's own"
    assert read_vocab(tokenizer, eos=[7], drafts=True).eos == (2, 7)
    tokenizer.eos_token = None
    assert read_vocab(tokenizer, eos=[7]).eos == (7,)
    assert read_vocab(tokenizer).eos == ()


def test_added_tokens_above_the_logits_are_dropped() -> None:
    tokenizer = wrap(sentencepiece())
    rows = len(tokenizer)
    tokenizer.add_tokens(["<tool>"])
    vocab = read_vocab(tokenizer, size=rows)
    assert vocab.size == len(vocab.tokens) == rows
    assert written(vocab, Speller(tokenizer, vocab).spell(b"<tool>") or ()) == b"<tool>"


@pytest.mark.parametrize(
    ("backend", "size", "eos", "message"),
    [
        (sentencepiece, 100, (), "only 100 rows of logits"),
        (sentencepiece, None, (10**6,), "end-of-text id 1000000 is not in 0"),
        (sentencepiece, None, (-1,), "end-of-text id -1 is not in 0"),
        (sentencepiece, None, (True,), "end-of-text id True is not in 0"),
        (sentencepiece, None, ("x",), "end-of-text id 'x' is not in 0"),
        (sentencepiece, None, ([2],), "end-of-text id .2. is not in 0"),
    ],
)
def test_a_model_that_does_not_fit_its_tokenizer_is_refused(
    backend: Callable[[], Tokenizer], size: int | None, eos: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        read_vocab(wrap(backend()), size, eos)


def test_kinds_that_do_not_concatenate_are_refused() -> None:
    word_piece = Tokenizer(models.WordPiece({"<unk>": 0, "a": 1, "##b": 2}, unk_token="<unk>"))
    word_piece.decoder = decoders.WordPiece()
    no_decoder = Tokenizer(bpe(["ab"], ["<unk>"]))
    suffix = Tokenizer(models.BPE({"<unk>": 0, "a</w>": 1}, [], end_of_word_suffix="</w>"))
    suffix.decoder = decoders.BPEDecoder()
    pattern = plain()
    pattern.decoder = decoders.Sequence([decoders.Replace("_", ""), decoders.Fuse()])
    early_strip = plain()
    early_strip.decoder = decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()])
    mixed = byte_level()
    mixed.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.ByteLevel()])
    for backend, word in [
        (word_piece, "##"),
        (no_decoder, "none"),
        (suffix, "</w>"),
        (pattern, "Replace"),
        (early_strip, "Strip"),
        (mixed, "mixes"),
    ]:
        with pytest.raises(ModelError, match=word) as caught:
            read_vocab(PreTrainedTokenizerFast(tokenizer_object=backend))
        assert "\n" not in str(caught.value)


def test_a_tokenizer_without_fast_backend_is_refused() -> None:
    class Slow:
        all_special_ids: tuple[int, ...] = ()

    with pytest.raises(ModelError, match="Slow has no fast backend"):
        read_vocab(Slow())  # type: ignore[arg-type]


def reordered(backend: Tokenizer) -> Tokenizer:
    state = json.loads(backend.to_str())
    state["model"]["merges"].reverse()
    return Tokenizer.from_str(json.dumps(state))


def grown(backend: Tokenizer, *, special: bool = False) -> Tokenizer:
    backend.add_tokens([AddedToken("<tool>", special=special, normalized=False)])
    return backend


def split_at_digits(backend: Tokenizer) -> Tokenizer:
    backend.pre_tokenizer = pre_tokenizers.Digits(individual_digits=True)
    return backend


def test_the_fingerprint_covers_bytes_merges_size_and_ends() -> None:
    vocabs = [
        read_vocab(wrap(sentencepiece())),
        read_vocab(wrap(sentencepiece()), size=2000),
        read_vocab(wrap(sentencepiece()), eos=[7]),
        read_vocab(wrap(reordered(sentencepiece()))),
        read_vocab(wrap(grown(sentencepiece()))),
        read_vocab(wrap(grown(sentencepiece(), special=True))),
        read_vocab(wrap(split_at_digits(sentencepiece()))),
        read_vocab(wrap(byte_level())),
        read_vocab(wrap(unigram())),
    ]
    assert len({vocab.fingerprint for vocab in vocabs}) == len(vocabs)
    assert all(len(vocab.fingerprint) == 64 for vocab in vocabs)


def test_the_fingerprint_does_not_depend_on_use() -> None:
    fresh, used = wrap(byte_level()), wrap(byte_level(nfc=False))
    used(["hello hello", "x"], truncation=True, max_length=1)
    assert used.backend_tokenizer.truncation is not None
    assert read_vocab(fresh).fingerprint == read_vocab(used).fingerprint


@pytest.mark.parametrize("kind", WHOLE | PARTIAL)
def test_reading_and_spelling_leave_the_tokenizer_as_it_was(kind: str) -> None:
    backend = (WHOLE | PARTIAL)[kind]()
    tokenizer = wrap(backend)
    before = tokenizer.backend_tokenizer.to_str()
    Speller(tokenizer, read_vocab(tokenizer)).spell(" hello▁\n<tool>".encode())
    assert tokenizer.backend_tokenizer.to_str() == before


def test_random_merges_are_switched_off_for_spelling_alone() -> None:
    tokenizer, _, speller = make(sentencepiece(dropout=0.9))
    assert len({speller.spell(b" hello world hello") for _ in range(20)}) == 1
    assert tokenizer.backend_tokenizer.model.dropout == pytest.approx(0.9)


def test_a_long_text_with_a_character_at_fault_is_spelled_around_it() -> None:
    tokenizer, _, speller = made("unigram")
    ids = speller.spell(b" hello" * 200 + b"</s>" + b" hello" * 200) or ()
    assert named(tokenizer, ids).count("▁hello") >= 398


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2"])
def test_real_tokenizers_write_real_text_as_they_do_themselves(name: str) -> None:
    tokenizer = real_tokenizer(name)
    vocab = read_vocab(tokenizer)
    speller = Speller(tokenizer, vocab)
    lines = shared("data", "gsm8k", "test.jsonl").read_text(encoding="utf-8").splitlines()[:200]
    answers = [json.loads(line)["answer"] for line in lines] + ["“Curly” – 10 ٪ हिन्दी 日本語 👩‍💻"]
    for text, ids in zip(answers, speller.spell_many([text.encode() for text in answers]), strict=True):
        assert ids is not None
        assert written(vocab, ids) == text.encode()
        if name != "llama2":
            assert list(ids) == tokenizer.encode(text, add_special_tokens=False)
    if name == "llama2":  # that tokenizer alone puts a space before a text
        for text, ids in zip(answers, speller.spell_many([f" {text}".encode() for text in answers]), strict=True):
            assert list(ids or ()) == tokenizer.encode(text, add_special_tokens=False)
