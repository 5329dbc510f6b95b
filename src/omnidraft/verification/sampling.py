"""From logits to probabilities and from probabilities to tokens; no other module does either."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from omnidraft.alignment.spelling_table import Probs
from omnidraft.config import Sampling
from omnidraft.errors import ConfigError, NumericsError
from omnidraft.verification.penalties import penalties
from omnidraft.verification.top_k_top_p import Truncation

Sampler = Callable[[Probs], int]
"""Draws an index with probability proportional to non-negative weights, at least one of them positive."""
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
UNUSABLE = "logits or processed scores are NaN or infinite, finite ones are needed: check the model and its processors"
BLOCK_WEIGHTS = 512  # weights a block, where an index is drawn from many


class GeneratorSampler:
    """The `Sampler` of decoding: one uniform number of a `torch.Generator` for each index."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, weights: Probs) -> int:
        u = torch.rand((), dtype=torch.float64, device="cpu", generator=self._generator).item()
        first = 0
        if len(weights) > 2 * BLOCK_WEIGHTS:  # first the block, then the index in it: no sums over the whole vocabulary
            starts = np.arange(0, len(weights), BLOCK_WEIGHTS)
            block, u = _pick(np.add.reduceat(weights, starts, dtype=np.float64), u)
            first = block * BLOCK_WEIGHTS
            weights = weights[first : first + BLOCK_WEIGHTS]
        return first + _pick(weights, u)[0]


def _pick(weights: Probs, u: float) -> tuple[int, float]:
    """Return the index that u in [0, 1) falls on, and the position of u within it, from 0 to 1."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    u *= float(cumulative[-1])
    index = int(np.searchsorted(cumulative, u, side="right"))
    if index == len(weights):  # u rounded up to the total: the last index of positive weight was meant
        return int(np.flatnonzero(weights)[-1]), 1.0
    # rounding may put u just below the beginning of the index
    return index, max(0.0, float((u - cumulative[index] + weights[index]) / weights[index]))


def softmax(scores: torch.Tensor, temperature: float = 1.0) -> Probs:
    """Probabilities of logits or scores over `temperature`, (..., V) in float32 or float64.

    Raises NumericsError where they are NaN.
    """
    scores = _wide(scores)
    if scores.device.type != "cpu":
        probs: Probs = torch.softmax(scores / temperature, dim=-1).cpu().numpy()
    else:
        # threads of torch, among which it divides a long row, would then spin on the cores of the target's next pass
        rows = scores.detach().numpy()
        with np.errstate(invalid="ignore"):  # of infinite ones the difference is NaN
            probs = rows - rows.max(-1, keepdims=True)
        probs /= temperature
        np.exp(probs, out=probs)
        probs /= probs.sum(-1, keepdims=True)
    if np.isnan(probs[..., 0]).any():  # if one entry of a row is NaN, all are
        raise NumericsError(UNUSABLE)
    return probs


def _wide(scores: torch.Tensor) -> torch.Tensor:
    return scores if scores.dtype == torch.float64 else scores.float()


def check_scores(processor: Processor, scores: object, size: int) -> None:
    """Raise ConfigError unless `scores`, which `processor` returned, is a tensor (1, size)."""
    if not isinstance(scores, torch.Tensor) or scores.shape != (1, size):
        shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        name = getattr(processor, "__name__", type(processor).__name__)
        raise ConfigError(f"logits processor {name!r} returns {shape}; it must return scores of shape (1, {size})")


def largest(scores: torch.Tensor) -> list[int]:
    """Return the index of the largest score of each row (n, V), the lowest index of equals."""
    # numpy's argmax is twenty times as fast as torch's on a CPU
    best: list[int] = (_wide(scores).numpy() if scores.device.type == "cpu" else scores).argmax(-1).tolist()
    return best


def one_hot(index: int, size: int) -> Probs:
    """All probability at an index, (size,)."""
    probs = np.zeros(size)
    probs[index] = 1.0
    return probs


def target_processors(sampling: Sampling, prompt: int = 0, eos: Collection[int] = ()) -> list[Processor]:
    """Return the logits processors for these settings: where `generate` of transformers has one, its own, in its order.

    They are for an answer that follows `prompt` ids, and ends with one of `eos`.
    """
    chosen: list[Any] = penalties(sampling, prompt, eos)
    if sampling.greedy:
        return chosen
    from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    if sampling.temperature != 1:
        chosen.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k > 0:
        chosen.append(TopKLogitsWarper(top_k=sampling.top_k))
    if sampling.top_p < 1:
        chosen.append(TopPLogitsWarper(top_p=float(sampling.top_p)))
    if sampling.min_p > 0:
        chosen.append(MinPLogitsWarper(min_p=sampling.min_p))
    return chosen


def processed(processors: Sequence[Processor], ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The scores (1, V) that these processors make of those after `ids` (1, T), one after the other."""
    for processor in processors:
        scores = processor(ids, scores)
    return scores


@dataclass(frozen=True)
class Processing:
    """What turns the target's logits into scores: processors, most of which a `Truncation` can replace.

    Those for `sampling` are as `target_processors` is told, and the caller's `more` follow them.
    """

    sampling: Sampling
    more: Sequence[Processor] = ()
    prompt: int = 0
    eos: Collection[int] = ()

    @cached_property
    def penalties(self) -> Sequence[Processor]:
        """The processors before temperature and cuts."""
        return penalties(self.sampling, self.prompt, self.eos)

    @cached_property
    def warping(self) -> Truncation | None:
        """Temperature, top-k, top-p and min-p, where no processor follows them."""
        one = self.sampling
        return None if one.greedy or self.more else Truncation(one.temperature, one.top_k, one.top_p, one.min_p)

    @cached_property
    def processors(self) -> Sequence[Processor]:
        """All processors; they are made when they are first needed, as most of them are imported then."""
        return [*target_processors(self.sampling, self.prompt, self.eos), *self.more]

    @property
    def from_settings(self) -> int:
        """Number of processors made from the settings; the others are the caller's."""
        return len(self.processors) - len(self.more)


class TargetDistribution:
    """The target's distribution after each prefix of a round's proposals, computed lazily and in order.

    Row i of `logits` (n, V) follows the committed ids and the first i proposals.  A processor is called for
    prefix i only when the verifier asks for it, with the very ids that plain decoding would show it.
    """

    def __init__(
        self,
        logits: torch.Tensor,
        committed: Sequence[int],
        proposals: Sequence[int],
        processing: Processing,
    ) -> None:
        self._logits = logits
        self._processing = processing
        self._rows: Probs | None = None
        self._length = len(committed)
        self._best: list[int] | None = None
        self._tokens = (committed, proposals)
        self._probs: dict[int, Probs] = {}

    @cached_property
    def _ids(self) -> torch.Tensor:
        committed, proposals = self._tokens
        return torch.tensor([[*committed, *proposals]], device=self._logits.device)

    def _scores(self, index: int, processors: Sequence[Processor]) -> torch.Tensor:
        scores = _wide(self._logits[index : index + 1])
        if processors:
            ids = self._ids[:, : self._length + index]
            for place, processor in enumerate(processors):
                if place == self._processing.from_settings:  # the caller's may write in place
                    scores = scores.clone()
                scores = processor(ids, scores)
                if place >= self._processing.from_settings:
                    check_scores(processor, scores, self._logits.shape[-1])
        return scores[0]

    def probs(self, index: int) -> Probs:
        """p after the first `index` proposals: (V,), sums to 1 up to the rounding of the logits' precision."""
        if index not in self._probs:
            self._probs[index] = self._compute(index)
        return self._probs[index]

    def _compute(self, index: int) -> Probs:
        penalties, warping = self._processing.penalties, self._processing.warping
        if warping is not None and not (warping.cuts or penalties):
            if self._rows is None:  # independent of the ids: all rows at once
                self._rows = softmax(self._logits, warping.temperature)
            row: Probs = self._rows[index]
            return row
        if warping is not None and warping.cuts and self._logits.device.type == "cpu":
            probs = warping.probs(self._scores(index, penalties).numpy())
            if probs is not None:
                return probs
        return softmax(self._scores(index, self._processing.processors))

    def best(self, index: int) -> int:
        """The greedy token after the first `index` proposals; ties go to the lowest id, as in transformers."""
        if not self._processing.processors:
            self._best = self._best or largest(self._logits)
            return self._best[index]
        scores = self._scores(index, self._processing.processors)
        token = largest(scores[None])[0]
        if not bool(torch.isfinite(scores[token])):
            raise NumericsError(UNUSABLE)
        return token
