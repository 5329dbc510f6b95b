"""Prompts for what stands between two texts, in tokens as the authors of each family encode them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from omnidraft.alignment.vocab import read_vocab
from omnidraft.server.errors import ApiError
from omnidraft.server.requests.fill_in_middle import FAMILIES, FillInTokens, filling
from support.project_files import shared
from support.small_tokenizers import byte_level, sentencepiece, unigram, wrap

QWEN, STARCODER, _, DEEPSEEK, CODE_LLAMA, CODESTRAL, _ = FAMILIES
BEFORE, AFTER = "def hello", " world\n\nthe"


def of_family(tokenizer: Tokenizer, marks: FillInTokens) -> PreTrainedTokenizerBase:
    tokenizer.add_special_tokens([mark for mark in marks[:3] if mark])
    return wrap(tokenizer)


def encoded(tokenizer: Any, before: str, after: str) -> list[str]:
    """The tokens of a prompt."""
    vocab = read_vocab(tokenizer, len(tokenizer), (2,))
    model = SimpleNamespace(target=SimpleNamespace(tokenizer=tokenizer), vocab=vocab)
    ids = filling(cast("Any", SimpleNamespace(model=model, lock=threading.Lock())), before, after)
    return cast("list[str]", tokenizer.convert_ids_to_tokens(ids))


@pytest.mark.parametrize("after", ["the world", " world", "\n", "  hello", "☺ the", "日本", "x"])
@pytest.mark.parametrize("metaspace", [False, True])
@pytest.mark.parametrize("marks", [CODE_LLAMA, CODESTRAL])
def test_no_space_stands_before_what_comes_after(marks: FillInTokens, metaspace: bool, after: str) -> None:
    tokenizer = of_family(sentencepiece(metaspace=metaspace), marks)
    found = encoded(tokenizer, "the", after)
    alone = tokenizer.tokenize("#" + after, add_special_tokens=False)  # in the midst of a text, behind a whole token
    assert alone[:2] == ["▁", "#"]
    before, middle = [marks.before, *tokenizer.tokenize("the", add_special_tokens=False)], alone[2:]
    assert before[1].startswith("▁")
    if marks.after_first:
        assert found == [marks.after, *middle, *before]
    else:
        assert found == [*before, marks.after, *middle, marks.middle]


@pytest.mark.parametrize("marks", [QWEN, STARCODER, DEEPSEEK])
def test_byte_level_tokens_are_those_of_each_text(marks: FillInTokens) -> None:
    tokenizer = of_family(byte_level(), marks)
    before, after = (tokenizer.tokenize(text, add_special_tokens=False) for text in (BEFORE, AFTER))
    assert encoded(tokenizer, BEFORE, AFTER) == [marks.before, *before, marks.after, *after, marks.middle]


@pytest.mark.parametrize("after", ["the", " the"])
def test_a_text_that_gets_no_space_stays_as_it_is(after: str) -> None:
    """As that of CodeGemma, whose tokenizer puts none, and one that begins with a space where but one is put."""
    plain = sentencepiece()
    plain.normalizer = None
    tokenizer = of_family(plain, QWEN)
    alone = tokenizer.tokenize(after, add_special_tokens=False)
    assert encoded(tokenizer, "", after) == [QWEN.before, QWEN.after, *alone, QWEN.middle]
    tokenizer = of_family(unigram(), CODE_LLAMA)
    assert "".join(encoded(tokenizer, "", after)[2:-1]) == after.replace(" ", "▁")


@pytest.mark.medium
def test_the_tokenizer_of_llama() -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(shared("tokenizers", "llama2"), local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [*CODE_LLAMA[:3]]})
    found = encoded(tokenizer, "def f(x):\n    ", "return y")
    assert found[-3:] == ["return", "▁y", "▁<MID>"]
    assert found[:3] == ["<s>", "▁<PRE>", "▁def"]
    assert encoded(tokenizer, "x", "\n    return y")[-5:] == ["<0x0A>", "▁▁▁", "▁return", "▁y", "▁<MID>"]


def test_a_target_without_marks() -> None:
    with pytest.raises(ApiError, match="has no tokens to fill in"):
        encoded(wrap(byte_level()), "a", "b")
