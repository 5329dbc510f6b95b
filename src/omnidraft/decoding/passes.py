"""Drafting as a generator that asks for forward passes, so that those of several requests can be made together."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from omnidraft.models.language_model import LanguageModel
from omnidraft.models.lean import LeanModel

SHORT = 8  # tokens: a longer text is read alone, as it takes as long as that
T = TypeVar("T")


@dataclass(frozen=True)
class Pass:
    """A forward pass of a model that is to be made: its logits (V,) after the last of these tokens are sent back."""

    model: LanguageModel
    tokens: Sequence[int]

    def make(self) -> torch.Tensor:
        """The logits."""
        return self.model.forward(self.tokens, 1)[-1]


Passes = Generator[Pass, torch.Tensor, T]
"""Work that asks for passes one after another and returns a T."""


def alone(work: Passes[T]) -> T:
    """The result of some work, its passes made one by one."""
    try:
        asked = next(work)
        while True:
            asked = work.send(asked.make())
    except StopIteration as end:
        result: T = end.value
        return result


def together(works: Sequence[Passes[T]]) -> list[T]:
    """The results of several, whose passes are made together where models share weights; the same as of each alone."""
    results: dict[int, T] = {}
    asked: dict[int, Pass] = {}
    logits: dict[int, torch.Tensor | None] = dict.fromkeys(range(len(works)))
    while logits:
        asked = {}
        for at, answer in logits.items():
            try:
                asked[at] = next(works[at]) if answer is None else works[at].send(answer)
            except StopIteration as end:
                results[at] = end.value
        logits = _made(asked)
    return [results[at] for at in range(len(works))]


def _made(asked: dict[int, Pass]) -> dict[int, torch.Tensor | None]:
    """The logits of each pass."""
    logits: dict[int, torch.Tensor | None] = {}
    groups: list[dict[int, LeanModel]] = []
    for at, one in asked.items():
        if not isinstance(one.model, LeanModel) or len(one.tokens) > SHORT:
            logits[at] = one.make()
            continue
        group = next((group for group in groups if next(iter(group.values())).shares(one.model)), None)
        if group is None:
            groups.append({at: one.model})
        else:
            group[at] = one.model
    for group in groups:
        first, *others = group.values()
        rows = first.forward_together(others, [asked[at].tokens for at in group])
        logits |= dict(zip(group, rows, strict=True))
    return logits
