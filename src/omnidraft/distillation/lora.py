"""Learned weights as a state: tensors by name, LoRA's two matrices for each layer or all weights of the drafter.

The base model is never changed: `merged` computes the weights to draft with, `trainable` copies the model for training.
`check_fit` compares names and shapes alone.
A state may hold the weights of the acceptance head too, which `parted` separates.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from omnidraft.config import Learning
from omnidraft.draft_length.acceptance_head import PREFIX
from omnidraft.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

Weights = dict[str, torch.Tensor]
LORA_A, LORA_B = ".lora_A.default.weight", ".lora_B.default.weight"


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


def check_fit(base: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError for a state that `merged` cannot merge into `base`, from names and shapes alone."""
    shapes = {name: tuple(weight.shape) for name, weight in state.items() if not name.endswith((LORA_A, LORA_B))}
    wrong = base.keys() - shapes.keys() if shapes else set()
    for layer in _adapted(state):
        up, down = state.get(layer + LORA_B), state.get(layer + LORA_A)
        if up is None or down is None or not up.dim() == down.dim() == 2 or up.shape[1] != len(down):
            wrong.add(layer)
        else:
            shapes[layer + ".weight"] = (len(up), down.shape[1])
    wrong |= {name for name, shape in shapes.items() if name not in base or base[name].shape != shape}
    if wrong:
        raise ModelError(f"the learned weights do not fit the drafter, first {min(wrong)!r}: use another profile")


def _adapted(state: Mapping[str, torch.Tensor]) -> set[str]:
    """The layers of which a state has matrices of LoRA."""
    return {name.removesuffix(LORA_A).removesuffix(LORA_B) for name in state if name.endswith((LORA_A, LORA_B))}


def trainable(model: PreTrainedModel, learning: Learning, seed: int) -> tuple[PeftModel | None, PreTrainedModel]:
    """An fp32 copy of a model to train, after the PEFT model that wraps it (None where all weights are trained).

    Raises ConfigError for LoRA on layers with transposed weights.
    """
    own = copy.deepcopy(model).float().eval()  # no dropout
    if learning.adapter == "full":
        return None, own.requires_grad_()
    if any(type(module).__name__ == "Conv1D" for module in own.modules()):  # transposed weights
        raise ConfigError(f"adapter is 'lora', which does not fit the layers of {type(model).__name__}: use 'full'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=learning.rank, lora_alpha=learning.rank, target_modules="all-linear")
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return get_peft_model(own, config), own
