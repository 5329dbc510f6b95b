"""The families of models whose blocks the native step computes, by the names that `transformers` uses: one table.

A family is an entry of FAMILIES, made of switches.  What no switch says is as in Llama.  What an entry `needs` of a
config, and it has otherwise, is an `UnsupportedReason`: `transformers` computes such a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Config = Any  # of transformers

OF_EACH, OF_ALL, ROTATED = range(3)  # norms of heads: each, all together, each after its rotation; as in step.c
NEVER, EVERYWHERE, BY_LAYER = "never", "everywhere", "by layer"  # where a config's window counts
GELU = {"silu": False, "swish": False, "gelu_pytorch_tanh": True}  # by activation: the gate is a GELU, and no SiLU
# whose angles do not depend on how long a text gets, up to the model's context: it ends where those of longrope change
ROTATIONS = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")


@dataclass(frozen=True)
class UnsupportedReason:
    """Why a model has no native step."""

    code: str
    field: str  # of the model's config, empty where the reason lies elsewhere
    reason: str  # a phrase

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True)
class Number:
    """A power of a field of a config, 1 without a name."""

    name: str = ""
    power: float = 1.0

    def of(self, config: Config) -> float:
        """The number; raises ZeroDivisionError where the field is 0 and the power negative."""
        return float(getattr(config, self.name)) ** self.power if self.name else 1.0


@dataclass(frozen=True)
class Family:
    """Models whose blocks differ in numbers and sizes alone."""

    name: str  # what people call it
    sizes: str  # that people run
    model_type: str  # of a config
    model_class: str  # of transformers
    architectures: tuple[str, ...] = ()  # of GGUF files
    # norms: modules by site, None where nothing is normalized
    before_attention: str | None = "input_layernorm"
    before_mlp: str | None = "post_attention_layernorm"
    after_attention: str | None = None
    after_mlp: str | None = None
    epsilon: str = "rms_norm_eps"
    shifted: bool = False  # their weights are stored less 1
    centered: bool = False  # the mean is taken away first
    # attention
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    head_norms: tuple[str, str] | None = None  # of queries and of keys
    head_norm: int = OF_EACH
    scale: Number | None = None  # of scores, None for that of the head's size
    score_cap: str = ""
    window: str = NEVER
    rotates: Callable[[Config, int], bool] = lambda _config, _layer: True  # by number of layer
    interleaved: bool = False  # neighbors are rotated, and no halves
    partial: bool = False  # some entries of each head alone may be rotated
    tempered: bool = False  # queries may have a factor that grows with the position
    # MLP
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    activation: str = "hidden_act"
    parallel: bool = False  # it reads what the attention reads
    # factors; where residuals have one, no norm but those of what is read may have an epsilon
    embedding: Number = Number()
    residual: Number = Number()
    logits: Number = Number()
    logit_cap: str = ""
    needs: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # values of fields, anything else is refused

    def windows(self, config: Config) -> list[int]:
        """Positions that a token of each layer attends to, 0 for all."""
        layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None) or 0
        if self.window != BY_LAYER:
            return [window if self.window == EVERYWHERE else 0] * layers
        return [window if kind == "sliding_attention" else 0 for kind in config.layer_types]

    def cap(self, config: Config, name: str) -> float:
        """The value of a field that may be absent, 0 for none."""
        return float(getattr(config, name, None) or 0) if name else 0.0

    def unsupported_reason(self, config: Config) -> UnsupportedReason | None:
        """Return the first setting of a config that no switch covers."""
        return next(self._unsupported(config), None)

    def _unsupported(self, config: Config) -> Iterator[UnsupportedReason]:
        heads, key_heads, _ = heads_of(config)
        if heads % key_heads:
            yield UnsupportedReason(
                "sizes", "num_key_value_heads", f"{heads} heads cannot share the keys of {key_heads}"
            )
        activation = getattr(config, self.activation, "silu")
        if activation not in GELU:
            yield UnsupportedReason("activation", self.activation, f"its activation is {activation}")
        for kind, rope in rotations_of(config).items():
            name = ".".join(filter(None, ("rope_parameters", kind, "rope_type")))
            if (rotation := rope.get("rope_type", "default")) not in ROTATIONS:
                yield UnsupportedReason("rotation", name, f"its rotary positions are of type {rotation}")
        for number in (self.embedding, self.residual, self.logits, self.scale or Number()):
            if number.name and not 0 < (factor := float(getattr(config, number.name))) < math.inf:
                yield UnsupportedReason("factor", number.name, f"{number.name} is {factor} in its config")
        for name, values in self.needs.items():
            if (value := getattr(config, name, None)) not in values:
                yield UnsupportedReason("switch", name, f"{name} is {value!r} in its config")


def heads_of(config: Config) -> tuple[int, int, int]:
    """Number of query heads and of key heads, and their size."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, config.num_key_value_heads or heads, size


def rotations_of(config: Config) -> dict[str, dict[str, Any]]:
    """The parameters of the rotation by kind of layer; one for all has an empty name."""
    parameters = config.rope_parameters or {}
    kinds = {kind: each for kind, each in parameters.items() if isinstance(each, dict)}
    return kinds or {"": parameters}


# ---------------------------------------------------------------- the table

AFTER: dict[str, Any] = {  # what is added to the residual is normalized, and nothing else
    "before_attention": None, "before_mlp": None,
    "after_attention": "post_attention_layernorm", "after_mlp": "post_feedforward_layernorm",
}  # fmt: skip
NORMED: dict[str, Any] = {"head_norms": ("q_norm", "k_norm")}
GEMMA: dict[str, Any] = {"shifted": True, "embedding": Number("hidden_size", 0.5)}
SANDWICH: dict[str, Any] = {
    **AFTER,
    "before_attention": "input_layernorm",
    "before_mlp": "pre_feedforward_layernorm",
    "activation": "hidden_activation",
    "scale": Number("query_pre_attn_scalar", -0.5),
    "window": BY_LAYER,
    "logit_cap": "final_logit_softcapping",
    "needs": {"use_bidirectional_attention": (None, False)},
}
GRANITE: dict[str, Any] = {
    "scale": Number("attention_multiplier"),
    "embedding": Number("embedding_multiplier"),
    "residual": Number("residual_multiplier"),
    "logits": Number("logits_scaling", -1.0),
}
COHERE: dict[str, Any] = {
    "before_mlp": "input_layernorm", "parallel": True, "centered": True, "epsilon": "layer_norm_eps",
    "interleaved": True, "logits": Number("logit_scale"),
}  # fmt: skip


def _slides(config: Config, layer: int) -> bool:
    return config.sliding_window is None or bool(config.layer_types[layer] == "sliding_attention")


FAMILIES: tuple[Family, ...] = (
    Family("Llama 2 and 3, SmolLM2", "135M to 8B", "llama", "LlamaForCausalLM", ("llama", "mistral3")),
    Family("Mistral 7B, NeMo", "7B, 12B", "mistral", "MistralForCausalLM", ("llama",), window=EVERYWHERE),
    Family("Ministral 8B", "8B", "ministral", "MinistralForCausalLM", window=BY_LAYER),
    Family(
        "Ministral 3", "3B, 8B, 14B", "ministral3", "Ministral3ForCausalLM", ("mistral3",),
        window=EVERYWHERE, tempered=True,
    ),
    Family("Qwen2, Qwen2.5", "0.5B, 1.5B, 3B, 7B, 14B", "qwen2", "Qwen2ForCausalLM", ("qwen2",), window=BY_LAYER),
    Family("Qwen3", "0.6B, 1.7B, 4B, 8B, 14B", "qwen3", "Qwen3ForCausalLM", ("qwen3",), window=BY_LAYER, **NORMED),
    Family("Gemma 1", "2B, 7B", "gemma", "GemmaForCausalLM", ("gemma",), **GEMMA),
    Family(
        "Gemma 2", "2B, 9B", "gemma2", "Gemma2ForCausalLM", ("gemma2",),
        score_cap="attn_logit_softcapping", **GEMMA, **SANDWICH,
    ),
    Family(
        "Gemma 3 (text)", "270M, 1B; 4B, 12B as GGUF", "gemma3_text", "Gemma3ForCausalLM", ("gemma3",),
        **NORMED, **GEMMA, **SANDWICH,
    ),
    Family(
        "Phi-3, Phi-4, Phi-4-mini", "3.8B, 14B", "phi3", "Phi3ForCausalLM", ("phi3",),
        qkv=("qkv_proj",), gate_up=("mlp.gate_up_proj",), window=EVERYWHERE, partial=True,
    ),
    Family(
        "SmolLM3", "3B", "smollm3", "SmolLM3ForCausalLM", ("smollm3",), window=BY_LAYER,
        rotates=lambda config, layer: bool(config.no_rope_layers[layer]),
    ),
    Family("Granite 3", "2B, 8B", "granite", "GraniteForCausalLM", ("granite",), **GRANITE),
    Family(
        "Granite 4 (dense)", "350M, 1B, 3B", "granitemoehybrid", "GraniteMoeHybridForCausalLM",
        gate_up=("shared_mlp.input_linear",), down="shared_mlp.output_linear",
        needs={"num_local_experts": (0, None)}, **GRANITE,
    ),
    Family("OLMo 2", "1B, 7B, 13B", "olmo2", "Olmo2ForCausalLM", ("olmo2",), head_norm=OF_ALL, **NORMED, **AFTER),
    Family(
        "OLMo 3", "7B", "olmo3", "Olmo3ForCausalLM", ("olmo2",),
        window=BY_LAYER, head_norm=OF_ALL, **NORMED, **AFTER,
    ),
    Family(
        "GLM-4 (0414)", "9B", "glm4", "Glm4ForCausalLM", ("glm4",),
        after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm",
        gate_up=("mlp.gate_up_proj",), interleaved=True, partial=True,
    ),
    Family(
        "Command R", "35B", "cohere", "CohereForCausalLM", ("command-r",),
        needs={"use_qk_norm": (False, None)}, **COHERE,
    ),
    Family(
        "Command R7B", "7B", "cohere2", "Cohere2ForCausalLM", ("cohere2",), window=BY_LAYER,
        rotates=lambda config, layer: bool(config.layer_types[layer] == "sliding_attention"), **COHERE,
    ),
    Family(
        "Hunyuan (dense)", "0.5B, 1.8B, 4B, 7B", "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", ("hunyuan-dense",),
        head_norms=("query_layernorm", "key_layernorm"), head_norm=ROTATED,
    ),
    Family(
        "EXAONE 4", "1.2B, 32B", "exaone4", "Exaone4ForCausalLM", ("exaone4",),
        window=BY_LAYER, rotates=_slides, **NORMED, **AFTER,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Other:
    """Models that people run and that are no family of the native step."""

    name: str
    sizes: str
    model_types: tuple[str, ...]
    reason: str  # a phrase


EXPERTS, STATE = "its MLP is a mixture of experts", "some of its layers keep a recurrent state"
OTHERS: tuple[Other, ...] = (
    Other("gpt-oss", "20B, 120B", ("gpt_oss",), f"{EXPERTS}, and its attention has sinks"),
    Other("Qwen3 (experts)", "30B-A3B", ("qwen3_moe",), EXPERTS),
    Other("Mixtral", "8x7B", ("mixtral",), EXPERTS),
    Other("Granite 3, 4 (experts)", "1B-A400M, 3B-A800M", ("granitemoe", "granitemoeshared"), EXPERTS),
    Other("Llama 4", "17B-16E", ("llama4_text", "llama4"), f"{EXPERTS}, and its attention has chunks"),
    Other("DeepSeek V2, V3", "16B-A2B", ("deepseek_v2", "deepseek_v3"), f"{EXPERTS}, and its keys are compressed"),
    Other("Gemma 3n", "E2B, E4B", ("gemma3n_text", "gemma3n"), "it has several residuals and embeddings of each layer"),
    Other("Gemma 4", "E2B, E4B, 12B, 31B", ("gemma4_text", "gemma4"), "its layers differ in heads and share keys"),
    Other("Gemma 3 with images", "4B, 12B, 27B", ("gemma3",), "it is a model of images and text"),
    Other("StarCoder 2", "3B, 7B, 15B", ("starcoder2",), "its MLP has no gate, and its norms have biases"),
    Other("Phi-1, Phi-2", "1.3B, 2.7B", ("phi",), "its MLP has no gate, and its norms have biases"),
    Other("Apertus", "8B", ("apertus",), "its MLP has no gate"),
    Other("GPT-2, GPT-NeoX, Pythia", "to 20B", ("gpt2", "gpt_neox"), "its MLP has no gate, and its norms have biases"),
    Other("Qwen3.5 to 3.8", "0.8B to 27B", ("qwen3_5_text", "qwen3_5"), STATE),
    Other("LFM2, LFM2.5", "230M to 2.6B", ("lfm2",), "some of its layers are convolutions"),
    Other("Granite 4-H, Falcon-H1, Bamba, Jamba", "350M to 12B", ("falcon_h1", "bamba", "jamba"), STATE),
)
BY_CLASS: Mapping[str, Family] = {family.model_class: family for family in FAMILIES}
BY_TYPE: Mapping[str, Family] = {family.model_type: family for family in FAMILIES}
REASONS: Mapping[str, str] = {model_type: other.reason for other in OTHERS for model_type in other.model_types}


def unknown_family(name: str, model_type: str) -> UnsupportedReason:
    """What is unsupported in a model of no family; `name` is what an error calls it."""
    reason = REASONS.get(model_type)
    return UnsupportedReason(
        "family", "model_type", f"{name} has no native step" + (f", as {reason}" if reason else "")
    )
