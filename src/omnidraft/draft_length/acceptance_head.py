"""The acceptance head: how likely the next draft token is to be accepted, before it is drawn (paper Eq. 5 and 6).

It reads the hidden state that the drafter's next law is made of, and that law's entropy and peak.  What it says is a
correction of AdaEDL's bound by entropy, and that bound as long as it was not trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MISFIT = "the learned acceptance head does not fit the drafter: use another profile"
MARK = "omnidraft_tap"  # attribute of an output layer
PREFIX = "acceptance_head."  # of its tensors among those of the drafter
SLOPE = 0.2  # γ of the bound by entropy
LEAST = -80.0  # a score whose weight is nothing, and is finite
WIDTH = 32
EXTRA = 3  # inputs beside the hidden state
SURE = 0.02  # nearer to 0 or 1 the bound is no correction's base


def spread(logits: torch.Tensor, temperature: float) -> tuple[float, float]:
    """Entropy in nats, and logarithm of the largest probability, of logits (V,) at a temperature, 1 where it is 0."""
    # few calls, and of what drafters use themselves: after a pass of the target, other code is in no cache of the
    # processor, and takes ten times as long
    scores = _plain(logits)
    scores = scores - scores.max()
    if temperature not in (0, 1):
        scores /= temperature
    weights = torch.softmax(scores, -1)
    mean, best = torch.dot(weights, scores).item(), math.log(weights.max().item())
    if math.isnan(mean):  # of tokens that are masked out: 0 times minus infinity
        mean = torch.dot(weights, scores.clamp_min(LEAST)).item()
    return max(0.0, -best - mean), best


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float32 and values.device.type == "cpu" else values.float().cpu()


def bound(nats: float) -> float:
    """AdaEDL's bound on the acceptance of a token whose law has this entropy; 0 at least."""
    return max(0.0, 1 - math.sqrt(SLOPE * nats))


class HiddenStateHook:
    """Keeps what the output layer of a model read last; a copy of the model has one of its own, with nothing in it."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None  # (B, T, H)

    def __call__(self, _: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.last = inputs[0]

    def __reduce__(self) -> tuple[type[HiddenStateHook], tuple[()]]:
        return HiddenStateHook, ()


def tap(model: PreTrainedModel) -> HiddenStateHook | None:
    """The tap of a model, which is put on once; None of a model without an output layer.

    It stays where it is: a model may be pickled in another thread, which must not meet it half put on.
    """
    layer = model.get_output_embeddings()
    if layer is None:
        return None
    found = getattr(layer, MARK, None)
    if not isinstance(found, HiddenStateHook):
        found = HiddenStateHook()
        layer.register_forward_pre_hook(found)
        setattr(layer, MARK, found)
    return found


def hidden_size(model: PreTrainedModel) -> int | None:
    """Numbers in what the output layer of a model reads; None of a model without one."""
    layer = model.get_output_embeddings()
    if layer is None:
        return None
    # weights that are packed have another shape, or are no tensor
    return int(layer.in_features if hasattr(layer, "in_features") else layer.weight.shape[1])


class HeadNetwork(torch.nn.Module):
    """The head as it is trained: a perceptron of one hidden layer, whose last one begins with zeros."""

    def __init__(self, size: int, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.inner = torch.nn.Linear(size + EXTRA, WIDTH)
            self.outer = torch.nn.Linear(WIDTH, 2)
        torch.nn.init.zeros_(self.outer.weight)
        torch.nn.init.zeros_(self.outer.bias)

    def forward(self, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Log-odds (N, 2) of acceptance at temperatures 0 and 1, of hidden states (N, H) and logits (N, V_q)."""
        log_q = torch.log_softmax(logits.float(), -1)
        nats = -(log_q.exp() * log_q.clamp_min(LEAST)).sum(-1)
        base = torch.logit(1 - (SLOPE * nats).sqrt(), SURE)
        inputs = torch.cat([_scaled(hidden.float()), torch.stack([base, nats, log_q.amax(-1)], -1)], -1)
        out: torch.Tensor = base[:, None] + self.outer(torch.nn.functional.silu(self.inner(inputs)))
        return out


def _scaled(hidden: torch.Tensor) -> torch.Tensor:
    return hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt().clamp_min(1e-6)


class Head:
    """Inference of the acceptance head, beside a drafter with hidden states of `size` numbers."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size
        self.version = 0  # goes up with everything that was learned, by the head or by the drafter beside it
        self._inner: torch.Tensor | None = None  # for the hidden state; halved
        # for the rest, with the bias, halved, and what each unit is worth at temperature 0, and more at 1
        self._units: list[tuple[float, ...]] = []
        self._bias = 0.0, 0.0

    @property
    def trained(self) -> bool:
        return self._inner is not None

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Have these weights, by name; be untrained where there are none.

        Raises ModelError for those of another size.
        """
        self.version += 1
        if not weights:
            self._inner = None
            return
        own = {name: weight.detach().float().cpu() for name, weight in weights.items()}
        shapes = {name: tuple(weight.shape) for name, weight in own.items()}
        width = shapes.get("inner.weight", (0, 0))[-1]
        whole = {"inner.weight": (WIDTH, width), "inner.bias": (WIDTH,), "outer.weight": (2, WIDTH), "outer.bias": (2,)}
        if shapes != whole or (self._size is not None and width != self._size + EXTRA):
            raise ModelError(MISFIT)
        inner = own["inner.weight"] / 2
        outer, bias = own["outer.weight"], own["outer.bias"]
        rest = (inner[:, -EXTRA:], own["inner.bias"][:, None] / 2, outer[:1].T, (outer[1:] - outer[:1]).T)
        self._units = [tuple(unit) for unit in torch.cat(rest, 1).tolist()]
        self._bias = bias[0].item(), (bias[1] - bias[0]).item()
        self._inner = inner[:, :-EXTRA].clone()

    def chance(self, logits: torch.Tensor, hidden: torch.Tensor | None, temperature: float) -> float:
        """How likely a token of these logits (V_q,) is to be accepted, where `hidden` (H,) is what they are made of."""
        nats, best = spread(logits, 1.0 if self.trained else temperature)
        if self._inner is None or hidden is None:
            return bound(nats)
        state = _plain(hidden)
        scale = max(1e-6, math.sqrt(torch.dot(state, state).item() / len(state)))
        likely = min(1 - SURE, max(SURE, 1 - math.sqrt(SLOPE * nats)))
        base, warmth = math.log(likely / (1 - likely)), min(1.0, temperature)
        score = base + self._bias[0] + warmth * self._bias[1]
        of_state = torch.mv(self._inner, state).tolist()
        for half, (of_base, of_nats, of_best, bias, cold, warmer) in zip(of_state, self._units, strict=True):
            x = half / scale + of_base * base + of_nats * nats + of_best * best + bias
            score += x * (1 + math.tanh(x)) * (cold + warmth * warmer)  # 2x · sigmoid(2x) = x · (1 + tanh(x))
        return 1 / (1 + math.exp(-max(LEAST, score)))
