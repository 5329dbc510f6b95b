"""Figures of a text in the tokens of both models: n-grams, mismatched segmentation, lengths."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import ROOT
from omnidraft.inspection.models import Language
from omnidraft.verification.trie_walk import Walk


@dataclass(frozen=True, kw_only=True)
class TextFigures:
    """Figures of one text, tokenized as an answer: no special tokens, no normalization, no space in front.

    The ratio is None where it is undefined.
    """

    name: str
    target_tokens: int
    drafter_tokens: int  # by the drafter's own tokenizer
    ngrams: int  # target tokens spelled with more than one drafter token
    missed: int  # target tokens that the walk over the drafter's tokens does not propose in their place
    spelled_tokens: int  # drafter tokens of all spellings together
    unspelled: int  # target tokens without a spelling
    left_out: int  # bytes of lines that one of the two cannot write
    ratio: float | None  # target tokens per drafter token


def samples() -> dict[str, str]:
    """Short texts in several scripts, by name."""
    return tomllib.loads(resources.files("omnidraft.inspection").joinpath("samples.toml").read_text(encoding="utf-8"))


def measure(name: str, text: str, cache: NgramCache, drafter: Language, target: Language) -> TextFigures:
    """Tokenize a text with both, and walk over the drafter's tokens as over a draft.

    Lines that one of the two cannot write are left out.
    """
    whole = text.encode()
    parts = _tokenized([whole], drafter, target) or _tokenized(whole.splitlines(keepends=True), drafter, target)
    lengths = [len(cache.table.spelling(token)) for part in parts for token in part.target]
    count, drafts, unspelled = len(lengths), sum(len(part.drafter) for part in parts), lengths.count(0)
    ngrams = sum(length > 1 for length in lengths)
    missed = count - sum(_proposed(part, cache, drafter.vocab.tokens, target.vocab.tokens) for part in parts)
    return TextFigures(
        name=name,
        target_tokens=count,
        drafter_tokens=drafts,
        ngrams=ngrams,
        missed=missed,
        spelled_tokens=sum(lengths),
        unspelled=unspelled,
        left_out=len(whole) - sum(part.size for part in parts),
        ratio=count / drafts if drafts else None,
    )


@dataclass(frozen=True)
class _Part:
    """Some bytes in the tokens of both models."""

    size: int
    target: tuple[int, ...]
    drafter: tuple[int, ...]


def _tokenized(texts: Sequence[bytes], drafter: Language, target: Language) -> list[_Part]:
    both = zip(texts, target.speller.spell_many(texts), drafter.speller.spell_many(texts), strict=True)
    return [_Part(len(data), t, d) for data, t, d in both if t is not None and d is not None]


def _proposed(part: _Part, cache: NgramCache, drafter: Sequence[bytes | None], target: Sequence[bytes | None]) -> int:
    """Number of target tokens that the walk proposes in their place.

    After a dead end the walk starts again at the next draft token that begins where a target token does.
    """
    expected = dict(zip(_starts(part.target, target), part.target, strict=True))  # by offset
    starts, found, at = _starts(part.drafter, drafter), 0, 0
    while at < len(starts):
        if starts[at] not in expected:
            at += 1
            continue
        walk, offset = Walk(cache, eos=()), starts[at]
        while walk.open and at < len(starts):
            walk.push(part.drafter[at])
            at += 1
        walk.finish()
        for token in walk.tokens:
            found += expected.get(offset) == token
            offset += len(target[token] or b"")
        if walk.dead and walk.symbols[-1].node != ROOT:
            at -= 1  # it continued no token, but may begin one
    return found


def _starts(ids: Sequence[int], tokens: Sequence[bytes | None]) -> list[int]:
    """Byte offset of each token."""
    return list(itertools.accumulate((len(tokens[i] or b"") for i in ids[:-1]), initial=0)) if ids else []
