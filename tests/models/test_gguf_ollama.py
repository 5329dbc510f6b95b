"""Files of Gemma 3 by Ollama's converter, whose keys differ from llama.cpp's and which read pictures, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omnidraft
from omnidraft.errors import ModelError
from omnidraft.inspection.implementation import inspect_header
from omnidraft.models.gguf.config import read_keys
from omnidraft.models.gguf.native_weights import held_bytes
from omnidraft.models.gguf.tokenizer import build_tokenizer
from omnidraft.models.loading import load_model, load_skeleton, load_tokenizer
from support import gguf_tokenizers as made
from support.gguf_models import RMS, model_of, tokenizer_keys, write_model
from support.models import afresh, close, refused

pytestmark = pytest.mark.usefixtures("home")
TEXT = [(7 * i) % 90 + 3 for i in range(60)]
UNSCALED: dict[str, Any] = {"rope.scaling.type": None, "rope.scaling.factor": None}
NAMED = {"rope.freq_base": None, "rope.global.freq_base": 2e5, "rope.local.freq_base": 5e3}
LONG: dict[str, Any] = {"max_position_embeddings": 131072}
PICTURES: dict[str, Any] = {
    "mm.tokens_per_image": 256, "vision.block_count": 27, "vision.attention.head_count": 16,
    "vision.attention.layer_norm_epsilon": 1e-6, "vision.image_size": 896,
}  # fmt: skip
SIGHT = {
    "v.patch_embedding.weight": np.ones((8, 3, 14, 14), np.float32),
    "v.blk.0.attn_q.weight": np.ones((64, 64), np.float32),
    "mm.mm_input_projection.weight": np.ones((32, 64), np.float32),
}


def rotations(theta: float, near: float, factor: float | None = None) -> dict[str, Any]:
    far = {"rope_type": "default"} if factor is None else {"rope_type": "linear", "factor": factor}
    return {
        "rope_parameters": {
            "full_attention": far | {"rope_theta": theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": near},
        }
    }


@pytest.mark.medium
@pytest.mark.parametrize(
    ("keys", "changes"),
    [
        (NAMED, rotations(2e5, 5e3, 4.0)),
        (NAMED | {"rope.freq_base": 2e5}, rotations(2e5, 5e3, 4.0)),
        (UNSCALED | {"rope.freq_base": None, RMS: None}, rotations(1e6, 1e4)),
        (UNSCALED | PICTURES | {"rope.freq_base": None}, rotations(1e6, 1e4, 8.0) | LONG),
        (UNSCALED | NAMED, rotations(2e5, 5e3, 8.0) | LONG),
        (UNSCALED | {RMS: None}, rotations(1e5, 1e4, 8.0) | LONG),
        (UNSCALED | {RMS: None, "rope.scaling.type": "none"}, rotations(1e5, 1e4) | LONG),
        (UNSCALED | {RMS: None, "rope.scaling.factor": 2.0}, rotations(1e5, 1e4, 2.0) | LONG),
        (UNSCALED, rotations(1e5, 1e4) | LONG),  # as llama.cpp's converter writes a model that is not scaled
    ],
)
def test_a_file_is_the_model_that_it_was_made_of(keys: dict[str, Any], changes: dict[str, Any], tmp_path: Path) -> None:
    path, model = write_model(tmp_path / "m.gguf", "gemma3", keys, **changes)
    loaded = load_model(path, "float32", "cpu").lm
    assert close(afresh(loaded.model, TEXT), afresh(model, TEXT), 1e-5)
    assert loaded.model.config.rope_parameters == model.config.rope_parameters
    assert loaded.model.config.rms_norm_eps == pytest.approx(1e-6)


def test_flags_of_the_tokenizer_tell_of_the_converter(tmp_path: Path) -> None:
    flags = {"tokenizer.ggml.add_padding_token": False, "tokenizer.ggml.add_unknown_token": False}
    path, _ = write_model(tmp_path / "m.gguf", "gemma3", UNSCALED, others=flags, **LONG)
    assert load_skeleton(path).config.rope_parameters["full_attention"]["factor"] == 8.0


@pytest.mark.medium
def test_what_reads_pictures_is_left_out(tmp_path: Path) -> None:
    plain, model = write_model(tmp_path / "p.gguf", "gemma3")
    path, _ = write_model(tmp_path / "m.gguf", "gemma3", PICTURES, SIGHT, model=model)
    assert close(afresh(load_model(path, "float32", "cpu").lm.model, TEXT), afresh(model, TEXT), 1e-5)
    assert held_bytes(path) == held_bytes(plain)
    assert {f"gemma3.{key}" for key in PICTURES} <= set(read_keys(path).harmless)
    assert inspect_header(path).weights == inspect_header(plain).weights


@pytest.mark.parametrize(
    ("architecture", "keys", "tensors", "said"),
    [
        ("gemma3", {"some.new_feature": 1}, {}, "gemma3.some.new_feature = 1"),
        ("gemma3", {"rope.scaling.beta_fast": 64.0}, {}, "gemma3.rope.scaling.beta_fast = 64.0"),
        (
            "gemma3",
            {"rope.global.freq_base": 2e5},
            {},
            "gemma3.rope.freq_base = 100000.0 (gemma3.rope.global.freq_base says",
        ),
        ("gemma3", {"rope.freq_base": None, "rope.global.freq_base": 0.0}, {}, "gemma3.rope.global.freq_base = 0.0"),
        ("gemma3", {"rope.local.freq_base": 0.0}, {}, "gemma3.rope.local.freq_base = 0.0"),
        ("gemma3", {}, {"dense.0.weight": np.ones((32, 32), np.float32)}, "the tensor dense.0.weight"),
        ("gemma3", {}, {"a.conv.weight": np.ones((32, 32), np.float32)}, "the tensor a.conv.weight"),
        ("qwen3", {"mm.tokens_per_image": 256}, {}, "qwen3.mm.tokens_per_image = 256"),
        ("qwen3", {"rope.local.freq_base": 1e4}, {}, "qwen3.rope.local.freq_base = 10000.0"),
        ("qwen3", {RMS: None}, {}, f"lacks the key qwen3.{RMS}"),
        ("qwen3", {}, SIGHT, "the tensor mm.mm_input_projection.weight"),
    ],
)
def test_what_bears_on_the_result_is_refused_and_all_of_other_architectures(
    architecture: str, keys: dict[str, Any], tensors: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path, _ = write_model(tmp_path / "m.gguf", architecture, keys, tensors)
    with refused(ModelError, "m.gguf", said):
        load_skeleton(path)


def longer(kind: int) -> dict[str, Any]:
    """The tokenizer with one token of this kind more than the model has rows."""
    keys = dict(tokenizer_keys())
    keys["tokenizer.ggml.tokens"] = [*keys["tokenizer.ggml.tokens"], "<image_soft_token>"]
    keys["tokenizer.ggml.token_type"] = [*keys["tokenizer.ggml.token_type"], kind]
    return keys


@pytest.mark.medium
def test_special_tokens_without_a_row_are_left_out(tmp_path: Path) -> None:
    rows = model_of("gemma3").config.vocab_size
    for kind in (made.CONTROL, made.USER_DEFINED):
        path, _ = write_model(tmp_path / "m.gguf", "gemma3", others=longer(kind))
        assert len(load_tokenizer(path)) == rows
        model = omnidraft.load(path, None, profile=None)
        assert model.generate("<image_soft_token>", max_new_tokens=3).token_ids
    for kind, architecture in ((made.NORMAL, "gemma3"), (made.CONTROL, "qwen3")):
        path, _ = write_model(tmp_path / "m.gguf", architecture, others=longer(kind))
        assert len(load_tokenizer(path)) == rows + 1
        with refused(ModelError, str(rows)):
            omnidraft.load(path, None, profile=None)


def test_no_space_is_put_before_a_text_unless_the_file_says_so() -> None:
    header = made.sentencepiece() | {"general.architecture": "gemma3"}
    flag = "tokenizer.ggml.add_space_prefix"
    tokens = [build_tokenizer(header | more).tokenize("hello") for more in ({}, {flag: False}, {flag: True})]
    assert tokens[0] == tokens[1] != tokens[2]
    assert (tokens[0][0][0], tokens[2][0][0]) == ("h", "▁")
