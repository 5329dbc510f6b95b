"""Acceptance head: the acceptance probability of the next draft token, before it is drawn (paper Eq. 5 and 6).

It reads the hidden state that the next distribution is made of, and the entropy and peak of that distribution.  It
estimates a correction of AdaEDL's bound by entropy; untrained, it is that bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MISFIT = "the learned acceptance head does not fit the drafter: use another profile"
PREFIX = "acceptance_head."  # of its tensors among those of the drafter
SLOPE = 0.2  # γ of the bound by entropy
LEAST = -80.0  # a log-probability that is as good as minus infinity, and finite
WIDTH = 32
EXTRA = 3  # inputs beside the hidden state
SURE = 0.02  # the bound is kept this far from 0 and 1 before it is corrected


def spreads(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropy in nats, and log of the largest probability, of each row of logits (..., V)."""
    scores = logits.float()
    scores = scores - scores.amax(-1, keepdim=True)
    weights = torch.softmax(scores, -1)
    best = weights.amax(-1).log()
    return -best - (weights * scores.clamp_min(LEAST)).sum(-1), best


def spread(logits: torch.Tensor, temperature: float) -> tuple[float, float]:
    """Entropy in nats, and log of the largest probability, of logits (V,) at a temperature, 1 where it is 0."""
    # few calls, of numpy: after a pass of the target, code is in no cache of the processor, and takes ten times as long
    scores = logits.float().cpu().numpy()
    scores = scores - scores.max()
    if temperature not in (0, 1):
        scores /= temperature
    scores = np.maximum(scores, LEAST)
    weights = np.exp(scores)
    total = float(weights.sum())
    best = -math.log(total)
    return -best - float(weights @ scores) / total, best


def bound(nats: float) -> float:
    """AdaEDL's bound on the acceptance of a token whose distribution has this entropy; 0 at least."""
    return max(0.0, 1 - math.sqrt(SLOPE * max(0.0, nats)))


def hidden_size(model: PreTrainedModel) -> int | None:
    """Width of the input of the output layer of a model; None of a model without one."""
    layer = model.get_output_embeddings()
    if layer is None:
        return None
    # packed weights have another shape, or are no tensor
    return int(layer.in_features if hasattr(layer, "in_features") else layer.weight.shape[1])


class HeadNetwork(torch.nn.Module):
    """Perceptron with one hidden layer, whose last layer begins with zeros."""

    def __init__(self, size: int, seed: int = 0) -> None:
        super().__init__()
        self.inner = torch.nn.utils.skip_init(torch.nn.Linear, size + EXTRA, WIDTH)
        self.outer = torch.nn.utils.skip_init(torch.nn.Linear, WIDTH, 2)
        generator, limit = torch.Generator().manual_seed(seed), (size + EXTRA) ** -0.5
        for parameter in self.inner.parameters():
            torch.nn.init.uniform_(parameter, -limit, limit, generator)
        for parameter in self.outer.parameters():
            torch.nn.init.zeros_(parameter)

    def forward(self, hidden: torch.Tensor, nats: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
        """Log-odds (N, 2) of acceptance at temperatures 0 and 1.

        From hidden states (N, H), and the entropy (N,) and largest log-probability (N,) of the distributions.
        """
        base = torch.logit(1 - (SLOPE * nats.clamp_min(0)).sqrt(), SURE)
        scaled = torch.nn.functional.rms_norm(hidden.float(), hidden.shape[-1:], eps=1e-12)
        inputs = torch.cat([scaled, torch.stack([base, nats, best], -1)], -1)
        out: torch.Tensor = base[:, None] + self.outer(torch.nn.functional.silu(self.inner(inputs)))
        return out


class Head:
    """Inference of the acceptance head, beside a drafter with hidden states of `size` numbers."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size
        self._inner: torch.Tensor | None = None  # for the hidden state, halved
        # by unit: halved weights of base, entropy, largest and bias; what it adds at temperature 0, and more at 1
        self._units: list[tuple[float, ...]] = []
        self._bias = 0.0, 0.0
        self.version = 0  # goes up with everything that was learned, by the head or by the drafter beside it

    @property
    def trained(self) -> bool:
        return self._inner is not None

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Load these weights, by name; without any, be untrained.

        Raises ModelError for those of another size.
        """
        self.version += 1
        if not weights:
            self._inner = None
            return
        try:
            network = HeadNetwork(self._size or weights["inner.weight"].shape[1] - EXTRA)
            network.load_state_dict(dict(weights))
        except (KeyError, IndexError, RuntimeError) as error:
            raise ModelError(MISFIT) from error
        inner, outer = network.inner.weight.detach() / 2, network.outer.weight.detach()
        rest = inner[:, -EXTRA:], network.inner.bias.detach()[:, None] / 2, outer[:1].T, (outer[1:] - outer[:1]).T
        self._units = [tuple(unit) for unit in torch.cat(rest, 1).tolist()]
        cold, warm = network.outer.bias.tolist()
        self._bias = cold, warm - cold
        self._inner = inner[:, :-EXTRA].clone()

    def chance(self, logits: torch.Tensor, hidden: torch.Tensor | None, temperature: float) -> float:
        """Acceptance probability of a token of logits (V_q,), made of the hidden state (H,)."""
        nats, best = spread(logits, 1.0 if self.trained else temperature)
        if self._inner is None or hidden is None:
            return bound(nats)
        # what HeadNetwork computes in few calls: after a pass of the target each costs ten times as much
        state = hidden.detach().float().cpu()
        scale = math.sqrt(torch.dot(state, state).item() / len(state) + 1e-12)
        likely = min(1 - SURE, max(SURE, 1 - math.sqrt(SLOPE * max(0.0, nats))))
        base, warmth = math.log(likely / (1 - likely)), min(1.0, temperature)
        score = base + self._bias[0] + warmth * self._bias[1]
        of_state = torch.mv(self._inner, state).tolist()
        for half, (of_base, of_nats, of_best, bias, cold, warmer) in zip(of_state, self._units, strict=True):
            x = half / scale + of_base * base + of_nats * nats + of_best * best + bias
            score += x * (1 + math.tanh(x)) * (cold + warmth * warmer)  # 2x · sigmoid(2x) = x · (1 + tanh(x))
        return 1 / (1 + math.exp(-max(LEAST, score)))
