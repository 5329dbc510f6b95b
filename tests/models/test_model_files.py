"""What a model's files say of themselves: format, type of the weights, size."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import save_file

from omnidraft import zoo
from omnidraft.errors import ModelError
from omnidraft.models.model_files import MIXTURES, ModelFiles, files_of
from support.gguf_models import file_of, model_of, small_model, write_model


def described(path: Path, name: str, **keys: int) -> ModelFiles:
    others = {f"general.{key}": value for key, value in keys.items()}
    return files_of(write_model(path / name, "qwen2", model=small_model(), others=others)[0])


def test_types_are_called_as_gguf_calls_them() -> None:
    known = {int(each): each.name.removeprefix("ALL_").removeprefix("MOSTLY_") for each in gguf.LlamaFileType}
    assert {kind: known[kind].removesuffix("_MOE") for kind in MIXTURES} == MIXTURES


def test_a_gguf_file_is_of_the_type_that_it_says(tmp_path: Path) -> None:
    for kind, name in ((15, "Q4_K_M"), (2, "Q4_0"), (32, "BF16")):
        found = described(tmp_path, f"{kind}.gguf", file_type=kind)
        size = (tmp_path / f"{kind}.gguf").stat().st_size
        assert (found.format, found.weights, found.nbytes) == ("gguf", name, size)
        assert found.written == (tmp_path / f"{kind}.gguf").stat().st_mtime


@pytest.mark.medium
def test_a_gguf_file_that_does_not_say_is_of_the_type_of_most_weights(tmp_path: Path) -> None:
    assert described(tmp_path, "silent.gguf").weights == "F32"
    assert described(tmp_path, "newer.gguf", file_type=999).weights == "F32"
    path = file_of(
        tmp_path / "mixed.gguf", {"ffn_up": "Q4_K", "ffn_gate": "Q4_K", "ffn_down": "Q4_K", "attn_q": "Q6_K"}
    )
    assert files_of(path).weights == "Q4_K"


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")])
def test_safetensors_are_of_the_type_of_most_weights(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    model_of("qwen2").config.save_pretrained(tmp_path)
    tensors = {"model.norm.weight": torch.ones(8), "model.embed_tokens.weight": torch.ones(9, 8, dtype=dtype)}
    save_file(tensors, tmp_path / "model.safetensors")
    size = (tmp_path / "model.safetensors").stat().st_size
    found = files_of(tmp_path)
    assert (found.format, found.weights, found.nbytes) == ("safetensors", name, size)
    assert files_of(zoo.path("target-a")).weights == "I8"


def test_files_that_are_gone_are_an_error(tmp_path: Path) -> None:
    with pytest.raises((OSError, ModelError)):
        files_of(tmp_path)
