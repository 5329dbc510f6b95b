"""A target that says again what it once said, so that drafters can be compared without running it again."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from omnidraft.models.language_model import NO_LIMIT

UNKNOWN = 0  # what it says off the recorded text, where nobody will ask


class Replay:
    """A `LanguageModel` whose greedy text is the recorded one.

    Only its greedy choice after prefixes of that text is right: what greedy verification looks at.
    """

    context = NO_LIMIT

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.text: Sequence[int] = ()
        self._fed: list[int] = []

    @property
    def length(self) -> int:
        return len(self._fed)

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Append `ids`; the logits of the last `keep` of them, one-hot, (keep, vocab_size)."""
        self._fed += ids
        ends = range(len(self._fed) - keep + 1, len(self._fed) + 1)
        said = [self.text[end] if end < len(self.text) else UNKNOWN for end in ends]
        logits = torch.zeros(keep, self.vocab_size)
        logits[torch.arange(keep), torch.tensor(said, dtype=torch.int64)] = 1.0
        return logits

    def crop(self, length: int) -> None:
        """Keep the first `length` ids."""
        del self._fed[length:]
