"""What a user of a learning drafter does and can see, for the tests of the Python interface and of the commands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import omnidraft
from omnidraft import OmniDraft
from omnidraft.attach import LearningSide

PROMPTS = ("hello world", "the world was hello", "def ing 10 the", "don't hello the été", "10 worlds, 10 hellos")
COUNT = 16
# drafts of a length, so that a drafter of random weights drafts at all
FAST: dict[str, Any] = {"draft_length": 4, "interval": 2, "learning_rate": 1e-2}


def side_of(model: OmniDraft) -> LearningSide:
    assert model.side is not None
    return model.side


def answers(model: OmniDraft, count: int, **options: Any) -> list[omnidraft.Generation]:
    """Answers to the prompts in turn."""
    return [model.generate(PROMPTS[i % len(PROMPTS)], **{"max_new_tokens": COUNT, **options}) for i in range(count)]


def alone(model: OmniDraft, prompt: str, count: int = COUNT) -> tuple[int, ...]:
    """What `transformers` answers without us."""
    ids = torch.tensor([model.target.tokenizer(prompt)["input_ids"]])
    output = model.target.lm.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, pad_token_id=0
    )
    return tuple(int(token) for token in output[0, ids.shape[1] :])


def drafts(model: OmniDraft) -> torch.Tensor:
    """What the drafter, as it serves this target, says about a text."""
    side = side_of(model)
    side.adaptation.load_weights()
    serving = side.adaptation.shared.model
    serving.crop(0)
    logits = serving.forward([1, 5, 9, 40, 41], 5).clone()
    serving.crop(0)
    return logits


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def saved(home: Path) -> list[Path]:
    """The files of the profiles in a home, those set aside included."""
    return sorted(home.glob("profiles/*/*.safetensors"))


def spellings(text: str) -> Iterator[bytes]:
    """How a file may hold a text."""
    for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        for encoding in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le"):
            yield form.encode(encoding, "replace")


def sequences(ids: Iterable[int], length: int = 6) -> Iterator[bytes]:
    """How a file may hold so many tokens in a row; rows of few different ones, which occur anywhere, are left out."""
    row = list(ids)
    for start in range(len(row) - length + 1):
        window = row[start : start + length]
        if len(set(window)) > length // 2:
            for kind in ("<i4", "<i8", ">i4", ">i8", "<u2"):
                yield np.array(window, kind).tobytes()


def found(folder: Path, texts: Iterable[str], rows: Iterable[Iterable[int]]) -> list[str]:
    """The files that hold one of these texts, or a part of one of these rows of tokens."""
    patterns = {form for text in texts for form in spellings(text)} | {form for row in rows for form in sequences(row)}
    assert len(patterns) > 8
    return [name for name, data in tree(folder).items() if any(pattern in data for pattern in patterns)]
