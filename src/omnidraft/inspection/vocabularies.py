"""Figures of two vocabularies: tokenizer kind, spellings of the target's tokens, special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from omnidraft.alignment.drafter_context import special_map
from omnidraft.alignment.spelling_table import SpellingTable, byte_matches
from omnidraft.alignment.vocab import Speller, Vocab

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

EXAMPLES = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """A tokenizer with its vocabulary and speller."""

    tokenizer: PreTrainedTokenizerBase
    vocab: Vocab
    speller: Speller


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token id and its string in the tokenizer."""

    id: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Counts of one vocabulary; `size` = `writing` + `special` + `unused`."""

    kind: str
    size: int  # rows of the logits; without a config.json, tokens of the tokenizer
    writing: int  # tokens with bytes
    special: int
    unused: int  # rows without a token, such as padding
    bos: Token | None
    first: tuple[Token, ...]  # put in front of its input by the tokenizer
    eos: tuple[Token, ...]


@dataclass(frozen=True, kw_only=True)
class Spellings:
    """Spellings of a target's vocabulary in drafter tokens; counts of tokens.

    Special tokens have no bytes and no spelling, except the end of text, which is the drafter's.
    """

    byte_matches: int  # drafter tokens with the bytes of a single target token
    spelled: int  # target tokens that drafter tokens can write
    unspelled: int  # target tokens whose bytes the drafter cannot write
    unspelled_examples: tuple[Token, ...]
    ngrams: int  # target tokens spelled with several drafter tokens
    mean_length: float  # of the spellings in drafter tokens; 0 without any
    duplicates: int  # target tokens whose spelling another one owns: never proposed
    overlong: int  # drafter tokens that stand for several target tokens
    idle: int  # drafter tokens with bytes that propose nothing
    nodes: int  # of the trie
    table_bytes: int


@dataclass(frozen=True, kw_only=True)
class Special:
    """A target token without bytes, and its counterpart in the drafter's context; None if it is dropped."""

    token: Token
    becomes: Token | None


def vocabulary(language: Language) -> Vocabulary:
    """Counts of one vocabulary."""
    vocab = language.vocab
    writing = sum(data is not None for data in vocab.tokens)
    special = sum(token < vocab.size for token in vocab.special)
    return Vocabulary(
        kind=_kind(language.tokenizer),
        size=vocab.size,
        writing=writing,
        special=special,
        unused=vocab.size - writing - special,
        bos=None if vocab.bos is None else token_of(language, vocab.bos),
        first=tuple(token_of(language, token) for token in vocab.first),
        eos=tuple(token_of(language, token) for token in vocab.eos),
    )


def spellings(table: SpellingTable, drafter: Language, target: Language) -> Spellings:
    """Counts of a spelling table."""
    lengths = np.diff(table.offsets)
    writes = np.array([data is not None for data in target.vocab.tokens])
    has = lengths > 0
    unspelled = np.flatnonzero(writes & ~has)
    overlong = np.diff(table.long_offsets) > 0
    drafts = np.array([data is not None for data in drafter.vocab.tokens])
    return Spellings(
        byte_matches=byte_matches(drafter.vocab, target.vocab),
        spelled=int(has.sum()),
        unspelled=len(unspelled),
        unspelled_examples=tuple(token_of(target, t) for t in unspelled[:EXAMPLES].tolist()),
        ngrams=int((lengths > 1).sum()),
        mean_length=float(lengths[has].mean()) if has.any() else 0.0,
        duplicates=int((has & (table.node < 0)).sum()),
        overlong=int(overlong.sum()),
        idle=int((drafts & (table.root < 0) & ~overlong).sum()),
        nodes=len(table.symbol),
        table_bytes=table.nbytes,
    )


def specials(drafter: Language, target: Language) -> tuple[Special, ...]:
    """All target tokens without bytes, by id; rows without a token are left out."""
    pairs = special_map(target.vocab, drafter.vocab)
    return tuple(
        Special(token=token_of(target, t), becomes=None if d is None else token_of(drafter, d))
        for t, d in sorted(pairs.items())
        if t < target.vocab.size and target.vocab.tokens[t] is None
    )


def token_of(language: Language, token: int) -> Token:
    """A token with its string, empty for a row without a token."""
    return Token(id=token, text=language.tokenizer.backend_tokenizer.id_to_token(token) or "")


def _kind(tokenizer: PreTrainedTokenizerBase) -> str:
    """The algorithm of a tokenizer that `read_vocab` accepts, such as "byte-level BPE"."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    model = type(backend.model).__name__
    decoder: bytes = b"" if backend.decoder is None else backend.decoder.__getstate__()
    if b'"ByteLevel"' in decoder:
        return f"byte-level {model}"
    falls_back = b'"ByteFallback"' in decoder and backend.token_to_id("<0x00>") is not None
    marks_spaces = "▁".encode() in decoder
    return f"{'SentencePiece ' if marks_spaces else ''}{model} {'with' if falls_back else 'without'} byte fallback"
