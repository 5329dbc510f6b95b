"""Small random models of several architectures as GGUF files, written as llama.cpp's converters do."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from omnidraft.models.gguf.header import QUANTIZATIONS
from omnidraft.models.gguf.token_kinds import CONTROL, NORMAL
from support.blocks import blocks
from support.small_tokenizers import byte_level

writer = pytest.importorskip("gguf", reason="the gguf package is not installed")
Keys = Mapping[str, Any]
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
RMS, PLAIN_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
PAIRED = ("llama", "mistral3", "granite", "smollm3")  # rows of queries and keys are stored as pairs
SHIFTED = ("gemma", "gemma2", "gemma3")  # norms are stored plus 1
# architecture: model type, fields of its config, keys of its header beyond the common ones
MODELS: Mapping[str, tuple[str, Keys, Keys]] = {
    "llama": (
        "llama",
        {"head_dim": 12, "attention_bias": True, "mlp_bias": True},
        {"attention.key_length": 12, "attention.value_length": 12, "rope.dimension_count": 12},
    ),
    "mistral3": (
        "ministral3",
        {
            "head_dim": 8,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
                "beta_fast": 4.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
        },
        {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1,
        },
    ),
    "granite": (
        "granite",
        {"attention_multiplier": 0.2, "logits_scaling": 3.0, "residual_multiplier": 0.5, "embedding_multiplier": 2.0},
        {"attention.scale": 0.2, "logit_scale": 3.0, "residual_scale": 0.5, "embedding_scale": 2.0},
    ),
    "smollm3": ("smollm3", {}, {"rope.dimension_count": 8}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 16}, {"attention.key_length": 16, "attention.value_length": 16}),
    "gemma": (
        "gemma",
        {"head_dim": 16, "tie_word_embeddings": True},
        {"attention.key_length": 16, "attention.value_length": 16},
    ),
    "gemma2": (
        "gemma2",
        {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True,
         "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
        {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 16,
         "attn_logit_softcapping": 3.0, "final_logit_softcapping": 2.0},
    ),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "final_logit_softcapping": None,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {"attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 16,
         "rope.freq_base": 1e5, "attention.sliding_window_pattern": 2,
         "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "olmo2": ("olmo2", {}, {}),
    "exaone4": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4}, {}),
    "hunyuan-dense": (
        "hunyuan_v1_dense", {"head_dim": 16}, {"attention.key_length": 16, "attention.value_length": 16},
    ),
    "glm4": (
        "glm4",
        {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope.dimension_count": 4},
    ),
    "cohere2": (
        "cohere2",
        {"logit_scale": 0.25, "tie_word_embeddings": True, "sliding_window": 16},
        {"logit_scale": 0.25, "rope.scaling.type": "none", "attention.sliding_window": 16, "rope.dimension_count": 8},
    ),
    "phi3": (
        "phi3",
        {
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "attention_factor": 1.2,
                "short_factor": [1.0, 3.0], "long_factor": [1.0, 40.0],
            },
        },
        {"rope.dimension_count": 4, "rope.scaling.attn_factor": 1.2, "rope.scaling.original_context_length": 256,
         "attention.sliding_window": 0},
    ),
    "starcoder2": ("starcoder2", {}, {}),
    "command-r": (
        "cohere",
        {"logit_scale": 0.25, "tie_word_embeddings": True},
        {"logit_scale": 0.25, "rope.scaling.type": "none"},
    ),
}  # fmt: skip
KIND = {name: kind for kind, (name, *_) in QUANTIZATIONS.items()}
# as in files of several kinds: those of queries, keys and values differ, and are not the same in every layer
MIXED = {
    "attn_q": "Q4_K", "attn_k": "Q5_0", "attn_v": "Q6_K", "attn_output": "Q5_K", "ffn_gate": "Q4_1", "ffn_up": "IQ4_NL",
    "ffn_down": "Q8_0", "token_embd": "Q4_0", "output": "Q6_K", "attn_qkv": "Q5_K",
}  # fmt: skip
PART: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
LONG_TEXT = [(7 * i * i + 3 * i) % 290 + 3 for i in range(200)]
FACTORS = {"phi3": {"rope_factors_short.weight": [1.0, 3.0], "rope_factors_long.weight": [1.0, 40.0]}}


# rotations: keys of the header, and tensors of factors by a short name
SIZE, CONTEXT, ORIGINAL, BASE = 12, 512, 32, 1e4
DIVISORS = [1.0, 1.0, 1.7, 3.0, 8.0, 32.0]
PLAIN: dict[str, Any] = {"attention.key_length": SIZE, "attention.value_length": SIZE, "rope.dimension_count": SIZE}
YARN: dict[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": ORIGINAL,
}
HEADERS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "factors": {"divisors": DIVISORS},
    "factors of a scaled rotation": {"divisors": DIVISORS, "rope.scaling.factor": 2.0},
    "linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    "linear, not named": {"rope.scaling.factor": 4.0},
    "linear, older key": {"rope.scale_linear": 4.0},
    "the newer key counts": {"rope.scale_linear": 3.0, "rope.scaling.factor": 4.0},
    "none": {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
    "attention factor": {"rope.scaling.attn_factor": 1.25},
    "yarn": YARN,
    "yarn, no original length": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
    "yarn, ramp": YARN | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 2.0},
    "yarn, magnitude": YARN | {"rope.scaling.yarn_log_multiplier": 1.0},
    "yarn, half of it": YARN | {"rope.scaling.yarn_log_multiplier": 0.5, "rope.scaling.attn_factor": 1.1},
    "yarn, as it says itself": YARN
    | {"rope.scaling.yarn_attn_factor": 1 + 0.1 * math.log(4), "rope.scaling.yarn_ext_factor": 1.0},
    "longrope": {
        "rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.2, "short": DIVISORS, "long": [50.0] * 6,
        "rope.scaling.original_context_length": 256,
    },
}  # fmt: skip
NAMES = {"divisors": "rope_freqs.weight", "short": "rope_factors_short.weight", "long": "rope_factors_long.weight"}


def model_of(architecture: str, model_type: str = "", **changes: Any) -> PreTrainedModel:
    """A random model of an architecture, with norms and biases that show."""
    kind, own, _ = MODELS[architecture]
    kind = model_type or kind
    size = byte_level().get_vocab_size()
    random = np.random.RandomState(0)  # whose numbers are the same in every version
    common: dict[str, Any] = {
        "vocab_size": size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "tie_word_embeddings": False, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }  # fmt: skip
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **common | dict(own) | changes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            values = (
                random.normal(0, 0.3, parameter.shape)
                if parameter.ndim > 1
                else random.uniform(0.5, 1.5, parameter.shape)
            )
            parameter.copy_(torch.from_numpy(values))
    made: PreTrainedModel = model.float().eval()
    return made


def keys_of(model: PreTrainedModel, architecture: str) -> dict[str, Any]:
    """The keys that llama.cpp's converters give a model, without the architecture's name in front."""
    config: Any = model.config
    epsilon = {RMS: getattr(config, "rms_norm_eps", None), PLAIN_NORM: getattr(config, "layer_norm_eps", None)}
    if architecture == "starcoder2":
        epsilon = {PLAIN_NORM: config.norm_epsilon}
    return {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.freq_base": 1e4,
        **{key: value for key, value in epsilon.items() if value is not None},
        **MODELS[architecture][2],
    }


def tensors_of(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray[Any, Any]]:
    """The tensors that llama.cpp's converters give a model."""
    config: Any = model.config
    arch = next(each for each, name in writer.MODEL_ARCH_NAMES.items() if name == architecture)
    names = writer.get_tensor_name_map(arch, config.num_hidden_layers)
    found = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        value = weight.numpy().copy()
        if architecture in PAIRED and ".q_proj." in name:
            value = _paired(value, config.num_attention_heads)
        if architecture in PAIRED and ".k_proj." in name:
            value = _paired(value, config.num_key_value_heads)
        if architecture in SHIFTED and name.endswith("norm.weight"):
            value = value + 1
        own = "output.weight" if name == "lm_head.weight" else names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        found[own] = value
    return found | {name: np.array(each, np.float32) for name, each in FACTORS.get(architecture, {}).items()}


def write_file(
    path: Path,
    architecture: str,
    keys: Keys,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    others: Keys | None = None,
    *,
    vocabulary: bool = True,
    kinds: Mapping[str, int] | None = None,
) -> Path:
    """Write a GGUF file with these keys of the architecture, `others` by full names, and the tokenizer `byte_level`.

    Tensors of `kinds` are bytes of blocks.
    """
    out = writer.GGUFWriter(path, architecture)
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    for name, value in {**(tokenizer_keys() if vocabulary else {}), **own, **(others or {})}.items():
        add_key(out, name, value)
    for name, tensor in tensors.items():
        kind = None if kinds is None or name not in kinds else writer.GGMLQuantizationType(kinds[name])
        out.add_tensor(name, tensor, raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


def write_model(
    path: Path,
    architecture: str,
    keys: Keys | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any] | None] | None = None,
    *,
    model: PreTrainedModel | None = None,
    others: Keys | None = None,
    kinds: Mapping[str, int] | None = None,
    **changes: Any,
) -> tuple[Path, PreTrainedModel]:
    """This model, or a random one, of an architecture as a file, with these keys and tensors beside its own.

    One that is None is left out.
    """
    model = model or model_of(architecture, **changes)
    given = keys_of(model, architecture) | dict(keys or {})
    held = tensors_of(model, architecture) | dict(tensors or {})
    given = {name: value for name, value in given.items() if value is not None}
    kept = {name: tensor for name, tensor in held.items() if tensor is not None}
    return write_file(path, architecture, given, kept, others, kinds=kinds), model


def shards_of(folder: Path, stem: str = "m", *, empty: bool = False) -> list[Path]:
    """The model `qwen2` in three shards, as llama.cpp's program writes them; with `empty`, the first has no tensor."""
    model = model_of("qwen2")
    tensors = tensors_of(model, "qwen2")
    names = list(tensors)
    assert len(names) == 51
    ends = (0, 25, 51) if empty else (20, 40, 51)
    paths = [folder / f"{stem}-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
    for number, (path, start, end) in enumerate(zip(paths, (0, *ends), ends, strict=False)):
        held = {name: tensors[name] for name in names[start:end]}
        split = {"split.no": number, "split.count": 3, "split.tensors.count": len(names)}
        write_file(path, "qwen2", keys_of(model, "qwen2") if number == 0 else {}, held, split, vocabulary=number == 0)
    return paths


def small_file(path: Path) -> Path:
    """A chat model whose answers end with two tokens: the one that the header names, and </s>."""
    ends = {"tokenizer.ggml.eos_token_id": byte_level().token_to_id("<unk>"), "tokenizer.chat_template": TEMPLATE}
    return write_model(path, "qwen2", others={"general.name": "Small", **ends}, model=small_model())[0]


def small_model() -> PreTrainedModel:
    return model_of("qwen2", num_hidden_layers=2, max_position_embeddings=128, tie_word_embeddings=True)


def file_of(
    path: Path, kinds: Mapping[str, str], architecture: str = "llama", broken: str = "", **changes: Any
) -> Path:
    """A random model whose matrices are random blocks of these kinds, by the parts of their names."""
    partial = architecture in ("phi3", "glm4")
    changes |= {"rope_parameters": PART} if partial else {}
    model = model_of(architecture, **SIZES, **changes)
    keys = keys_of(model, architecture) | {"attention.key_length": 64, "attention.value_length": 64}
    keys |= {"rope.dimension_count": 32 if partial else 64, "rope.scaling.attn_factor": 1.0}
    tensors, chosen = tensors_of(model, architecture), {}
    tensors = {name: tensor for name, tensor in tensors.items() if "rope_factors" not in name}
    for number, (name, tensor) in enumerate(tensors.items()):
        part = name.split(".")[-2]
        if tensor.ndim == 2 and part in kinds:
            chosen[name] = kind = KIND[kinds[part]]
            scale = 2.0**-13 if QUANTIZATIONS[kind][1] == 256 else 2.0**-10
            tensors[name] = blocks(kind, *tensor.shape, seed=number, scale=scale)
            if name == broken:
                tensors[name][5, :2] = np.array([np.nan], np.float16).view(np.uint8)
    return write_file(path, architecture, keys, tensors, kinds=chosen)


def rotated_file(path: Path, header: Mapping[str, Any], architecture: str = "llama") -> Path:
    """The model `llama` with a rotation of `HEADERS`."""
    changes: dict[str, Any] = {} if architecture == "llama" else {"head_dim": SIZE}
    keys = PLAIN | {key: value for key, value in header.items() if key not in NAMES}
    factors = {NAMES[key]: np.array(value, np.float32) for key, value in header.items() if key in NAMES}
    return write_model(path, architecture, keys, factors, **changes)[0]


def _paired(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of each head from halves to pairs of neighbors."""
    size = len(rows) // heads
    order = [head * size + half * size // 2 + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return rows[order]


def add_key(out: Any, name: str, value: Any) -> None:
    """Add a key of the type that converters give such a value."""
    if isinstance(value, list | tuple):
        out.add_array(name, list(value))
    else:
        kinds = {bool: out.add_bool, int: out.add_uint32, float: out.add_float32, str: out.add_string}
        kinds[type(value)](name, value)


@cache
def tokenizer_keys() -> Keys:
    """The tokenizer `byte_level`."""
    tokenizer = byte_level()
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [token for token, _ in vocab],
        "token_type": [CONTROL if token in special else NORMAL for token, _ in vocab],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": tokenizer.token_to_id("<s>"),
        "eos_token_id": tokenizer.token_to_id("</s>"),
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
