"""An index of token ids for what followed the end of a text before: hash chains over a ring buffer.

For each of a few lengths, the positions with the same last tokens are chained, the newest first, as in a dictionary
coder (LZ77).  Memory is fixed when the index is made, and a look-up visits a bounded number of positions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

MATCH_LENGTHS = 1, 2, 4, 7  # tokens of a match
LONGEST = MATCH_LENGTHS[-1]
ENDS = [length in MATCH_LENGTHS for length in range(1, LONGEST + 1)]
VISITED = 8  # positions that a look-up visits for each length, the newest of a chain
BOUNDARY = -1  # between two texts: no match goes across it
WORD = 2**32 - 1
END = 2**31 - 1  # of the positions that an entry has room for


class TokenIndex:
    """The latest `capacity` token ids of some texts, in `nbytes` of memory: 36 to 52 bytes a token."""

    def __init__(self, capacity: int) -> None:
        self._capacity = max(1, capacity)
        self._clear()

    def _clear(self) -> None:
        bits = (self._capacity - 1).bit_length()
        self._shift = 32 - bits
        self._tokens = array("i", bytes(4 * self._capacity))
        # by length: of each token, the position before it in its chain; of each chain, the newest position
        self._previous = [array("i", bytes(4 * self._capacity)) for _ in MATCH_LENGTHS]
        self._newest = [array("i", [-1]) * (1 << bits) for _ in MATCH_LENGTHS]
        self._begin = self._end = 0  # of the tokens held, in the order of all that were added

    @property
    def nbytes(self) -> int:
        arrays = (self._tokens, *self._previous, *self._newest)
        return sum(each.itemsize * len(each) for each in arrays)

    def __len__(self) -> int:
        """Number of tokens held, boundaries included."""
        return self._end - self._begin

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens; `BOUNDARY` may be among them."""
        if self._end + len(tokens) > END:  # after months
            self._clear()
        tail = self._tail()
        for token in tokens:
            tail.append(token)
            place = self._end % self._capacity
            self._tokens[place] = token
            for chain, previous, newest in zip(
                self._chains(tail[-LONGEST:]), self._previous, self._newest, strict=False
            ):
                previous[place], newest[chain] = newest[chain], self._end
            self._end += 1
        self._begin = max(self._begin, self._end - self._capacity)

    def drop(self, count: int) -> None:
        """Take back the last `count` tokens, of those held."""
        for _ in range(min(count, len(self))):
            place = (self._end - 1) % self._capacity
            for chain, previous, newest in zip(self._chains(self._tail()), self._previous, self._newest, strict=False):
                newest[chain] = previous[place]
            self._end -= 1

    def tokens(self) -> list[int]:
        """All tokens of the index, the oldest first."""
        return self._held(self._begin, self._end)

    def followers(self, text: Sequence[int]) -> list[list[int]]:
        """The tokens that followed the end of `text` before, the newest first: for each of MATCH_LENGTHS with any.

        LONGEST tokens of `text` are read.  It may be the indexed text itself, whose end then matches earlier places
        only.
        """
        levels: list[list[int]] = []
        tail = list(text[-LONGEST:])
        tokens, capacity, end = self._tokens, self._capacity, self._end
        for at, chain in enumerate(self._chains(tail)):
            length, position, previous = MATCH_LENGTHS[at], self._newest[at][chain], self._previous[at]
            wanted, oldest = array("i", tail[-length:]), self._begin + length - 1
            of_length = []
            for _ in range(VISITED):
                if position < oldest:
                    break
                place = position % capacity
                if (after := position + 1) < end and (token := tokens[after % capacity]) != BOUNDARY:
                    begin = place + 1 - length
                    # other texts may have the same chain
                    same = tokens[begin : place + 1] if begin >= 0 else array("i", self._held(after - length, after))
                    if same == wanted:
                        of_length.append(token)
                position = previous[place]
            if not of_length:
                break
            levels.append(of_length)
        return levels

    def _held(self, begin: int, end: int) -> list[int]:
        """The tokens at these positions."""
        return [self._tokens[position % self._capacity] for position in range(begin, end)]

    def _tail(self) -> list[int]:
        """The tokens added last, up to LONGEST."""
        return self._held(max(self._begin, self._end - LONGEST), self._end)

    def _chains(self, tail: Sequence[int]) -> list[int]:
        """Of each of MATCH_LENGTHS that the end of a text has since the last boundary, the chain."""
        chains, key, shift = [], 0, self._shift
        for token, ends in zip(reversed(tail), ENDS, strict=False):
            if token == BOUNDARY:
                break
            key = (key * 0x85EBCA6B + token + 1) & WORD
            if ends:
                chains.append((key * 0x9E3779B1 & WORD) >> shift)
        return chains
