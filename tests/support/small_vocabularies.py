"""Vocabularies of a few byte strings, and a speller that needs no tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from omnidraft.alignment.trie import SpellingTable, build_table
from omnidraft.alignment.vocab import Speller, Vocab


class Greedy(Speller):
    """Writes the longest token that fits, then the next."""

    def __init__(self, vocab: Vocab) -> None:
        self._ids = {data: i for i, data in reversed(list(enumerate(vocab.tokens))) if data is not None}

    def spell_many(self, texts: Sequence[bytes]) -> list[tuple[int, ...] | None]:
        return [self._greedy(data) for data in texts]

    def _greedy(self, data: bytes) -> tuple[int, ...] | None:
        ids: tuple[int, ...] = ()
        while data:
            size = next((n for n in range(len(data), 0, -1) if data[:n] in self._ids), None)
            if size is None:
                return None
            ids, data = (*ids, self._ids[data[:size]]), data[size:]
        return ids


def vocabulary(*tokens: bytes | None, eos: tuple[int, ...] = ()) -> Vocab:
    return Vocab(tokens, len(tokens), None, eos, {}, fingerprint=f"{tokens} {eos}")


def table_of(drafter: Vocab, target: Vocab) -> SpellingTable:
    return build_table(drafter, target, Greedy(drafter), Greedy(target))
