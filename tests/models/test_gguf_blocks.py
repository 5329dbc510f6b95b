"""GGUF files in the native step: the blocks of the file, in the places of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.families import BY_TYPE, FAMILIES
from omnidraft.models.gguf import split_files
from omnidraft.models.gguf.native_weights import held_bytes
from omnidraft.models.loading import load_model
from omnidraft.models.native import packed_matrices
from omnidraft.models.native.model import NativeModel
from omnidraft.models.native.packed_matrices import BlockGroup, StoredEmbedding
from omnidraft.models.native.step import Int8Group
from support.compilers import needs_the_8_bit_step
from support.gguf_models import MIXED, MODELS, file_of
from support.models import IDS, refused

pytestmark = pytest.mark.medium

NATIVE = [each for each in MODELS if any(each in family.architectures for family in FAMILIES)]


@pytest.fixture(autouse=True)
def _home(home: Path) -> None:  # noqa: ARG001
    needs_the_8_bit_step()


def native_of(path: Path) -> NativeModel:
    said: list[str] = []
    model = load_model(path, "int8", say=said.append, verifies=True).lm
    assert isinstance(model, NativeModel)
    assert said == []
    return model


@pytest.mark.parametrize(
    ("architecture", "tied"),
    [*((each, False) for each in NATIVE), *((each, True) for each in ("llama", "gemma2", "gemma3", "command-r"))],
)
def test_the_logits_are_those_of_the_values_of_the_file(architecture: str, tied: bool, tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", MIXED, architecture, tie_word_embeddings=tied)
    model, plain = native_of(path), load_model(path, "float32", "cpu").lm
    given, wanted = (each.new_sequence().forward(IDS, len(IDS)) for each in (model, plain))
    # without norms of heads, and with a larger factor, Gemma 2's attention is so sharp that roundings grow by layers
    assert float((given - wanted).norm() / wanted.norm()) < (0.1 if architecture == "gemma2" else 0.03)
    weights, ours = plain.model.state_dict(), model._layer_weights  # noqa: SLF001
    assert set(ours.in_file) == (set() if plain.model.config.tie_word_embeddings else {"model.embed_tokens"})
    for name, matrix in (ours.groups | ours.in_file).items():
        assert isinstance(matrix, BlockGroup | StoredEmbedding)
        weight = weights[f"{name}.weight"]
        if name.endswith("q_proj") and BY_TYPE[plain.model.config.model_type].interleaved:
            assert sorted(matrix.rows(range(len(weight))).tolist()) == sorted(weight.tolist()), name
        else:
            assert torch.equal(matrix.rows(range(len(weight))), weight), name


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        MIXED,
        dict.fromkeys(MIXED, "F16"),
        MIXED | {"ffn_down": "Q2_K", "token_embd": "Q2_K"},
        MIXED | {"ffn_up": "F16", "attn_v": "F32"},
        MIXED | {"ffn_up": "Q3_K", "attn_v": "IQ4_XS"},
    ],
)
def test_the_bytes_that_it_takes_are_known_before(kinds: dict[str, str], tied: bool, tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", kinds, tie_word_embeddings=tied)
    assert held_bytes(path) == pytest.approx(native_of(path).nbytes, rel=0.03)


def test_the_header_is_let_go_of_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    held: list[int] = []
    true = packed_matrices.BlockGroup.__init__

    def init(self: BlockGroup, *stored: packed_matrices.StoredMatrix) -> None:
        held.append(split_files._joined.cache_info().currsize)  # noqa: SLF001
        true(self, *stored)

    monkeypatch.setattr(packed_matrices.BlockGroup, "__init__", init)
    native_of(file_of(tmp_path / "m.gguf", MIXED))
    assert set(held) == {0}


def test_parts_of_a_pass_do_not_change_its_rows(tmp_path: Path) -> None:
    model = native_of(file_of(tmp_path / "m.gguf", MIXED))
    together, alone = model.new_sequence().forward(IDS, len(IDS)), model.new_sequence()
    assert torch.equal(torch.cat([alone.forward([token], 1) for token in IDS]), together)


@pytest.mark.parametrize("kinds", [MIXED | {"attn_k": "Q3_K", "ffn_down": "Q2_K"}, dict.fromkeys(MIXED, "F16")])
def test_what_step_c_does_not_take_is_rounded(kinds: dict[str, str], tmp_path: Path) -> None:
    """Kinds that it does not know, with what has the same inputs, and numbers of 16 bits."""
    path = file_of(tmp_path / "m.gguf", kinds)
    model, plain = native_of(path), load_model(path, "float32", "cpu").lm
    given, wanted = (each.new_sequence().forward(IDS, len(IDS)) for each in (model, plain))
    assert float((given - wanted).norm() / wanted.norm()) < 0.05
    rounded = {name.split(".")[-1] for name, each in model._layer_weights.groups.items() if isinstance(each, Int8Group)}  # noqa: SLF001
    assert rounded == ({"q_proj", "down_proj"} if "Q3_K" in kinds.values() else {
        "q_proj", "o_proj", "gate_proj", "down_proj", "lm_head"
    })  # fmt: skip


def test_weights_of_its_own_take_the_place_of_those_of_the_file(tmp_path: Path) -> None:
    model = native_of(file_of(tmp_path / "m.gguf", MIXED))
    name = "model.layers.1.mlp.up_proj"
    other = model.with_weights({f"{name}.weight": torch.zeros(512, 256)})
    assert not torch.equal(*(each.new_sequence().forward(IDS, 1) for each in (model, other)))
    again = other.with_weights(model.packed_weights())
    assert torch.equal(*(each.new_sequence().forward(IDS, 1) for each in (model, again)))


def test_a_scale_that_is_no_number_is_named(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", MIXED, broken="blk.2.ffn_down.weight")
    with refused(ModelError, "model.layers.2.mlp.down_proj.weight", "NaN or infinite"):
        native_of(path)
