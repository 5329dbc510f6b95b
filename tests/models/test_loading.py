"""Loading models: device and dtype, no network for a folder, and what is wrong with a folder in one line."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, pre_tokenizers
from transformers.utils import logging as transformers_logging

from omnidraft.alignment.vocab import read_vocab
from omnidraft.cli.main import main
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models import int8_format, loading
from omnidraft.models import transformers_model as models
from omnidraft.models.loading import load_model, load_skeleton, load_tokenizer
from support.compilers import needs_the_8_bit_step
from support.models import afresh, build, close, refused
from support.small_tokenizers import byte_level, sentencepiece, wrap

transformers_logging.disable_progress_bar()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "small"
    tokenizer = wrap(sentencepiece())
    build(vocab_size=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A model with its tokenizer."""
    return shutil.copytree(saved, tmp_path / "small")


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing is printed or logged, whatever `transformers` has been told to say; what it was told stays."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_warning()
    yield
    assert transformers_logging.get_verbosity() == logging.WARNING
    transformers_logging.set_verbosity(level)
    assert caplog.get_records("call") == []
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the network, all of it refused."""
    asked: list[str] = []

    def refuse(*arguments: object, **_options: object) -> None:
        asked.append(str(arguments))
        raise OSError("no network here")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


@pytest.mark.medium
@pytest.mark.usefixtures("folder", "silence")
def test_a_folder_is_loaded_without_the_network(
    folder: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_in("config.json", return_dict=False)(folder)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE  # else nothing would be asked for anyway
    loaded = load_model(folder)
    assert (loaded.name, loaded.lm.precision) == ("small", "float32")
    assert loaded.dtype_reason
    rows = len(loaded.tokenizer)
    assert loaded.lm.vocab_size == rows
    ids = loaded.tokenizer("hello world")["input_ids"]
    assert close(loaded.lm.new_sequence().forward(ids, 1), afresh(build(vocab_size=rows), ids)[-1:])
    monkeypatch.chdir(folder.parent)
    assert load_model("small").name == "small"
    monkeypatch.chdir(folder)
    half = load_model(".", dtype="bfloat16", device="cpu")
    assert (half.name, half.lm.precision, half.dtype_reason) == ("small", "bfloat16", "asked for")
    assert half.lm.new_sequence().forward(ids, 1).dtype == torch.float32
    assert calls == []


@pytest.mark.medium
def test_a_model_is_judged_before_its_weights_are_read_and_put_where_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    for module in (loading, models):
        monkeypatch.setattr(module, "check_supported", lambda model: judged.append(model.device.type))
    load_model(folder)
    assert judged == ["meta", "cpu"]
    monkeypatch.setattr(loading, "choose_device", lambda _asked: torch.device("meta"))  # stands for a device of its own
    assert load_model(folder).lm.device.type == "meta"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("template", "generation", "ends"),
    [
        ("{{ messages[0].content }}</s>", None, (1, 2)),
        (None, None, (1,)),  # no chat model: its config may name any token
        ("{{ messages[0].content }}</s>", {"eos_token_id": 1}, (1,)),  # says what ends
    ],
)
def test_a_chat_model_ends_at_the_end_of_its_turn(
    folder: Path, template: str | None, generation: dict[str, int] | None, ends: tuple[int, ...]
) -> None:
    needs_the_8_bit_step()
    tokenizer = wrap(sentencepiece())
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    replace_in("config.json", eos_token_id=1)(folder)
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    for dtype in ("float32", "int8"):
        loaded = load_model(folder, dtype, "cpu", verifies=True)
        assert loaded.lm.eos == ends
        assert sorted(read_vocab(loaded.tokenizer, loaded.lm.vocab_size, loaded.lm.eos).eos) == list(ends)


@pytest.mark.parametrize(("kind", "model_type"), [("GPT2Tokenizer", "llama"), ("Qwen2Tokenizer", "qwen2")])
def test_a_tokenizer_splits_text_as_its_file_says_and_not_as_its_class(
    kind: str, model_type: str, tmp_path: Path
) -> None:
    made = byte_level(nfc=False)  # unlike the classes, it splits each number, and composes no characters
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), made.pre_tokenizer])
    made.add_tokens([AddedToken("§é", normalized=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, "eos_token": "</s>"}))
    loaded = load_tokenizer(tmp_path)
    assert (type(loaded).__name__, loaded.eos_token) == (kind, "</s>")
    for text in ("hello 1010 world", "e\u0301te\u0301", "\u00a7e\u0301 \u00a7\u00e9"):
        assert loaded(text)["input_ids"] == made.encode(text).ids


@pytest.mark.medium
def test_the_network_check_notices_a_call(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)  # between attempts
    with refused(ModelError, "'someone/something'", "config.json", "check the name and the connection"):
        load_model("someone/something")
    assert calls


def test_the_hub_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with refused(ModelError, "'someone/something'", "give a folder that exists"):
        load_model("someone/something")


def replace_in(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")

    return change


def overwrite(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: cast(None, (folder / name).write_bytes(data))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def flip(folder: Path) -> None:
    """Damage the header, whose first eight bytes are its length."""
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[12] ^= 0xFF
    overwrite("model.safetensors", bytes(data))(folder)


def byte_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}', encoding="utf-8")


def to_convert(folder: Path) -> None:
    """One that transformers reads only with a package that is not here, or that is broken."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"{")


def to_8_bits(folder: Path) -> None:
    weights = int8_format.packed(load_file(folder / "model.safetensors"))
    save_file(weights, folder / int8_format.FILE, metadata={"format": int8_format.INT8_FORMAT})
    remove("model.safetensors")(folder)


def to_gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-q8_0.gguf")


def replace_config(name: str, content: str) -> Callable[[Path], None]:
    """A file of something else than a model, in place of the config."""

    def change(folder: Path) -> None:
        (folder / "config.json").unlink()
        (folder / name).write_text(content, encoding="utf-8")

    return change


LORA = b'{"base_model_name_or_path": "owner/base", "peft_type": "LORA"}'
DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no config": (remove("config.json"), ("config.json", "no config.json")),
    "broken config": (overwrite("config.json", b"{"), ("config.json", "not a valid JSON file")),
    "unknown type": (replace_in("config.json", model_type="zork"), ("config.json", "zork")),
    "bad field": (replace_in("config.json", num_attention_heads="x"), ("config.json", "num_attention_heads")),
    "no heads": (replace_in("config.json", num_attention_heads=0), ("config.json", "ZeroDivisionError")),
    "own code": (
        overwrite("config.json", b'{"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}'),
        ("config.json", "type 'own'", "custom code, which is never run: use"),
    ),
    "no factor of queries": (
        replace_in("config.json", model_type="ministral3", rope_parameters={"rope_type": "default"}),
        ("rope_parameters", "lack llama_4_scaling_beta", "ministral3"),
    ),
    "of MLX": (
        replace_in("config.json", quantization={"bits": 4}),
        ("quantized by MLX", "a GGUF file"),
    ),
    "quantized anyhow": (
        replace_in("config.json", quantization_config={"quant_method": "zork"}),
        ("quantized by zork", "cannot be read here", "without quantization"),
    ),
    "an image model": (overwrite("config.json", b'{"model_type": "vit"}'), ("'vit'", "no causal language model")),
    "half of bart": (overwrite("config.json", b'{"model_type": "bart"}'), ("'bart'", "an encoder-decoder")),
    "no weights": (remove("model.safetensors"), ("weights", "no file named model.safetensors")),
    "empty weights": (overwrite("model.safetensors", b""), ("weights", "are damaged")),
    "corrupt weights": (flip, ("weights", "are damaged")),
    "a layer missing": (replace_in("config.json", num_hidden_layers=3), ("9 tensors", "model.layers.2.")),
    "another shape": (replace_in("config.json", intermediate_size=40), ("6 tensors", "mlp")),
    "no tokenizer": (remove("tokenizer.json"), ("has no tokenizer.json",)),
    "a tokenizer to convert": (to_convert, ("cannot read the tokenizer.json",)),
    "broken generation config": (
        overwrite("generation_config.json", b"{not json"),
        ("generation_config.json", "not a valid JSON file"),
    ),
    "broken tokenizer": (overwrite("tokenizer.json", b"{"), ("tokenizer", "JSON")),
    "slow tokenizer": (byte_tokenizer, ("no fast tokenizer", "tokenizer.json")),
    "a LoRA adapter": (overwrite("adapter_config.json", LORA), ("is a LoRA adapter of 'owner/base'",)),
    "a broken adapter": (replace_config("adapter_config.json", "{"), ("of 'a base model'", "merge_and_unload")),
    "GGUF files and a config": (to_gguf, ("holds GGUF files and no weights", "give a file", "model-q8_0.gguf")),
    "GGUF files": (replace_config("model-q8_0.gguf", ""), ("holds GGUF files", "give a file", "model-q8_0.gguf")),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.usefixtures("folder", "silence")
def test_a_damaged_folder(damage: str, folder: Path, calls: list[str]) -> None:
    change, parts = DAMAGE[damage]
    change(folder)
    with refused(ModelError, *parts, str(folder)):
        load_model(folder)
    if "quantized" in parts[0]:
        with refused(ModelError, *parts):
            loading.load_skeleton(folder)
    assert calls == []


@pytest.mark.medium
@pytest.mark.parametrize("asked", ["flash_attention_2", "kernels-community/flash-attn", "no such"])
def test_attention_that_is_not_here_is_computed_otherwise(asked: str, folder: Path, calls: list[str]) -> None:
    said: list[str] = []
    for kind in ("float32", "8 bits"):
        if kind == "8 bits":
            to_8_bits(folder)
        expected = load_model(folder, "float32").lm.new_sequence().forward([5, 6, 7], 3)
        replace_in("config.json", attn_implementation=asked)(folder)
        found = load_model(folder, "float32", say=said.append, verifies=True).lm
        assert torch.equal(found.new_sequence().forward([5, 6, 7], 3), expected)
        replace_in("config.json", attn_implementation="sdpa")(folder)
    assert len(set(said)) == 1
    assert said[0].endswith(f" asks for attention by {asked}, and it is computed by sdpa")
    assert calls == []


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_an_index_of_files_without_metadata(dtype: str, folder: Path) -> None:
    if dtype == "int8":
        needs_the_8_bit_step()
    expected = load_model(folder, dtype, verifies=True).lm.new_sequence().forward([5, 6, 7], 3)
    weights = load_file(folder / "model.safetensors")
    remove("model.safetensors")(folder)
    names = sorted(weights)
    files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in files.items():
        save_file({name: weights[name] for name in held}, folder / file)
    index = {"weight_map": {name: file for file, held in files.items() for name in held}}
    for more in ({}, {"metadata": {"total_size": 1}}):
        text = json.dumps(index | more)
        overwrite("model.safetensors.index.json", b"\xef\xbb\xbf" * (not more) + text.encode())(folder)
        assert torch.equal(load_model(folder, dtype, verifies=True).lm.new_sequence().forward([5, 6, 7], 3), expected)
        load_skeleton(folder)


@pytest.mark.parametrize("names", [["BitnetForCausalLM"], ["MistralForCausalLM"], ["LlamaForSequenceClassification"]])
def test_a_class_of_other_models_is_refused(names: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace_in("config.json", architectures=names)(folder)
    for read in (load_skeleton, load_model):
        with refused(ModelError, "type 'llama'", f"names the class {names[0]!r}", "'LlamaForCausalLM'"):
            read(folder)
    assert main(["inspect", str(folder), "--drafter", str(folder)]) == 1
    assert f"names the class '{names[0]}'" in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    "names", [None, [], ["LLaMAForCausalLM"], ["LlamaModel"], ["Own", "LlamaForCausalLM"], ["Llama_For_Causal_LM"]]
)
def test_a_class_by_another_name_is_taken(names: list[str] | None, folder: Path) -> None:
    replace_in("config.json", architectures=names)(folder)
    assert load_model(folder, "float32").lm.vocab_size


@pytest.mark.medium
@pytest.mark.parametrize("head", [False, True], ids=["no head", "a head"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_tensors_saved_of_a_base_model_lack_a_prefix(dtype: str, head: bool, folder: Path) -> None:
    needs_the_8_bit_step()
    replace_in("config.json", tie_word_embeddings=not head)(folder)
    path = folder / "model.safetensors"
    weights = {name: tensor for name, tensor in load_file(path).items() if head or name != "lm_head.weight"}
    save_file(weights, path, {"format": "pt"})
    expected = load_model(folder, dtype, "cpu", verifies=True).lm.new_sequence().forward([5, 6, 7], 3)
    save_file({name.removeprefix("model."): tensor for name, tensor in weights.items()}, path, {"format": "pt"})
    found = load_model(folder, dtype, "cpu", verifies=True).lm.new_sequence().forward([5, 6, 7], 3)
    assert torch.equal(found, expected)


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_tensors_that_a_model_has_no_place_for_are_named(dtype: str, folder: Path) -> None:
    needs_the_8_bit_step()
    path, layer = folder / "model.safetensors", "model.layers.0.self_attn"
    harmless = (f"{layer}.rotary_emb.inv_freq", "transformer.h.0.attn.attention.masked_bias", "mtp.norm.weight")
    weights = load_file(path) | {name: torch.ones(1) for name in harmless}
    save_file(weights, path, {"format": "pt"})
    load_model(folder, dtype, "cpu", verifies=True)
    for name in ("score.weight", f"{layer}.q_proj.weight_scale", "model.layers.9.norm", f"{layer}.q_proj.bias"):
        save_file(weights | {name: torch.ones(1)}, path, {"format": "pt"})
        with refused(ModelError, "tensors that its config.json has no place for", repr(name)):
            load_model(folder, dtype, "cpu", verifies=True)
    with pytest.raises(ModelError, match="no place for"):  # by the header alone, as `inspect` does
        loading.load_skeleton(folder)


def test_names_that_are_neither_folder_nor_hub_id(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.bin").touch()
    none = tmp_path / "none"
    for name in (none, Path("a/b"), str(none), "./none", "a/b/c", "", "~nobody-here/x", "model.bin"):
        with refused(ModelError, repr(str(name)), "a folder with a config.json, a GGUF file or a hub id"):
            load_model(name)
    assert calls == []


@pytest.mark.parametrize("option", [{"dtype": "fp4"}, {"device": "gpu"}, {"device": "cuda:99"}, {"device": "cpu:1"}])
def test_unknown_options(option: dict[str, Any], folder: Path) -> None:
    with refused(ConfigError, repr(*option.values()), "use auto", *(["bfloat16"] if "dtype" in option else ["cpu"])):
        load_model(folder, **option)
