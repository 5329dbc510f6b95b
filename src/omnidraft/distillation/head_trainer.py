"""Training of the acceptance head on hidden states and logits of the drafter and the target's distributions."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omnidraft.config import Learning
from omnidraft.distillation.losses import TeacherDistributions, acceptance
from omnidraft.distillation.settings import TrainerSettings
from omnidraft.draft_length.acceptance_head import MISFIT, PREFIX, HeadNetwork, spread
from omnidraft.errors import ModelError


class HeadTrainer:
    """Trains a head for hidden states of width `size`: one step of AdamW per batch on binary cross-entropy."""

    def __init__(
        self, size: int, learning: Learning, settings: TrainerSettings, device: torch.device, seed: int = 0
    ) -> None:
        self._network = HeadNetwork(size, seed).to(device)
        self._temperature, self._rejection_weight = learning.teacher_temperature, settings.rejection_weight
        self._optimizer = torch.optim.AdamW(
            self._network.parameters(), lr=settings.head_learning_rate, weight_decay=1e-2
        )
        self.steps = 0

    def learn(self, hidden: torch.Tensor, logits: torch.Tensor, teacher: TeacherDistributions) -> None:
        """Take a step on the positions of `teacher` among hidden states (T, H) and logits (T, V_q).

        No gradient reaches the drafter.  A batch whose loss is not finite is left out.
        """
        logits = logits.detach()
        labels = acceptance(logits, teacher, self._temperature)
        weights = labels + (1 - labels) * self._rejection_weight
        with torch.enable_grad():
            log_odds = self._network(hidden.detach()[teacher.positions], *spread(logits[teacher.positions], 1.0))
            # a label is a probability: acceptance has weight `labels`, rejection the rest of `weights`
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                log_odds, labels / weights.clamp_min(1e-6), weights, reduction="mean"
            )
            if not bool(torch.isfinite(loss)):
                return
            self._optimizer.zero_grad()
            loss.backward()
        self._optimizer.step()
        self.steps += 1

    def state(self) -> dict[str, torch.Tensor]:
        """A copy of the learned weights on the CPU, by name; empty before the first step."""
        if not self.steps:
            return {}
        return {PREFIX + name: p.detach().to("cpu", copy=True) for name, p in self._network.named_parameters()}

    def load_state(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Continue from the weights of an earlier head, if any; raises ModelError for those of another size."""
        if not weights:
            return
        own = dict(self._network.named_parameters())
        if own.keys() != weights.keys() or any(p.shape != weights[name].shape for name, p in own.items()):
            raise ModelError(MISFIT)
        with torch.no_grad():
            for name, p in own.items():
                p.copy_(weights[name])
        self.steps = max(self.steps, 1)
