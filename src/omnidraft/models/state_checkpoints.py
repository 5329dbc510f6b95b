"""Copies of a hybrid's states at places in its text, to which its cache can go back.

No crop restores a state that a pass has overwritten.  So a cache goes back to a checkpoint, where all tokens were
committed, and what has been accepted since is read again with the next draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import DynamicLayer

from omnidraft.models.transformers_cache import attention, state_layers, states

if TYPE_CHECKING:
    from transformers import DynamicCache

LONG = 64  # committed ids from which on a text gets a checkpoint near its end
PROMPT_TAIL_IDS = 16  # ids after it: a chat template may write the end of a prompt anew in the next turn
BEGINNINGS = 2  # checkpoints that stay for later requests


@dataclass(frozen=True)
class Checkpoint:
    """The states of a cache after `length` tokens."""

    length: int
    states: list[torch.Tensor]


class Checkpoints:
    """The checkpoints of one cache: the latest, and those that later requests may go back to."""

    def __init__(self) -> None:
        self._latest: Checkpoint | None = None
        self._beginnings: list[Checkpoint] = []
        self._parted = 0  # where a later text parted from one before, and there was no checkpoint

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for each in self._all for state in each.states)

    @property
    def _all(self) -> list[Checkpoint]:
        return [*self._beginnings, *([] if self._latest is None else [self._latest])]

    def places(self, length: int, count: int, keep: int) -> dict[int, bool]:
        """Return the positions to save, True for those to keep, before a cache of `length` tokens reads `count` ids.

        The last `keep - 1` of them are taken for a draft.
        """
        committed, places = length + count - max(0, keep - 1), dict[int, bool]()
        if keep and committed - length >= LONG:
            places[committed - PROMPT_TAIL_IDS] = True
        elif keep > 1 and length > max((each.length for each in self._all), default=0):
            places[length] = False
        if length < self._parted < committed:
            places[self._parted] = True
        return places

    def save(self, cache: DynamicCache, length: int, *, stays: bool) -> None:
        """Copy the states of a cache, which holds that many tokens; one that `stays` outlives later ones."""
        checkpoint = Checkpoint(length, [state.clone() for state in states(state_layers(cache))])
        if stays:
            self._beginnings = [*self._beginnings, checkpoint][-BEGINNINGS:]
        else:
            self._latest = checkpoint

    def back(self, cache: DynamicCache, length: int, held: int) -> int:
        """Restore a cache of `held` tokens to a checkpoint of at most `length` tokens; return its length.

        With 0 the cache is to be thrown away.
        """
        fitting = [each for each in self._all if each.length <= length]
        self._beginnings = [each for each in self._beginnings if each.length <= length]
        if self._latest is not None and self._latest.length > length:
            self._latest = None
        if not fitting:
            self._parted = length
            return 0
        chosen = max(fitting, key=lambda each: each.length)
        for state, kept in zip(states(state_layers(cache)), chosen.states, strict=True):
            state.copy_(kept)
        for layer in attention(cache):
            if held > chosen.length:
                DynamicLayer.crop(layer, chosen.length - held)  # of a layer with both, that of its keys
        return chosen.length

    def clear(self) -> None:
        """Drop all checkpoints, and the position where texts differed."""
        self._latest, self._beginnings, self._parted = None, [], 0
