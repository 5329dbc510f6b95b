"""A GGUF file of each supported architecture is the model that it was made of, and anything else in it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.families import BY_CLASS
from omnidraft.models.gguf.architectures import ARCHITECTURES
from omnidraft.models.gguf.config import load_light_skeleton
from omnidraft.models.gguf.native_weights import weights_of
from omnidraft.models.loading import load_model, load_skeleton
from omnidraft.models.native.model import NativeModel, unsupported_config
from omnidraft.models.skeleton import Skeleton
from support.gguf_models import (
    HEADERS,
    LONG_TEXT,
    MODELS,
    keys_of,
    model_of,
    rotated_file,
    tensors_of,
    write_file,
    write_model,
)
from support.models import afresh, close, refused

pytestmark = pytest.mark.usefixtures("home")
TEXT = [(7 * i) % 90 + 3 for i in range(60)]
EVERY = pytest.mark.parametrize("architecture", MODELS)
OF_HEADS = ("attention.key_length", "attention.value_length", "rope.dimension_count")


def test_every_supported_architecture_is_tested() -> None:
    assert set(MODELS) == set(ARCHITECTURES)


KINDS = ["sliding_attention", "full_attention"] * 2
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
NEAR = {"rope_type": "default", "rope_theta": 1e4}
WINDOWS = {
    "attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False] * 2,
    "rope.scaling.type": "linear", "rope.scaling.factor": 4.0,
}  # fmt: skip
NO_WINDOWS = {"attention.sliding_window": None, "attention.sliding_window_pattern": None}
WINDOWED = {"layer_types": KINDS, "sliding_window": 16}
ROWS = model_of("qwen2").config.vocab_size + 13  # of the vocabulary, beyond the tokens


@pytest.mark.medium
@pytest.mark.parametrize(
    ("architecture", "keys", "changes"),
    [
        *[(name, {}, {}) for name in MODELS],
        *[(name, {}, {"tie_word_embeddings": True}) for name in MODELS],  # no output matrix: it is the embedding
        ("qwen2", {}, {"vocab_size": ROWS}),
        ("phi3", {"attention.sliding_window": 8}, {"sliding_window": 8}),
        ("exaone4", WINDOWS, {**WINDOWED, "rope_parameters": LINEAR}),  # layers without a window are not rotated
        # where theirs is the only rotation that may be scaled
        (
            "olmo2",
            WINDOWS,
            {
                **WINDOWED, "model_type": "olmo3",
                "rope_parameters": {"sliding_attention": NEAR, "full_attention": LINEAR},
            },
        ),
        (
            "olmo2",
            WINDOWS | {"rope.freq_base_swa": 5e3},
            {
                **WINDOWED, "model_type": "olmo3",
                "rope_parameters": {"sliding_attention": NEAR | {"rope_theta": 5e3}, "full_attention": LINEAR},
            },
        ),
        ("gemma3", NO_WINDOWS | {"attention.sliding_window": 0}, {"layer_types": ["full_attention"] * 4}),
        ("gemma3", NO_WINDOWS, {"layer_types": ["full_attention"] * 4}),
    ],
)  # fmt: skip
def test_a_file_is_the_model_that_it_was_made_of(
    architecture: str, keys: dict[str, Any], changes: dict[str, Any], tmp_path: Path
) -> None:
    path, model = write_model(tmp_path / "m.gguf", architecture, keys, **changes)
    loaded = load_model(path, "float32", "cpu").lm
    expected = afresh(model, TEXT)
    assert close(afresh(loaded.model, TEXT), expected, 1e-5)
    assert close(loaded.new_sequence().forward(TEXT, 1)[0], expected[-1], 1e-5)
    assert loaded.model.config.model_type == model.config.model_type
    skeleton = load_skeleton(path)
    assert set(skeleton.state_dict()) == set(model.state_dict())
    check_light(path, Skeleton.of(skeleton))


def check_light(path: Path, whole: Skeleton) -> None:
    """What is made without a class of transformers says the same as that class."""
    light, native = load_light_skeleton(path), whole.model_class in BY_CLASS
    assert (light is not None) == native
    if light is None:
        return
    assert (light.model_class, light.shapes) == (whole.model_class, whole.shapes)
    assert light.num_parameters() == load_skeleton(path).num_parameters()
    family = BY_CLASS[light.model_class]
    reasons = [unsupported_config(skeleton.config, family) for skeleton in (light, whole)]
    assert reasons[0] == reasons[1]
    if reasons[0] is None:
        one, other = (NativeModel(each, weights_of(path, each)) for each in (light, whole))
        assert (one.context, one.eos, one.vocab_size) == (other.context, other.eos, other.vocab_size)
        assert torch.equal(one.new_sequence().forward(TEXT, 60), other.new_sequence().forward(TEXT, 60))


@pytest.mark.medium
@EVERY
def test_a_tensor_that_is_missing_too_much_or_of_another_shape_is_named(architecture: str, tmp_path: Path) -> None:
    model, name = model_of(architecture), "blk.3.ffn_down.weight"
    tensor = tensors_of(model, architecture)[name]
    wrong: dict[str, dict[str, Any]] = {
        f"lacks the tensor {name}": {name: None},
        f"tensor {name} of shape (32, 40)": {name: tensor[:, :40].copy()},
        "the tensor blk.1.attn_sinks.weight": {"blk.1.attn_sinks.weight": np.ones(4, np.float32)},
        "the tensor blk.4.ffn_down.weight": {"blk.4.ffn_down.weight": tensor},
    }
    for said, tensors in wrong.items():
        path, _ = write_model(tmp_path / "m.gguf", architecture, tensors=tensors, model=model)
        with refused(ModelError, "m.gguf", said):
            load_skeleton(path)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("architecture", "changes", "absent"),
    [
        ("llama", {"mlp_bias": False}, ("o_proj",)),
        ("llama", {}, ("o_proj", "gate_proj", "up_proj")),
        ("llama", {"mlp_bias": False}, ("q_proj", "k_proj", "v_proj")),
        ("granite", {"attention_bias": True}, ("o_proj",)),
        ("qwen3", {"attention_bias": True}, ("o_proj",)),
        ("command-r", {"attention_bias": True}, ("o_proj",)),
    ],
)
def test_biases_that_no_layer_has_are_zero(
    architecture: str, changes: dict[str, Any], absent: tuple[str, ...], tmp_path: Path
) -> None:
    model = model_of(architecture, **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(not name.endswith(tuple(f"{part}.bias" for part in absent)))
    biases = [name for name in tensors_of(model, architecture) if name.endswith(".bias")]
    zero = [name for name in biases if not tensors_of(model, architecture)[name].any()]
    assert len(zero) == 4 * len(absent)
    path, _ = write_model(tmp_path / "m.gguf", architecture, tensors=dict.fromkeys(zero), model=model)
    assert close(afresh(load_model(path, "float32", "cpu").lm.model, TEXT), afresh(model, TEXT), 1e-5)
    one = min(name for name in biases if name.startswith("blk.2.") and name not in zero)
    write_model(path, architecture, tensors=dict.fromkeys([*zero, one]), model=model)
    with pytest.raises(ModelError, match=f"lacks the tensor {one}"):
        load_skeleton(path)


WRONG: list[tuple[str, Any]] = [
    ("some.new_feature", 1),
    ("attention.causal", False),
    ("expert_count", 8),
    ("attention.value_length", 6),
    ("attention.head_count_kv", [2, 2, 1, 2]),
    ("attention.head_count_kv", [2, 2, 2]),
    ("attention.head_count", [4] * 5),
    ("embedding_length", [32] * 4),
    ("attention.sliding_window", [1024] * 4),
    ("rope.scaling.type", "su"),
    ("rope.dimension_count", 7),
    ("embedding_length", 0),
    ("attention.layer_norm_rms_epsilon", float("nan")),
    ("attention.layer_norm_epsilon", float("nan")),
]


@pytest.mark.medium
@EVERY
def test_a_key_that_is_not_supported_is_named(architecture: str, tmp_path: Path) -> None:
    model = model_of(architecture)
    for key, value in WRONG:
        if "layer_norm" not in key or key in keys_of(model, architecture):  # those are of the other kind of norm
            path, _ = write_model(tmp_path / "m.gguf", architecture, {key: value}, model=model)
            with refused(ModelError, "m.gguf", f"{architecture}.{key} = "):
                load_skeleton(path)


@EVERY
def test_harmless_keys_and_equal_sizes_by_layer_are_taken(architecture: str, tmp_path: Path) -> None:
    keys = {
        "vocab_size": 7, "tensor_data_layout": "as ever", "attention.causal": True, "expert_count": 0,
        "attention.head_count_kv": [2] * 4, "feed_forward_length": [48] * 4,
    }  # fmt: skip
    others = {"general.name": "It", "quantize.imatrix.file": "it.dat", "mine.block_count": 9}
    path, _ = write_model(tmp_path / "m.gguf", architecture, keys, others=others)
    assert load_skeleton(path).config.num_hidden_layers == 4


@pytest.mark.medium
@EVERY
def test_a_key_that_is_missing_is_named(architecture: str, tmp_path: Path) -> None:
    model = model_of(architecture)
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"):
        path, _ = write_model(tmp_path / "m.gguf", architecture, {key: None}, model=model)
        with refused(ModelError, f"lacks the key {architecture}.{key}"):
            load_skeleton(path)


@pytest.mark.medium
@pytest.mark.parametrize(
    "architecture", ["llama", "qwen2", "qwen3", "glm4", "hunyuan-dense", "starcoder2", "command-r"]
)
def test_windows_are_refused_where_they_bear_on_the_result(architecture: str, tmp_path: Path) -> None:
    for window in (0, 512, 4096):
        path, _ = write_model(tmp_path / "m.gguf", architecture, {"attention.sliding_window": window})
        load_skeleton(path)
    path, _ = write_model(tmp_path / "m.gguf", architecture, {"attention.sliding_window": 16})
    with pytest.raises(ModelError, match=r"attention\.sliding_window = 16"):
        load_skeleton(path)


@pytest.mark.parametrize(
    ("architecture", "keys", "said"),
    [
        ("gemma2", {"attention.sliding_window": 0}, "attention.sliding_window"),
        ("gemma3", {"rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor"),
        ("gemma3", {"rope.freq_base_swa": 0.0}, "rope.freq_base_swa"),
        ("olmo2", WINDOWS | {"rope.freq_base_swa": 0.0}, "rope.freq_base_swa"),
        ("olmo2", {"rope.freq_base_swa": 5e3}, "rope.freq_base_swa"),  # without windows, no layer would have it
        ("granite", {"logit_scale": 0.0}, "logit_scale"),
        ("llama", {"rope.freq_base": 0.0}, "rope.freq_base"),
        ("qwen2", {"block_count": 2**24}, "block_count"),
        ("llama", {"rope.dimension_count": 7}, "rope.dimension_count"),
        ("qwen2", {"attention.head_count": 3}, "attention.head_count"),
        # where the config has no size of heads, and where they cannot be rotated
        ("cohere2", dict.fromkeys(OF_HEADS, 16), "attention.key_length = 16 (heads of 8 entries"),
        ("qwen3", dict.fromkeys(OF_HEADS[:2], 15), "attention.key_length = 15 (heads have 15 entries)"),
    ],
)
def test_values_that_no_model_has_are_named(architecture: str, keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    path, _ = write_model(tmp_path / "m.gguf", architecture, keys)
    with refused(ModelError, f"{architecture}.{said}"):
        load_skeleton(path)


@pytest.mark.medium
def test_keys_that_converters_write_for_a_whole_family_are_taken(tmp_path: Path) -> None:
    state = {f"ssm.{each}": 4 for each in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank")}
    more: dict[str, dict[str, Any]] = {
        "granite": state | {"expert_shared_feed_forward_length": 0},
        "qwen2": {"use_parallel_residual": True},
        "qwen3": {"rope.scaling.yarn_attn_factor": 0.878},
    }
    for architecture, keys in more.items():
        path, _ = write_model(tmp_path / f"{architecture}.gguf", architecture, keys)
        load_skeleton(path)


@pytest.mark.medium
def test_norms_are_shifted_before_they_are_rounded(tmp_path: Path) -> None:
    path, model = write_model(tmp_path / "m.gguf", "gemma3")
    loaded = load_model(path, "bfloat16", "cpu").lm.model
    assert torch.equal(loaded.model.norm.weight, (model.model.norm.weight + 1 - 1).bfloat16())


@pytest.mark.parametrize(
    ("architecture", "others", "said"),
    [
        ("falcon", {}, "architecture 'falcon': use a model of cohere2, command-r"),
        ("clip", {}, "architecture 'clip'"),
        ("llama", {"general.type": "adapter"}, "holds no model (general.type is 'adapter')"),
    ],
)
def test_what_is_no_supported_model_is_named(
    architecture: str, others: dict[str, str], said: str, tmp_path: Path
) -> None:
    model = model_of("llama")
    path = write_file(tmp_path / "m.gguf", architecture, keys_of(model, "llama"), tensors_of(model, "llama"), others)
    with refused(ModelError, "m.gguf", said):
        load_skeleton(path)


# ---------------------------------------------------------------- against llama.cpp

RECORDED = json.loads(Path(__file__).with_name("llama_logits.json").read_text(encoding="utf-8"))


GELU = ("gemma", "gemma2", "gemma3", "starcoder2")  # which llama.cpp takes from a table in 16 bits
# keys that llama.cpp reads for `mistral3` alone, as which the model above has them, and that are honored everywhere
READ_ELSEWHERE = ("yarn, ramp", "yarn, magnitude", "yarn, half of it")


@pytest.mark.medium
@pytest.mark.parametrize("name", [name for name in RECORDED if name not in READ_ELSEWHERE])
def test_the_logits_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """On 200 tokens, as tools/record_llama_logits.py recorded them."""
    path = tmp_path / "m.gguf"
    if name in MODELS:
        write_model(path, name)
    else:
        rotated_file(path, HEADERS[name])
    logits = afresh(load_model(path, "float32", "cpu").lm.model, LONG_TEXT)
    wanted = torch.tensor(RECORDED[name]["last"])
    assert close(logits[-1, : len(wanted)], wanted, 1e-2 if name in GELU else 1e-4)
    assert float((logits.argmax(-1) == torch.tensor(RECORDED[name]["best"])).float().mean()) > 0.98


def test_llama_cpp_was_asked_about_every_architecture_and_rotation() -> None:
    assert set(RECORDED) == set(MODELS) | set(HEADERS)
