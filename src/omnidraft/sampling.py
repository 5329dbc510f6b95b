"""From logits to probabilities and from probabilities to tokens: the only place where either happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.config import Sampling
from omnidraft.errors import NumericsError

if TYPE_CHECKING:
    from transformers import LogitsProcessorList

Probs = npt.NDArray[np.float64]
Draw = Callable[[Probs], int]
"""Draws an index with probability proportional to non-negative weights, at least one of them positive."""


class GeneratorDraw:
    """The `Draw` of real decoding: one uniform number of a `torch.Generator` for each index."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, weights: Probs) -> int:
        cumulative = np.cumsum(weights)
        u = torch.rand((), dtype=torch.float64, generator=self._generator).item() * cumulative[-1]
        index = int(np.searchsorted(cumulative, u, side="right"))
        # u may round up to the total; the last index of positive weight is then the one that was meant
        return index if index < len(weights) else int(np.flatnonzero(weights)[-1])


def softmax(scores: torch.Tensor) -> Probs:
    """Probabilities of one row of logits or scores: (V,) of any float dtype to (V,) float64 that sums to 1."""
    probs = torch.softmax(_wide(scores), dim=-1).cpu().numpy().astype(np.float64)
    total = probs.sum()
    if not np.isfinite(total):
        raise NumericsError(
            "logits or processed scores are NaN or infinite, finite ones are needed: check the model and its processors"
        )
    result: Probs = probs / total
    return result


def _wide(scores: torch.Tensor) -> torch.Tensor:
    return scores if scores.dtype == torch.float64 else scores.float()


def tempered(logits: torch.Tensor, temperature: float) -> Probs:
    """The drafter's distribution at a temperature; 0 is the one-hot of the largest logit. (V,) -> (V,)."""
    if temperature == 0:
        one_hot = np.zeros(logits.shape[-1])
        one_hot[int(logits.argmax())] = 1.0
        return one_hot
    return softmax(_wide(logits) / temperature)


def target_processors(sampling: Sampling) -> LogitsProcessorList:
    """The transformers processors that `generate` would build for these settings, in its order."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    chosen: list[Any] = []
    if sampling.repetition_penalty != 1:
        chosen.append(RepetitionPenaltyLogitsProcessor(penalty=sampling.repetition_penalty))
    if not sampling.greedy:
        if sampling.temperature != 1:
            chosen.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if sampling.top_k > 0:
            chosen.append(TopKLogitsWarper(top_k=sampling.top_k))
        if sampling.top_p < 1:
            chosen.append(TopPLogitsWarper(top_p=float(sampling.top_p)))
        if sampling.min_p > 0:
            chosen.append(MinPLogitsWarper(min_p=sampling.min_p))
    return LogitsProcessorList(chosen)


class TargetLaw:
    """The target's law after each prefix of a round's proposals, made lazily and in order.

    Row i of `logits` (n, V) follows the committed ids and the first i proposals.  A processor is called for
    prefix i only when the verifier asks for it, with the very ids that plain decoding would show it.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        committed: Sequence[int],
        proposals: Sequence[int],
        processors: Sequence[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]],
    ) -> None:
        self._logits = logits
        self._processors = processors
        self._length = len(committed)
        self._ids = torch.tensor([[*committed, *proposals]], device=logits.device) if processors else None
        self._best = None if processors else logits.argmax(dim=-1).tolist()
        self._probs: dict[int, Probs] = {}

    def _scores(self, index: int) -> torch.Tensor:
        scores = _wide(self._logits[index : index + 1])
        if self._ids is not None:
            ids = self._ids[:, : self._length + index]
            for processor in self._processors:
                scores = processor(ids, scores)
        return scores[0]

    def probs(self, index: int) -> Probs:
        """p after the first `index` proposals: (V,) float64, sums to 1."""
        if index not in self._probs:
            self._probs[index] = softmax(self._scores(index))
        return self._probs[index]

    def best(self, index: int) -> int:
        """The greedy token after the first `index` proposals; ties go to the lowest id, as in transformers."""
        if self._best is not None:
            return int(self._best[index])
        best, token = self._scores(index).max(dim=-1)
        if not bool(torch.isfinite(best)):
            raise NumericsError("processed scores are NaN or infinite, finite ones are needed: check the processors")
        return int(token)
