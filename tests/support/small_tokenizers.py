"""Small tokenizers of every kind, built by hand so that a test knows what their merges give."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = (" hello", " world", "hello", " the", "ing", "def", "  ", "été", " don", "'t", "日本", "\n\n", "<0x41>", "10")
SPECIAL = ("<unk>", "<s>", "</s>")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
ASCII = tuple(chr(code) for code in range(0x21, 0x7F))


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def bpe(words: Iterable[str], base: Iterable[str], **options: object) -> models.BPE:
    """A BPE whose merges write each word from left to right."""
    words = list(words)
    merges = list(dict.fromkeys((word[:i], word[i]) for word in words for i in range(1, len(word))))
    letters = [letter for word in words for letter in word]
    tokens = dict.fromkeys([*base, *letters, *(left + right for left, right in merges)])
    return models.BPE({token: i for i, token in enumerate(tokens)}, merges, **options)


def sentencepiece(*, fallback: bool = True, metaspace: bool = False, dropout: float | None = None) -> Tokenizer:
    """The kind of Llama 2; with `metaspace`, the space before a text comes from the pre-tokenizer."""
    marked = [word.replace(" ", "▁") for word in WORDS if word != "<0x41>"]
    base = (*SPECIAL, *(BYTES if fallback else ()), "▁", "\n", *ASCII)
    tokenizer = Tokenizer(bpe(marked, base, unk_token="<unk>", byte_fallback=fallback, fuse_unk=True, dropout=dropout))
    if metaspace:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def byte_level(*, more: Iterable[str] = (), nfc: bool = True) -> Tokenizer:
    """The kind of GPT-2; `more` are merges in alias characters."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    aliases = ["".join(piece for piece, _ in splitter.pre_tokenize_str(word)) for word in WORDS]
    tokenizer = Tokenizer(bpe([*aliases, *more], sorted(pre_tokenizers.ByteLevel.alphabet())))
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def unigram() -> Tokenizer:
    """The kind of T5: a Viterbi search over scored pieces, which knows `<0x41>` and `</s>` as pieces, too."""
    marked = [word.replace(" ", "▁") for word in WORDS if word != "<0x41>"]
    letters = dict.fromkeys(["▁", "\n", *ASCII, *"".join(marked)])
    pieces = [(token, 0.0) for token in SPECIAL]
    pieces += [(token, 0.0) for token in BYTES]
    pieces += [(letter, -10.0) for letter in letters]
    pieces += [(word, -5.0) for word in marked if len(word) > 1]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex("\n"), "isolated"), pre_tokenizers.Metaspace("▁", "first")]
    )
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", "first")])
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def plain() -> Tokenizer:
    """Pieces of text as they are, with nothing for characters that no piece has."""
    tokenizer = Tokenizer(bpe(WORDS, (*SPECIAL, *ASCII), unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer
