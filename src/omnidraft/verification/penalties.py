"""Processors of the target's logits that depend on the text so far, and those that favor or bar tokens.

Each returns scores of its own: it writes into none that it is given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from omnidraft.config import Biases, Sampling
from omnidraft.errors import ConfigError


def penalties(sampling: Sampling, prompt: int, eos: Collection[int]) -> list[Any]:
    """The processors for these settings, before temperature and cuts; the answer begins after `prompt` ids."""
    chosen: list[Any] = []
    if sampling.logit_bias:
        chosen.append(Bias(sampling.logit_bias))
    if sampling.min_new_tokens and eos:
        chosen.append(NoEnd(tuple(sorted(eos)), prompt + sampling.min_new_tokens))
    if sampling.repetition_penalty != 1:
        from transformers import RepetitionPenaltyLogitsProcessor

        repetition = RepetitionPenaltyLogitsProcessor(penalty=sampling.repetition_penalty)
        chosen.append(Recent(repetition, sampling.repetition_window) if sampling.repetition_window else repetition)
    if sampling.frequency_penalty or sampling.presence_penalty:
        chosen.append(Repeats(prompt, sampling.frequency_penalty, sampling.presence_penalty))
    return chosen


@dataclass(frozen=True)
class Repeats:
    """Takes off the score of each token of the answer, which begins after `prompt` ids: once, and for each time."""

    prompt: int
    frequency: float
    presence: float

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        tokens, counts = ids[0, self.prompt :].unique(return_counts=True)
        scores = scores.clone()
        scores[0, tokens] -= self.frequency * counts.to(scores.dtype) + self.presence
        return scores


@dataclass(frozen=True)
class Recent:
    """A processor that is shown the last `count` ids alone."""

    processor: Any
    count: int

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = self.processor(ids[:, -self.count :], scores)
        return changed


@dataclass(frozen=True)
class NoEnd:
    """Bars the tokens `ends` while there are fewer than `until` ids."""

    ends: tuple[int, ...]
    until: int

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] >= self.until:
            return scores
        return scores.index_fill(1, torch.tensor(self.ends, device=scores.device), -torch.inf)


@dataclass(frozen=True)
class Bias:
    """Adds to the scores of some tokens."""

    biases: Biases

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        size = scores.shape[-1]
        if (last := self.biases[-1][0]) >= size:
            raise ConfigError(
                f"logit_bias names token {last}; the target has ids below {size}: leave it out", option="logit_bias"
            )
        tokens, values = zip(*self.biases, strict=True)
        scores = scores.clone()
        scores[0, torch.tensor(tokens, device=scores.device)] += torch.tensor(
            values, dtype=scores.dtype, device=scores.device
        )
        return scores
