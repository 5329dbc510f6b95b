"""Training of the acceptance head on hidden states and logits of the drafter and the target's distributions."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from omnidraft.distillation.losses import TeacherDistributions, acceptance
from omnidraft.draft_length.acceptance_head import PREFIX, HeadNetwork, spreads

LEARNING_RATE = 3e-3


class HeadTrainer:
    """Trains a head for hidden states of width `size`: one step of AdamW per batch on binary cross-entropy."""

    def __init__(self, size: int, temperature: float, device: torch.device, seed: int = 0) -> None:
        self._network = HeadNetwork(size, seed).to(device)
        self._temperature = temperature  # of the teacher
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=LEARNING_RATE, weight_decay=1e-2)
        self.steps = 0

    def learn(self, hidden: torch.Tensor, logits: torch.Tensor, teacher: TeacherDistributions) -> None:
        """Take a step on the positions of `teacher` among hidden states (T, H) and logits (T, V_q).

        No gradient reaches the drafter.  A batch whose loss is not finite is left out.
        """
        logits = logits.detach()
        labels = acceptance(logits, teacher, self._temperature)
        with torch.enable_grad():
            log_odds = self._network(hidden.detach()[teacher.positions], *spreads(logits[teacher.positions]))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(log_odds, labels)
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
        """Continue from the weights of an earlier head, if there are any."""
        if weights:
            self._network.load_state_dict(weights)
            self.steps = max(self.steps, 1)
