"""Target text as drafter tokens: the prompt is written once, each committed target token adds its spelling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from omnidraft.spelling import SpellingTable
from omnidraft.vocab import Speller, Vocab


def special_map(target: Vocab, drafter: Vocab) -> dict[int, int | None]:
    """What a special target token becomes in the drafter's context: its own counterpart, or None for dropped.

    End of text maps to end of text and the first token to the first token; template markers of the target mean
    nothing to the drafter.
    """
    table: dict[int, int | None] = dict.fromkeys(target.special)
    for token in target.eos:
        table[token] = drafter.eos[0] if drafter.eos else None
    if target.bos is not None:
        table[target.bos] = None  # the drafter's own is put in front of the whole context
    return table


class Translator:
    """Writes target tokens in the drafter's vocabulary."""

    def __init__(self, table: SpellingTable, target: Vocab, drafter: Vocab, speller: Speller) -> None:
        self._table = table
        self._target = target
        self._drafter = drafter
        self._speller = speller
        self.special = special_map(target, drafter)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """Drafter tokens of a whole prompt, tokenized as text, with the drafter's own first token in front."""
        result = [] if self._drafter.bos is None else [self._drafter.bos]
        run = bytearray()
        for token in ids:
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
        result: list[int] = []
        for token in ids:
            spelling = self._table.spelling(token)
            if len(spelling):
                result += spelling.tolist()
            elif (special := self.special.get(token)) is not None:
                result.append(special)
        return result

    def _write(self, data: bytes) -> list[int]:
        return list(self._speller.spell(data) or ()) if data else []
