"""Models that are loaded without classes of transformers are those that are loaded with them, and import none."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft import zoo
from omnidraft.alignment.vocab import Speller, read_vocab
from omnidraft.models import drafter_folder
from omnidraft.models.fast_tokenizer import FastTokenizer
from omnidraft.models.gguf.native_weights import GgufWeights
from omnidraft.models.loading import LoadedModel, load_drafter, load_model, pretrained_tokenizer
from omnidraft.models.native.model import NativeModel, native_of
from omnidraft.models.native.packed_matrices import Q5_1, Q8_0
from omnidraft.models.skeleton import Skeleton
from omnidraft.models.transformers_model import TransformersModel
from support.compilers import needs_the_8_bit_step
from support.gguf_models import file_of, small_file
from support.homes import with_native

pytestmark = pytest.mark.usefixtures("home")
HEAVY = ("transformers", "torch._dynamo", "torch.distributed.tensor", "sympy", "scipy", "huggingface_hub", "PIL")


@pytest.fixture(autouse=True)
def _compiled() -> None:
    needs_the_8_bit_step()


def both(name: str) -> tuple[LoadedModel, LoadedModel]:
    return load_drafter(zoo.path(name)), load_model(zoo.path(name), "float32", "cpu")


@pytest.mark.medium
@pytest.mark.parametrize("name", ["general", "drafter"])
def test_a_drafter_is_the_one_of_transformers(name: str) -> None:
    light, whole = both(name)
    assert isinstance(light.lm, NativeModel)
    assert isinstance(whole.lm, TransformersModel)
    rounded = native_of(whole.lm, drafts=True)
    assert rounded is not None
    ids = [(7 * i) % 900 for i in range(40)]
    assert torch.equal(light.lm.new_sequence().forward(ids, 40), rounded.new_sequence().forward(ids, 40))
    assert (light.name, light.lm.eos, light.lm.context) == (whole.name, whole.lm.eos, whole.lm.context)
    for of_light, of_whole in (
        (light.lm.parameters(), whole.lm.parameters()),
        (light.lm.tensors(), whole.lm.tensors()),
    ):
        assert of_light.keys() == of_whole.keys()
        assert all(torch.equal(of_light[each], of_whole[each]) for each in of_whole)
    again = light.lm.model.state_dict()
    assert all(torch.equal(again[each], weight) for each, weight in whole.lm.model.state_dict().items())


@pytest.mark.medium
@pytest.mark.parametrize("name", ["general", "drafter"])
def test_its_tokenizer_is_the_one_of_transformers(name: str) -> None:
    light, whole = both(name)
    assert isinstance(light.tokenizer, FastTokenizer)
    of_light: Any = light.tokenizer
    one, other = (read_vocab(each.tokenizer, each.lm.vocab_size, each.lm.eos, drafts=True) for each in (light, whole))
    assert one == other
    text = "for i in range(3):\n    print('ü 你好')".encode()
    assert Speller(of_light, one).spell(text) == Speller(whole.tokenizer, other).spell(text)
    assert pretrained_tokenizer(light).get_vocab() == whole.tokenizer.get_vocab()


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("config.json", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("config.json", {"rope_parameters": ...}),
        ("config.json", {"model_type": "gpt_neox"}),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}),
        ("tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"}),
        ("tokenizer_config.json", {"add_bos_token": True}),
        ("tokenizer_config.json", {"bos_token": "<a new token>"}),
    ],
)
def test_a_folder_that_says_less_or_more_is_left_to_transformers(
    file: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(zoo.path("drafter"), tmp_path / "drafter")
    path = folder / file
    values = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}), encoding="utf-8")
    read = drafter_folder.read_skeleton if file == "config.json" else drafter_folder.read_tokenizer
    assert read(folder) is None
    path.write_text("{", encoding="utf-8")
    assert read(folder) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": 5},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}},
        {"num_hidden_layers": "four"},
        {"num_attention_heads": 0},
        {"hidden_size": None},
        {"num_key_value_heads": -1},
        {"hidden_act": ["silu"]},
    ],
)
def test_a_config_of_no_use_is_an_error_of_one_line(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = shutil.copytree(zoo.path("drafter"), tmp_path / "drafter")
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | changes), encoding="utf-8")
    with pytest.raises(omnidraft.OmniDraftError) as raised:
        load_drafter(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.medium
def test_other_weights_than_the_config_says_are_left_to_transformers(tmp_path: Path) -> None:
    folder = shutil.copytree(zoo.path("drafter"), tmp_path / "drafter")
    path = folder / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(values | {"num_hidden_layers": values["num_hidden_layers"] + 1}), encoding="utf-8")
    with pytest.raises(omnidraft.OmniDraftError, match="tensors are missing"):
        load_drafter(folder)


KINDS = {"attn_q": "Q5_0", "attn_k": "Q5_0", "attn_v": "Q5_0", "ffn_down": "Q6_K", "output": "Q8_0"}


@pytest.mark.medium
def test_a_gguf_file_drafts_with_its_own_weights(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", KINDS, "qwen2", tie_word_embeddings=False)
    light, whole, target = (
        load_drafter(path),
        load_model(path, "float32", "cpu"),
        load_model(path, "int8", "cpu", verifies=True),
    )
    assert isinstance(light.lm, NativeModel)
    assert isinstance(target.lm, NativeModel)
    assert (light.lm.drafts, light.lm.precision, light.name) == (True, "int8", "m.gguf")
    drafts, verifies = (each.packed_weights().groups for each in (light.lm, target.lm))
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj"):
        ours, theirs = (each[name].matrices[0] for each in (drafts, verifies))
        assert ours.kind == theirs.kind
        assert torch.equal(ours.weights, theirs.weights)
    assert [each["lm_head"].matrices[0].kind for each in (drafts, verifies)] == [Q5_1, Q8_0]
    for of_light, of_whole in (
        (light.lm.parameters(), whole.lm.parameters()),
        (light.lm.model.state_dict(), whole.lm.model.state_dict()),
    ):
        assert of_light.keys() == of_whole.keys()
        assert all(torch.equal(of_light[each], of_whole[each]) for each in of_whole)
    assert read_vocab(light.tokenizer, light.lm.vocab_size, light.lm.eos, drafts=True) == read_vocab(
        whole.tokenizer, whole.lm.vocab_size, whole.lm.eos, drafts=True
    )


def test_the_weights_of_a_head_by_another_name_are_counted() -> None:
    config = SimpleNamespace(tie_word_embeddings=True)
    shapes = {"model.embed_tokens.weight": (5, 2), "decoder.bias": (5,)}
    assert Skeleton("Model", config, None, shapes).num_parameters() == 15
    assert Skeleton("Model", config, None, {**shapes, "lm_head.weight": (5, 2)}).num_parameters() == 15


@pytest.mark.medium
def test_as_a_drafter_and_as_a_target_a_file_is_two_models(tmp_path: Path) -> None:
    """Keys and values of the one are not those of the other, whose matrices of 8 bits are not rounded."""
    path = file_of(tmp_path / "m.gguf", KINDS, "qwen2", tie_word_embeddings=False)
    drafter, target = load_drafter(path).lm, load_model(path, "int8", "cpu", verifies=True).lm
    for each in (drafter, target):
        assert isinstance(each, NativeModel)
        each.know_by(b"the same content")
    assert drafter.identity != target.identity


@pytest.mark.medium
def test_a_drafters_file_may_change_while_it_drafts(tmp_path: Path) -> None:
    path = file_of(tmp_path / "m.gguf", KINDS, "qwen2", tie_word_embeddings=False)
    sequence = load_drafter(path).lm.new_sequence()
    before = sequence.forward([1, 2, 3], 1)
    path.write_bytes(b"GGUF")
    sequence.crop(0)
    assert torch.equal(sequence.forward([1, 2, 3], 1), before)


@pytest.mark.medium
def test_what_a_gguf_file_has_learned_is_found_again_where_it_learns_no_more(tmp_path: Path) -> None:
    target, drafter = small_file(tmp_path / "target.gguf"), small_file(tmp_path / "drafter.gguf")
    chat = [{"role": "user", "content": "hello"}]
    with omnidraft.load(target, drafter, adapt="inline", update_every=1, warn=pytest.fail) as model:
        model.generate(chat, max_new_tokens=9)
    assert model.learned["answers"] == 1
    again = omnidraft.load(target, drafter, warn=pytest.fail)
    assert again.learned["answers"] == 1
    assert again.drafter is not None
    assert isinstance(again.drafter.lm, NativeModel)
    assert again.generate(chat, max_new_tokens=9).token_ids == model.generate(chat, max_new_tokens=9).token_ids


@pytest.mark.slow
def test_a_file_that_learns_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter = small_file(tmp_path / "target.gguf"), small_file(tmp_path / "drafter.gguf")
    reads: Counter[str] = Counter()
    read = GgufWeights.__getitem__

    def counted(weights: GgufWeights, name: str) -> torch.Tensor:
        reads[f"{weights._path.name} {name}"] += 1  # noqa: SLF001
        return read(weights, name)

    monkeypatch.setattr(GgufWeights, "__getitem__", counted)
    most = []
    for adapt in ("background", "off"):  # the second finds what the first has learned
        reads.clear()
        with omnidraft.load(target, drafter, adapt=adapt, update_every=1, warn=print) as model:
            most.append(max(reads.values()))
            model.generate([{"role": "user", "content": "hello"}], max_new_tokens=9)
        assert model.learned["updates"] == 1
    assert most == [1, 1]


@pytest.mark.medium
@pytest.mark.parametrize("given", [False, True])
def test_a_gguf_file_drafts_and_samples_without_transformers(tmp_path: Path, home: Path, *, given: bool) -> None:
    with_native(home)
    path = small_file(tmp_path / "m.gguf")
    drafter = str(small_file(tmp_path / "d.gguf")) if given else "auto"
    script = f"""
import sys, omnidraft
model = omnidraft.load({str(path)!r}, {drafter!r}, profile=None)
assert model.drafter is not None
chat = [{{"role": "user", "content": "hello"}}]
for options in ({{}}, {{"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01}}, {{"frequency_penalty": 0.5}}):
    assert model.generate(chat, max_new_tokens=9, **options).token_ids
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert said.stdout.strip() == "[]", said.stderr
