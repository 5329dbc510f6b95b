"""Small tokenizers with the settings of the families in use, trained on a few lines in several scripts.

What makes a family is its normalizer, pre-tokenizer, model options, added tokens and decoder; vocabularies are small.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from math import log
from typing import Any, cast

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from support import small_tokenizers as small
from support.small_tokenizers import BYTES
from support.texts import TEXTS

MERGES = 600  # about: enough for words of every script
ALPHABET = 200  # characters that are tokens of their own where bytes stand for the others
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{SYMBOLS}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{SYMBOLS}"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
XGLM_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def _lines() -> list[str]:
    return [line + "\n" for text in TEXTS.values() for line in text.split("\n")]


def _splits(*patterns: str) -> list[Any]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def _state(tokenizer: Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return state


def byte_level(
    *splits: Any,
    special: Iterable[str] = ("<|endoftext|>",),
    normalizer: Any = None,
    ignore_merges: bool = False,
    unused: Iterable[str] = (),
) -> Tokenizer:
    """Byte-level BPE after these splits; `unused` are words of the vocabulary that no merges lead to."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trained.train_from_iterator(
        _lines(), trainers.BpeTrainer(vocab_size=MERGES, initial_alphabet=alphabet, show_progress=False)
    )
    state = _state(trained)
    for word in unused:
        state["vocab"].setdefault(word, len(state["vocab"]))
    merges = [(left, right) for left, right in state["merges"]]
    tokenizer = Tokenizer(models.BPE(state["vocab"], merges, ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(splits))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _plain_bytes(*, prefix: bool = False, regex: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def sentencepiece(special: Iterable[str] = ("<unk>", "<s>", "</s>"), words: Iterable[str] = ()) -> Tokenizer:
    """SentencePiece BPE with byte fallback, without normalizer and pre-tokenizer; `words` are further tokens."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split(Regex("▁+[^▁]*|\n"), "isolated")
    base = [*special, *BYTES]
    counts = Counter("".join(_lines()).replace(" ", "▁"))
    # Named here, as of characters that are equally frequent the trainer keeps others in each process.
    alphabet = sorted(counts, key=lambda char: (-counts[char], char))[:ALPHABET]
    trained.train_from_iterator(
        _lines(),
        trainers.BpeTrainer(
            vocab_size=MERGES + len(base),
            special_tokens=base,
            initial_alphabet=alphabet,
            limit_alphabet=ALPHABET,
            show_progress=False,
        ),
    )
    state = _state(trained)
    for word in words:
        state["vocab"].setdefault(word, len(state["vocab"]))
    merges = [(left, right) for left, right in state["merges"]]
    model = models.BPE(state["vocab"], merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def unigram(*, fallback: bool, special: Iterable[str] = ("<unk>", "<s>", "</s>")) -> Tokenizer:
    """Unigram over words marked by Metaspace, its pieces those of BPE, scored by how often they occur."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    # Not by the trainer for Unigram, which adds up in another order, and finds other pieces, in each process.
    trained.train_from_iterator(_lines(), trainers.BpeTrainer(vocab_size=MERGES, show_progress=False))
    text = "▁" + "".join(_lines()).replace(" ", "▁")
    found = {word: text.count(word) for word in _state(trained)["vocab"]}
    pieces = [(word, 0.0) for word in special]
    pieces += [(word, log(max(count, 1) / len(text))) for word, count in found.items()]
    if fallback:
        pieces += [(word, -20.0) for word in BYTES]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=fallback))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    metaspace = decoders.Metaspace("▁", "always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), metaspace]) if fallback else metaspace
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _first(tokenizer: Tokenizer, token: str) -> Tokenizer:
    """Let a tokenizer put a token in front of each text by itself."""
    processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, tokenizer.token_to_id(token))]
    )
    own = [tokenizer.post_processor] if tokenizer.post_processor else []
    tokenizer.post_processor = processors.Sequence([*own, processor])
    return tokenizer


# ---------------------------------------------------------------- the families


def llama2() -> PreTrainedTokenizerFast:
    """The space before a text comes from the normalizer."""
    tokenizer = _first(sentencepiece(), "<s>")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def mistral() -> PreTrainedTokenizerFast:
    """The space before a text comes from the pre-tokenizer; markers of instructions are special tokens."""
    tokenizer = _first(sentencepiece(("<unk>", "<s>", "</s>", "[INST]", "[/INST]")), "<s>")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def gemma() -> PreTrainedTokenizerFast:
    """No space before a text; runs of line ends and spaces, and HTML, are added tokens of the vocabulary."""
    special = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
    literal = ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>"]
    tokenizer = _first(sentencepiece(special, literal), "<bos>")
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in literal])
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>")


def gpt2() -> PreTrainedTokenizerFast:
    """One special token, which begins and ends texts."""
    tokenizer = byte_level(_plain_bytes(regex=True))
    return _wrapped(tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>")


def roberta() -> PreTrainedTokenizerFast:
    """A space before each text, and one in front of the mask."""
    tokenizer = byte_level(_plain_bytes(prefix=True, regex=True), special=("<s>", "</s>"))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return _wrapped(tokenizer, bos_token="<s>", eos_token="</s>")


def neox() -> PreTrainedTokenizerFast:
    """NFC, and runs of spaces as added tokens."""
    tokenizer = byte_level(_plain_bytes(regex=True), normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(8, 1, -1)])
    return _wrapped(tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def llama3() -> PreTrainedTokenizerFast:
    """Words of the vocabulary are taken whole, whatever the merges; a first token is forced."""
    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    splits = [*_splits(LLAMA3), _plain_bytes()]
    tokenizer = byte_level(*splits, special=special, ignore_merges=True, unused=["Ġunmerged", "whole"])
    return _wrapped(_first(tokenizer, special[0]), bos_token=special[0], eos_token="<|end_of_text|>")


def qwen2() -> PreTrainedTokenizerFast:
    """NFC, single digits, no first token; later ones add markers that are text."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = byte_level(*_splits(QWEN2), _plain_bytes(), special=special, normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("<tool_call>", "<think>", "</think>")])
    return _wrapped(tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def gpt4o() -> PreTrainedTokenizerFast:
    tokenizer = byte_level(*_splits(GPT4O), _plain_bytes(), ignore_merges=True)
    return _wrapped(tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def falcon() -> PreTrainedTokenizerFast:
    splits = [
        pre_tokenizers.Punctuation("contiguous"),
        _plain_bytes(regex=True),
        pre_tokenizers.Digits(individual_digits=False),
        *_splits("[0-9][0-9][0-9]"),
    ]
    return _wrapped(byte_level(*splits, special=(">>TITLE<<", "<|endoftext|>")), eos_token="<|endoftext|>")


def deepseek() -> PreTrainedTokenizerFast:
    """Markers with characters of full width; those of a dialog are text."""
    first, last = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    splits = _splits(r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", DEEPSEEK_V3)
    tokenizer = byte_level(*splits, _plain_bytes(), special=(first, last), normalizer=normalizers.Sequence([]))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in ("<｜User｜>", "<｜Assistant｜>")])
    return _wrapped(_first(tokenizer, first), bos_token=first, eos_token=last)


def bloom() -> PreTrainedTokenizerFast:
    tokenizer = byte_level(*_splits(BLOOM), _plain_bytes(), special=("<unk>", "<s>", "</s>", "<pad>"))
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def starcoder() -> PreTrainedTokenizerFast:
    splits = [pre_tokenizers.Digits(individual_digits=True), _plain_bytes(regex=True)]
    tokenizer = byte_level(*splits, special=("<|endoftext|>", "<fim_prefix>"))
    return _wrapped(tokenizer, bos_token="<|endoftext|>", eos_token="<|endoftext|>")


def added() -> PreTrainedTokenizerFast:
    """Added tokens that begin each other, are words of the vocabulary, take spaces along, or stand alone."""
    tokenizer = byte_level(_plain_bytes(regex=True), special=("<s>", "</s>"))
    tokenizer.add_tokens(
        [
            AddedToken("the", normalized=False),
            AddedToken("then", normalized=False),
            AddedToken("river", single_word=True),
            AddedToken("[left]", lstrip=True),
            AddedToken("[right]", rstrip=True, normalized=True),
            AddedToken("для слов", lstrip=True, rstrip=True),
        ]
    )
    return _wrapped(_first(tokenizer, "<s>"), bos_token="<s>", eos_token="</s>")


def unigram_with_bytes() -> PreTrainedTokenizerFast:
    tokenizer = unigram(fallback=True)
    tokenizer.normalizer = normalizers.NFKC()
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def xglm() -> PreTrainedTokenizerFast:
    """Unigram that knows no bytes, and no runs of spaces; its texts begin with the token that ends them."""
    tokenizer = unigram(fallback=False, special=XGLM_SPECIAL)
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    return _wrapped(_first(tokenizer, "</s>"), unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def xlnet() -> PreTrainedTokenizerFast:
    """Normalizers that change a text for good, and words split at spaces, which are dropped and marked again."""
    tokenizer = unigram(fallback=False, special=("<unk>", "<s>", "</s>", "<sep>", "<cls>", "<eop>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", "always")]
    )
    return _wrapped(tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def _own(kind: type[Any], like: Tokenizer, **options: Any) -> PreTrainedTokenizerFast:
    state = _state(like)
    if isinstance(state["vocab"], list):
        return cast(PreTrainedTokenizerFast, kind(vocab=[(word, score) for word, score in state["vocab"]], **options))
    merges = [(left, right) for left, right in state["merges"]]
    return cast(PreTrainedTokenizerFast, kind(vocab=state["vocab"], merges=merges, **options))


def _wrapped(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


Builder = Callable[[], PreTrainedTokenizerFast]
WHOLE: dict[str, Builder] = {  # families that can write any bytes
    each.__name__: each
    for each in (
        llama2, mistral, gemma, gpt2, roberta, neox, llama3, qwen2, gpt4o, falcon, deepseek, bloom, starcoder, added,
        unigram_with_bytes,
    )
}  # fmt: skip
PARTIAL: dict[str, Builder] = {each.__name__: each for each in (xglm, xlnet)}
OWN: dict[str, Builder] = {  # as `transformers` puts them together itself
    "own_llama": lambda: _own(transformers.LlamaTokenizer, sentencepiece()),
    "own_llama_without_prefix": lambda: _own(transformers.LlamaTokenizer, sentencepiece(), add_prefix_space=False),
    "own_code_llama": lambda: _own(transformers.CodeLlamaTokenizer, sentencepiece()),
    "own_gemma": lambda: _own(
        transformers.GemmaTokenizer, sentencepiece(("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"))
    ),
    "own_gpt2": lambda: _own(transformers.GPT2Tokenizer, byte_level(_plain_bytes(regex=True))),
    "own_neox": lambda: _own(transformers.GPTNeoXTokenizer, byte_level(_plain_bytes(regex=True))),
    "own_cohere": lambda: _own(transformers.CohereTokenizer, byte_level(_plain_bytes(regex=True))),
    "own_qwen2": lambda: _own(transformers.Qwen2Tokenizer, byte_level(*_splits(QWEN2), _plain_bytes())),
    "own_xglm": lambda: _own(transformers.XGLMTokenizer, unigram(fallback=False, special=XGLM_SPECIAL)),
    "own_xlnet": lambda: _own(transformers.XLNetTokenizer, unigram(fallback=False)),
}


BY_HAND: dict[str, Builder] = {  # of which some have no bytes
    "sentencepiece, no byte tokens": lambda: small.wrap(small.sentencepiece(fallback=False)),
    "plain": lambda: small.wrap(small.plain()),
}


@cache
def family(name: str) -> PreTrainedTokenizerFast:
    return (WHOLE | PARTIAL | OWN | BY_HAND)[name]()
