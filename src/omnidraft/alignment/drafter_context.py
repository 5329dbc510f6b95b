"""Target tokens as drafter tokens: the prompt is tokenized once, committed target tokens append their spellings.

In English and code that is nearly how the drafter itself would tokenize the text.  In other scripts target tokens end
inside words and characters, where no drafter token would: there the last word is spelled again with each addition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from omnidraft.alignment.spelling_table import SpellingTable
from omnidraft.alignment.vocab import Speller, Vocab

WINDOW = 32  # bytes at the end that are spelled again, at most: so the cost is linear in the length
COMMON = 4096  # target tokens whose spellings are cached


def special_map(target: Vocab, drafter: Vocab) -> dict[int, int | None]:
    """Map each special target token to its counterpart in the drafter's context, None where it is dropped.

    A counterpart has the same content, as have the template markers of one family.  An end-of-sequence token without
    one maps to the drafter's first; the other tokens without one mean nothing to the drafter.
    """
    by_content = {content: token for token, content in drafter.special.items() if token < drafter.size}
    table = {token: by_content.get(content) for token, content in target.special.items()}
    if target.bos is not None:
        table.setdefault(target.bos, None)
    for token in target.eos:
        if table.get(token) not in drafter.eos:
            table[token] = drafter.eos[0] if drafter.eos else None
    return table


class DrafterContext:
    """Translates target tokens to drafter tokens."""

    def __init__(self, table: SpellingTable, target: Vocab, drafter: Vocab, speller: Speller) -> None:
        self._table = table
        self._target = target
        self._drafter = drafter
        self._speller = speller
        self.special = special_map(target, drafter)
        self._spelling = lru_cache(COMMON)(self._spell)
        self._beyond_ascii = bytes([data is not None and not data.isascii() for data in target.tokens])

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Drafter tokens of a whole prompt, tokenized as the drafter's tokenizer would.

        In front are the tokens that this tokenizer puts there, in place of the target's first token; where it puts
        none, the counterpart of the target's.
        """
        begun = next((i for i, token in enumerate(ids) if token != self._target.bos), len(ids))
        result = list(self._drafter.first)
        if begun and not result and self._target.bos not in self._target.eos:
            result = [token for token in [self.special.get(ids[0])] if token is not None]
        run = bytearray()
        for token in ids[begun:]:
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
        """Continue a drafter context with committed target tokens: the tokens to append, and how many of it to keep.

        Where a character beyond ASCII is among or before the committed tokens, the last word is replaced as well; the
        first `begun` tokens, the prompt, are always kept.
        """
        added = self.tokens(ids)
        before = (self._drafter.tokens[text[-1]] if len(text) > begun else None) or b""
        if before.isascii() and not any(map(self._beyond_ascii.__getitem__, ids)):
            return added, len(text)
        kept = self._last_word(text, begun)
        written = [*text[kept:], *added]
        run = [self._drafter.tokens[token] for token in written]
        first = next((at for at in range(len(run), 0, -1) if run[at - 1] is None), 0)  # after a token without bytes
        again = self._speller.spell(b"".join(data for data in run[first:] if data is not None))
        return (added, len(text)) if again is None else ([*written[:first], *again], kept)

    def _spell(self, token: int) -> tuple[int, ...]:
        special = self.special.get(token)
        return tuple(self._table.spelling(token).tolist()) if special is None else (special,)

    def _last_word(self, text: Sequence[int], begun: int) -> int:
        """Position where the last word of a drafter context begins, or its last WINDOW bytes."""
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
