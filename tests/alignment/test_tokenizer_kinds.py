"""Every family of tokenizers: bytes in are bytes out, reading is decoding, and any of them can draft for any other."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.spelling_table import SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, Vocab, read_vocab
from support.project_files import real_tokenizer
from support.small_tokenizers import byte_level, sentencepiece, wrap
from support.texts import TEXTS
from support.tokenizer_families import OWN, PARTIAL, WHOLE, family

TESTS = Path(__file__).parents[1]
BUILT = [*WHOLE, *PARTIAL, *OWN]
NO_BYTES = {"xglm", "xlnet", "own_xglm", "own_xlnet"}  # these cannot write what they have no token for
KNOWING = [name for name in BUILT if name not in NO_BYTES]
SPACED = {"llama2", "mistral", "roberta", "unigram_with_bytes", "own_llama", "own_code_llama"}  # a space before a text
CHANGED = {"unigram_with_bytes": {"Chinese"}}  # by the normalizer, which spelling leaves out

PIECES = [
    " ", "  ", "\n", "\n\n", "\t", "\r\n", "▁", "Ġ", "<s>", "</s>", "<unk>", "<0x41>", "<|endoftext|>", "[INST]",
    "<tool_call>", "<｜User｜>", "the", "then", "river", " [left]", "[right] ", " для слов ", "1234567", "can't", "``",
    "''", "é", "e\u0301", "ﬁ", "①", "𐍈", "👩‍💻", "🇩🇪", "अनुच्छेद", "日本語", "\u2028", "\x00", "\ufffd", "\u00a0",
]  # fmt: skip
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join)
raw = st.lists(texts.map(str.encode) | st.binary(max_size=4), max_size=4).map(b"".join)


def test_a_family_is_the_same_in_every_process() -> None:
    """Else a test that depends on what a vocabulary has passes here and fails there."""
    code = "from support.tokenizer_families import *; print([family(name).backend_tokenizer.to_str() for name in OWN])"
    others = [run([sys.executable, "-c", code], cwd=TESTS, capture_output=True, check=True).stdout for _ in range(2)]
    assert others[0] == others[1]


@cache
def made(name: str) -> tuple[PreTrainedTokenizerFast, Vocab, Speller]:
    tokenizer = family(name)
    vocab = read_vocab(tokenizer)
    return tokenizer, vocab, Speller(tokenizer, vocab)


@cache
def table(drafter: str, target: str) -> SpellingTable:
    (_, own, speller), (_, vocab, target_speller) = made(drafter), made(target)
    return build_table(own, vocab, speller, target_speller)


def translator(drafter: str, target: str) -> DrafterContext:
    return DrafterContext(table(drafter, target), made(target)[1], made(drafter)[1], made(drafter)[2])


def written(vocab: Vocab, ids: list[int] | tuple[int, ...]) -> bytes:
    return b"".join(vocab.tokens[i] or b"" for i in ids)


def id_of(tokenizer: PreTrainedTokenizerFast, word: str) -> int:
    found = tokenizer.convert_tokens_to_ids(word)
    assert isinstance(found, int)
    return found


def decoded(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


def own_ids(name: str, text: str) -> list[int]:
    ids: list[int] = made(name)[0].encode(text, add_special_tokens=False)
    return ids


# ---------------------------------------------------------------- one tokenizer


@pytest.mark.parametrize("name", KNOWING)
@given(data=raw)
@settings(max_examples=40, deadline=None)
def test_bytes_in_are_bytes_out(name: str, data: bytes) -> None:
    _, vocab, speller = made(name)
    ids = speller.spell(data)
    assert ids is not None
    assert written(vocab, ids) == data
    assert not vocab.special.keys() & set(ids)
    assert speller.spell_most(data) == ids


@pytest.mark.parametrize("name", sorted(NO_BYTES))
@given(data=raw)
@settings(max_examples=40, deadline=None)
def test_without_bytes_the_known_characters_are_written(name: str, data: bytes) -> None:
    _, vocab, speller = made(name)
    ids = speller.spell(data)
    most = written(vocab, speller.spell_most(data)).decode()
    if ids is not None:
        assert written(vocab, ids) == data
        assert most.encode() == data
    letters = {token.decode() for token in vocab.tokens if token}
    for letter in letters & set(data.decode(errors="replace")) - {"\ufffd"}:
        assert most.count(letter) == data.decode(errors="replace").count(letter)


@pytest.mark.parametrize("name", BUILT)
def test_every_token_reads_as_it_is_decoded(name: str) -> None:
    tokenizer, vocab, _ = made(name)
    letter = own_ids(name, "x")[-1]
    around = written(vocab, [letter])
    for token, data in enumerate(vocab.tokens):
        if data is not None:
            between = decoded(tokenizer, [letter, token, letter])
            assert (around + data + around).decode(errors="replace").removeprefix(" ") == between.removeprefix(" ")


@pytest.mark.parametrize("name", BUILT)
def test_texts_read_as_they_are_decoded(name: str) -> None:
    tokenizer, vocab, _ = made(name)
    for text in TEXTS.values():
        ids = own_ids(name, text)
        assert written(vocab, ids).decode().removeprefix(" ") == decoded(tokenizer, ids).removeprefix(" ")


@pytest.mark.parametrize("name", BUILT)
def test_every_token_with_bytes_is_spelled(name: str) -> None:
    _, vocab, speller = made(name)
    known = [data for data in vocab.tokens if data is not None]
    assert len(known) > 500
    for data, ids in zip(known, speller.spell_many(known), strict=True):
        assert ids is not None
        assert written(vocab, ids) == data


@pytest.mark.parametrize("name", KNOWING)
def test_texts_are_spelled_as_the_tokenizer_itself_does(name: str) -> None:
    for script, text in TEXTS.items():
        if script not in CHANGED.get(name, ()):
            assert made(name)[2].spell((" " * (name in SPACED) + text).encode()) == tuple(own_ids(name, text))


def test_words_that_no_merges_lead_to_are_taken_whole_where_the_tokenizer_does() -> None:
    tokenizer, vocab, speller = made("llama3")
    token = id_of(tokenizer, "Ġunmerged")
    assert vocab.tokens[token] == b" unmerged"
    assert speller.spell(b" unmerged") == (token,)
    merging = Tokenizer.from_str(
        tokenizer.backend_tokenizer.to_str().replace('"ignore_merges":true', '"ignore_merges":false')
    )
    other = PreTrainedTokenizerFast(tokenizer_object=merging)
    assert len(Speller(other, read_vocab(other)).spell(b" unmerged") or ()) > 1


def test_added_tokens_read_as_decoded_unless_that_is_broken() -> None:
    backend = byte_level()
    backend.add_tokens(["été", "Ġx"])
    tokenizer = wrap(backend)
    vocab = read_vocab(tokenizer)
    accented, aliased = (id_of(tokenizer, word) for word in ("été", "Ġx"))
    assert decoded(tokenizer, [accented]) != "été"  # by the decoder, for which é is the alias of a byte
    assert vocab.tokens[accented] == "été".encode()
    assert Speller(tokenizer, vocab).spell("été".encode()) == (accented,)
    assert vocab.tokens[aliased] == decoded(tokenizer, [aliased]).encode() == b" x"
    marked = sentencepiece()
    marked.add_tokens(["a▁b"])
    tokenizer = wrap(marked)
    assert read_vocab(tokenizer).tokens[id_of(tokenizer, "a▁b")] == b"a b"


def test_reading_an_added_token_otherwise_makes_another_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    def fingerprint(*words: str) -> str:
        backend = byte_level()
        backend.add_tokens(list(words))
        return read_vocab(wrap(backend)).fingerprint

    plain, aliased = fingerprint("<tool>"), fingerprint("Ġx")
    monkeypatch.setattr("omnidraft.alignment.token_bytes.Reader.read_added", lambda _, content: content.encode())
    assert fingerprint("<tool>") == plain
    assert fingerprint("Ġx") != aliased


def test_longer_added_tokens_go_first_and_single_words_stand_alone() -> None:
    tokenizer, vocab, speller = made("added")
    ids = {word: id_of(tokenizer, word) for word in ("the", "then", "river")}
    for text in ("then", "the then", "river", "rivers", "a river."):
        spelled = speller.spell(text.encode()) or ()
        assert list(spelled) == own_ids("added", text)
    assert speller.spell(b"then") == (ids["then"],)
    assert ids["river"] not in (speller.spell(b"rivers") or ())
    assert written(vocab, speller.spell("a [left] и для слов ".encode()) or ()) == "a [left] и для слов ".encode()


# ---------------------------------------------------------------- pairs


def can_be_written(data: bytes, tokens: set[bytes]) -> bool:
    """Whether bytes are tokens put side by side."""
    ends = {0}
    for end in range(1, len(data) + 1):
        if any(data[start:end] in tokens for start in ends):
            ends.add(end)
    return len(data) in ends


@pytest.mark.parametrize("drafter", [*WHOLE, *PARTIAL])
def test_any_tokenizer_drafts_for_any_other(drafter: str) -> None:
    """Every target token with bytes has a spelling, but for those that a drafter without bytes has no tokens for."""
    _, own, _ = made(drafter)
    pieces = {data for data in own.tokens if data is not None}
    for target in [*WHOLE, *PARTIAL]:
        vocab, found = made(target)[1], table(drafter, target)
        for token, data in enumerate(vocab.tokens):
            spelling = found.spelling(token).tolist()
            if data is not None:
                assert written(own, spelling) == (data if spelling else b"")
                assert bool(spelling) == (drafter not in NO_BYTES or can_be_written(data, pieces)), (target, data)
            else:
                assert spelling == ([own.eos[0]] if token == vocab.eos[0] else [])
        if not {drafter, target} & NO_BYTES:  # whatever it drafts begins a spelling, or stands for target tokens
            lengths = found.long_offsets[1:] - found.long_offsets[:-1]
            assert all(found.root[d] >= 0 or lengths[d] > 0 for d, data in enumerate(own.tokens) if data is not None)


@pytest.mark.parametrize("drafter", KNOWING)
def test_prompts_are_what_the_drafter_itself_would_read(drafter: str) -> None:
    first = made(drafter)[1].first
    for target in KNOWING:
        if (target in SPACED) != (drafter in SPACED):
            continue
        for script, text in TEXTS.items():
            if script not in CHANGED.get(target, set()) | CHANGED.get(drafter, set()):
                wanted = [*first, *own_ids(drafter, text)]
                assert translator(drafter, target).prompt(own_ids(target, text)) == wanted


@pytest.mark.parametrize("drafter", [*WHOLE, *PARTIAL])
def test_a_context_begins_as_the_drafters_tokenizer_begins(drafter: str) -> None:
    own_tokenizer, own, _ = made(drafter)
    assert own_tokenizer.encode("river") == [*own.first, *own_ids(drafter, "river")]
    for target in [*WHOLE, *PARTIAL]:
        tokenizer, vocab, _ = made(target)
        text = own_ids(target, "The river")
        first = [] if vocab.bos is None else [vocab.bos]
        forced: list[int] = tokenizer.encode("The river")
        contexts = [translator(drafter, target).prompt([*first * n, *text]) for n in (0, 1, 2)]
        if forced[0] == vocab.bos:  # not so where a text begins with another token, as with XGLM
            contexts.append(translator(drafter, target).prompt(forced))
        namesake = {content: d for d, content in own.special.items()}.get(vocab.special.get(vocab.bos or 0, ""))
        if own.first or vocab.bos is None or namesake is None or vocab.bos in vocab.eos:
            assert contexts == [contexts[0]] * len(contexts)
            assert tuple(contexts[0][: len(own.first)]) == own.first
            assert not {*contexts[0][len(own.first) :]} & own.special.keys()
        else:
            assert contexts == [contexts[0]] + [[namesake, *contexts[0]]] * (len(contexts) - 1)
            assert not {*contexts[0]} & own.special.keys()


@pytest.mark.parametrize("drafter", [*WHOLE, *PARTIAL])
def test_ends_stay_ends_and_markers_have_namesakes_or_none(drafter: str) -> None:
    own = made(drafter)[1]
    named = {content: d for d, content in own.special.items()}
    for target in [*WHOLE, *PARTIAL]:
        vocab, other = made(target)[1], translator(drafter, target)
        a, b = own_ids(target, "river"), own_ids(target, "The")
        whole = other.prompt(a)
        for end in vocab.eos:
            own_end = named.get(vocab.special[end])
            own_end = own_end if own_end in own.eos else own.eos[0]
            assert other.special[end] == own_end
            assert other.tokens([end]) == [own_end]
            assert other.prompt([*a, end]) == [*whole, own_end]
        for marker in vocab.special.keys() - {*vocab.eos}:
            counterpart = named.get(vocab.special[marker])
            assert other.special[marker] == counterpart
            assert other.tokens([marker]) == ([] if counterpart is None else [counterpart])
            context = other.prompt([*a, marker, *b])
            assert written(own, context) == written(vocab, [*a, *b])
            assert counterpart is None or context[len(whole)] == counterpart


def test_a_chat_in_the_tokens_of_one_family_stays_as_it_is() -> None:
    """The drafter's context is the conversation that it was trained on, markers and ends included, and no more."""
    for name, chat in (
        ("qwen2", "<|im_start|>user\nThe river<|im_end|>\n<|im_start|>assistant\n"),
        ("llama3", "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nThe river<|eot_id|>"),
        ("gemma", "<bos><start_of_turn>user\nThe river<end_of_turn>\n<start_of_turn>model\n"),
    ):
        tokenizer = family(name)
        ids = tokenizer.encode(chat, add_special_tokens=False)
        assert len({*ids} & made(name)[1].special.keys()) > 1
        other = translator(name, name)
        assert other.prompt(ids) == ids
        assert other.tokens(ids) == ids


def test_all_ends_of_a_target_are_ends() -> None:
    tokenizer = family("llama3")
    ends = [id_of(tokenizer, word) for word in ("<|eot_id|>", "<|end_of_text|>")]
    vocab = read_vocab(tokenizer, eos=ends)
    assert vocab.eos == (ends[1], ends[0])  # the tokenizer's own first
    _, own, speller = made("gpt2")
    other = DrafterContext(build_table(own, vocab, speller, Speller(tokenizer, vocab)), vocab, own, speller)
    assert [other.tokens([end]) for end in ends] == [[own.eos[0]]] * 2


def test_markers_that_are_no_special_tokens_are_text() -> None:
    _, vocab, _ = made("qwen2")
    other = translator("llama2", "qwen2")
    ids = own_ids("qwen2", "<think>")
    assert len(ids) == 1
    assert ids[0] not in vocab.special
    assert written(made("llama2")[1], other.tokens(ids)) == b"<think>"


def test_a_drafter_without_bytes_reads_what_it_can_of_a_prompt() -> None:
    other = translator("xlnet", "llama3")
    ids = own_ids("llama3", "The river\nhad 𐍈 been")
    assert written(made("xlnet")[1], other.prompt(ids)) == b"The river\nhad  been"


# ---------------------------------------------------------------- real ones


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("llama2", 96), ("llama3", 0), ("qwen2", 1673)])
def test_tokens_that_do_not_spell_themselves_are_no_tokens_of_a_text(name: str, count: int) -> None:
    """The tokenizer itself never writes them: Qwen2 splits at combining marks, which stand inside of Thai words."""
    tokenizer = real_tokenizer(name)
    vocab = read_vocab(tokenizer)
    speller = Speller(tokenizer, vocab)
    known = [(i, data) for i, data in enumerate(vocab.tokens) if data is not None]
    others = [
        (i, data, ids)
        for (i, data), ids in zip(known, speller.spell_many([data for _, data in known]), strict=True)
        if ids != (i,)
    ]
    assert len(others) == count
    prefix = "\n" if name == "llama2" else ""  # behind it, that tokenizer puts no space
    front = tokenizer.encode(prefix, add_special_tokens=False)
    for _, data, ids in others:
        assert tokenizer.encode(prefix + data.decode(), add_special_tokens=False) == [*front, *(ids or ())]
