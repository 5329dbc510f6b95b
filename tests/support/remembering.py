"""A model that reads each beginning of a text once, for tests that sample many texts that begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import torch

from omnidraft.models.language_model import LanguageModel, SingleSequence


class Remembering(SingleSequence):
    """A model that reads each beginning of a text once; many texts begin alike."""

    def __init__(self, model: LanguageModel) -> None:
        self._sequence = model.new_sequence()
        self.vocab_size, self.context = model.vocab_size, model.context
        self._text: list[int] = []
        self._read: list[int] = []  # by the model, last
        self._rows: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def length(self) -> int:
        return len(self._text)

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids`; the logits of the last `keep` of them."""
        self._text += ids
        text = self._text
        begins = [tuple(text[:end]) for end in range(len(text) - keep + 1, len(text) + 1)]
        if any(begin not in self._rows for begin in begins):
            pairs = zip(self._read, text[: len(text) - keep], strict=False)
            alike = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            self._sequence.crop(alike)
            rows = self._sequence.forward(text[alike:], keep)
            self._read = list(text)
            self._rows |= dict(zip(begins, rows.clone(), strict=True))
        return torch.stack([self._rows[begin] for begin in begins]) if begins else torch.empty(0, self.vocab_size)

    def crop(self, length: int) -> None:
        """Keep the first `length` ids."""
        del self._text[length:]
