"""Target text as drafter tokens: the prompt is written once, each committed target token adds its spelling.

English and code lose next to nothing by that.  In other scripts target tokens end inside words and characters, where
no drafter token would: there the last word is written again with each addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from omnidraft.alignment.trie import SpellingTable
from omnidraft.alignment.vocab import Speller, Vocab

WINDOW = 32  # bytes at the end that are written again, at most: the cost of a text grows with its length alone
COMMON = 4096  # target tokens whose spellings are kept at hand


def special_map(target: Vocab, drafter: Vocab) -> dict[int, int | None]:
    """What a special target token becomes in the drafter's context: its own counterpart, or None for dropped.

    End of text maps to end of text; template markers of the target mean nothing to the drafter.  The first token is
    dropped unless it ends texts as well: the drafter's own is put in front of the whole context.
    """
    table: dict[int, int | None] = dict.fromkeys(target.special)
    if target.bos is not None:
        table[target.bos] = None
    for token in target.eos:
        table[token] = drafter.eos[0] if drafter.eos else None
    return table


class Translator:
    """Writes target tokens in the drafter's vocabulary."""

    def __init__(self, table: SpellingTable, target: Vocab, drafter: Vocab, speller: Speller) -> None:
        self._table = table
        self._target = target
        self._drafter = drafter
        self._speller = speller
        self.special = special_map(target, drafter)
        self._spelling = lru_cache(COMMON)(self._spell)
        self._beyond_ascii = bytes([data is not None and not data.isascii() for data in target.tokens])

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Drafter tokens of a whole prompt, tokenized as text, with the drafter's own first token in front."""
        result = [] if self._drafter.bos is None else [self._drafter.bos]
        first = next((i for i, token in enumerate(ids) if token != self._target.bos), len(ids))
        run = bytearray()
        for token in ids[first:]:
            data = self._target.tokens[token]
            if data is not None:
                run += data
                continue
            result += self._write(bytes(run))
            run.clear()
            special = self.special.get(token)
            if special is not None:
                result.append(special)
        return result + self._write(bytes(run))

    def tokens(self, ids: Iterable[int]) -> list[int]:
        """Drafter tokens of committed target tokens: their spellings, one after the other."""
        return [symbol for token in ids for symbol in self._spelling(token)]

    def after(self, text: Sequence[int], begun: int, ids: Sequence[int]) -> tuple[list[int], int]:
        """How a drafter text goes on with committed target tokens: the tokens to add, and after how many of the text.

        Where a character beyond ASCII is among or before them, these take the place of the text's last word; of the
        first `begun` tokens, a prompt, all stay.
        """
        added = self.tokens(ids)
        before = (self._drafter.tokens[text[-1]] if len(text) > begun else None) or b""
        if before.isascii() and not any(map(self._beyond_ascii.__getitem__, ids)):
            return added, len(text)
        kept = self._last_word(text, begun)
        written = [*text[kept:], *added]
        run = [self._drafter.tokens[token] for token in written]
        first = next((at for at in range(len(run), 0, -1) if run[at - 1] is None), 0)  # after what is no text
        again = self._speller.spell(b"".join(data for data in run[first:] if data is not None))
        return (added, len(text)) if again is None else ([*written[:first], *again], kept)

    def _spell(self, token: int) -> tuple[int, ...]:
        spelling: tuple[int, ...] = tuple(self._table.spelling(token).tolist())
        special = self.special.get(token)
        return spelling if spelling or special is None else (special,)

    def _last_word(self, text: Sequence[int], begun: int) -> int:
        """Where the last word of a drafter text begins, or its last WINDOW bytes."""
        tokens = self._drafter.tokens
        start, size = len(text), 0
        while start > begun and (data := tokens[text[start - 1]]) is not None:
            start, size = start - 1, size + len(data)
            before = (tokens[text[start - 1]] if start > begun else None) or b""
            if size >= WINDOW or (data[:1].isspace() and not before[-1:].isspace()):
                break
        return start

    def _write(self, data: bytes) -> list[int]:
        spelling = self._speller.spell(data)
        return list(self._speller.spell_most(data) if spelling is None else spelling)
