"""The bytes of every token, and the spelling of bytes in a tokenizer's own tokens, for every family of tokenizers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.errors import ModelError
from support.lanes import Language, read_language, real_language, written
from support.lanes import family_language as made
from support.project_files import shared
from support.small_tokenizers import bpe, byte_level, plain, sentencepiece, unigram, wrap
from support.texts import TEXTS
from support.tokenizer_families import BY_HAND, OWN, PARTIAL, WHOLE

TESTS = Path(__file__).parents[1]
FAMILIES = [*WHOLE, *PARTIAL, *OWN]
NO_BYTES = {"xglm", "xlnet", "own_xglm", "own_xlnet", *BY_HAND}  # these cannot write what they have no token for
KNOWING = [name for name in FAMILIES if name not in NO_BYTES]
SPACED = {"llama2", "mistral", "roberta", "unigram_with_bytes", "own_llama", "own_code_llama"}  # a space before a text
CHANGED = {"unigram_with_bytes": {"Chinese"}}  # by the normalizer, which spelling leaves out

# What tends to go wrong: markers, special tokens, byte tokens and aliases that are literal text, broken characters.
PIECES = [
    " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "▁", "▁hello", "Ġ", "Ġhello", "<s>", "</s>", "<unk>", "<0x41>",
    "<0x0A>", "<|endoftext|>", "[INST]", "<tool_call>", "<｜User｜>", "the", "then", "river", " [left]", "[right] ",
    " для слов ", "1234567", "can't", "``", "''", "é", "e\u0301", "ﬁ", "①", "𐍈", "👩‍💻", "🇩🇪", "अनुच्छेद", "日本語",
    "\u2028", "\x00", "\ufffd", "\u00a0", "\u0378",
]  # fmt: skip
BROKEN = [b"\xe2\x80", b"\x80", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xe2\x96"]
raw = st.lists(
    st.sampled_from([piece.encode() for piece in PIECES] + BROKEN)
    | st.text(max_size=6).map(str.encode)
    | st.binary(max_size=5),
    max_size=8,
).map(b"".join)


def id_of(language: Language, word: str) -> int:
    found = language.tokenizer.convert_tokens_to_ids(word)
    assert isinstance(found, int)
    return found


def decoded(language: Language, ids: list[int]) -> str:
    text = language.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text.removeprefix(" ")


def spelled(language: Language, data: bytes) -> list[str | None]:
    """The names of the tokens that spell bytes."""
    return [language.tokenizer.convert_ids_to_tokens(i) for i in language.speller.spell(data) or ()]  # type: ignore[misc]


# ---------------------------------------------------------------- every family


@pytest.mark.slow
def test_a_family_is_the_same_in_every_process() -> None:
    """Else a test that depends on what a vocabulary has passes here and fails there."""
    code = "from support.tokenizer_families import *; print([family(name).backend_tokenizer.to_str() for name in OWN])"
    other = run(
        [sys.executable, "-c", code], cwd=TESTS, capture_output=True, check=True, text=True, encoding="utf-8"
    ).stdout
    assert other.strip() == str([made(name).tokenizer.backend_tokenizer.to_str() for name in OWN])


@pytest.mark.medium
@pytest.mark.parametrize("name", KNOWING)
@given(texts=st.lists(raw, max_size=3))
@settings(max_examples=30)
def test_bytes_in_are_bytes_out(name: str, texts: list[bytes]) -> None:
    vocab, speller = made(name).vocab, made(name).speller
    for data, ids in zip(texts, speller.spell_many(texts), strict=True):
        assert ids is not None
        assert written(vocab, ids) == data
        assert not vocab.special.keys() & set(ids)
        assert speller.spell_most(data) == ids


@pytest.mark.medium
@pytest.mark.parametrize("name", sorted(NO_BYTES))
@given(data=raw)
@settings(max_examples=40)
def test_without_bytes_the_known_characters_are_written(name: str, data: bytes) -> None:
    vocab, speller = made(name).vocab, made(name).speller
    ids = speller.spell(data)
    most = written(vocab, speller.spell_most(data)).decode()
    assert ids is None or written(vocab, ids) == data == most.encode()
    letters = {token.decode() for token in vocab.tokens if token}
    for letter in letters & set(data.decode(errors="replace")) - {"\ufffd"}:
        assert most.count(letter) == data.decode(errors="replace").count(letter)


@pytest.mark.parametrize("name", sorted(NO_BYTES))
def test_what_cannot_be_written_has_no_spelling_and_the_next_text_has(name: str) -> None:
    unwritable, broken, writable, empty = made(name).speller.spell_many(["a ☃".encode(), b"a\xff", b"a", b""])
    assert (unwritable, broken, empty) == (None, None, ())
    assert writable


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_and_texts_read_as_they_are_decoded(name: str) -> None:
    language, vocab = made(name), made(name).vocab
    letter = language.read("x")[-1]
    around = written(vocab, [letter])
    for token, data in enumerate(vocab.tokens):
        if data is not None:
            between = (around + data + around).decode(errors="replace").removeprefix(" ")
            assert between == decoded(language, [letter, token, letter])
    for text in TEXTS.values():
        ids = language.read(text)
        assert written(vocab, ids).decode().removeprefix(" ") == decoded(language, ids)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_token_with_bytes_is_spelled(name: str) -> None:
    vocab = made(name).vocab
    known = [data for data in vocab.tokens if data is not None]
    assert len(known) > 500
    for data, ids in zip(known, made(name).speller.spell_many(known), strict=True):
        assert ids is not None
        assert written(vocab, ids) == data


@pytest.mark.parametrize("name", KNOWING)
def test_texts_are_spelled_as_the_tokenizer_itself_does(name: str) -> None:
    for script, text in TEXTS.items():
        if script not in CHANGED.get(name, ()):
            spaced = " " * (name in SPACED) + text
            assert made(name).speller.spell(spaced.encode()) == tuple(made(name).read(text))


@pytest.mark.parametrize("name", [*FAMILIES, *BY_HAND])
def test_reading_and_spelling_leave_the_tokenizer_as_it_was(name: str) -> None:
    tokenizer = made(name).tokenizer
    before = tokenizer.backend_tokenizer.to_str()
    Speller(tokenizer, read_vocab(tokenizer)).spell(" hello▁\n<tool>".encode())
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("llama2", 96), ("llama3", 0), ("qwen2", 1673)])
def test_real_tokenizers_are_spelled_as_they_do_themselves(name: str, count: int) -> None:
    """Tokens, but for some that no text has: Qwen2 splits at combining marks, which stand inside of Thai words."""
    language = real_language(name)
    known = [(i, data) for i, data in enumerate(language.vocab.tokens) if data is not None]
    spellings = language.speller.spell_many([data for _, data in known])
    others = [(data, ids) for (i, data), ids in zip(known, spellings, strict=True) if ids != (i,)]
    assert len(others) == count
    prefix = "\n" if name == "llama2" else ""  # behind it, that tokenizer puts no space
    for data, ids in others:
        assert language.read(prefix + data.decode()) == [*language.read(prefix), *(ids or ())]
    lines = shared("data", "gsm8k", "test.jsonl").read_text(encoding="utf-8").splitlines()[:200]
    for text in [json.loads(line)["answer"] for line in lines] + ["“Curly” – 10 ٪ हिन्दी 日本語 👩‍💻"]:
        spaced = (" " * (name == "llama2") + text).encode()
        assert language.speller.spell(spaced) == tuple(language.read(text))
        assert written(language.vocab, language.speller.spell(text.encode()) or ()) == text.encode()


# ---------------------------------------------------------------- single cases


@pytest.mark.parametrize(
    ("backend", "data", "names"),
    [  # a literal marker or byte token, and the bytes of a broken character, are byte tokens beside merged text
        (sentencepiece, " hello▁ hello".encode(), ["▁hello", "<0xE2>", "<0x96>", "<0x81>", "▁hello"]),
        (sentencepiece, b" hello\xe2\x80 world\xff", ["▁hello", "<0xE2>", "<0x80>", "▁world", "<0xFF>"]),
        (unigram, b" hello<0x41> hello", ["▁hello", "<", "0", "x", "4", "1", ">", "▁hello"]),
    ],
)
def test_what_merges_must_not_see_spares_the_rest(
    backend: Callable[[], Tokenizer], data: bytes, names: list[str]
) -> None:
    assert spelled(read_language(wrap(backend())), data) == names


def test_a_token_that_breaks_off_inside_a_character_is_written_by_itself() -> None:
    quote = "Ġâ\u0122"  # the aliases of a space, E2 and 80
    language = read_language(wrap(byte_level(more=[quote])))
    assert language.vocab.tokens[id_of(language, quote)] == b" \xe2\x80"
    assert spelled(language, b" \xe2\x80") == [quote]
    assert spelled(language, b"\xe2\x80")[0] == "â"


def test_characters_that_stand_for_no_byte_are_read_literally() -> None:
    language = read_language(wrap(byte_level(more=["\xa0\xa0"])))  # below 256, yet no alias
    assert language.vocab.tokens[id_of(language, "\xa0\xa0")] == b"\xc2\xa0\xc2\xa0"


def test_words_that_no_merges_lead_to_are_taken_whole_where_the_tokenizer_does() -> None:
    language = made("llama3")
    assert spelled(language, b" unmerged") == ["Ġunmerged"]
    state = language.tokenizer.backend_tokenizer.to_str()
    merging = Tokenizer.from_str(state.replace('"ignore_merges":true', '"ignore_merges":false'))
    assert len(spelled(read_language(PreTrainedTokenizerFast(tokenizer_object=merging)), b" unmerged")) > 1


def test_added_tokens_read_as_decoded_unless_that_is_broken() -> None:
    backend = byte_level()
    backend.add_tokens(["été", "Ġx"])
    language = read_language(wrap(backend))
    accented, aliased = (id_of(language, word) for word in ("été", "Ġx"))
    assert decoded(language, [accented]) != "été"  # by the decoder, for which é is the alias of a byte
    assert language.vocab.tokens[accented] == "été".encode()
    assert language.speller.spell("été".encode()) == (accented,)
    assert language.vocab.tokens[aliased] == b" x"
    marked = sentencepiece()
    marked.add_tokens(["▁▁"])
    language = read_language(wrap(marked))
    assert language.vocab.tokens[id_of(language, "▁▁")] == b"  "
    assert written(language.vocab, language.speller.spell("▁▁".encode()) or ()) == "▁▁".encode()


def test_longer_added_tokens_go_first_and_single_words_stand_alone() -> None:
    language = made("added")
    for text in ("then", "the then", "river", "rivers", "a river."):
        assert language.speller.spell(text.encode()) == tuple(language.read(text))
    assert spelled(language, b"then") == ["then"]
    assert "river" not in spelled(language, b"rivers")
    taken = "a [left] и для слов ".encode()
    assert written(language.vocab, language.speller.spell(taken) or ()) == taken


def test_special_unused_and_padded_ids_write_nothing() -> None:
    tokenizer = wrap(sentencepiece())
    length = len(tokenizer)
    vocab = read_vocab(tokenizer, size=length + 3)
    assert len(vocab.tokens) == vocab.size == length + 3
    assert vocab.tokens[:3] == vocab.tokens[length:] == (None, None, None)
    assert vocab.special == {0: "<unk>", 1: "<s>", 2: "</s>"}
    assert vocab.bos == 1
    assert not {None, b""} & {*vocab.tokens[3:length]}


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
    language = read_language(tokenizer, rows)
    assert language.vocab.size == len(language.vocab.tokens) == rows
    assert written(language.vocab, language.speller.spell(b"<tool>") or ()) == b"<tool>"


@pytest.mark.parametrize(
    ("size", "eos", "message"),
    [
        (100, (), "only 100 rows of logits"),
        *[(None, (end,), f"end-of-text id {end!r} is not in 0") for end in (10**6, -1, True, "x")],
        (None, ([2],), "end-of-text id .2. is not in 0"),
    ],
)
def test_a_model_that_does_not_fit_its_tokenizer_is_refused(size: int | None, eos: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_vocab(wrap(sentencepiece()), size, eos)


def with_decoder(backend: Tokenizer, *steps: Any) -> Tokenizer:
    backend.decoder = decoders.Sequence(list(steps))
    return backend


WORD_PIECE = models.WordPiece({"<unk>": 0, "a": 1, "##b": 2}, unk_token="<unk>")
SUFFIX = models.BPE({"<unk>": 0, "a</w>": 1}, [], end_of_word_suffix="</w>")


@pytest.mark.parametrize(
    ("backend", "word"),
    [
        (lambda: with_decoder(Tokenizer(WORD_PIECE), decoders.WordPiece()), "##"),
        (lambda: Tokenizer(bpe(["ab"], ["<unk>"])), "none"),
        (lambda: with_decoder(Tokenizer(SUFFIX), decoders.BPEDecoder()), "</w>"),
        (lambda: with_decoder(plain(), decoders.Replace("_", ""), decoders.Fuse()), "Replace"),
        (lambda: with_decoder(plain(), decoders.Strip(" ", 1, 0), decoders.Fuse()), "Strip"),
        (lambda: with_decoder(byte_level(), decoders.ByteFallback(), decoders.ByteLevel()), "mixes"),
    ],
)
def test_kinds_that_do_not_concatenate_are_refused(backend: Callable[[], Tokenizer], word: str) -> None:
    with pytest.raises(ModelError, match=word) as caught:
        read_vocab(PreTrainedTokenizerFast(tokenizer_object=backend()))
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


def test_the_fingerprint_covers_bytes_merges_size_and_ends_and_not_use() -> None:
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
    used = wrap(byte_level(nfc=False))
    used(["hello hello", "x"], truncation=True, max_length=1)
    assert used.backend_tokenizer.truncation is not None
    assert read_vocab(used).fingerprint == vocabs[-2].fingerprint


def test_random_merges_are_switched_off_for_spelling_alone() -> None:
    language = read_language(wrap(sentencepiece(dropout=0.9)))
    assert len({language.speller.spell(b" hello world hello") for _ in range(20)}) == 1
    assert language.tokenizer.backend_tokenizer.model.dropout == pytest.approx(0.9)


def test_a_long_text_with_a_character_at_fault_is_spelled_around_it() -> None:
    names = spelled(read_language(wrap(unigram())), b" hello" * 200 + b"</s>" + b" hello" * 200)
    assert names.count("▁hello") >= 398
