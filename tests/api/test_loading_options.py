"""What a model brings with it when it is loaded: ways to sample, a default drafter, its precision."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

import omnidraft
from omnidraft import defaults
from omnidraft.api import OmniDraft
from omnidraft.config import Sampling
from omnidraft.errors import ConfigError, ModelError, NumericsError
from omnidraft.models.loading import load_skeleton
from omnidraft.storage import cache_folder, data_folder
from support.assembling import load_with
from support.gguf_models import keys_of, model_of, tensors_of, write_file

PROMPT = "hello world"
REPEATED = {"repetition_penalty": 1.05}
USUAL = defaults.DRAFTER  # before the tests replace it


def read(**config: Any) -> tuple[Sampling, list[str]]:
    warnings: list[str] = []
    return defaults.sampling_of(GenerationConfig(**config), warnings.append), warnings


def test_a_generation_config_says_how_to_sample() -> None:
    assert read() == (Sampling(), [])
    assert read(temperature=0.6, top_p=0.9) == (Sampling(), []), "without do_sample it is greedy"
    assert read(do_sample=True) == (Sampling(temperature=1.0, top_k=50), [])
    asked: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    assert read(do_sample=True, **asked) == (Sampling(**asked), [])
    assert read(do_sample=False, repetition_penalty=1.1) == (Sampling(repetition_penalty=1.1), [])
    sampling, (warning,) = read(no_repeat_ngram_size=3, suppress_tokens=[5], num_beams=1)
    assert sampling == Sampling()
    assert "no_repeat_ngram_size, suppress_tokens" in warning
    assert "num_beams" not in warning


@pytest.mark.parametrize(
    ("asked", "followed", "words"),
    [
        ({"top_p": 7.0}, {"temperature": 1.0, "top_k": 50}, "config is left out, it is 1.0 instead: top_p is 7.0"),
        ({"temperature": -1.0, "top_k": 9}, {"temperature": 1.0, "top_k": 9}, "1.0 instead: temperature is -1"),
        (
            {"temperature": 0.6, "repetition_penalty": 0.0},
            {"temperature": 0.6, "top_k": 50},
            "1.0 instead: repetition_penalty is 0.0",
        ),
        ({"temperature": 1e-5}, {"temperature": 0.0, "top_k": 50}, "at temperature 1e-05, which is greedy decoding"),
        ({"temperature": 0.0}, {"temperature": 0.0, "top_k": 50}, "at temperature 0, which is greedy decoding"),
    ],
)
def test_what_a_generation_config_asks_for_in_vain(asked: Any, followed: Any, words: str) -> None:
    sampling, (warning,) = read(do_sample=True, **asked)
    assert sampling == Sampling(**followed)
    assert words in warning
    assert "\n" not in warning


@pytest.mark.parametrize(
    ("keys", "followed"),
    [
        ({"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        ({"top_p": 0.8, "penalty_repeat": 1.05}, {"temperature": 1.0, "top_k": 50, "top_p": 0.8} | REPEATED),
        ({"temp": 0.0, "top_p": 0.8, "penalty_repeat": 1.05}, REPEATED),
        ({"temp": "warm", "sequence": "top_k", "mirostat": 0}, {}),
        ({}, {}),
    ],
)
def test_a_gguf_file_says_how_to_sample_as_the_config_it_was_made_of(keys: Any, followed: Any, tmp_path: Path) -> None:
    model = model_of("llama")
    others = {f"general.sampling.{key}": value for key, value in keys.items()}
    path = write_file(tmp_path / "m.gguf", "llama", keys_of(model, "llama"), tensors_of(model, "llama"), others)
    warnings: list[str] = []
    assert defaults.sampling_of(load_skeleton(path).generation_config, warnings.append) == Sampling(**followed)
    assert warnings == []


def test_sampling_of_a_gguf_file_that_is_not_supported_is_named() -> None:
    assert "mirostat, xtc_probability, which" in read(do_sample=True, mirostat=2, xtc_probability=0.5)[1][0]


@pytest.mark.medium
def test_a_text_follows_the_generation_config_and_keywords_go_before_it(target: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 7, "repetition_penalty": 1.2}
    plain = omnidraft.load(target, None, dtype="float32")
    folder = tmp_path / "own"
    plain.target.lm.model.generation_config = GenerationConfig(**asked, eos_token_id=plain.target.lm.eos[0])
    plain.target.lm.model.save_pretrained(folder)
    plain.target.tokenizer.save_pretrained(folder)
    plain.target.lm.model.generation_config = GenerationConfig()
    own = omnidraft.load(folder, None, dtype="float32")
    del asked["do_sample"]
    assert own.sampling == Sampling(**asked)
    for keywords in ({}, {"temperature": 0.0}, {"top_k": 0, "top_p": 0.5}):
        expected = plain.generate(PROMPT, max_new_tokens=24, seed=5, **{**asked, **keywords})
        assert own.generate(PROMPT, max_new_tokens=24, seed=5, **keywords).token_ids == expected.token_ids
    assert own.generate(PROMPT, max_new_tokens=24).token_ids != plain.generate(PROMPT, max_new_tokens=24).token_ids


@pytest.mark.medium
def test_the_default_drafter_is_the_general_one_but_for_embedded_targets(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(defaults, "DRAFTER", "zoo:target-b")
    loaded = omnidraft.load(target, dtype="float32", profile=None, warn=said.append)
    assert loaded.drafter is not None
    assert loaded.drafter.name == "target-b"
    assert said == []
    monkeypatch.setattr(defaults, "DRAFTER", USUAL)
    for model in (target, str(target), "someone/target-a", "zoo:drafter"):
        assert defaults.drafter_for(model, pytest.fail) == "zoo:general"
    assert defaults.drafter_for("zoo:target-a", said.append) == "zoo:drafter"
    assert said == ["no drafter is named: using zoo:drafter, trained on the same data as zoo:target-a"]


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_precision_that_greedy_identity_depends_on_is_told(target: Path, drafter: Path, dtype: str) -> None:
    said: list[str] = []
    omnidraft.load(target, None, dtype=dtype, warn=said.append)
    assert said == [], "nothing is verified together"
    omnidraft.load(target, drafter, dtype=dtype, profile=None, warn=said.append)
    assert len(said) == (dtype != "float32")
    assert all("bfloat16" in line and "float32 keeps every token" in line for line in said)


def test_a_model_in_memory_is_refused_in_a_line(model: OmniDraft, target: Path) -> None:
    for arguments in ((model.target.lm.model,), (target, model.target.lm.model)):
        with pytest.raises(ConfigError, match="is of type LlamaForCausalLM: give a folder") as error:
            omnidraft.load(*arguments)
        assert len(str(error.value)) < 150


@pytest.mark.medium
def test_a_drafter_of_nan_is_blamed_itself(target: Path, drafter: Path) -> None:
    model = load_with(target, drafter, profile=None, draft_length=4, drafter_backend="transformers")
    assert model.drafter is not None
    with torch.no_grad():
        next(iter(model.drafter.lm.model.parameters())).fill_(torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericsError, match="drafter"):
            model.generate(PROMPT, max_new_tokens=4, temperature=temperature)


def test_an_unknown_model_is_no_reason_for_a_default(tmp_path: Path, drafter: Path) -> None:
    with pytest.raises(ModelError):
        omnidraft.load(tmp_path / "none", drafter)


@pytest.mark.medium
def test_a_model_folder_with_a_long_name_has_a_profile(target: Path, drafter: Path, tmp_path: Path, home: Path) -> None:
    copied = tmp_path / ("m" * 205)
    shutil.copytree(target, copied)
    for answers in (1, 2):
        with omnidraft.load(copied, drafter, adapt="inline", update_every=1, warn=pytest.fail) as model:
            model.generate("hello world", max_new_tokens=8)
        assert model.learned["answers"] == answers
    assert len(list(home.glob("profiles/*/*.safetensors"))) == 1


def test_a_home_may_be_written_with_a_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("OMNIDRAFT_HOME", "~/x")
    assert data_folder() == tmp_path / "x"
    assert cache_folder() == tmp_path / "x" / "cache"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIDRAFT_HOME", "~no-such-user/x")  # as a shell leaves it
    assert data_folder() == tmp_path / "~no-such-user" / "x"


def test_a_relative_home_stays_where_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMNIDRAFT_HOME", "kept here")
    before = data_folder(), cache_folder()
    assert before == (tmp_path / "kept here", tmp_path / "kept here" / "cache")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (data_folder(), cache_folder()) == before


@pytest.mark.medium
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_below_the_range_of_float16_keep_their_profile(
    target: Path, drafter: Path, tmp_path: Path, home: Path, dtype: str
) -> None:
    tiny = tmp_path / "tiny"
    shutil.copytree(target, tiny)
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(1e-6)  # subnormal, or 0 of either sign
    model.save_pretrained(tiny)
    for answers, each in enumerate(("float32", dtype), 1):
        warnings: list[str] = []
        with omnidraft.load(tiny, drafter, dtype=each, adapt="inline", update_every=1, warn=warnings.append) as loaded:
            loaded.generate("hello world", max_new_tokens=8)
        assert not any("profile" in warning for warning in warnings)
        assert loaded.learned["answers"] == answers
    assert len(list(home.glob("profiles/*/*.safetensors"))) == 1
