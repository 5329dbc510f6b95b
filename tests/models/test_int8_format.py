"""Weights in 8 bits on disk: what is rounded stays as it is, what loads is what the file says, damage is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

import omnidraft
from omnidraft import zoo
from omnidraft.errors import ModelError
from omnidraft.models.int8_format import FILE, INT8_FORMAT, SCALE, packed, restored, rounded
from omnidraft.models.loading import load_model
from omnidraft.models.native.model import NativeModel, native_of
from omnidraft.models.native.step import Int8Group
from omnidraft.models.safetensors_files import Tensors, in_8_bits
from support.compilers import needs_the_8_bit_step
from support.models import build, close, refused
from support.project_files import tool
from support.small_tokenizers import sentencepiece, wrap

pytestmark = pytest.mark.medium

Stored = dict[str, torch.Tensor]
MATRIX, VECTOR = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
IDS = [7, 3, 3, 50, 41, 12, 0, 9]


def stored_in(folder: Path) -> Stored:
    """The tensors of a file in 8 bits, as they lie there."""
    with safe_open(folder / FILE, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  no dict: it has no __iter__


def save(folder: Path, stored: Stored, form: str = INT8_FORMAT) -> None:
    save_file(stored, folder / FILE, metadata={"format": form})


@pytest.fixture(params=["llama tied", "llama", "qwen2"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A model's folder in bfloat16, one with a row of zeros and a large weight, and the same in 8 bits."""
    model: Any = build(request.param)
    with torch.no_grad():
        model.get_parameter(MATRIX)[3] = 0
        model.get_parameter(MATRIX)[5, 2] = 30
    model.generation_config.update(do_sample=True, top_k=7, max_new_tokens=9)  # of its own file
    return saved(model.to(torch.bfloat16), tmp_path)


def saved(model: Any, folder: Path) -> tuple[Path, Path]:
    """A model's folder, and the same in 8 bits."""
    folders = folder / "plain", folder / "in8bits"
    model.save_pretrained(folders[0])
    wrap(sentencepiece()).save_pretrained(folders[0])
    tool("pack_weights").pack(*folders)
    return folders


def native_in(folder: Path) -> NativeModel:
    model = native_of(load_model(folder, "float32", "cpu").lm)
    assert model is not None
    return model


# ---------------------------------------------------------------- rounding


@given(st.integers(0, 2**32), st.sampled_from([torch.float32, torch.bfloat16]), st.integers(-60, 60))
def test_what_is_rounded_rounds_to_itself(seed: int, dtype: torch.dtype, power: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = (torch.randn(40, 7, generator=draw) * torch.rand(40, 1, generator=draw) * 2.0**power).to(dtype)
    weight[seed % 40] = 0
    integers, scales = rounded(weight)
    assert integers.abs().amax(1).tolist() == [0 if row == seed % 40 else 127 for row in range(40)]
    again = rounded(restored("it", integers.to(torch.int8), scales))
    assert torch.equal(again[0], integers)
    assert torch.equal(again[1], scales)


@pytest.mark.parametrize("name", zoo.names())
def test_the_embedded_matrices_round_to_what_is_stored(name: str) -> None:
    stored = stored_in(zoo.path(name))
    with Tensors(str(zoo.path(name)), local=True) as weights:
        assert {key + SCALE for key in weights if weights[key].ndim == 2} == {key for key in stored if SCALE in key}
        for key, weight in weights.items():
            if weight.ndim == 2:
                matrix = Int8Group(key, weight)
                laid = matrix.matrices[0].weights.transpose(0, 1).reshape(len(weight), -1)
                assert torch.equal(laid[:, : weight.shape[1]], stored[key])
                assert torch.equal(matrix.matrices[0].scales, stored[key + SCALE])
        assert packed(weights).keys() == stored.keys()


def test_the_8_bit_step_is_that_of_the_unpacked_weights(pair: tuple[Path, Path]) -> None:
    """Matrices of several layers, which are one in it, and biases included."""
    needs_the_8_bit_step()
    plain, ours = map(native_in, pair)
    matrices = [model._layer_weights.groups for model in (plain, ours)]  # noqa: SLF001
    assert matrices[0].keys() == matrices[1].keys()
    for name, one in matrices[0].items():
        other = matrices[1][name]
        assert isinstance(one, Int8Group)
        assert isinstance(other, Int8Group)
        assert all(map(torch.equal, one.matrices[0][:2], other.matrices[0][:2]))
    targets = [load_model(folder, "int8", verifies=True).lm for folder in pair]
    first, *others = (model.new_sequence().forward(IDS, 8) for model in (plain, ours, *targets))
    assert all(torch.equal(first, other) for other in others)


def test_weights_that_are_no_numbers_are_not_packed() -> None:
    with refused(ModelError, "bad", "NaN"):
        packed({"good": torch.ones(2, 2), "bad": torch.tensor([[1.0, torch.nan]])})


# ---------------------------------------------------------------- loading


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_loads_as_what_it_says(pair: tuple[Path, Path], dtype: str) -> None:
    plain, ours = (load_model(folder, dtype, "cpu") for folder in pair)
    stored = stored_in(pair[1])
    expected = plain.lm.model.state_dict()
    found = ours.lm.model.state_dict()
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        source = name if name in stored else "model.embed_tokens.weight"  # of the head of a tied model
        if weight.ndim == 2:
            value = stored[source].float() * stored[source + SCALE][:, None]
            assert stored[source].dtype == torch.int8
        else:
            value = stored[source]
            assert torch.equal(weight, expected[name])
        assert weight.dtype == getattr(torch, dtype)
        assert torch.equal(weight, value.to(weight.dtype))
    models: list[Any] = [plain.lm.model, ours.lm.model]
    assert models[1].generation_config.to_dict() == models[0].generation_config.to_dict()
    assert models[1].generation_config.top_k == 7
    assert models[1].config.dtype == models[0].config.dtype
    assert models[1].name_or_path == models[1].config.name_or_path == str(pair[1])
    assert all(weight.requires_grad for weight in models[1].parameters())


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox"])
def test_names_of_other_architectures_stay(kind: str, tmp_path: Path) -> None:
    folders = saved(build(kind, bos_token_id=1, eos_token_id=1), tmp_path)
    plain, ours = (load_model(folder, "float32").lm.tensors() for folder in folders)
    assert plain.keys() == ours.keys()
    assert all(close(plain[name], ours[name], 2e-3) for name in plain)


@pytest.mark.slow
def test_a_copy_of_an_embedded_model_loads(tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    shutil.copytree(zoo.path("drafter"), copy)
    said = []
    for drafter in (copy, str(copy), "zoo:drafter"):
        model = omnidraft.load("zoo:target-a", drafter, dtype="float32", profile=None, draft_length=3)
        said.append(model.generate("A baker makes 12 rolls an hour for 8 hours.", max_new_tokens=24))
        assert said[-1].stats.accepted > 0
    assert {tuple(each.token_ids) for each in said} == {tuple(said[0].token_ids)}
    assert {each.stats.accepted for each in said} == {said[0].stats.accepted}


def test_ordinary_weights_go_first(pair: tuple[Path, Path]) -> None:
    """They are of a training that began with the others."""
    plain, ours = pair
    save_file({"nothing": torch.ones(1)}, plain / FILE)
    expected = load_model(plain, "float32").lm.model.get_parameter(MATRIX)
    assert in_8_bits(ours)
    (ours / "model.safetensors").write_bytes((plain / "model.safetensors").read_bytes())
    assert not in_8_bits(ours)
    assert torch.equal(load_model(ours, "float32").lm.model.get_parameter(MATRIX), expected)
    with Tensors(str(ours), local=True) as weights:
        assert torch.equal(weights[MATRIX].float(), expected)


def test_transformers_alone_does_not_take_integers_for_weights(pair: tuple[Path, Path]) -> None:
    with pytest.raises(OSError, match="no file named"):
        AutoModelForCausalLM.from_pretrained(pair[1])


def test_packing_again_changes_nothing(pair: tuple[Path, Path], tmp_path: Path) -> None:
    tool("pack_weights").pack(pair[1], tmp_path / "again")
    names = sorted(path.name for path in pair[1].iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    assert {FILE, "config.json", "tokenizer.json"} <= set(names)
    assert all((tmp_path / "again" / name).read_bytes() == (pair[1] / name).read_bytes() for name in names)


# ---------------------------------------------------------------- damage


def without(*names: str) -> Callable[[Stored], object]:
    return lambda stored: [stored.pop(name) for name in names]


def with_scale(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Stored], object]:
    return lambda stored: stored.update({MATRIX + SCALE: change(stored[MATRIX + SCALE])})


def without_scales(stored: Stored) -> None:
    for name in [name for name in stored if name.endswith(SCALE)]:
        stored.pop(name)


DAMAGE: dict[str, tuple[Callable[[Stored], object], tuple[str, ...]]] = {
    "no scale": (without(MATRIX + SCALE), (MATRIX, f"{MATRIX}{SCALE} is missing")),
    "no scales": (without_scales, ("weight are integers", "is missing")),
    "too few scales": (with_scale(lambda scale: scale[:-1].clone()), (MATRIX, "one scale a row")),
    "scales of another kind": (with_scale(lambda scale: scale.half()), (MATRIX, "one scale a row", "float16")),
    "a scale that is NaN": (with_scale(lambda scale: scale / 0 * 0), (MATRIX, "NaN")),
    "an infinite scale": (with_scale(lambda scale: scale + torch.inf), (MATRIX, "infinite")),
    "a negative scale": (with_scale(lambda scale: -scale), (MATRIX, "negative")),
    "a scale of no integers": (
        lambda stored: stored.update({VECTOR + SCALE: torch.ones(32)}),
        (VECTOR, "have scales", "bfloat16"),
    ),
    "no matrix": (without(MATRIX), (MATRIX,)),
    "no matrix and no scale": (without(MATRIX, MATRIX + SCALE), (MATRIX,)),
    "no vector": (without(VECTOR), (VECTOR,)),
    "another shape": (
        lambda stored: stored.update({MATRIX: stored[MATRIX][:, :-1].clone()}),
        (MATRIX, "another shape"),
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, dtype: str, tmp_path: Path) -> None:
    if dtype == "int8":
        needs_the_8_bit_step()
    _, folder = saved(build("llama tied").bfloat16(), tmp_path)
    stored = stored_in(folder)
    change, words = DAMAGE[name]
    change(stored)
    save(folder, stored)
    with refused(ModelError, *words):
        load_model(folder, dtype, verifies=True)


def test_files_that_are_none_of_this_kind_are_refused(pair: tuple[Path, Path]) -> None:
    stored = stored_in(pair[1])
    for form in ("pt", "omnidraft int8 columns"):
        save(pair[1], stored, form)
        with refused(ModelError, FILE, repr(form), repr(INT8_FORMAT)):
            load_model(pair[1], "float32")
    save(pair[1], stored)
    load_model(pair[1], "float32")
    whole = (pair[1] / FILE).read_bytes()
    (pair[1] / FILE).write_bytes(whole[: len(whole) // 2])
    with refused(ModelError, "weights", "are damaged"):
        load_model(pair[1], "float32")
