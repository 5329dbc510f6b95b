"""`generate` of transformers alone, and with our decoding in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, StoppingCriteria

from omnidraft import hf
from omnidraft.decoding.round import commit
from omnidraft.verification.round import Round

PROMPT = "hello world, what is"
COUNT = 32
OPTIONS: dict[str, Any] = {"draft_length": 4}


def load(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def tokenizer_of(model: PreTrainedModel) -> Any:
    return _tokenizer(str(model.name_or_path))


@cache
def _tokenizer(name: str) -> Any:
    return AutoTokenizer.from_pretrained(name)


def noisy(model: PreTrainedModel, noise: float) -> PreTrainedModel:
    """A drafter that nearly says what its target does."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    return model


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """The records of all rounds from now on."""
    seen: list[Round] = []

    def noted(*args: Any, **options: Any) -> Round:
        seen.append(commit(*args, **options))
        return seen[-1]

    monkeypatch.setattr("omnidraft.decoding.stream.commit", noted)
    return seen


def ids_of(model: PreTrainedModel, prompt: str = PROMPT) -> torch.Tensor:
    ids: torch.Tensor = tokenizer_of(model)(prompt, return_tensors="pt")["input_ids"]
    return ids


def alone(model: Any, **options: Any) -> Any:
    ids = options.pop("ids", None)
    ids = ids_of(model) if ids is None else ids
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": COUNT, "pad_token_id": 0}
    return model.generate(ids, **given | options)


def helped(model: Any, drafter: object, **options: Any) -> Any:
    own = {"omnidraft_drafter": drafter, "omnidraft_options": OPTIONS}
    return alone(model, custom_generate=hf.generate, **own | options)


def new_tokens(model: PreTrainedModel, output: torch.Tensor) -> list[int]:
    return [int(token) for token in output[0, ids_of(model).shape[1] :]]


class Ends(StoppingCriteria):
    """Ends a text after one of some tokens, and notes the texts it is shown."""

    def __init__(self, *tokens: int) -> None:
        self.seen: list[list[int]] = []
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([int(input_ids[0, -1]) in self._tokens])
