"""The training examples that a trainer keeps in memory: new ones, earlier ones for replay, and held-out ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from omnidraft.distillation.settings import TrainerSettings
from omnidraft.distillation.teacher import TrainingExample

HELD_OUT = 6  # latest held-out examples, on which an update is judged
ENOUGH_HELD_OUT = 4


class ReplayBuffer:
    """Examples within `replay_bytes`, the oldest dropped first; one in `hold_out_every` is held out."""

    def __init__(self, settings: TrainerSettings, seed: int) -> None:
        self._settings = settings
        self._random = np.random.default_rng(seed)
        self._head_random = np.random.default_rng(seed)  # its own: training a head changes nothing for the drafter
        self._kept: deque[TrainingExample] = deque()
        self._new = 0  # the last of `_kept` that no update has learned from yet
        self._bytes = 0
        self._added = 0
        self._held_out: deque[TrainingExample] = deque(maxlen=HELD_OUT)
        self.overflowed = False  # a new example was dropped

    def add(self, example: TrainingExample) -> None:
        """Keep an example."""
        self._added += 1
        if self._added % self._settings.hold_out_every == 0:
            self._held_out.append(example)
            return
        self._kept.append(example)
        self._new += 1
        self._bytes += example.nbytes
        while self._bytes > self._settings.replay_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().nbytes
            if self._new > len(self._kept):
                self._new, self.overflowed = len(self._kept), True

    @property
    def new(self) -> list[TrainingExample]:
        """The examples that no update has learned from yet, oldest first."""
        return list(self._kept)[len(self._kept) - self._new :]

    @property
    def held_out(self) -> list[TrainingExample] | None:
        """The latest held-out examples, or None while there are too few."""
        return list(self._held_out) if len(self._held_out) >= ENOUGH_HELD_OUT else None

    def mark_learned(self) -> None:
        """Count all examples as learned from."""
        self._new, self.overflowed = 0, False

    def mark_new(self, count: int) -> None:
        """Count the last `count` examples as new again."""
        self._new = min(count, len(self._kept))

    def sample(self, count: int) -> Sequence[TrainingExample]:
        """Draw different examples for a replay step."""
        picks = self._random.choice(len(self._kept), min(count, len(self._kept)), replace=False)
        return [self._kept[i] for i in picks]

    def for_head(self) -> Sequence[TrainingExample]:
        """The latest example and an earlier one."""
        if len(self._kept) < 2:
            return list(self._kept)
        return [self._kept[-1], self._kept[int(self._head_random.integers(len(self._kept) - 1))]]
