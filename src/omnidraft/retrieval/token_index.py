"""An index of token ids for the longest earlier occurrence of the end of a text: hash chains over a ring buffer.

Positions with the same last two tokens are chained, the newest first, as in a dictionary coder (LZ77).  Memory is
fixed when the index is made, and a look-up visits a bounded number of positions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

SHORTEST = 2  # tokens of a match
LONGEST = 32  # tokens of a match that are compared
VISITED = 64  # positions that a look-up compares, the newest of a chain
BOUNDARY = -1  # between two texts: no match and no copy goes across it


@dataclass(frozen=True, slots=True)
class Match:
    """Where the end of a text occurred before: `length` equal tokens, which end before `position`."""

    length: int
    position: int


class TokenIndex:
    """The latest `capacity` token ids of some texts, in `nbytes` of memory: 20 to 28 bytes a token."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._tokens = array("i", bytes(4 * self._capacity))
        self._previous = array("q", bytes(8 * self._capacity))  # for each token, the one before it in its chain
        self._newest = array("q", [-1]) * (1 << (self._capacity - 1).bit_length())  # of each chain
        self._end = 0  # tokens added, those that were overwritten included
        self._last = BOUNDARY

    @property
    def nbytes(self) -> int:
        return sum(part.itemsize * len(part) for part in (self._tokens, self._previous, self._newest))

    def __len__(self) -> int:
        """Number of tokens held, boundaries included."""
        return min(self._end, self._capacity)

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens; `BOUNDARY` may be among them."""
        for token in tokens:
            place = self._end % self._capacity
            self._tokens[place] = token
            if BOUNDARY not in (token, self._last):
                chain = self._chain(self._last, token)
                self._previous[place], self._newest[chain] = self._newest[chain], self._end
            self._last = token
            self._end += 1

    def tokens(self) -> list[int]:
        """What the index holds, the oldest first."""
        place = self._end % self._capacity if self._end > self._capacity else 0
        return [*self._tokens[place : len(self)], *self._tokens[:place]]

    def longest(self, text: Sequence[int]) -> Match | None:
        """The longest match of the end of `text` that another token follows; of equal ones the newest.

        `text` may be the indexed text itself, whose end then matches earlier places only.
        """
        if len(text) < SHORTEST:
            return None
        best, length, visited = -1, SHORTEST - 1, 0
        position, oldest = self._newest[self._chain(text[-2], text[-1])], self._end - self._capacity
        while position >= max(0, oldest) and visited < VISITED and length < LONGEST:
            same = self._same(text, position, oldest)
            if same > length and self._followed(position):
                best, length = position, same
            position, visited = self._previous[position % self._capacity], visited + 1
        return Match(length, best + 1) if best >= 0 else None

    def after(self, match: Match, count: int) -> list[int]:
        """Up to `count` tokens that followed a match; what reaches the end of the index is repeated from there on."""
        copied: list[int] = []
        period = self._end - match.position
        for place in range(count):
            if place < period:
                token = self._tokens[(match.position + place) % self._capacity]
            else:
                token = copied[place - period]
            if token == BOUNDARY:
                break
            copied.append(token)
        return copied

    def _chain(self, first: int, second: int) -> int:
        return (first * 0x9E3779B1 ^ second * 0x85EBCA6B) >> 7 & (len(self._newest) - 1)

    def _same(self, text: Sequence[int], position: int, oldest: int) -> int:
        """How many tokens up to `position` equal the end of `text`."""
        most = min(LONGEST, len(text), position + 1, position + 1 - oldest)
        for back in range(most):
            if self._tokens[(position - back) % self._capacity] != text[-1 - back]:
                return back
        return most

    def _followed(self, position: int) -> bool:
        return position + 1 < self._end and self._tokens[(position + 1) % self._capacity] != BOUNDARY
