"""Learned weights as a state: tensors by name, LoRA's two matrices for each layer, weights as they are, or both.

The base model is never changed: `merged` computes the weights to draft with, `trainable` copies the model for training.
`check_fit` compares names and shapes alone.
A state may hold the weights of the acceptance head too, which `parted` separates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from omnidraft.config import Learning
from omnidraft.draft_length.acceptance_head import PREFIX
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.native.packed_matrices import StoredWeights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Weights = dict[str, torch.Tensor]
LORA_A, LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"
KEPT_RANK = 64  # of what a trained matrix differs from the base's in, as a state has it


def parted(state: Mapping[str, torch.Tensor]) -> tuple[Weights, Weights]:
    """Split a state into the drafter's tensors and those of the acceptance head, the latter without their prefix."""
    drafter = {name: weight for name, weight in state.items() if not name.startswith(PREFIX)}
    return drafter, {name.removeprefix(PREFIX): weight for name, weight in state.items() if name not in drafter}


def merged(base: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> Weights:
    """Merge a state into `base`, W + BA for LoRA, and return the changed weights in fp32.

    Raises ModelError for a state that is incomplete, or whose names and shapes are not those of `base`.
    """
    check_fit(base, state)
    weights = {name: weight.float() for name, weight in state.items() if not name.endswith((LORA_A, LORA_B))}
    for layer in _adapted(state):  # alpha is the rank: a scale of 1
        addition = state[layer + LORA_B].float() @ state[layer + LORA_A].float()
        weights[layer + ".weight"] = base[layer + ".weight"].float().cpu() + addition.cpu()
    return weights


@torch.no_grad()
def compact(base: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> Weights:
    """A state of trained weights, most of what they differ from `base` in: a tenth of their size, the same every time.

    For a matrix it has two of LoRA, in half precision; vectors, and matrices that are no larger than those two, whole.
    """
    state: Weights = {}
    generator = torch.Generator().manual_seed(0)
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if name not in base or weight.dim() != 2 or layer == name or KEPT_RANK * sum(weight.shape) >= weight.numel():
            state[name] = weight.detach().to("cpu", copy=True)
            continue
        change = (weight - base[name].float()).cpu()
        basis = change @ torch.randn(change.shape[1], KEPT_RANK, generator=generator)
        basis = torch.linalg.qr(change @ (change.T @ torch.linalg.qr(basis).Q)).Q  # spans nearly its largest directions
        state[layer + LORA_A], state[layer + LORA_B] = (basis.T @ change).half(), basis.half()
    return state


def check_fit(base: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError for a state that `merged` cannot merge into `base`, from names and shapes alone."""
    shapes = {name: tuple(weight.shape) for name, weight in state.items() if not name.endswith((LORA_A, LORA_B))}
    whole, wrong = bool(shapes), set()
    for layer in _adapted(state):
        up, down = state.get(layer + LORA_B), state.get(layer + LORA_A)
        if up is None or down is None or not up.dim() == down.dim() == 2 or up.shape[1] != len(down):
            wrong.add(layer)
        else:
            shapes[layer + ".weight"] = (len(up), down.shape[1])
    wrong |= {name for name, shape in shapes.items() if name not in base or _shape(base, name) != shape}
    wrong |= base.keys() - shapes.keys() if whole else set()
    if wrong:
        raise ModelError(f"the learned weights do not fit the drafter, first {min(wrong)!r}: use another profile")


def _shape(weights: Mapping[str, torch.Tensor], name: str) -> tuple[int, ...]:
    """The shape of a tensor; to read all of a file for that would take longer than to load the model."""
    return weights.shape(name) if isinstance(weights, StoredWeights) else tuple(weights[name].shape)


def _adapted(state: Mapping[str, torch.Tensor]) -> set[str]:
    """The layers of which a state has matrices of LoRA."""
    return {name.removesuffix(LORA_A).removesuffix(LORA_B) for name in state if name.endswith((LORA_A, LORA_B))}


class _Addition:
    """A hook after a layer that adds what its matrices of LoRA say, `transposed` where the layer's own weights are."""

    def __init__(self, layer: torch.nn.Module, rank: int, generator: torch.Generator, *, transposed: bool) -> None:
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        limit = weight.shape[0 if transposed else 1] ** -0.5
        down = torch.empty(rank, weight.shape[1]).uniform_(-limit, limit, generator=generator)
        self.down = down.to(weight.device).requires_grad_()
        self.up = torch.zeros(weight.shape[0], rank, device=weight.device).requires_grad_()
        self._transposed = transposed
        layer.register_forward_hook(self)

    def __call__(self, _: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        if self._transposed:
            return output + inputs[0] @ self.up @ self.down
        linear = torch.nn.functional.linear
        return output + linear(linear(inputs[0], self.down), self.up)


def trainable(model: PreTrainedModel, learning: Learning, seed: int) -> tuple[Weights, PreTrainedModel]:
    """The weights to train, by their names in a state, and the fp32 copy of the model that computes with them.

    LoRA is for the matrices of all layers but the output's.  Raises ConfigError for a model without any.
    """
    student = copy.deepcopy(model).float().eval()  # no dropout
    if learning.adapter == "full":
        return dict(student.requires_grad_().named_parameters()), student
    student.requires_grad_(requires_grad=False)
    learned: Weights = {}
    generator, output = torch.Generator().manual_seed(seed), student.get_output_embeddings()
    for name, layer in student.named_modules():
        transposed = type(layer).__name__ == "Conv1D"  # of GPT-2
        if (transposed or isinstance(layer, torch.nn.Linear)) and layer is not output:
            addition = _Addition(layer, learning.rank, generator, transposed=transposed)
            learned |= {name + LORA_A: addition.down, name + LORA_B: addition.up}
    if not learned:
        raise ConfigError(f"adapter is 'lora', and {type(model).__name__} has no layer that it fits: use 'full'")
    return learned, student
