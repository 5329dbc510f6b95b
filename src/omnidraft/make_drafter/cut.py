"""Cut a Llama-type model to some of its layers and the tokens of a smaller vocabulary."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_layers(source: PreTrainedModel, layers: Sequence[int]) -> None:
    """Raise ConfigError for layers that the model does not have, ModelError for a model that is no stack of layers."""
    stack = getattr(source.base_model, "layers", None)
    if stack is None or len(stack) != source.config.num_hidden_layers:
        raise ModelError(f"{type(source).__name__} cannot be cut: use a model of the Llama type")
    beyond = [layer for layer in layers if not 0 <= layer < len(stack)]
    if not layers or beyond or list(layers) != sorted(set(layers)):
        raise ConfigError(f"layers is {list(layers)}: name different ones of 0 to {len(stack) - 1}, ascending")


def cut_model(source: PreTrainedModel, layers: Sequence[int], kept: Sequence[int], end: int) -> PreTrainedModel:
    """A copy of a model in fp32 with these layers and the rows `kept` of its embeddings; `end` is its end token's id.

    Raises the errors of `check_layers`.
    """
    check_layers(source, layers)
    config: Any = copy.deepcopy(source.config)
    config.num_hidden_layers, config.vocab_size = len(layers), len(kept)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, end, end
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    config.dtype = torch.float32
    with torch.device("meta"):
        smaller: PreTrainedModel = type(source)(config)
    names = {f"layers.{new}.": f"layers.{old}." for new, old in enumerate(layers)}
    rows = torch.tensor(kept, device=source.device)
    weights, cut = source.state_dict(), {}
    for name, empty in smaller.state_dict().items():
        head, prefix, rest = _split(name, names)
        weight = weights[head + names[prefix] + rest if prefix else name]
        cut[name] = (weight if weight.shape == empty.shape else weight[rows]).float().cpu().clone()
    # the buffers of position embeddings are in no state: they are made anew from the config
    result: PreTrainedModel = type(source)(config).float()
    result.load_state_dict(cut)
    result.tie_weights()
    result.generation_config.bos_token_id = None
    result.generation_config.eos_token_id = result.generation_config.pad_token_id = end
    return result


def copy_trained(
    model: PreTrainedModel, ids: Mapping[str, int], trained: PreTrainedModel, its: Mapping[str, int]
) -> None:
    """Give a model the layers of a trained one, and its rows of the tokens that both vocabularies have.

    The other rows are moved as those have been: by the affine map that comes nearest to them (least squares).
    Raises ConfigError where their layers differ in number or shape, and for models of different tokenizers.
    """
    parameters, weights = model.state_dict(), trained.state_dict()  # they share the memory of the models
    size = trained.config.vocab_size
    common = [(ids[word], its[word]) for word in sorted(ids) if its.get(word, size) < size]
    embeddings = _embeddings(model)
    of_tokens = {name for name, weight in parameters.items() if weight.data_ptr() in embeddings}

    def shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Size]:
        return {name: weight.shape[name in of_tokens :] for name, weight in weights.items()}

    if not common or len(embeddings) != len(_embeddings(trained)) or shapes(parameters) != shapes(weights):
        raise ConfigError("the drafter to begin with is of other layers or another source: give those of the drafter")
    rows, others = torch.tensor(common).T
    for name, weight in parameters.items():
        if name in of_tokens:
            learned = weights[name][others].to(weight)
            inputs = torch.cat([weight, weight.new_ones(len(weight), 1)], 1)
            weight.add_(inputs @ torch.linalg.lstsq(inputs[rows], learned - weight[rows]).solution)
            weight[rows] = learned
        else:
            weight.copy_(weights[name])


def _embeddings(model: PreTrainedModel) -> set[int]:
    """Where the rows of tokens lie: in one place where the LM head shares them with the input, else in two."""
    ends: Any = model.get_input_embeddings(), model.get_output_embeddings()
    return {each.weight.data_ptr() for each in ends}


def _split(name: str, prefixes: dict[str, str]) -> tuple[str, str, str]:
    """A name as what is before the first of `prefixes` in it, that prefix ("": none), and what follows."""
    for prefix in prefixes:
        head, found, rest = name.partition(prefix)
        if found and (not head or head.endswith(".")):
            return head, found, rest
    return name, "", ""
