"""Tokenizers of GGUF files against what llama.cpp makes of the same headers: `tools/record_llama_tokens.py`."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.errors import ModelError
from omnidraft.models.fast_tokenizer import FastTokenizer
from omnidraft.models.gguf.pre_tokenizers import names, split_of
from omnidraft.models.gguf.tokenizer import _build, build_tokenizer, end_tokens
from omnidraft.text.prompting import encode, has_template
from support import gguf_tokenizers as made
from support.models import refused

LLAMA: dict[str, Any] = json.loads(Path(__file__).with_name("llama_tokens.json").read_text(encoding="utf-8"))
# llama.cpp takes token 11 for EOS, or BOS, where a header of the kind gpt2 names none: whatever word that is
ELEVEN = "ids that no token has"
P = "tokenizer.ggml."


def differing(metadata: dict[str, Any], texts: tuple[str, ...], expected: list[str]) -> list[str]:
    """The texts that are tokenized otherwise."""
    tokenizer = build_tokenizer(metadata)
    pairs = zip(texts, expected, strict=True)
    return [text for text, right in pairs if " ".join(map(str, tokenizer(text)["input_ids"])) != right]


@pytest.mark.parametrize("pre", made.SPLITS)
def test_each_pre_tokenizer_splits_as_llama_cpp_does(pre: str) -> None:
    assert differing(made.byte_level(pre), made.TEXTS, LLAMA["splits"][pre]) == []


def test_every_other_name_is_one_of_these() -> None:
    assert {other: split_of(name).steps for other, name in LLAMA["alike"].items()} == {
        other: split_of(other).steps for other in LLAMA["alike"]
    }
    of_characters = {"gemma4", "granite-embed-multi-311m", "sarvam-moe"}
    assert {*names()} == {*LLAMA["alike"], *made.SPLITS, *of_characters}


@pytest.mark.parametrize("name", made.cases())
def test_tokens_spaces_and_flags_are_those_of_llama_cpp(name: str) -> None:
    assert differing(made.cases()[name], (*made.MARKED, *made.TEXTS), LLAMA["cases"][name]) == []


@pytest.mark.parametrize("name", made.cases())
def test_a_fast_tokenizer_does_what_that_of_transformers_does(name: str) -> None:
    metadata = made.cases()[name]
    whole: Any = build_tokenizer(metadata)
    backend = Tokenizer(models.BPE())
    fast: Any = FastTokenizer(backend, *_build(backend, metadata))
    assert (len(fast), fast.get_vocab(), fast.get_added_vocab()) == (
        len(whole),
        whole.get_vocab(),
        whole.get_added_vocab(),
    )
    assert fast.special_tokens_map == whole.special_tokens_map
    assert sorted(fast.all_special_ids) == sorted(whole.all_special_ids)
    for one in ("bos", "eos", "unk", "pad"):
        for attribute in (f"{one}_token", f"{one}_token_id"):
            assert getattr(fast, attribute) == getattr(whole, attribute)
    for text in (*made.MARKED, *made.TEXTS):
        assert fast(text, add_special_tokens=False)["input_ids"] == whole(text, add_special_tokens=False)["input_ids"]
        ids = fast(text)["input_ids"]
        assert ids == whole(text)["input_ids"]
        for skipped in (True, False):
            assert fast.decode(ids, skipped) == whole.decode(ids, skip_special_tokens=skipped)
        assert fast.convert_ids_to_tokens(ids) == whole.convert_ids_to_tokens(ids)
        assert fast.convert_tokens_to_ids([text, *whole.convert_ids_to_tokens(ids)]) == whole.convert_tokens_to_ids(
            [text, *whole.convert_ids_to_tokens(ids)]
        )
    assert fast(list(made.TEXTS))["input_ids"] == whole(list(made.TEXTS))["input_ids"]
    assert read_vocab(fast) == read_vocab(whole)


@pytest.mark.slow
def test_the_tokens_that_end_an_answer_are_those_of_llama_cpp() -> None:
    found = {name: sorted(end_tokens(metadata)) for name, metadata in made.ends().items()}
    assert found == LLAMA["ends"] | {ELEVEN: [2]}


@pytest.mark.parametrize("kind", [made.NORMAL, made.USER_DEFINED])
def test_a_word_of_html_ends_nothing(kind: int) -> None:
    metadata = made.byte_level("gpt-2", {"</s>": kind, "<|im_end|>": made.NORMAL}, eos_token_id=1)
    assert end_tokens(metadata) == [1, 3]
    metadata = made.byte_level("gpt-2", {"</s>": kind}, eos_token_id=2)
    assert end_tokens(metadata) == [2], "unless the header says so"


def test_the_default_ids_are_taken_where_they_are_special() -> None:
    more = {f"<{place}>": made.CONTROL for place in range(3, 13)}
    metadata = made.byte_level("llama-bpe", more, bos_token_id=None, eos_token_id=None)
    assert end_tokens(metadata) == [11, 2]
    assert build_tokenizer(metadata)("a")["input_ids"][0] == 11
    assert end_tokens(made.byte_level("gpt-2", bos_token_id=None, eos_token_id=None)) == [2]


def test_bos_stands_once_in_front_of_a_prompt() -> None:
    metadata = made.byte_level("llama-bpe", made.CHAT)
    metadata["tokenizer.chat_template"] = "<s>{% for each in messages %}<|im_start|>{{ each.content }}{% endfor %}"
    tokenizer = build_tokenizer(metadata)
    plain = encode(tokenizer, "hello")
    assert plain[0] == 1
    assert 1 not in plain[1:]
    assert encode(tokenizer, "<s>hello") == plain
    chat = encode(tokenizer, [{"role": "user", "content": "hello"}])
    assert chat == [1, 3, *plain[1:]]


PLAIN, WITH_TOOLS = "plain{{ messages[0].content }}", "tools{{ tools | tojson }}"
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]


def chats(templates: dict[str, Any]) -> list[str]:
    """A chat without and with tools; both kinds of tokenizers write the same."""
    metadata = made.byte_level("gpt-2") | {f"tokenizer.chat_template{name}": text for name, text in templates.items()}
    backend = Tokenizer(models.BPE())
    kinds: list[Any] = [build_tokenizer(metadata), FastTokenizer(backend, *_build(backend, metadata))]
    for kind in kinds:
        assert bool(kind.chat_template) == has_template(kind)
    if not has_template(kinds[0]):
        return []
    options: list[dict[str, Any]] = [{}, {"tools": TOOLS}]
    said = [
        [kind.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, **each) for each in options]
        for kind in kinds
    ]
    assert said[0] == said[1]
    return said[0]


@pytest.mark.medium
def test_a_template_with_a_name_is_taken_for_chats_with_tools() -> None:
    written = "tools" + json.dumps(TOOLS)
    assert chats({"": PLAIN, ".tool_use": WITH_TOOLS, ".rag": "rag", "s": ["tool_use", "rag"]}) == ["plainx", written]
    assert chats({".default": PLAIN, ".tool_use": WITH_TOOLS}) == ["plainx", written]
    assert chats({".default": PLAIN}) == chats({"": PLAIN}) == ["plainx"] * 2
    assert chats({"": PLAIN, ".default": "other"}) == ["plainx"] * 2
    assert chats({".tool_use": WITH_TOOLS})[1] == written
    assert chats({".rag": "rag"}) == chats({"": ""}) == chats({}) == []
    with refused(ModelError, "tokenizer.chat_template.tool_use is no text"):
        chats({"": PLAIN, ".tool_use": 7})


@pytest.mark.parametrize("name", ["chat", "sentencepiece", "no space prefix", "gemma4"])
def test_tokens_are_the_bytes_that_they_were_made_of(name: str) -> None:
    tokenizer = build_tokenizer(made.cases()[name])
    vocab = read_vocab(tokenizer)
    speller = Speller(tokenizer, vocab)
    assert 3 in vocab.special
    for text in made.TEXTS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        written = b"".join(vocab.tokens[i] or b"" for i in ids).decode()
        assert written == (" " + text if name == "sentencepiece" else text)
        assert speller.spell(text.encode()) is not None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (made.byte_level("qwen9"), "tokenizer.ggml.pre is 'qwen9', a pre-tokenizer that is not known"),
        (made.byte_level("whitespace"), "tokenizer.ggml.pre is 'whitespace'"),
        (made.byte_level("gpt-2", model="bert"), "tokenizer.ggml.model is 'bert', a kind of tokenizer"),
        (made.byte_level("gpt-2", model="t5"), "tokenizer.ggml.model is 't5'"),
        (made.byte_level("kimi-k2", merges=None), "tokenizer.ggml.merges is missing"),
        (made.byte_level("gpt-2", merges=["q z"]), "tokenizer.ggml.merges has 'q z'"),
        (made.byte_level("gpt-2", suppress_tokens=[5]), "tokenizer.ggml.suppress_tokens is an array of 1"),
        (made.byte_level("gpt-2", new_flag=True), "tokenizer.ggml.new_flag is True"),
        (made.byte_level("tekken", bos_token_id=None), "tokenizer.ggml.bos_token_id is missing"),
        (made.byte_level("gpt-2", {"a": made.CONTROL}), "tokenizer.ggml.tokens has 'a' twice"),
        (made.byte_level("gpt-2", token_type=[1, 1]), "tokenizer.ggml.token_type has 2 entries"),
        (made.sentencepiece(scores=None), "tokenizer.ggml.scores is missing"),
        (made.sentencepiece(scores=[0.0] * 5000), "tokenizer.ggml.scores are the same for"),
        (made.byte_level("sarvam-moe"), "tokenizer.ggml.tokens has no <0x00>"),
        (made.byte_level("gpt-2", eos_token_id=[2]), "tokenizer.ggml.eos_token_id is [2]"),
        (made.byte_level("gpt-2", add_bos_token="false"), "tokenizer.ggml.add_bos_token is 'false'"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_key_and_value(metadata: dict[str, Any], message: str) -> None:
    with refused(ModelError, message):
        build_tokenizer(metadata)


def test_all_end_tokens_that_a_header_lists_end_an_answer() -> None:
    header = made.byte_level("gpt-2", eos_token_ids=[7, 9], add_padding_token=False, add_unknown_token=False)
    assert {7, 9} <= set(end_tokens(header))
    assert build_tokenizer(header) is not None


def test_keys_of_other_kinds_of_tokenizers_change_nothing() -> None:
    more: dict[str, Any] = {
        "token_type_count": 2,
        "mask_token_id": 5,
        "normalizer.lowercase": True,
        "add_sep_token": True,
    }
    plain, other = (build_tokenizer(made.byte_level("qwen2", **keys)) for keys in ({}, more))
    assert plain.backend_tokenizer.to_str() == other.backend_tokenizer.to_str()


OVERLAPS: list[tuple[str, ...]] = [
    ("<ab", "b>cd"),
    ("<qz", "z>cd", "qz"),
    ("<ab", "b>cd", "<a"),
    ("<|a|>", "|><|c|>"),
    ("  ", "    ", "\n\n", "\n\n\n"),
    ("<qz>", "<qz>>", "z>"),
]


def longest_first(text: str, tokens: tuple[str, ...]) -> list[str]:
    """A text in pieces as llama.cpp cuts it: at each token in turn, the longest first."""
    pieces = [text]
    for token in sorted(tokens, key=len, reverse=True):
        parts = ([piece] if piece in tokens else re.split(f"({re.escape(token)})", piece) for piece in pieces)
        pieces = [part for each in parts for part in each if part]
    return pieces


@pytest.mark.parametrize("added", OVERLAPS, ids=str)
def test_of_special_tokens_that_overlap_the_longest_is_found_first(added: tuple[str, ...]) -> None:
    tokenizer = build_tokenizer(made.byte_level("gpt-2", dict.fromkeys(added, made.CONTROL), merges=[]))
    draw = random.Random(0)
    parts = [*added, *(text[:2] for text in added), *(text[1:] for text in added), "x"]
    for _ in range(200):
        text = "".join(draw.choices(parts, k=5))
        ids = tokenizer(text)["input_ids"]
        found = [token for token in tokenizer.convert_ids_to_tokens(ids) if token in added]
        assert found == [piece for piece in longest_first(text, added) if piece in added], text


@pytest.mark.parametrize(
    "metadata",
    [
        made.byte_level("gpt-2", dict.fromkeys(("<ab", "b>cd", "cdefgh"), made.CONTROL)),
        made.sentencepiece(dict.fromkeys(("<ab", "b>cd"), made.CONTROL)),
    ],
)
def test_special_tokens_that_overlap_too_often_are_refused(metadata: dict[str, Any]) -> None:
    with refused(ModelError, "tokenizer.ggml.tokens has special tokens that overlap, such as '<ab'"):
        build_tokenizer(metadata)
