"""Rotations of GGUF headers are those of llama.cpp's formulas, in the step of transformers and in that of 8 bits."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.loading import load_model, load_skeleton
from omnidraft.models.native.model import NativeModel
from support.compilers import needs_the_8_bit_step
from support.gguf_models import BASE, CONTEXT, HEADERS, ORIGINAL, SIZE, model_of, rotated_file, write_model
from support.models import afresh, build, close, refused

pytestmark = pytest.mark.usefixtures("home")
NEAR = 1e-4  # angles of some hundred, in 32 bits
DIVISORS = HEADERS["factors"]["divisors"]
YARN: dict[str, Any] = dict(HEADERS["yarn"])


def angles(header: Mapping[str, Any], position: int) -> tuple[np.ndarray[Any, Any], float]:
    """The angles of the pairs at a position, and the factor of cosines and sines, as llama.cpp computes them."""
    pair = np.arange(SIZE // 2)
    kind = header.get("rope.scaling.type", "linear")
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear", 1.0)) if kind != "none" else 1.0
    plain = position * BASE ** (-2.0 * pair / SIZE) / np.array(header.get("divisors", header.get("short", 1.0)))
    scale = header.get("rope.scaling.attn_factor", 1.0)
    if kind != "yarn":
        return plain / factor, scale
    original = header.get("rope.scaling.original_context_length", CONTEXT)
    turns = (header.get(f"rope.scaling.yarn_beta_{name}", most) for name, most in (("fast", 32.0), ("slow", 1.0)))
    corner = [SIZE * math.log(original / (count * 2 * math.pi)) / (2 * math.log(BASE)) for count in turns]
    low, high = max(0.0, math.floor(corner[0])), min(SIZE - 1.0, math.ceil(corner[1]))
    kept = 1 - np.clip((pair - low) / max(0.001, high - low), 0, 1)
    log, all_dimensions = math.log(factor), header.get("rope.scaling.yarn_log_multiplier", 0.0)
    scale *= (1 + 0.1 * log) / (1 + 0.1 * all_dimensions * log)
    return plain / factor * (1 - kept) + plain * kept, scale


@pytest.mark.medium
@pytest.mark.parametrize("name", HEADERS)
def test_the_angles_are_those_of_the_header(name: str, tmp_path: Path) -> None:
    path = rotated_file(tmp_path / "m.gguf", HEADERS[name])
    loaded = load_model(path, "float32", "cpu")
    assert loaded.lm.context == (256 if "long" in HEADERS[name] else CONTEXT)
    ours = NativeModel(load_skeleton(path), loaded.lm.model.state_dict())._angles.upto(loaded.lm.context)  # noqa: SLF001
    for position in (0, 1, 33, loaded.lm.context - 1):
        turned, scale = angles(HEADERS[name], position)
        wanted = torch.tensor(np.concatenate([np.cos(turned), np.sin(turned)]) * scale, dtype=torch.float32)
        cosines, sines = loaded.lm.model.model.rotary_emb(torch.zeros(1), torch.tensor([[position]]))
        half = SIZE // 2
        assert close(torch.cat([cosines[0, 0, :half], sines[0, 0, :half]]), wanted, NEAR)
        assert close(ours[position], wanted, NEAR)


@pytest.mark.medium
def test_llama_3s_factors_are_the_rotation_that_transformers_computes(tmp_path: Path) -> None:
    """The tensor as the converter makes it of type llama3, and the model of that type."""
    needs_the_8_bit_step()
    rope = {
        "rope_type": "llama3", "rope_theta": BASE, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    }  # fmt: skip
    model = model_of("llama", rope_parameters=rope)
    waves = 2 * math.pi * BASE ** (2 * np.arange(SIZE // 2) / SIZE)
    share = np.clip((ORIGINAL / waves - 1.0) / (4.0 - 1.0), 0, 1)
    factors = np.array(1 / ((1 - share) / 8.0 + share), np.float32)
    assert len(set(factors)) > 2
    path, _ = write_model(tmp_path / "m.gguf", "llama", tensors={"rope_freqs.weight": factors}, model=model)
    text = [(5 * i) % 90 + 3 for i in range(120)]
    expected = afresh(model, text)
    assert close(afresh(load_model(path, "float32", "cpu").lm.model, text), expected, 1e-4)
    int8 = load_model(path, "int8", "cpu", verifies=True).lm
    assert isinstance(int8, NativeModel)
    given = int8.new_sequence().forward(text, len(text))
    distance = (given.softmax(-1) - expected.softmax(-1)).abs().sum(-1).mean() / 2
    without, _ = write_model(tmp_path / "w.gguf", "llama", model=model)
    other = load_model(without, "int8", "cpu", verifies=True).lm.new_sequence().forward(text, len(text))
    assert distance < 0.1 < (other.softmax(-1) - expected.softmax(-1)).abs().sum(-1).mean() / 2


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (YARN | {"divisors": DIVISORS}, "factors beside the rotation yarn"),
        (YARN | {"rope.scaling.yarn_ext_factor": 0.5}, "llama.rope.scaling.yarn_ext_factor = 0.5"),
        (YARN | {"rope.scaling.factor": 0.5}, "llama.rope.scaling.factor = 0.5"),
        ({"rope.scaling.type": "dynamic"}, "llama.rope.scaling.type = 'dynamic'"),
        ({"rope.scaling.alpha": 1000.0}, "llama.rope.scaling.alpha = 1000.0"),
        ({"rope.freq_base_swa": 5.0}, "llama.rope.freq_base_swa = 5.0"),
        ({"rope.scaling.type": "longrope"}, "lacks the tensor rope_factors_short.weight"),
        ({"short": DIVISORS}, "lacks the tensor rope_factors_long.weight"),
        ({"divisors": DIVISORS[:5]}, "tensor rope_freqs.weight of shape (5,)"),
        ({"divisors": [*DIVISORS[:5], 0.0]}, "tensor rope_freqs.weight holds factors that are not positive"),
        ({"divisors": DIVISORS, "short": DIVISORS, "long": DIVISORS}, "tensor rope_freqs.weight beside"),
    ],
)
def test_a_rotation_that_is_not_supported_is_named(header: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = rotated_file(tmp_path / "m.gguf", header)
    with refused(ModelError, "m.gguf", said):
        load_skeleton(path)


def test_factors_of_an_architecture_that_has_none_are_refused(tmp_path: Path) -> None:
    path = rotated_file(tmp_path / "m.gguf", {"divisors": DIVISORS}, "qwen3")
    with refused(ModelError, "tensor rope_freqs.weight, which is not supported for models of architecture qwen3"):
        load_skeleton(path)


# ---------------------------------------------------------------- folders of transformers


def folder_of(path: Path, rope: dict[str, Any]) -> Path:
    """A folder whose rotation is written as transformers did before its version 5."""
    build("llama").save_pretrained(path)
    written = json.loads((path / "config.json").read_text())
    written.pop("rope_parameters")
    (path / "config.json").write_text(json.dumps(written | {"rope_theta": BASE, "rope_scaling": rope}))
    return path


@pytest.mark.parametrize("kind", ["type", "rope_type"])
@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0, 4.0], "long_factor": [9.0] * 4,
         "original_max_position_embeddings": 64, "attention_factor": 1.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 16},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
)  # fmt: skip
def test_a_folders_rotation_is_what_its_config_says(rope: dict[str, Any], kind: str, tmp_path: Path) -> None:
    older = {kind if name == "rope_type" else name: value for name, value in rope.items()}
    rotary = load_skeleton(folder_of(tmp_path, older)).model.rotary_emb
    wanted = build("llama", rope_parameters=rope | {"rope_theta": BASE}).model.rotary_emb
    made = type(rotary)(rotary.config)
    assert torch.equal(made.inv_freq, wanted.inv_freq)
    assert made.attention_scaling == wanted.attention_scaling
    assert len({*made.inv_freq.tolist()}) > 1


def test_a_folders_rotation_that_is_not_known_is_named(tmp_path: Path) -> None:
    with refused(ModelError, "has rotary positions of type 'spiral'"):
        load_skeleton(folder_of(tmp_path, {"rope_type": "spiral", "factor": 4.0}))
