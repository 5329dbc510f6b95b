"""Prompts that differ early and then agree: a date or a number near the beginning has all the rest read anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from omnidraft.models.prefix_cache import common

AGREE = 1000  # ids that have to be equal behind the difference
EARLY = 0.1  # of a prompt: a difference behind it costs little
PROBE = 64  # ids by which the same text is found in the other prompt
PROMPTS = 8  # latest ones that are compared
SHOWN = 40  # characters of each side


class ChangedHead(NamedTuple):
    """Where two prompts differ early, in characters, and what stands there in each."""

    character: int
    before: str
    now: str
    tokens: int  # that follow and are equal

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens are read anew because prompts differ at character {self.character}, "
            f"{self.before!r} before and {self.now!r} now: have what changes stand at the end"
        )


class ChangedHeads:
    """Looks for the difference in the prompts of one target, those of one API key beside each other."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._prompts: deque[tuple[int, list[int]]] = deque(maxlen=PROMPTS)  # with the place of the key

    def look(self, key: int, prompt: Sequence[int], cached: int) -> ChangedHead | None:
        """Compare a prompt, of which `cached` tokens were found, with those before."""
        found = None
        if len(prompt) > AGREE and cached < EARLY * len(prompt):
            for other in (ids for asked, ids in reversed(self._prompts) if asked == key):
                place = common(other, prompt)
                if place < EARLY * len(prompt) and (tokens := _agree(other, prompt, place)) >= AGREE:
                    found = self._shown(other, prompt, place, tokens)
                    break
        self._prompts.append((key, list(prompt)))
        return found

    def _shown(self, other: Sequence[int], prompt: Sequence[int], place: int, tokens: int) -> ChangedHead:
        before, now = (self._decode(ids[place : place + SHOWN])[:SHOWN] for ids in (other, prompt))
        return ChangedHead(len(self._decode(prompt[:place])), before, now, tokens)


def _agree(other: Sequence[int], prompt: Sequence[int], place: int) -> int:
    """Number of equal ids that follow the place where two prompts begin to differ, wherever they stand in the other."""
    if len(other) - place < PROBE:
        return 0
    windows = np.lib.stride_tricks.sliding_window_view(np.asarray(other[place:]), PROBE)
    for start in range(place + 1, len(prompt) - AGREE, max(1, len(prompt) // 20)):  # what differs may be long
        same = np.flatnonzero((windows == np.asarray(prompt[start : start + PROBE])).all(-1))
        if same.size:
            return common(other[place + int(same[0]) :], prompt[start:])
    return 0
