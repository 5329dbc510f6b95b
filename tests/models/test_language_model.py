"""Models: a cropped cache equals a fresh one, whatever the attention; loading says what is wrong in one line."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import huggingface_hub.constants
import pytest
import torch
import transformers
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from omnidraft.errors import ConfigError, InputError, ModelError, NumericsError, OmniDraftError, PromptError
from omnidraft.models import kv_cache as kv
from omnidraft.models import language_model as models
from omnidraft.models import loading
from omnidraft.models.language_model import NO_LIMIT, TransformersModel
from omnidraft.models.loading import BF16_PARAMETERS, load_model
from support.models import IDS, KINDS, LONGROPE, MORE, ROWS, afresh, build
from support.small_tokenizers import sentencepiece, wrap

transformers_logging.disable_progress_bar()


def close(left: torch.Tensor, right: torch.Tensor, within: float = 1e-6) -> bool:
    return left.shape == right.shape and bool(((left - right).abs() <= within).all())


def message(error: pytest.ExceptionInfo[OmniDraftError], *parts: str) -> None:
    """One line: the value, what is allowed, and after a colon the fix."""
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert re.search(r": (use|give|load|check|get|add|shorten) ", text), text
    for part in parts:
        assert part in text


def noise(kind: str) -> float:
    """By how much passes over the same tokens differ that are cut otherwise."""
    return 1e-6 if kind in KINDS else 1e-5


@pytest.mark.parametrize("kind", KINDS | MORE)
def test_crop_equals_recompute(kind: str) -> None:
    model, within = build(kind), noise(kind)
    lm = TransformersModel(model)
    whole = afresh(model, IDS)
    assert close(lm.forward(IDS, len(IDS)), whole, within)
    for length in (39, 33, 26, 8, 1):  # back over a window, within one, to the start of one
        lm.crop(length)
        lm.forward([5, 90, 17, 4][: len(IDS) - length], 1)  # what a rejected draft leaves behind
        lm.crop(length)
        assert lm.length == length
        assert close(lm.forward(IDS[length:], len(IDS) - length), whole[length:], within)
    lm.crop(20)
    assert close(torch.cat([lm.forward([token], 1) for token in IDS[20:]]), whole[20:], within)


@pytest.mark.parametrize("kind", KINDS | MORE)
def test_the_crop_check_notices_one_wrong_token(kind: str) -> None:
    model = build(kind)
    lm = TransformersModel(model)
    lm.forward([*IDS[:30], (IDS[30] + 1) % ROWS], 0)
    assert not close(lm.forward(IDS[31:34], 3), afresh(model, IDS[:34])[31:], noise(kind))


def test_a_cache_that_drops_what_leaves_the_window_cannot_be_cropped() -> None:
    model = build("mistral")
    lm = TransformersModel(model)
    lm._cache = DynamicCache(config=model.config)
    lm.forward(IDS, 1)
    with pytest.raises(RuntimeError, match="sliding window"):
        lm.crop(30)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_written_where_there_is_room(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many tokens as make the buffers grow several times give the logits of one pass, bit for bit those of a cache
    that copies.
    """
    monkeypatch.setattr(kv, "ROOM", 3)
    model = build(kind)
    lm, copying = TransformersModel(model), TransformersModel(model)
    copying._cache = DynamicCache()
    for start in range(0, len(IDS), 2):
        ids = IDS[start : start + 2]
        assert torch.equal(lm.forward(ids, len(ids)), copying.forward(ids, len(ids)))
        if start == 20:
            for each in (lm, copying):
                each.forward([3, 1, 4], 1)
                each.crop(22)
    cache: Any = lm._cache
    keys = [layer.keys.untyped_storage().data_ptr() for layer in cache.layers]
    lm.crop(len(IDS) - 2)
    lm.forward(IDS[-2:], 1)
    assert keys == [layer.keys.untyped_storage().data_ptr() for layer in cache.layers]  # nothing was copied


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_in_chunks_equals_one_pass(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(kind)
    lm = TransformersModel(model)
    whole = afresh(model, IDS)
    monkeypatch.setattr(models, "CHUNK", 7)
    passes: list[int] = []
    rows: list[int] = []
    model.get_input_embeddings().register_forward_hook(lambda *call: passes.append(call[-1].shape[1]))
    model.get_output_embeddings().register_forward_hook(lambda *call: rows.append(call[-1].shape[1]))
    for keep in (0, 1, 5, 6, 20, 40):  # 40 = 5 · 7 + 5: the last chunk, its border, several, all
        lm.crop(0)
        assert close(lm.forward(IDS, keep), whole[len(IDS) - keep :])
    assert passes == [7, 7, 7, 7, 7, 5] * 6
    assert rows[6:12] == [1] * 6  # for keep = 1: the widest layer runs over no more than it must


class Plain(LlamaForCausalLM):
    """A model that always returns all logits."""

    def forward(self, input_ids: torch.Tensor, past_key_values: DynamicCache, use_cache: bool) -> Any:
        return super().forward(input_ids, past_key_values=past_key_values, use_cache=use_cache)


@pytest.mark.parametrize("selects", [True, False])
def test_keep(selects: bool) -> None:
    model = build()
    whole = afresh(model, IDS)
    if not selects:
        plain = Plain(cast(Any, model.config))
        plain.load_state_dict(model.state_dict())
        model = plain
    lm = TransformersModel(model)
    kept = lm.forward(IDS[:12], 3)
    assert kept.dtype == torch.float32
    assert not kept.requires_grad
    assert close(kept, whole[9:12])
    assert lm.forward(IDS[12:15], 0).shape == (0, ROWS)
    assert lm.forward([], 0).shape == (0, ROWS)
    assert close(lm.forward(IDS[15:17], 2), whole[15:17])
    for keep in (-1, 3):
        with pytest.raises(InputError) as error:
            lm.forward([1, 2], keep)
        message(error, str(keep), "0..2")
    assert lm.length == 17


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_generate(kind: str) -> None:
    model = build(kind)
    lm = TransformersModel(model)
    prompt = torch.tensor([IDS[:20]])
    options: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = cast(Any, model).generate(prompt, attention_mask=torch.ones_like(prompt), **options)[0, 20:].tolist()
    token, answer = int(lm.forward(IDS[:20], 1)[-1].argmax()), []
    for step in range(24):
        answer.append(token)
        token = int(lm.forward([token, *IDS[:3]], 4)[0].argmax())
        lm.crop(21 + step)
    assert answer == expected


@pytest.mark.parametrize(("row", "fine"), [([torch.nan, 0], False), ([torch.inf, 0], False), ([-torch.inf, 0], True)])
def test_logits_that_are_no_numbers(row: list[float], fine: bool) -> None:
    model = build()
    lm = TransformersModel(model)
    expected = lm.forward(IDS[:5], 2).clone()
    changed = torch.tensor(row[:1]).expand(2)

    def spoil(_module: object, _inputs: object, logits: torch.Tensor) -> torch.Tensor:
        logits[..., :2] = changed
        return logits

    hook = model.get_output_embeddings().register_forward_hook(spoil)
    lm.crop(0)
    if fine:
        assert lm.forward(IDS[:5], 2)[:, :2].eq(-torch.inf).all()
        hook.remove()
        hook = model.get_output_embeddings().register_forward_hook(lambda *call: call[-1].fill_(-torch.inf))
        lm.crop(0)
    with pytest.raises(NumericsError) as error:
        lm.forward(IDS[:5], 2)
    message(error, "LlamaForCausalLM", "torch.float32")
    hook.remove()
    assert lm.length == 0
    assert close(lm.forward(IDS[:5], 2), expected)


def test_an_interrupted_pass_empties_the_cache() -> None:
    model = build()
    lm = TransformersModel(model)
    lm.forward(IDS[:9], 1)

    def interrupt(*_call: object) -> None:
        raise KeyboardInterrupt

    # the first layer has cached the new tokens by then, the second has not
    hook = cast(Any, model).model.layers[0].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        lm.forward(IDS[9:12], 1)
    hook.remove()
    assert lm.length == 0
    assert close(lm.forward(IDS, 3), afresh(model, IDS)[-3:])


def test_ids_and_lengths_out_of_range() -> None:
    lm = TransformersModel(build())
    lm.forward(IDS, 1)
    for ids, value in (([3, ROWS], str(ROWS)), ([-1], "-1")):
        with pytest.raises(PromptError) as error:
            lm.forward(ids, 1)
        message(error, f"token id {value} ", f"0..{ROWS - 1}")
    with pytest.raises(PromptError) as error:
        lm.forward(IDS[:25], 1)
    message(error, "40 + 25", "64")
    for length in (-1, 41):
        with pytest.raises(InputError) as crop_error:
            lm.crop(length)
        message(crop_error, str(length), "0..40")
    assert lm.length == 40
    lm.forward(IDS[:24], 1)  # the context is full now, not beyond
    assert lm.length == lm.context


REFUSED = {
    "mamba": ("MambaForCausalLM", "linear_attention"),
    "jamba": ("JambaForCausalLM", "linear_attention"),
    "rwkv": ("RwkvForCausalLM", "a state other than a KV cache"),
    "openai-gpt": ("OpenAIGPTLMHeadModel", "a state other than a KV cache"),
    "bert": ("BertLMHeadModel", "attention to later tokens"),
    "rembert": ("RemBertForCausalLM", "attention to later tokens"),
    "big_bird": ("BigBirdForCausalLM", "attention to later tokens"),
    "t5": ("T5ForConditionalGeneration", "an encoder"),
}


def refused(kind: str) -> PreTrainedModel:
    if kind == "t5":
        config = transformers.T5Config(vocab_size=ROWS, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
        return transformers.T5ForConditionalGeneration(config)
    changes = {"attention_hidden_size": 32} if kind == "rwkv" else {}
    return build(kind, **changes)


@pytest.mark.parametrize("kind", REFUSED)
def test_models_that_cannot_be_rolled_back_are_refused(kind: str, tmp_path: Path) -> None:
    model = refused(kind)
    with pytest.raises(ModelError) as error:
        TransformersModel(model)
    message(error, *REFUSED[kind], "full, sliding or chunked attention")
    model.config.save_pretrained(tmp_path)  # a folder is refused before its weights are looked for
    with pytest.raises(ModelError) as error:
        load_model(tmp_path)
    message(error, tmp_path.name, REFUSED[kind][1])


def test_a_model_that_calls_itself_stateful_is_refused() -> None:
    model = build()
    model._is_stateful = True
    with pytest.raises(ModelError) as error:
        TransformersModel(model)
    message(error, "cannot be rolled back")


def test_a_model_that_ignores_its_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = TransformersModel(build())
    monkeypatch.setattr(lm, "model", lambda ids, **_options: build()(ids, use_cache=False))
    with pytest.raises(ModelError) as error:
        lm.forward([1, 2], 1)
    message(error, "does not use the KV cache")


def test_what_a_model_says_of_itself() -> None:
    assert TransformersModel(build(eos_token_id=[7, 9])).eos == (7, 9)
    model = build(eos_token_id=7)
    cast(Any, model).generation_config.eos_token_id = 3
    assert TransformersModel(model).eos == (3,)
    cast(Any, model).generation_config.eos_token_id = None
    assert TransformersModel(model).eos == (7,)
    assert TransformersModel(build(eos_token_id=None)).eos == ()
    assert TransformersModel(build("gpt2", n_positions=48)).context == 48
    assert TransformersModel(build("phi3", **LONGROPE)).context == 32
    assert TransformersModel(build("bloom", n_layer=1, n_head=2, max_position_embeddings=None)).context == NO_LIMIT
    model.config.vocab_size = ROWS - 8  # as some configs do that were not told of padding
    assert TransformersModel(model).vocab_size == ROWS
    model.train()
    assert not TransformersModel(model).model.training


def test_past_its_first_window_longrope_depends_on_the_passes() -> None:
    """Why its context is cut there."""
    lm = TransformersModel(build("phi3", **LONGROPE))
    lm.context = 64
    whole = lm.forward(IDS, 1).clone()
    lm.crop(0)
    lm.forward(IDS[:20], 1)
    assert not close(lm.forward(IDS[20:], 1), whole)


CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALLER, BIG = BF16_PARAMETERS - 1, BF16_PARAMETERS


@pytest.mark.parametrize(
    ("device", "native", "stored", "parameters", "dtype", "reason"),
    [
        (CPU, True, torch.float32, BIG, torch.bfloat16, "this cpu computes in it"),
        (CPU, True, torch.float32, SMALLER, torch.float32, "no faster below 100M"),
        (CPU, False, torch.bfloat16, BIG, torch.float32, "this cpu does not compute in bfloat16"),
        (GPU, True, torch.float32, BIG, torch.bfloat16, "this cuda computes in it"),
        (GPU, True, torch.bfloat16, SMALLER, torch.bfloat16, "this cuda computes in it"),
        (GPU, True, torch.float16, BIG, torch.float16, "as stored"),
        (GPU, True, torch.float32, SMALLER, torch.float32, "as stored"),
        (GPU, True, None, SMALLER, torch.float32, "as stored"),
        (GPU, False, torch.bfloat16, BIG, torch.float32, "this cuda does not compute in bfloat16"),
    ],
)
def test_the_dtype_that_auto_stands_for(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    native: bool,
    stored: torch.dtype | None,
    parameters: int,
    dtype: torch.dtype,
    reason: str,
) -> None:
    able = {"avx512_bf16": False, "amx_bf16": native}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_options: native)
    chosen, why = loading.choose_dtype(device, stored, parameters)
    assert chosen == dtype
    assert reason in why


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with its tokenizer."""
    path = tmp_path / "small"
    tokenizer = wrap(sentencepiece())
    build(vocab_size=len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


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


@pytest.mark.usefixtures("folder", "silence")
def test_a_folder_is_loaded_without_the_network(
    folder: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not huggingface_hub.constants.HF_HUB_OFFLINE  # else nothing would be asked for anyway
    loaded = load_model(folder)
    assert (loaded.name, loaded.lm.dtype) == ("small", torch.float32)
    assert loaded.dtype_reason
    rows = len(loaded.tokenizer)
    assert loaded.lm.vocab_size == rows
    ids = loaded.tokenizer("hello world")["input_ids"]
    assert close(loaded.lm.forward(ids, 1), afresh(build(vocab_size=rows), ids)[-1:])
    monkeypatch.chdir(folder.parent)
    assert load_model("small").name == "small"
    monkeypatch.chdir(folder)
    half = load_model(".", dtype="bfloat16", device="cpu")
    assert (half.name, half.lm.dtype, half.dtype_reason) == ("small", torch.bfloat16, "asked for")
    assert half.lm.forward(ids, 1).dtype == torch.float32
    assert calls == []


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


def test_the_network_check_notices_a_call(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)  # between attempts
    with pytest.raises(ModelError) as error:
        load_model("someone/something")
    message(error, "'someone/something'", "config.json", "check the name and the connection")
    assert calls


def test_the_hub_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as error:
        load_model("someone/something")
    message(error, "'someone/something'", "give a folder that exists")


def replace_in(name: str, **values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def overwrite(name: str, data: bytes) -> Callable[[Path], None]:
    return lambda folder: cast(None, (folder / name).write_bytes(data))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def halve(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(folder: Path) -> None:
    """Damage the header, whose first eight bytes are its length."""
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[12] ^= 0xFF
    overwrite("model.safetensors", bytes(data))(folder)


def byte_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}')


def to_convert(folder: Path) -> None:
    """One that transformers reads only with a package that is not here, or that is broken."""
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"{")


DAMAGE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "no config": (remove("config.json"), ("config.json", "no config.json")),
    "broken config": (overwrite("config.json", b"{"), ("config.json", "not a valid JSON file")),
    "unknown type": (replace_in("config.json", model_type="zork"), ("config.json", "zork")),
    "bad field": (replace_in("config.json", num_attention_heads="x"), ("config.json", "num_attention_heads")),
    "no heads": (replace_in("config.json", num_attention_heads=0), ("config.json", "ZeroDivisionError")),
    "own code": (overwrite("config.json", b'{"auto_map": {"AutoConfig": "a.B"}}'), ("config.json", "custom code")),
    "an image model": (overwrite("config.json", b'{"model_type": "vit"}'), ("'vit'", "no causal language model")),
    "half of bart": (overwrite("config.json", b'{"model_type": "bart"}'), ("'bart'", "an encoder-decoder")),
    "no weights": (remove("model.safetensors"), ("weights", "no file named model.safetensors")),
    "empty weights": (overwrite("model.safetensors", b""), ("weights", "SafetensorError")),
    "cut weights": (halve, ("weights", "SafetensorError")),
    "corrupt weights": (flip, ("weights", "SafetensorError")),
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
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.usefixtures("folder", "silence")
def test_a_damaged_folder(damage: str, folder: Path, calls: list[str]) -> None:
    change, parts = DAMAGE[damage]
    change(folder)
    with pytest.raises(ModelError) as error:
        load_model(folder)
    message(error, *parts, str(folder))
    assert calls == []


def test_names_that_are_neither_folder_nor_hub_id(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.bin").touch()
    for name in (
        tmp_path / "none",
        Path("a/b"),
        str(tmp_path / "none"),
        "./none",
        "a/b/c",
        "",
        "~nobody-here/x",
        "model.bin",
    ):
        with pytest.raises(ModelError) as error:
            load_model(name)
        message(error, repr(str(name)), "a folder with a config.json or a hub id")
    assert calls == []


def adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base", "peft_type": "LORA"}')


def broken_adapter(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text("{")


def ggufs(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "model-q8_0.gguf").touch()


OTHERWISE: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "a LoRA adapter": (adapter, ("is a LoRA adapter of 'owner/base'", "merge_and_unload")),
    "a broken LoRA adapter": (broken_adapter, ("is a LoRA adapter of 'a base model'", "merge_and_unload")),
    "GGUF files": (ggufs, ("holds GGUF files", "gguf_file=", "original weights")),
}


@pytest.mark.parametrize("kind", OTHERWISE)
@pytest.mark.usefixtures("folder", "silence")
def test_a_folder_of_something_else_is_named_with_the_remedy(kind: str, folder: Path) -> None:
    change, parts = OTHERWISE[kind]
    change(folder)
    with pytest.raises(ModelError) as error:
        load_model(folder)
    message(error, *parts, str(folder))


@pytest.mark.parametrize("name", ["model.gguf", "MODEL-Q4_K_M.GGUF"])
def test_a_gguf_file_is_named_with_the_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ModelError) as error:
        load_model(tmp_path / name)
    message(error, "is a GGUF file", "gguf_file=", "original weights", name)


@pytest.mark.parametrize("option", [{"dtype": "fp4"}, {"device": "gpu"}, {"device": "cuda:99"}, {"device": "cpu:1"}])
def test_unknown_options(option: dict[str, str], folder: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_model(folder, **option)
    message(error, repr(*option.values()), "use auto", *(["bfloat16"] if "dtype" in option else ["cpu"]))


def test_transformers_is_imported_late() -> None:
    code = "import sys, omnidraft.models.language_model; sys.exit('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
