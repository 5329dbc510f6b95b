"""How the acceptance head learns: from hidden states and logits of the present drafter, and the laws of the target."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from omnidraft.config import Learning
from omnidraft.distillation.losses import Laws, acceptance
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.draft_length.acceptance_head import MISFIT, PREFIX, HeadNetwork
from omnidraft.errors import ModelError


class HeadTrainer:
    """Trains a head for hidden states of `size` numbers, one step of AdamW for each batch that it is shown."""

    def __init__(
        self, size: int, learning: Learning, settings: TrainerSettings, device: torch.device, seed: int = 0
    ) -> None:
        self._net = HeadNetwork(size, seed).to(device)
        self._temperature, self._rejection_weight = learning.teacher_temperature, settings.rejection_weight
        self._optimizer = torch.optim.AdamW(self._net.parameters(), lr=settings.head_learning_rate, weight_decay=1e-2)
        self.steps = 0
        self.loss = math.nan  # of the last batch, before its step

    def learn(self, hidden: torch.Tensor, logits: torch.Tensor, laws: Laws) -> None:
        """A step on the positions of `laws` among hidden states (T, H) and logits (T, V_q).

        Nothing flows back to these.  A batch whose loss is not finite is left out.
        """
        logits = logits.detach()
        labels = acceptance(logits, laws, self._temperature)
        weights = labels + (1 - labels) * self._rejection_weight
        with torch.enable_grad():
            found = self._net(hidden.detach()[laws.positions], logits[laws.positions])
            # of a soft label each of the two outcomes has its share
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                found, labels / weights.clamp_min(1e-6), weights, reduction="mean"
            )
            if not bool(torch.isfinite(losses)):
                return
            self._optimizer.zero_grad()
            losses.backward()
        self._optimizer.step()
        self.steps += 1
        self.loss = float(losses.detach())

    def state(self) -> dict[str, torch.Tensor]:
        """What was learned, copied: tensors by name; nothing before the first step."""
        if not self.steps:
            return {}
        return {PREFIX + name: p.detach().to("cpu", copy=True) for name, p in self._net.named_parameters()}

    def load_state(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Go on from the weights of an earlier head, if any; raises ModelError for those of another size."""
        if not weights:
            return
        own = dict(self._net.named_parameters())
        if own.keys() != weights.keys() or any(p.shape != weights[name].shape for name, p in own.items()):
            raise ModelError(MISFIT)
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(weights[name])
        self.steps = max(self.steps, 1)
