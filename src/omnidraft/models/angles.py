"""The angles by which positions are rotated, as step.c takes them."""

from __future__ import annotations

from typing import Any

import torch

from omnidraft.models.language_model import ROOM


class Angles:
    """Cosines and sines (positions, size) of a model's rotary positions; a skeleton's have no values."""

    def __init__(self, rotary: Any) -> None:
        self._frequencies, self._scaling = rotary.inv_freq.float(), float(rotary.attention_scaling)
        self._made = torch.empty(0, 2 * len(self._frequencies), device="cpu")

    def upto(self, length: int) -> torch.Tensor:
        """Those of so many positions, at least."""
        if length > len(self._made):
            positions = torch.arange(length + max(ROOM, length // 2), dtype=torch.float32, device="cpu")
            # in 64 bits, so that the last bit does not depend on how many there are
            angles = torch.outer(positions, self._frequencies).double()
            self._made = (torch.cat([angles.cos(), angles.sin()], -1) * self._scaling).float()
        return self._made
