"""GGUF files: header, tokenizer, end tokens, weights, and what is wrong with a file in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
import torch

import omnidraft
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.loading import load_model, load_skeleton, load_tokenizer
from omnidraft.storage import cache_folder, data_folder
from support.gguf_models import TEMPLATE, small_file, small_model
from support.models import afresh, close, refused
from support.small_tokenizers import byte_level

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_file(tmp_path_factory.mktemp("gguf") / "small.gguf")


def test_the_header_alone_gives_config_tokenizer_and_ends(file: Path, home: Path) -> None:
    skeleton, tokenizer, own = load_skeleton(file), load_tokenizer(file), byte_level()
    config = small_model().config
    differing = {name for name, value in skeleton.config.to_dict().items() if value != config.to_dict().get(name)}
    assert differing <= {"_name_or_path", "bos_token_id", "eos_token_id", "dtype", "initializer_range", "rms_norm_eps"}
    assert set(skeleton.generation_config.eos_token_id) == {own.token_to_id("<unk>"), own.token_to_id("</s>")}
    text = "hello the world, été 日本\n\n10"
    assert tokenizer(text)["input_ids"] == own.encode(text, add_special_tokens=False).ids
    assert tokenizer.chat_template == TEMPLATE
    assert not home.exists()


@pytest.mark.medium
def test_a_file_computes_what_its_model_computes(file: Path, home: Path) -> None:
    loaded = load_model(file, "float32", "cpu")
    assert close(afresh(loaded.lm.model, [5, 6, 7]), afresh(small_model(), [5, 6, 7]))
    assert (loaded.name, loaded.lm.name) == ("small.gguf", str(file))
    assert not home.exists(), "nothing is kept"
    assert {each.dtype for each in load_model(file, "bfloat16", "cpu").lm.tensors().values()} == {torch.bfloat16}


@pytest.mark.medium
def test_a_file_is_a_target(file: Path) -> None:
    with omnidraft.load(file, None, dtype="float32") as model:
        answer = model.generate([{"role": "user", "content": "hello"}], max_new_tokens=4)
        assert len(answer.token_ids) <= 4
        assert set(model.vocab.eos) == {byte_level().token_to_id("<unk>"), byte_level().token_to_id("</s>")}


@pytest.mark.medium
def test_too_little_memory_is_refused_before_weights_are_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 4 * small_model().num_parameters()
    memory = psutil.virtual_memory()._replace(available=needed - 1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    with refused(ModelError, "small.gguf", "of memory"):
        load_model(file, "float32")
    load_model(file, "bfloat16")


def test_without_the_gguf_package_the_message_names_the_extra(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"pip install 'omnidraft\[gguf\]'"):
        load_model(file, "float32")


@pytest.mark.parametrize("older", [False, True])  # versions of platformdirs, which raise nothing
@pytest.mark.parametrize("kind", ["user_cache_path", "user_data_path"])
def test_without_a_home_folder_the_fix_is_said(kind: str, older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMNIDRAFT_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    if older:
        monkeypatch.setattr(f"platformdirs.{kind}", lambda *_, **__: Path("~/omnidraft"))
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="no home folder is known: set OMNIDRAFT_HOME"):
        (cache_folder if kind == "user_cache_path" else data_folder)()
