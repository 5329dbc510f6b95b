"""GGUF files: header, tokenizer, end tokens, the conversion that is kept, and what is wrong with a file in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from transformers import AutoConfig

import omnidraft
from omnidraft.config import cache_folder
from omnidraft.errors import ModelError
from omnidraft.models import gguf
from omnidraft.models.loading import load_model, load_skeleton, load_tokenizer
from support.gguf_files import TEMPLATE, small_model, write
from support.models import afresh, close, one_line
from support.small_tokenizers import byte_level


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMNIDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "small.gguf", small_model())


def test_the_header_alone_gives_config_tokenizer_and_ends(file: Path, home: Path) -> None:
    skeleton, tokenizer, own = load_skeleton(file), load_tokenizer(file), byte_level()
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    differing = {name for name, value in skeleton.config.to_dict().items() if value != config.to_dict().get(name)}
    assert differing <= {"_model_name_or_path", "_name_or_path", "eos_token_id", "dtype"}
    assert set(skeleton.generation_config.eos_token_id) == {own.token_to_id("<unk>"), own.token_to_id("</s>")}
    text = "hello the world, été 日本\n\n10"
    assert tokenizer(text)["input_ids"] == own.encode(text, add_special_tokens=False).ids
    assert tokenizer.chat_template == TEMPLATE
    assert not home.exists()


def test_a_file_computes_what_its_model_computes_and_is_converted_once(file: Path) -> None:
    said: list[str] = []
    loaded = load_model(file, "float32", "cpu", said.append)
    assert close(afresh(loaded.lm.model, [5, 6, 7]), afresh(small_model(), [5, 6, 7]))
    assert loaded.name == "small.gguf"
    (kept,) = gguf.kept()
    assert "small.gguf is converted" in said[0]
    assert str(kept.folder) in said[0]
    before = (kept.folder / "model.safetensors").stat().st_mtime_ns
    load_model(file, "float32", "cpu", said.append)
    assert len(said) == 1
    assert (kept.folder / "model.safetensors").stat().st_mtime_ns == before
    load_model(file, "bfloat16", "cpu", said.append)  # another dtype is another conversion
    assert {each.name for each in gguf.kept()} == {"small.gguf in float32", "small.gguf in bfloat16"}
    assert gguf.clear() > kept.size
    assert gguf.kept() == []


def test_a_file_is_a_target(file: Path) -> None:
    with omnidraft.load(file, None, dtype="float32") as model:
        answer = model.generate([{"role": "user", "content": "hello"}], max_new_tokens=4)
        assert len(answer.token_ids) <= 4
        assert set(model.vocab.eos) == {byte_level().token_to_id("<unk>"), byte_level().token_to_id("</s>")}


def test_the_conversion_used_longest_ago_goes_first(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    older = gguf.converted(file, torch.float32, print)
    os.utime(older, (0, 0))
    monkeypatch.setattr(gguf, "KEPT_BYTES", gguf.kept()[0].size + 1000)
    other = write(tmp_path / "other.gguf", small_model())
    other.write_bytes(other.read_bytes() + b"\0" * 32)
    newer = gguf.converted(other, torch.float32, print)
    assert [each.folder for each in gguf.kept()] == [newer]


def test_a_conversion_that_fails_leaves_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_model", full)
    with pytest.raises(ModelError) as error:
        gguf.converted(file, torch.float32, print)
    one_line(error, "small.gguf", "No space left")
    assert gguf.kept() == []
    assert not list(cache_folder().rglob("*.part"))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:2000])


def _foreign(path: Path) -> None:
    path.write_bytes(b"PK\x03\x04" + bytes(100))


def _unknown(path: Path) -> None:
    write(path, small_model(), "lemming")


@pytest.mark.parametrize(("spoil", "said"), [(_truncated, "cut"), (_foreign, "GGUF"), (_unknown, "lemming")])
def test_a_damaged_file_is_refused_in_one_line(
    file: Path, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    path = tmp_path / "spoiled.gguf"
    path.write_bytes(file.read_bytes())
    spoil(path)
    for load in (load_skeleton, load_model):
        with pytest.raises(ModelError) as error:
            load(path)
        one_line(error, "spoiled.gguf", "cannot read" if said == "cut" else said)


def test_too_little_memory_is_refused_before_anything_is_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(available=gguf.SPARE_BYTES)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with pytest.raises(ModelError) as error:
        load_model(file, "float32")
    one_line(error, "of memory")
    assert gguf.kept() == []


def test_without_the_gguf_package_the_message_names_the_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"pip install 'omnidraft\[gguf\]'"):
        load_model(file, "float32")
