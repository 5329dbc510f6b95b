"""A GGUF file of each supported architecture is the model that it was made of, and anything else in it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.gguf.architectures import ARCHITECTURES
from omnidraft.models.loading import load_model, load_skeleton
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


def test_every_supported_architecture_is_tested() -> None:
    assert set(MODELS) == set(ARCHITECTURES)


@EVERY
def test_a_file_is_the_model_that_it_was_made_of(architecture: str, tmp_path: Path) -> None:
    path, model = write_model(tmp_path / "m.gguf", architecture)
    loaded = load_model(path, "float32", "cpu").lm
    expected = afresh(model, TEXT)
    assert close(afresh(loaded.model, TEXT), expected, 1e-5)
    assert close(loaded.new_sequence().forward(TEXT, 1)[0], expected[-1], 1e-5)
    assert set(load_skeleton(path).state_dict()) == set(model.state_dict())


@EVERY
def test_without_an_output_matrix_it_is_the_embedding(architecture: str, tmp_path: Path) -> None:
    path, model = write_model(tmp_path / "m.gguf", architecture, tie_word_embeddings=True)
    loaded = load_model(path, "float32", "cpu").lm
    assert close(afresh(loaded.model, TEXT), afresh(model, TEXT), 1e-5)


@EVERY
def test_a_tensor_that_is_missing_too_much_or_of_another_shape_is_named(architecture: str, tmp_path: Path) -> None:
    model = model_of(architecture)
    keys, tensors = keys_of(model, architecture), tensors_of(model, architecture)
    name = "blk.3.ffn_down.weight"
    wrong = {
        f"lacks the tensor {name}": {each: tensor for each, tensor in tensors.items() if each != name},
        f"tensor {name} of shape (32, 40)": tensors | {name: tensors[name][:, :40].copy()},
        "the tensor blk.1.attn_sinks.weight": tensors | {"blk.1.attn_sinks.weight": np.ones(4, np.float32)},
        "the tensor blk.4.ffn_down.weight": tensors | {"blk.4.ffn_down.weight": tensors[name]},
    }
    for said, found in wrong.items():
        path = write_file(tmp_path / "m.gguf", architecture, keys, found)
        with refused(ModelError, "m.gguf", said):
            load_skeleton(path)


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
    keys, tensors = keys_of(model, architecture), tensors_of(model, architecture)
    there = {name: tensor for name, tensor in tensors.items() if tensor.any()}
    assert len(there) == len(tensors) - 4 * len(absent)
    path = write_file(tmp_path / "m.gguf", architecture, keys, there)
    assert close(afresh(load_model(path, "float32", "cpu").lm.model, TEXT), afresh(model, TEXT), 1e-5)
    one = min(name for name in there if name.startswith("blk.2.") and name.endswith(".bias"))
    write_file(path, architecture, keys, {name: tensor for name, tensor in there.items() if name != one})
    with pytest.raises(ModelError, match=f"lacks the tensor {one}"):
        load_skeleton(path)


@EVERY
@pytest.mark.parametrize(
    ("key", "value"),
    [
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
    ],
)
def test_a_key_that_is_not_supported_is_named(architecture: str, key: str, value: object, tmp_path: Path) -> None:
    model = model_of(architecture)
    keys = keys_of(model, architecture)
    if key.startswith("attention.layer_norm") and key not in keys:
        pytest.skip("of the other kind of norm")
    path = write_file(tmp_path / "m.gguf", architecture, keys | {key: value}, tensors_of(model, architecture))
    with refused(ModelError, "m.gguf", f"{architecture}.{key} = "):
        load_skeleton(path)


@EVERY
def test_harmless_keys_and_equal_sizes_by_layer_are_taken(architecture: str, tmp_path: Path) -> None:
    model = model_of(architecture)
    keys = keys_of(model, architecture) | {
        "vocab_size": 7, "tensor_data_layout": "as ever", "attention.causal": True, "expert_count": 0,
        "attention.head_count_kv": [2] * 4, "feed_forward_length": [48] * 4,
    }  # fmt: skip
    others = {"general.name": "It", "quantize.imatrix.file": "it.dat", "mine.block_count": 9}
    path = write_file(tmp_path / "m.gguf", architecture, keys, tensors_of(model, architecture), others)
    assert load_skeleton(path).config.num_hidden_layers == 4


@EVERY
@pytest.mark.parametrize(
    "key", ["context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count"]
)
def test_a_key_that_is_missing_is_named(architecture: str, key: str, tmp_path: Path) -> None:
    path, _ = write_model(tmp_path / "m.gguf", architecture, without=[key])
    with refused(ModelError, f"lacks the key {architecture}.{key}"):
        load_skeleton(path)


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


@pytest.mark.parametrize("window", [None, 0])
def test_gemma3_without_a_window_attends_to_everything(window: int | None, tmp_path: Path) -> None:
    keys = keys_of(model := model_of("gemma3", layer_types=["full_attention"] * 4), "gemma3")
    keys = {key: value for key, value in keys.items() if "sliding" not in key}
    keys |= {} if window is None else {"attention.sliding_window": window}
    path = write_file(tmp_path / "m.gguf", "gemma3", keys, tensors_of(model, "gemma3"))
    assert close(afresh(load_model(path, "float32", "cpu").lm.model, TEXT), afresh(model, TEXT), 1e-5)


def test_heads_of_another_size_are_refused_where_the_config_has_none(tmp_path: Path) -> None:
    sizes = dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), 16)
    path, _ = write_model(tmp_path / "m.gguf", "cohere2", sizes)
    with pytest.raises(ModelError, match=r"cohere2\.attention\.key_length = 16 \(heads of 8 entries"):
        load_skeleton(path)


@pytest.mark.parametrize(
    ("architecture", "key", "value"),
    [
        ("gemma2", "attention.sliding_window", 0),
        ("gemma3", "rope.scaling.attn_factor", 1.5),
        ("granite", "logit_scale", 0.0),
        ("llama", "rope.freq_base", 0.0),
        ("qwen2", "block_count", 2**24),
        ("llama", "rope.dimension_count", 7),
        ("qwen2", "attention.head_count", 3),
    ],
)
def test_values_that_no_model_has_are_named(architecture: str, key: str, value: float, tmp_path: Path) -> None:
    path, _ = write_model(tmp_path / "m.gguf", architecture, {key: value})
    with pytest.raises(ModelError, match=f"{architecture}.{key}"):
        load_skeleton(path)


def test_heads_of_a_size_that_cannot_be_rotated_are_named(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path / "m.gguf", "qwen3", {"attention.key_length": 15, "attention.value_length": 15})
    with pytest.raises(ModelError, match=r"qwen3\.attention\.key_length = 15 \(heads have 15 entries\)"):
        load_skeleton(path)


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


def test_phi3_takes_its_window(tmp_path: Path) -> None:
    path, model = write_model(tmp_path / "m.gguf", "phi3", {"attention.sliding_window": 8}, sliding_window=8)
    assert close(afresh(load_model(path, "float32", "cpu").lm.model, TEXT), afresh(model, TEXT), 1e-5)


@pytest.mark.parametrize(("architecture", "model_type"), [("exaone4", "exaone4"), ("olmo2", "olmo3")])
def test_windows_are_taken_where_a_header_has_them(architecture: str, model_type: str, tmp_path: Path) -> None:
    """Layers without one are not rotated in EXAONE 4; in OLMo 3 theirs is the only rotation that may be scaled."""
    kinds = ["sliding_attention", "full_attention"] * 2
    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    near = {"rope_type": "default", "rope_theta": 1e4}
    rope = {"full_attention": rope, "sliding_attention": near} if model_type == "olmo3" else rope
    changes = {"layer_types": kinds, "sliding_window": 16, "rope_parameters": rope}
    keys = {"attention.sliding_window": 16, "attention.sliding_window_pattern": [True, False] * 2}
    keys |= {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    model = model_of(architecture, model_type, **changes)
    path = write_file(
        tmp_path / "m.gguf", architecture, keys_of(model, architecture) | keys, tensors_of(model, architecture)
    )
    loaded = load_model(path, "float32", "cpu").lm
    assert loaded.model.config.model_type == model_type
    assert close(afresh(loaded.model, TEXT), afresh(model, TEXT), 1e-5)


def test_rows_of_the_vocabulary_beyond_the_tokens_are_taken(tmp_path: Path) -> None:
    rows = model_of("qwen2").config.vocab_size + 13
    path, model = write_model(tmp_path / "m.gguf", "qwen2", vocab_size=rows)
    loaded = load_model(path, "float32", "cpu").lm
    assert loaded.vocab_size == rows
    assert close(afresh(loaded.model, TEXT), afresh(model, TEXT), 1e-5)


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
