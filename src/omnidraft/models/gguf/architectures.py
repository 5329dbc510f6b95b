"""Keys and tensors of each supported architecture, mapped to the names of transformers: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from omnidraft.errors import ModelError
from omnidraft.models.families import BY_TYPE, Family
from omnidraft.models.gguf.header import EMBEDDING, Header
from omnidraft.models.gguf.keys import ATTENTION, ROTATION, SCALES, SIZES, Dialect, KeyReport, Keys
from omnidraft.models.gguf.ollama_files import dialect_of, of_pictures
from omnidraft.models.gguf.rope import DIVISORS, LONG, SHORT, rotation

Config = dict[str, Any]
HEAD = "output.weight"
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}  # of the layers
QKV = {3: ("attn_q", "attn_k", "attn_v"), 1: ("attn_qkv",)}  # by number of matrices
GATE_UP = {2: ("ffn_gate", "ffn_up"), 1: ("ffn_up",)}
RMS, LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


@dataclass(frozen=True)
class Architecture:
    """Rules that turn a file of an architecture into a model of transformers."""

    family: Family  # by whose modules the tensors of layers are found
    more: Callable[[Keys, Header, Config], None]  # changes the config by further keys
    interleaved: bool = False  # rows of queries and keys lie as pairs, for a rotation of neighbors
    biases: bool = False  # any of the layers' biases may be there, and those that no layer has are zero
    factors: bool = False  # there may be tensors of the rotation's factors
    dialect: Callable[[Header], Dialect] | None = None  # of converters that differ
    left_out: Callable[[Header], frozenset[str]] = lambda _: frozenset()  # tensors that no model of text needs

    @property
    def tensors(self) -> dict[str, str]:
        """Names of the tensors of a layer, by the modules of transformers that they are of."""
        family = self.family
        attention = (*zip(family.qkv, QKV[len(family.qkv)], strict=True), ("o_proj", "attn_output"))
        heads = zip(family.head_norms or (), ("attn_q_norm", "attn_k_norm"), strict=False)
        norms = {
            "ffn_norm": family.before_mlp,
            "attn_norm": family.before_attention,  # the only one where attention and MLP read the same
            "post_attention_norm": family.after_attention,
            "post_ffw_norm": family.after_mlp,
        }
        return {
            **{f"self_attn.{module}": tensor for module, tensor in (*attention, *heads)},
            **dict(zip(family.gate_up, GATE_UP[len(family.gate_up)], strict=True)),
            family.down: "ffn_down",
            **{module: tensor for tensor, module in norms.items() if module is not None},
        }


@dataclass(frozen=True)
class Described:
    """Settings read from a header."""

    architecture: Architecture
    config: Config
    keys: KeyReport
    consumed: frozenset[str]  # tensors that the model does not hold: they are in the config, or of no use to it


def describe(header: Header) -> Described:
    """Read all keys of a header; raises ModelError for a key, a value or an architecture that is not supported."""
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise ModelError(f"{header.name} holds no model (general.type is {kind!r}): give the file of the model")
    name: str = header.metadata.get("general.architecture", "")
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{header.name} is of architecture {name!r}: use a model of {', '.join(sorted(ARCHITECTURES))}"
        )
    architecture = ARCHITECTURES[name]
    keys = Keys(header.name, header.metadata, name, architecture.dialect and architecture.dialect(header))
    config = _common(keys, header, architecture)
    architecture.more(keys, header, config)
    factors = {DIVISORS, SHORT, LONG} & set(header.tensors) if architecture.factors else set()
    return Described(architecture, config, keys.report(), architecture.left_out(header) | factors)


def _common(keys: Keys, header: Header, architecture: Architecture) -> Config:
    if EMBEDDING not in header.tensors and header.whole:
        raise ModelError(f"{header.name} lacks the tensor {EMBEDDING}: get the complete file of a text model")
    if keys.whole("block_count", SIZES) > len(header.tensors) and header.whole:  # before so many layers are made
        raise keys.refused("block_count", f"the file has {len(header.tensors)} tensors in all")
    hidden, heads = keys.whole("embedding_length", SIZES), keys.whole("attention.head_count", SIZES)
    size = keys.whole("attention.key_length", SIZES, hidden // heads)
    if hidden % heads and keys.value("attention.key_length", SIZES) is None:
        raise keys.refused("attention.head_count", f"{hidden} entries are no multiple of it")
    if keys.whole("attention.value_length", SIZES, size) != size:
        raise keys.refused("attention.value_length", f"keys have {size} entries, as many are supported")
    family, factors = architecture.family, architecture.factors
    config: Config = {
        "vocab_size": header.tensors[EMBEDDING].shape[0] if EMBEDDING in header.tensors else None,
        "hidden_size": hidden,
        "num_hidden_layers": keys.whole("block_count", SIZES),
        "num_attention_heads": heads,
        "head_dim": size,
        "num_key_value_heads": keys.whole("attention.head_count_kv", SIZES, heads),
        "intermediate_size": keys.whole("feed_forward_length", SIZES),
        "max_position_embeddings": keys.whole("context_length", SIZES),
        "rope_parameters": rotation(keys, header, size, takes_factors=factors, partial=family.partial),
        "tie_word_embeddings": HEAD not in header.tensors,
        "pad_token_id": None,
    }
    config[family.epsilon] = keys.real(LAYER_NORM if family.centered else RMS, SIZES)
    return config | {"sliding_window": None, "model_type": family.model_type}


# ---------------------------------------------------------------- further keys


def _full_attention(keys: Keys, config: Config) -> None:
    """Take a window that no text reaches beyond, and refuse any other."""
    window = keys.value("attention.sliding_window", ATTENTION)
    if window and keys.whole("attention.sliding_window", ATTENTION) < config["max_position_embeddings"]:
        raise keys.refused(
            "attention.sliding_window", f"windows are not supported for models of architecture {keys.architecture}"
        )
    del config["sliding_window"]


def _windows(keys: Keys, config: Config, pattern: int, window: int = 4096) -> None:
    """Windows in all but every `pattern`-th layer, or as the header says."""
    if keys.value("attention.sliding_window", ATTENTION) != 0:  # 0: none
        window = keys.whole("attention.sliding_window", ATTENTION, window)
        config["sliding_window"] = window
    layers, listed = config["num_hidden_layers"], keys.value("attention.sliding_window_pattern", ATTENTION)
    if isinstance(listed, list):
        if len(listed) != layers:
            raise keys.refused("attention.sliding_window_pattern", f"the model has {layers} layers")
        slides = [bool(each) for each in listed]
    else:
        every = keys.whole("attention.sliding_window_pattern", ATTENTION, pattern)
        slides = [i % every < every - 1 for i in range(layers)]
    if config["sliding_window"] is None:
        slides = [False] * layers
    config["layer_types"] = ["sliding_attention" if each else "full_attention" for each in slides]


def _has(header: Header, *names: str) -> bool:
    return any(f"blk.0.{name}" in header.tensors for name in names)


def _has_biases(header: Header) -> bool:
    return _has(header, *(f"attn_{matrix}.bias" for matrix in ("q", "k", "v", "output")))


def _llama(keys: Keys, header: Header, config: Config) -> None:
    _qwen3(keys, header, config)
    config["mlp_bias"] = _has(header, "ffn_gate.bias", "ffn_up.bias", "ffn_down.bias")


def _granite(keys: Keys, header: Header, config: Config) -> None:
    _llama(keys, header, config)
    if keys.value("rope.scaling.finetuned", ROTATION) is False:  # a switch in this architecture
        raise keys.refused("rope.scaling.finetuned", "models without a rotation are not supported")
    config["attention_multiplier"] = keys.real("attention.scale", SCALES, 0.0) or config["head_dim"] ** -0.5
    config["logits_scaling"] = keys.real("logit_scale", SCALES)
    if not config["logits_scaling"]:
        raise keys.refused("logit_scale", "logits are divided by it")
    config["residual_multiplier"] = keys.real("residual_scale", SCALES, 0.0) or 1.0
    config["embedding_multiplier"] = keys.real("embedding_scale", SCALES, 0.0) or 1.0


def _mistral3(keys: Keys, header: Header, config: Config) -> None:
    """Llama, or with a temperature of the attention that grows with the position."""
    temperature = keys.real("attention.temperature_scale", ATTENTION, 0.0)
    if not temperature:
        config["model_type"] = "llama"
        _llama(keys, header, config)
        return
    _full_attention(keys, config)
    rope = config["rope_parameters"]
    if rope["rope_type"] != "yarn":
        raise keys.refused("attention.temperature_scale", "it is supported with a rotation of type yarn")
    rope["llama_4_scaling_beta"] = temperature


def _qwen2(keys: Keys, _: Header, config: Config) -> None:
    _full_attention(keys, config)
    if config["head_dim"] * config["num_attention_heads"] == config["hidden_size"]:
        del config["head_dim"]  # which this type has for other sizes alone


def _qwen3(keys: Keys, header: Header, config: Config) -> None:
    _full_attention(keys, config)
    config["attention_bias"] = _has_biases(header)


def _scalar(config: Config, largest: int) -> None:
    """The scale of the attention, which the header does not give: the largest model has another one."""
    equal = config["hidden_size"] // config["num_attention_heads"]
    config["query_pre_attn_scalar"] = equal if config["num_hidden_layers"] == largest else config["head_dim"]


def _gemma2(keys: Keys, _: Header, config: Config) -> None:
    _windows(keys, config, 2)
    if config["sliding_window"] is None:
        raise keys.refused("attention.sliding_window", "a window is needed")
    _scalar(config, 46)
    config["attn_logit_softcapping"] = keys.real("attn_logit_softcapping", SCALES, 50.0) or None
    config["final_logit_softcapping"] = keys.real("final_logit_softcapping", SCALES, 30.0) or None


def _gemma3(keys: Keys, _: Header, config: Config) -> None:
    if keys.value("attention.sliding_window", ATTENTION) is None:
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    else:
        _windows(keys, config, 6)
    if config["sliding_window"] is None:  # no layer has one, and masks are made all the same
        config["sliding_window"] = config["max_position_embeddings"]
    if keys.real("rope.scaling.attn_factor", ROTATION, 1.0) != 1.0:
        raise keys.refused("rope.scaling.attn_factor", "it is not supported for models of architecture gemma3")
    _scalar(config, 62)
    config["final_logit_softcapping"] = keys.real("final_logit_softcapping", SCALES, 0.0) or None
    _rotate_apart(keys, config, 1e4)


def _rotate_apart(keys: Keys, config: Config, theta: float) -> None:
    """Give layers with a window a rotation of their own, which is never scaled."""
    near = {"rope_type": "default", "rope_theta": keys.real("rope.freq_base_swa", ROTATION, theta)}
    if not near["rope_theta"]:
        raise keys.refused("rope.freq_base_swa", "a number above 0 is needed")
    config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": near}


def _phi3(keys: Keys, _: Header, config: Config) -> None:
    window = keys.value("attention.sliding_window", ATTENTION)
    config["sliding_window"] = keys.whole("attention.sliding_window", ATTENTION) if window else None
    rope, context = config["rope_parameters"], config["max_position_embeddings"]
    if rope["rope_type"] == "yarn":
        raise keys.refused("rope.scaling.type", "it is not supported for models of architecture phi3")
    if rope["rope_type"] == "linear":  # as the one type that this model has
        rope["rope_type"], factor = "longrope", rope.pop("factor")
        rotated = round(config["head_dim"] * rope["partial_rotary_factor"])
        rope["short_factor"] = rope["long_factor"] = [factor] * (rotated // 2)
        rope["attention_factor"] = 1.0
        rope["original_max_position_embeddings"] = context
    original = rope.get("original_max_position_embeddings", context)
    alike = rope.get("short_factor") == rope.get("long_factor")  # for short and long texts
    config["original_max_position_embeddings"] = context if alike else original


def _starcoder2(keys: Keys, header: Header, config: Config) -> None:
    _full_attention(keys, config)
    config["use_bias"] = _has(header, "attn_q.bias", "ffn_up.bias")


def _cohere(keys: Keys, header: Header, config: Config) -> None:
    _qwen3(keys, header, config)
    config["logit_scale"] = keys.real("logit_scale", SCALES, 0.0) or 1.0
    config["use_qk_norm"] = _has(header, "attn_q_norm.weight")


def _cohere2(keys: Keys, header: Header, config: Config) -> None:
    _windows(keys, config, 4)
    config["logit_scale"] = keys.real("logit_scale", SCALES, 0.0) or 1.0
    config["attention_bias"] = _has_biases(header)
    equal = config["hidden_size"] // config["num_attention_heads"]
    if config.pop("head_dim") != equal:
        raise keys.refused("attention.key_length", f"heads of {equal} entries are supported")


def _exaone4(keys: Keys, _: Header, config: Config) -> None:
    if keys.value("attention.sliding_window", ATTENTION):
        _windows(keys, config, 4)
    else:
        config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]


def _olmo2(keys: Keys, header: Header, config: Config) -> None:
    """OLMo 2, or 3, which has windows, and scales the rotation of the other layers alone."""
    if not keys.value("attention.sliding_window", ATTENTION):
        _qwen2(keys, header, config)
        return
    _windows(keys, config, 4)
    config["model_type"] = "olmo3"
    _rotate_apart(keys, config, config["rope_parameters"]["rope_theta"])


STARCODER2 = Family(
    "StarCoder 2", "3B, 7B, 15B", "starcoder2", "Starcoder2ForCausalLM",
    centered=True, epsilon="norm_epsilon", gate_up=("mlp.c_fc",), down="mlp.c_proj",
)  # fmt: skip
COHERE = replace(BY_TYPE["cohere"], head_norms=("q_norm", "k_norm"))  # of the largest model alone
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(BY_TYPE["llama"], _llama, interleaved=True, biases=True, factors=True),
    "mistral3": Architecture(BY_TYPE["ministral3"], _mistral3, interleaved=True, biases=True, factors=True),
    "granite": Architecture(BY_TYPE["granite"], _granite, interleaved=True, biases=True, factors=True),
    "smollm3": Architecture(BY_TYPE["smollm3"], _llama, interleaved=True, biases=True),
    "qwen2": Architecture(BY_TYPE["qwen2"], _qwen2),
    "qwen3": Architecture(BY_TYPE["qwen3"], _qwen3, biases=True),
    "gemma": Architecture(BY_TYPE["gemma"], _qwen3, biases=True),
    "gemma2": Architecture(BY_TYPE["gemma2"], _gemma2),
    "gemma3": Architecture(BY_TYPE["gemma3_text"], _gemma3, dialect=dialect_of, left_out=of_pictures),
    "olmo2": Architecture(BY_TYPE["olmo2"], _olmo2),
    "exaone4": Architecture(BY_TYPE["exaone4"], _exaone4, factors=True),
    "hunyuan-dense": Architecture(BY_TYPE["hunyuan_v1_dense"], _qwen3, biases=True),
    "glm4": Architecture(BY_TYPE["glm4"], _qwen3),
    "cohere2": Architecture(BY_TYPE["cohere2"], _cohere2, biases=True),
    "phi3": Architecture(BY_TYPE["phi3"], _phi3, factors=True),
    "starcoder2": Architecture(STARCODER2, _starcoder2),
    "command-r": Architecture(COHERE, _cohere, biases=True),
}
