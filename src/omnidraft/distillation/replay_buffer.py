"""The training examples that a trainer keeps in memory: new ones, earlier ones for replay, and held-out ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from omnidraft.distillation.teacher import TrainingExample

REPLAY_BYTES = 2**26  # of training examples, beyond which the oldest are dropped
HOLD_OUT_EVERY = 10  # answers of which one is held out
HELD_OUT = 4  # latest held-out examples, on which an update is judged once there are as many


class ReplayBuffer:
    """The latest examples within REPLAY_BYTES, and the latest of those held out, which are never trained on."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._kept: deque[TrainingExample] = deque()
        self._bytes = 0
        self._added = 0
        self._held_out: deque[TrainingExample] = deque(maxlen=HELD_OUT)
        self.unlearned = 0  # examples since the last update, those dropped meanwhile included

    def add(self, example: TrainingExample) -> None:
        """Keep an example, or hold it out."""
        self._added += 1
        if self._added % HOLD_OUT_EVERY == 0:
            self._held_out.append(example)
            return
        self._kept.append(example)
        self._bytes += example.nbytes
        self.unlearned += 1
        while self._bytes > REPLAY_BYTES and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().nbytes

    @property
    def new(self) -> list[TrainingExample]:
        """The examples that no update has learned from yet, oldest first."""
        return list(self._kept)[max(0, len(self._kept) - self.unlearned) :]

    @property
    def held_out(self) -> list[TrainingExample] | None:
        """The latest held-out examples, or None while there are too few."""
        return list(self._held_out) if len(self._held_out) >= HELD_OUT else None

    def sample(self, count: int) -> Sequence[TrainingExample]:
        """Draw different examples for a replay step."""
        picks = self._random.choice(len(self._kept), min(count, len(self._kept)), replace=False)
        return [self._kept[i] for i in picks]
