"""An index of token ids for the earlier occurrences of the end of a text: hash chains over a ring buffer.

Positions with the same last two tokens are chained, the newest first, as in a dictionary coder (LZ77).  Memory is
fixed when the index is made, and a look-up visits a bounded number of positions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

SHORTEST = 2  # tokens of a match
LONGEST = 6  # tokens of a match that are compared: more tell no more apart
VISITED = 24  # positions that a look-up compares, the newest of a chain
BOUNDARY = -1  # between two texts: no match goes across it


class TokenIndex:
    """The latest `capacity` token ids of some texts, in `nbytes` of memory: 20 to 28 bytes a token."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._tokens = array("i", bytes(4 * self._capacity))
        self._previous = array("q", bytes(8 * self._capacity))  # for each token, the one before it in its chain
        self._newest = array("q", [-1]) * (1 << (self._capacity - 1).bit_length())  # of each chain
        self._begin = self._end = 0  # of the tokens held, in the order of all that were added

    @property
    def nbytes(self) -> int:
        return sum(part.itemsize * len(part) for part in (self._tokens, self._previous, self._newest))

    def __len__(self) -> int:
        """Number of tokens held, boundaries included."""
        return self._end - self._begin

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens; `BOUNDARY` may be among them."""
        last = self._last()
        for token in tokens:
            place = self._end % self._capacity
            self._tokens[place] = token
            if BOUNDARY not in (token, last):
                chain = self._chain(last, token)
                self._previous[place], self._newest[chain] = self._newest[chain], self._end
            last = token
            self._end += 1
            self._begin = max(self._begin, self._end - self._capacity)

    def drop(self, count: int) -> None:
        """Take back the last `count` tokens, of those held."""
        for _ in range(min(count, len(self))):
            self._end -= 1
            place = self._end % self._capacity
            token, last = self._tokens[place], self._last()
            if BOUNDARY not in (token, last):
                self._newest[self._chain(last, token)] = self._previous[place]

    def tokens(self) -> list[int]:
        """What the index holds, the oldest first."""
        return [self._tokens[position % self._capacity] for position in range(self._begin, self._end)]

    def followers(self, text: Sequence[int]) -> list[tuple[int, int]]:
        """Where the end of `text` occurred before: how many tokens are equal, and the token that followed.

        The newest come first.  `text` may be the indexed text itself, whose end then matches earlier places only.
        """
        found: list[tuple[int, int]] = []
        if len(text) < SHORTEST:
            return found
        tokens, capacity, oldest, end = self._tokens, self._capacity, self._begin, self._end
        most = min(LONGEST, len(text))
        # a match is at least as long as the chain says, but for two pairs with one hash
        position = self._newest[self._chain(text[-2], text[-1])]
        for _ in range(VISITED):
            if position < oldest:
                break
            if (after := position + 1) < end:
                place, length, held = position % capacity, 0, min(most, after - oldest)
                # a negative index goes on at the end of the ring
                while length < held and tokens[place - length] == text[-1 - length]:
                    length += 1
                token = tokens[after % capacity]
                if length >= SHORTEST and token != BOUNDARY:
                    found.append((length, token))
            position = self._previous[position % capacity]
        return found

    def _last(self) -> int:
        """The token added last, a boundary before any."""
        return self._tokens[(self._end - 1) % self._capacity] if len(self) else BOUNDARY

    def _chain(self, first: int, second: int) -> int:
        return (first * 0x9E3779B1 ^ second * 0x85EBCA6B) >> 7 & (len(self._newest) - 1)
