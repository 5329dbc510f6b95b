"""Two vocabularies side by side: what each is, how the drafter spells the target's, and what is special."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from omnidraft.alignment.translator import special_map
from omnidraft.alignment.trie import SpellingTable, byte_matches
from omnidraft.alignment.vocab import Vocab
from omnidraft.inspection.sides import Language

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token's id, and its text as its tokenizer writes it."""

    id: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """One vocabulary; `size` = `writing` + `special` + `unused`."""

    kind: str
    size: int  # rows of the logits, or without a config.json the tokenizer's
    writing: int  # tokens that write bytes
    special: int
    unused: int  # rows without a token, such as padding
    bos: Token | None
    eos: tuple[Token, ...]


@dataclass(frozen=True, kw_only=True)
class Spellings:
    """How a drafter spells a target's vocabulary; counts of tokens.

    `byte_matches` and `spelled` take a special token for the text of its name, as one compares tokenizers; those `in
    use` leave it out, because it writes nothing, but for the two that end a text.
    """

    byte_matches: int  # drafter tokens with the bytes of a single target token
    byte_matches_in_use: int
    spelled: int  # target tokens that drafter tokens can write
    spelled_in_use: int
    unspelled: int  # target tokens whose bytes the drafter cannot write
    unspelled_examples: tuple[Token, ...]
    ngrams: int  # target tokens in use that take more than one drafter token
    mean_length: float  # of the spellings in use; 0 without any
    duplicates: int  # target tokens in use whose spelling another one owns: never proposed
    overlong: int  # drafter tokens that stand for several target tokens
    idle: int  # drafter tokens that write bytes and propose nothing
    nodes: int  # of the trie
    table_bytes: int


@dataclass(frozen=True, kw_only=True)
class Special:
    """What a target token that writes nothing becomes in the drafter's context; None: it is dropped."""

    token: Token
    becomes: Token | None


def vocabulary(language: Language) -> Vocabulary:
    """Describe one vocabulary."""
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
        eos=tuple(token_of(language, token) for token in vocab.eos),
    )


def spellings(table: SpellingTable, drafter: Language, target: Language) -> Spellings:
    """Count what a spelling table holds."""
    lengths = np.diff(table.offsets)
    writes = np.array([data is not None for data in target.vocab.tokens])
    has = lengths > 0
    named = [t for t in target.vocab.special if t < target.vocab.size and not has[t]]
    names = drafter.speller.spell_many([target.vocab.special[t].encode() for t in named])
    unspelled = np.flatnonzero(writes & ~has)
    overlong = np.diff(table.long_offsets) > 0
    drafts = np.array([data is not None for data in drafter.vocab.tokens])
    return Spellings(
        byte_matches=byte_matches(_as_text(drafter.vocab), _as_text(target.vocab)),
        byte_matches_in_use=byte_matches(drafter.vocab, target.vocab),
        spelled=int(has.sum()) + sum(ids is not None for ids in names),
        spelled_in_use=int(has.sum()),
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
    """All target tokens that write nothing, by id, but for rows without a token."""
    found = special_map(target.vocab, drafter.vocab)
    return tuple(
        Special(token=token_of(target, t), becomes=None if d is None else token_of(drafter, d))
        for t, d in sorted(found.items())
        if t < target.vocab.size and target.vocab.tokens[t] is None
    )


def token_of(language: Language, token: int) -> Token:
    """A token with its text; the empty text for a row without one."""
    return Token(id=token, text=language.tokenizer.backend_tokenizer.id_to_token(token) or "")


def _as_text(vocab: Vocab) -> Vocab:
    """A vocabulary whose special tokens write their names."""
    tokens: Sequence[bytes | None] = [
        vocab.special[i].encode() or None if i in vocab.special else data for i, data in enumerate(vocab.tokens)
    ]
    return replace(vocab, tokens=tuple(tokens))


def _kind(tokenizer: PreTrainedTokenizerBase) -> str:
    """The kind of a tokenizer that `read_vocab` has accepted, a phrase."""
    backend: Tokenizer = tokenizer.backend_tokenizer
    model = type(backend.model).__name__
    decoder: bytes = b"" if backend.decoder is None else backend.decoder.__getstate__()
    if b'"ByteLevel"' in decoder:
        return f"byte-level {model}"
    falls_back = b'"ByteFallback"' in decoder and backend.token_to_id("<0x00>") is not None
    marks_spaces = "▁".encode() in decoder
    return f"{'SentencePiece ' if marks_spaces else ''}{model} {'with' if falls_back else 'without'} byte fallback"
