"""GGUF files that are cut, damaged, of another kind or in several shards."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from omnidraft.errors import ModelError
from omnidraft.inspection.models import read_model
from omnidraft.models.gguf.split_files import read_header
from omnidraft.models.loading import load_model, load_skeleton, load_tokenizer
from support.gguf_models import model_of, shards_of, small_file, small_model, tensors_of, write_file, write_model
from support.models import afresh, close, refused

pytestmark = pytest.mark.usefixtures("home")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return small_file(tmp_path_factory.mktemp("gguf") / "small.gguf").read_bytes()


def refused_alike(path: Path, *said: str) -> None:
    """`load` and `inspect` refuse a file by the same message."""
    messages = set()
    for read in (load_skeleton, load_model):
        with refused(ModelError, *said) as error:
            read(path)
        messages.add(str(error.value))
    messages.add(str(read_model(path).problem))
    assert len(messages) == 1


def test_a_file_that_is_cut_anywhere_is_damaged(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    size = len(whole)
    for cut in (*range(5, 400, 23), 2000, size // 2, size - 33, size - 1):
        path.write_bytes(whole[:cut])
        with refused(ModelError, "cut.gguf is damaged"):
            load_skeleton(path)
    path.write_bytes(whole[:4])
    refused_alike(path, "ends after 4 bytes")
    path.write_bytes(whole[: size // 2])
    refused_alike(path, "ends at byte", f"the file has {size // 2}")


@pytest.mark.medium
def test_any_damaged_byte_of_a_header_gives_a_model_or_one_error(whole: bytes, tmp_path: Path) -> None:
    """No MemoryError, no hang: counts and lengths are checked before anything is allocated."""
    path = tmp_path / "spoiled.gguf"
    path.write_bytes(whole)
    end = min(tensor.start for tensor in read_header(path).tensors.values())
    places = sorted({*range(4, 600, 7), *range(600, end, end // 150)})
    for at in places:
        for value in (0xFF, 0x00, whole[at] ^ 0x40):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                read_header(path)
            except ModelError as error:
                assert len(str(error).splitlines()) == 1  # noqa: PT017


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (4, struct.pack("<I", 1), "GGUF version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 2**60), "a count before byte"),
        (16, struct.pack("<Q", 2**60), "a count before byte"),
        (24, struct.pack("<Q", 2**63), "header goes on where the file ends"),
    ],
)
def test_a_damaged_beginning_is_named(offset: int, value: bytes, said: str, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spoiled.gguf"
    path.write_bytes(whole[:offset] + value + whole[offset + len(value) :])
    refused_alike(path, "spoiled.gguf", said)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (POINTER, "is a git-lfs pointer, not the file: run `git lfs pull`"),
        (b"\n<!DOCTYPE html>\n<html><body>404</body></html>", "is an HTML page"),
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "is a zip archive"),
        (b"tjgg" + bytes(100), "older than GGUF"),
        (b"something else", "is no GGUF file"),
        (save({"a": torch.ones(3)}), "is a safetensors file"),
    ],
)
def test_a_file_of_another_kind_is_named(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    for read in (load_skeleton, load_tokenizer, load_model):
        with refused(ModelError, said):
            read(path)


@pytest.mark.medium
def test_a_file_that_a_store_names_by_its_hash_is_known_by_its_beginning(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sha256-4d7a"
    path.write_bytes(whole)
    assert load_model(path, "float32", "cpu").lm.vocab_size == small_model().config.vocab_size
    assert read_model(path).problem is None
    path.write_bytes(whole[1:])
    with refused(ModelError, "sha256-4d7a", "is a file: give"):
        load_model(path)


def test_a_pointer_in_a_folder_is_named(tmp_path: Path) -> None:
    model_of("llama").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes(POINTER)
    with pytest.raises(ModelError, match=r"config.json is a git-lfs pointer, not the file: run `git lfs pull`"):
        load_skeleton(tmp_path)


def test_a_quantization_that_is_not_supported_is_named(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    name = b"blk.0.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 16
    path.write_bytes(whole[:at] + struct.pack("<I", 41) + whole[at + 4 :])
    refused_alike(path, "odd.gguf has tensor blk.0.ffn_up.weight in quantization type 41", "Q4_K")


def test_tensors_that_overlap_are_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    name = b"blk.0.ffn_up.weight"
    at = whole.index(name) + len(name) + 4 + 16 + 4
    path.write_bytes(whole[:at] + struct.pack("<Q", 0) + whole[at + 8 :])
    with pytest.raises(ModelError, match=r"is damaged: tensor .* begins inside"):
        read_header(path)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_quantized_tensors_are_what_the_gguf_package_makes_of_them(kind: str, tmp_path: Path) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    model, quantization = model_of("qwen2"), GGMLQuantizationType[kind]
    tensors = {name: value for name, value in tensors_of(model, "qwen2").items() if name.endswith("_up.weight")}
    packed = {name: quantize(value, quantization) for name, value in tensors.items()}
    path, _ = write_model(
        tmp_path / "q.gguf", "qwen2", model=model, tensors=packed, kinds=dict.fromkeys(packed, int(quantization))
    )
    weights = load_model(path, "float32", "cpu").lm.model.state_dict()
    for name, value in packed.items():
        layer = name.split(".")[1]
        wanted = dequantize(value, quantization).astype(np.float32)
        assert torch.equal(weights[f"model.layers.{layer}.mlp.up_proj.weight"], torch.from_numpy(wanted.copy()))


# ---------------------------------------------------------------- shards


@pytest.mark.medium
def test_all_shards_are_joined_whichever_is_named(tmp_path: Path) -> None:
    text = list(range(3, 40))
    expected = afresh(model_of("qwen2"), text)
    for path in shards_of(tmp_path):
        assert len(load_tokenizer(path)) >= model_of("qwen2").config.vocab_size
        assert close(afresh(load_model(path, "float32", "cpu").lm.model, text), expected, 1e-5)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_shard_that_is_missing_is_named(missing: int, tmp_path: Path) -> None:
    paths = shards_of(tmp_path)
    paths[missing].unlink()
    for path in paths:
        if path.exists():
            refused_alike(path, f"shard {missing + 1} of 3 is missing: put {paths[missing].name} beside")


@pytest.mark.medium
def test_shards_of_different_models_are_refused(tmp_path: Path) -> None:
    paths = shards_of(tmp_path)
    kept = paths[1].read_bytes()
    paths[1].write_bytes(paths[2].read_bytes())
    refused_alike(paths[0], "is shard 3, not shard 2")
    model = model_of("qwen2")
    split = {"split.no": 1, "split.count": 3, "split.tensors.count": 40}
    few = {"blk.0.ffn_up.weight": tensors_of(model, "qwen2")["blk.0.ffn_up.weight"]}
    write_file(paths[1], "qwen2", {}, few, split, vocabulary=False)
    refused_alike(paths[0], "has split.tensors.count 40")
    write_file(paths[1], "llama", {}, few, split | {"split.tensors.count": 51}, vocabulary=False)
    refused_alike(paths[0], "has general.architecture 'llama'")
    write_file(paths[1], "qwen2", {}, few, split | {"split.tensors.count": 51}, vocabulary=False)
    with pytest.raises(ModelError, match=r"tensor blk\.0\.ffn_up\.weight is in two shards"):
        load_skeleton(paths[0])
    paths[1].write_bytes(kept)
    load_skeleton(paths[0])
    paths[1].write_bytes(kept[: len(kept) // 2])
    refused_alike(paths[0], f"{paths[1].name} is damaged")


def test_shards_that_are_named_otherwise_say_how_to_name_them(tmp_path: Path) -> None:
    first, second, _ = shards_of(tmp_path)
    (tmp_path / "a.gguf").write_bytes(first.read_bytes())
    refused_alike(tmp_path / "a.gguf", "a.gguf is shard 1 of 3: ")
    (tmp_path / "b.gguf").write_bytes(second.read_bytes())
    refused_alike(tmp_path / "b.gguf", "b.gguf is shard 2 of 3: give the first")
