"""Language models for tests: scripted, constant, and counted from text."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import torch

from omnidraft.alignment.vocab import Speller, Vocab


class _Base:
    """Keeps the ids that a cache would hold."""

    def __init__(self, vocab_size: int, context: int) -> None:
        self.vocab_size = vocab_size
        self.context = context
        self.ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self.ids)

    def crop(self, length: int) -> None:
        del self.ids[length:]

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        assert len(ids) >= keep >= 1
        self.ids += ids
        assert len(self.ids) <= self.context, "more tokens than the context holds"
        end = len(self.ids)
        return torch.stack([self.row(tuple(self.ids[: end - keep + i + 1])) for i in range(keep)])

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        raise NotImplementedError


class Scripted(_Base):
    """Continues a known text token by token, wrongly at every `wrong`-th position (0: never)."""

    def __init__(self, vocab_size: int, script: Sequence[int], wrong: int = 0, context: int = 4096) -> None:
        super().__init__(vocab_size, context)
        self._script = list(script)
        self._wrong = wrong

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        position = len(ids)
        token = self._script[position] if position < len(self._script) else 0
        if self._wrong and position % self._wrong == self._wrong - 1:
            token = (token + 1) % self.vocab_size
        logits = torch.full((self.vocab_size,), -4.0)
        logits[token] = 12.0
        return logits


class Knowing(Scripted):
    """Goes on with a known text from wherever the bytes of its input end, wrongly at every `wrong`-th position."""

    def __init__(self, vocab: Vocab, speller: Speller, text: bytes, wrong: int = 0) -> None:
        super().__init__(vocab.size, (), wrong)
        self._tokens, self._speller, self._text = vocab.tokens, speller, text

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        known = sum(len(self._tokens[i] or b"") for i in ids)
        self._script = [*ids, *(self._speller.spell(self._text[known : known + 40]) or ())]
        return super().row(ids)


class Constant(_Base):
    """Always the same token: the drafter that knows nothing."""

    def __init__(self, vocab_size: int, token: int, context: int = 4096) -> None:
        super().__init__(vocab_size, context)
        self._logits = torch.zeros(vocab_size)
        self._logits[token] = 20.0

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG002 (it looks at nothing)
        return self._logits


class Bigram(_Base):
    """The next token given the last one, counted over token sequences: a trained model for any tokenizer.

    `blur` mixes in a share of the overall counts, so that no law is trivial.
    """

    def __init__(self, vocab_size: int, sequences: Iterable[Sequence[int]], blur: float, context: int = 4096) -> None:
        super().__init__(vocab_size, context)
        self._pairs: dict[int, Counter[int]] = defaultdict(Counter)
        self._all: Counter[int] = Counter()
        self._blur = blur
        for sequence in sequences:
            self._all.update(sequence)
            for before, after in itertools.pairwise(sequence):
                self._pairs[before][after] += 1
        self._rows: dict[int, torch.Tensor] = {}

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        last = ids[-1]
        if last not in self._rows:
            law = torch.full((self.vocab_size,), 1e-9)
            for counts, share in ((self._all, self._blur), (self._pairs[last], 1 - self._blur)):
                total = counts.total()
                if total:
                    law[list(counts)] += share / total * torch.tensor(list(counts.values()), dtype=torch.float32)
            self._rows[last] = law.log()
        return self._rows[last]
