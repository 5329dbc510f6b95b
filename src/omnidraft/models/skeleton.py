"""A model without its weights: config, generation config, and the shapes of its tensors.

`transformers` makes one of a class of its own; those of GGUF files, and of drafters, are made here of what is in the
files: importing the classes takes longer than reading the weights of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from omnidraft.models.families import BY_TYPE, OF_ALL, Family, heads_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEAD = "lm_head.weight"
ATTENTION_BIAS, MLP_BIAS = "attention_bias", "mlp_bias"  # fields of configs
BIASED = {"qwen2", "glm4"}  # types whose queries, keys and values have biases, and nothing else has


class Config(SimpleNamespace):
    """A config's fields as attributes."""

    def get_text_config(self, *, decoder: bool = True) -> Config:  # noqa: ARG002  as in transformers
        """Itself: it is of a model of text alone."""
        return self


@dataclass(frozen=True)
class Skeleton:
    """What a model is, but for its weights."""

    model_class: str  # of transformers
    config: Any
    generation_config: Any
    shapes: Mapping[str, tuple[int, ...]]  # of its tensors, by name

    @classmethod
    def of(cls, model: PreTrainedModel | Skeleton) -> Skeleton:
        """The skeleton of a model of transformers, which may be on the meta device."""
        if isinstance(model, Skeleton):
            return model
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        return cls(type(model).__name__, model.config, model.generation_config, shapes)

    def num_parameters(self) -> int:
        """Number of weights, those of a head that is the embedding counted once."""
        total = sum(map(math.prod, self.shapes.values()))
        tied = self.config.tie_word_embeddings and HEAD in self.shapes  # some call their head by another name
        return total - (math.prod(self.shapes[HEAD]) if tied else 0)


def skeleton_of(values: Mapping[str, Any], generation: Mapping[str, Any]) -> Skeleton | None:
    """The skeleton of a config's values, None of a model of another family than those of the native step."""
    family = BY_TYPE.get(values.get("model_type", ""))
    if family is None:
        return None
    config = Config(**{**_defaults(family, values), **values})
    return Skeleton(family.model_class, config, SimpleNamespace(**generation), shapes_of(family, config))


def _defaults(family: Family, values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that configs may leave out, as the classes of transformers have them."""
    layers = values["num_hidden_layers"]
    return {
        family.activation: "gelu_pytorch_tanh" if family.shifted else "silu",
        "sliding_window": None,
        "layer_types": ["full_attention"] * layers,
        "no_rope_layers": [int((layer + 1) % 4 > 0) for layer in range(layers)],
        "is_encoder_decoder": False,
        "dtype": None,
    }


def shapes_of(family: Family, config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors by name."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, key_heads, size = heads_of(config)
    rows = (heads * size, key_heads * size, key_heads * size)
    attention = dict(zip(family.qkv, rows, strict=True)) if len(family.qkv) > 1 else {family.qkv[0]: sum(rows)}
    matrices = {f"self_attn.{name}": (count, hidden) for name, count in attention.items()}
    matrices["self_attn.o_proj"] = (hidden, heads * size)
    matrices |= dict.fromkeys(family.gate_up, (inner * 2 // len(family.gate_up), hidden)) | {
        family.down: (hidden, inner)
    }
    layer: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in matrices.items()}
    layer |= {f"{name}.bias": matrices[name][:1] for name in _biased(family, config, matrices)}
    of_heads = rows[:2] if family.head_norm == OF_ALL else (size, size)
    layer |= {f"self_attn.{name}.weight": (n,) for name, n in zip(family.head_norms or (), of_heads, strict=False)}
    norms = (family.before_attention, family.before_mlp, family.after_attention, family.after_mlp)
    layer |= {f"{name}.weight": (hidden,) for name in norms if name is not None}
    outside = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    within = {
        f"model.layers.{number}.{name}": shape
        for number in range(config.num_hidden_layers)
        for name, shape in layer.items()
    }
    return {**outside, **within, HEAD: (config.vocab_size, hidden)}


def _biased(family: Family, config: Any, matrices: Collection[str]) -> list[str]:
    """The matrices of a layer that have a bias."""
    attention = [name for name in matrices if name.startswith("self_attn.")]
    if family.model_type in BIASED:
        return [name for name in attention if not name.endswith("o_proj")]
    chosen = attention if getattr(config, ATTENTION_BIAS, False) else []
    return chosen + [name for name in matrices if name not in attention and getattr(config, MLP_BIAS, False)]
