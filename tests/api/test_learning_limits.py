"""What learning must leave alone: folders of others, other targets, replies, and code that happens to lie around."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import omnidraft
from omnidraft.config import Learning
from omnidraft.distillation.background_trainer import BackgroundTrainer
from omnidraft.distillation.trainer import Trainer
from omnidraft.models.transformers_model import TransformersModel
from support.assembling import load_with
from support.gguf_models import file_of
from support.learning import FAST, answers, saved
from support.models import random_model, save_model
from support.small_tokenizers import byte_level, sentencepiece
from support.table_models import make_world

pytestmark = pytest.mark.medium


def few_bits(folder: Path) -> Path:
    """A model whose weights lose bits, or all of them, in fp16 and in bf16."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = {name: weight * 1e-7 if "mlp" in name else weight for name, weight in load_file(file).items()}
    save_file(weights, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_profile_is_found_again_in_another_precision(tmp_path: Path, home: Path, dtype: str) -> None:
    target = few_bits(save_model(tmp_path / "target", byte_level(), seed=1))
    drafter = few_bits(save_model(tmp_path / "drafter", sentencepiece(), seed=2))
    with omnidraft.load(target, drafter, adapt="inline", dtype="float32") as model:
        answers(model, 1)
    said: list[str] = []
    with omnidraft.load(target, drafter, dtype=dtype, warn=said.append) as other:
        assert other.learned == model.learned
    assert [dtype in line for line in said] == [True], "of the precision, and of no profile"
    assert len(saved(home)) == 1


def test_a_profile_of_gguf_files_is_found_again_in_another_precision(tmp_path: Path, home: Path) -> None:
    """Where one is loaded by the native step alone, and the other by transformers."""
    target = file_of(tmp_path / "target.gguf", {"attn_q": "Q4_0"}, "llama")
    drafter = file_of(tmp_path / "drafter.gguf", {"attn_q": "Q5_0", "output": "Q8_0"}, "qwen2")
    learned = []
    for adapt, dtype in (("inline", "auto"), ("off", "float32")):
        with omnidraft.load(target, drafter, adapt=adapt, dtype=dtype, update_every=1, warn=pytest.fail) as model:
            model.generate("hello", max_new_tokens=9)
            learned.append(model)
    assert learned[0].learned["updates"] == learned[1].learned["updates"] == 1
    assert len(saved(home)) == 1
    assert learned[1].drafter is not None
    assert isinstance(learned[1].drafter.lm, TransformersModel)


def test_learning_that_fails_costs_no_reply(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    options = FAST | {"update_every": 1, "profile": None}
    model = omnidraft.load(target, drafter, adapt="inline", **options, warn=said.append)
    wanted = [answer.token_ids for answer in answers(omnidraft.load(target, drafter, profile=None), 3)]

    def fail(*_: object) -> bool:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Trainer, "update", fail)
    assert [answer.token_ids for answer in answers(model, 3)] == wanted
    assert len(said) == 1
    assert "learns no more (RuntimeError: no memory)" in said[0]
    model.close()


@pytest.mark.slow
@pytest.mark.parametrize(("loaded_inside", "step"), [(True, "auto"), (False, "auto"), (False, "transformers")])
def test_learning_goes_on_in_inference_mode(target: Path, drafter: Path, *, loaded_inside: bool, step: str) -> None:
    learning = FAST | {"update_every": 1, "drafter_backend": step}
    options: dict[str, Any] = {"adapt": "inline", "profile": None, "warn": pytest.fail, **learning}
    with torch.inference_mode(mode=loaded_inside):
        model = load_with(target, drafter, **options)
    with torch.inference_mode():
        wanted = [answer.token_ids for answer in answers(model, 3)]
    assert model.learned["updates"] == 3
    pristine = omnidraft.load(target, drafter, profile=None)
    assert [answer.token_ids for answer in answers(pristine, 3)] == wanted
    answers(model, 1)
    assert model.learned["updates"] == 4


@pytest.mark.slow
def test_the_background_runs_no_code_of_the_folder_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "queue.py").write_text("import pathlib; pathlib.Path('ran').touch()", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, Path("somewhere")])  # as notebooks leave it
    learner = BackgroundTrainer(random_model("llama", 8, 0).model, Learning(), make_world("nested").table)
    learner.flush()
    assert learner.alive
    learner.close()
    assert not (tmp_path / "ran").exists()
