"""Stop strings: an answer ends before the first of them, wherever its tokens begin and end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from omnidraft.text.detokenizer import BROKEN, Detokenizer


class StopStrings:
    """Text of an answer that ends before the first of these strings, and holds back what may be the beginning of one.

    It ends with the first token whose text, all of it so far, holds one of them; one that is whole within the first
    `least` tokens does not count.
    """

    def __init__(self, text: Detokenizer, strings: Sequence[str], least: int = 0) -> None:
        self._text, self._least = text, least
        longest_first = sorted(strings, key=len, reverse=True)  # of two at one place, it may be this one that counts
        self._strings = re.compile("|".join(map(re.escape, longest_first))) if strings else None
        self._by_first: dict[str, list[str]] = {}  # strings by their first character
        for string in strings:
            self._by_first.setdefault(string[0], []).append(string)
        self._longest = max(map(len, strings), default=0)
        self._held = ""
        self._passed = 0  # characters of that in which no string counts that ends there
        self._stopped = False

    def feed(self, ids: Sequence[int]) -> tuple[str, int | None]:
        """Return the certain characters, and the number of tokens kept if the answer ends among them."""
        if self._strings is None:
            return self._text.feed(ids), None
        for count, token in enumerate(ids, 1):
            self._held += self._text.feed([token])
            whole = self._held + self._text.ending()
            if self._least > 0:
                self._least -= 1
                self._passed = len(whole.rstrip(BROKEN))  # a character that is not whole yet is the next token's
                continue
            stop = self._strings.search(whole)
            while stop and stop.end() <= self._passed:
                stop = self._strings.search(whole, stop.start() + 1)
            if stop:
                self._held, self._stopped = "", True
                return whole[: stop.start()], count
        length = len(self._held) - self._begun()
        ready, self._held = self._held[:length], self._held[length:]
        self._passed = max(0, self._passed - length)
        return ready, None

    def end(self) -> str:
        """The rest of the text at its end."""
        held, self._held = self._held, ""
        return "" if self._stopped else held + self._text.end()

    def _begun(self) -> int:
        """Length of the longest beginning of a string that the text ends with."""
        held = self._held
        for place in range(max(0, len(held) - self._longest + 1), len(held)):
            if any(string.startswith(held[place:]) for string in self._by_first.get(held[place], ())):
                return len(held) - place
        return 0
