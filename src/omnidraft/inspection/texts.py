"""A text in the tokens of both models: its n-grams, and how far the draft's reading is from the target's own."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.trie import ROOT
from omnidraft.inspection.sides import Language
from omnidraft.verification.walk import Walk


@dataclass(frozen=True, kw_only=True)
class TextFigures:
    """One text, written as an answer is: no special tokens, nothing normalized, no space put before it."""

    name: str
    target_tokens: int
    drafter_tokens: int  # of the text as the drafter's own rules write it
    ngrams: int  # target tokens that take more than one drafter token
    missed: int  # target tokens that the walk over the drafter's tokens does not propose in their place
    spelled_tokens: int  # drafter tokens of the target tokens' spellings, one after the other
    unspelled: int  # target tokens without a spelling
    left_out: int  # bytes of lines that one of the two cannot write

    @property
    def ngram_share(self) -> float | None:
        return self.ngrams / self.target_tokens if self.target_tokens else None

    @property
    def missed_share(self) -> float | None:
        return self.missed / self.target_tokens if self.target_tokens else None

    @property
    def excess(self) -> float | None:
        """By what share the spellings are longer; None where they do not write the whole text."""
        known = self.drafter_tokens > 0 and self.unspelled == 0
        return self.spelled_tokens / self.drafter_tokens - 1 if known else None

    @property
    def ratio(self) -> float | None:
        """Target tokens in a draft token."""
        return self.target_tokens / self.drafter_tokens if self.drafter_tokens else None

    def as_dict(self) -> dict[str, Any]:
        """Counts and shares, for JSON."""
        shares = {name: getattr(self, name) for name in ("ngram_share", "missed_share", "excess", "ratio")}
        return {**vars(self), **shares}


def measure(name: str, text: str, cache: NgramCache, drafter: Language, target: Language) -> TextFigures:
    """Write a text in the tokens of both, and read the drafter's as a draft is read.

    What one of the two cannot write is left out, by lines.
    """
    whole = text.encode()
    parts = _written([whole], drafter, target) or _written(whole.splitlines(keepends=True), drafter, target)
    lengths = [len(cache.table.spelling(token)) for part in parts for token in part.target]
    kept = sum(part.size for part in parts)
    proposed = sum(_agreeing(part, cache, drafter.vocab.tokens, target.vocab.tokens) for part in parts)
    return TextFigures(
        name=name,
        target_tokens=len(lengths),
        drafter_tokens=sum(len(part.drafter) for part in parts),
        ngrams=sum(length > 1 for length in lengths),
        missed=len(lengths) - proposed,
        spelled_tokens=sum(lengths),
        unspelled=lengths.count(0),
        left_out=len(whole) - kept,
    )


@dataclass(frozen=True)
class _Part:
    """Some bytes in the tokens of both models."""

    size: int
    target: tuple[int, ...]
    drafter: tuple[int, ...]


def _written(texts: Sequence[bytes], drafter: Language, target: Language) -> list[_Part]:
    both = zip(texts, target.speller.spell_many(texts), drafter.speller.spell_many(texts), strict=True)
    return [_Part(len(data), t, d) for data, t, d in both if t is not None and d is not None]


def _agreeing(part: _Part, cache: NgramCache, drafter: Sequence[bytes | None], target: Sequence[bytes | None]) -> int:
    """How many target tokens the walk proposes in their place.

    Where it comes to a dead end, it begins anew with the next draft token that begins where a target token does.
    """
    own: Mapping[int, int] = dict(zip(_starts(part.target, target), part.target, strict=True))
    starts, found, at = _starts(part.drafter, drafter), 0, 0
    while at < len(starts):
        if starts[at] not in own:
            at += 1
            continue
        walk, place = Walk(cache, eos=()), starts[at]
        while walk.open and at < len(starts):
            walk.push(part.drafter[at])
            at += 1
        walk.finish()
        for token in walk.tokens:
            found += own.get(place) == token
            place += len(target[token] or b"")
        if walk.dead and walk.symbols[-1].node != ROOT:
            at -= 1  # it did not continue a token, but may begin one
    return found


def _starts(ids: Sequence[int], tokens: Sequence[bytes | None]) -> list[int]:
    """Where each token begins, in bytes."""
    return list(itertools.accumulate((len(tokens[i] or b"") for i in ids[:-1]), initial=0)) if ids else []
