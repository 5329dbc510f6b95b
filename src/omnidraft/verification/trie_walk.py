"""The segmentation of a draft into target tokens.

A target token is read as its spelling followed by STOP, so every draft token is one or two *symbols*: the end of
the target token it does not continue, then the drafter token itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.spelling_table import ROOT

STOP = -1  # symbol: the target token ends at this node
DEAD = -2  # symbol: impossible for the target here (P = 0)


@dataclass(frozen=True, slots=True)
class Symbol:
    """One step of a walk: the option proposed at a node, and the draft token it was read from."""

    node: int
    symbol: int  # a drafter token, STOP or DEAD
    child: int  # node it leads to; -1 for STOP and DEAD
    index: int  # target tokens completed before it
    position: int  # draft token it was read from; -1: certain, Q = 1
    after: int = -1  # at the root: the node whose implied STOP revealed this draft token


@dataclass(slots=True)
class Walk:
    """The segmentation of a draft into target tokens, symbol by symbol.

    How a draft token is read depends on the draft up to it and on the active set, never on later draft tokens.
    `open` turns False where no later draft token could be used: after a dead symbol or an end of sequence.
    """

    cache: NgramCache
    eos: Collection[int]
    node: int = ROOT
    symbols: list[Symbol] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # the proposals
    drafted: int = 0
    open: bool = True
    dead: bool = False
    ended: bool = False  # the last proposal is an end-of-sequence token
    closed: bool = False  # the last symbol was added by `finish`, and read from no draft token

    def push(self, draft: int) -> None:
        """Read the next draft token."""
        if not self.open:
            raise ValueError("the walk has ended: no draft token can follow")
        position, after = self.drafted, -1
        self.drafted += 1
        if self.node != ROOT:
            child = self.cache.child(self.node, draft)
            if child >= 0:
                self._step(draft, child, position)
                return
            after = self.node
            if not self._stop(position) or not self.open:
                return
        child = self.cache.child(ROOT, draft)
        if child >= 0:
            self._step(draft, child, position, after)
            return
        long = self.cache.long(draft)
        if len(long):
            self._force(long, position, after)
        else:
            self.symbols.append(Symbol(ROOT, DEAD, -1, len(self.tokens), position, after))
            self.open, self.dead = False, True

    def read(self, draft: int) -> bool:
        """Read the next draft token; True if another one could be used."""
        self.push(draft)
        return self.open

    def finish(self) -> None:
        """End the draft: the token that ends at the current node, if any, is proposed as well."""
        if self.node != ROOT and self.open and self.cache.token_at(self.node) >= 0:
            self._stop(position=-1)
            self.closed = True
        self.open = False

    def drafts_in(self, symbols: int) -> int:
        """Number of draft tokens that lie wholly in the first `symbols`."""
        read = len(self.symbols) - self.closed
        if symbols >= read:
            return self.drafted
        position = self.symbols[symbols].position
        # a symbol that is certain belongs to the draft token it came with
        return position if position >= 0 else max(symbol.position for symbol in self.symbols[:symbols])

    def _step(self, symbol: int, child: int, position: int, after: int = -1) -> None:
        self.symbols.append(Symbol(self.node, symbol, child, len(self.tokens), position, after))
        self.node = child
        if self.cache.leaf(child):
            self._complete(self.cache.token_at(child))

    def _stop(self, position: int) -> bool:
        """Propose that the token ends at the current node; False where none does."""
        token = self.cache.token_at(self.node)
        self.symbols.append(Symbol(self.node, STOP if token >= 0 else DEAD, -1, len(self.tokens), position))
        if token < 0:
            self.open, self.dead = False, True
            return False
        self._complete(token)
        return True

    def _complete(self, token: int) -> None:
        self.tokens.append(token)
        self.node = ROOT
        if token in self.eos:
            self.open, self.ended = False, True

    def _force(self, tokens: Ints, position: int, after: int) -> None:
        """Read a draft token that stands for whole target tokens: its first symbol is drawn, the rest is certain."""
        for token in tokens:
            for symbol in self.cache.table.spelling(int(token)).tolist():
                child = self.cache.child(self.node, symbol)
                self._step(symbol, child, position, after)
                position = after = -1
            if self.node != ROOT:
                self._stop(position=-1)
            if not self.open:
                return
