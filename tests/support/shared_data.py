"""Real tokenizers, models and data sets, which lie beside the project where they are at hand."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase


def shared(*parts: str) -> Path:
    """A path in the shared folder; absent, it skips the test, or fails it in CI, where it must be at hand."""
    folder = os.environ.get("OMNIDRAFT_SHARED")
    root = Path(folder) if folder else Path(__file__).parents[3] / "shared"
    path = root.joinpath(*parts)
    if path.exists():
        return path
    message = f"{path} is not there: set OMNIDRAFT_SHARED to the folder that holds {parts[0] if parts else 'it'}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@cache
def real_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """One of llama2, llama3 and qwen2."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        shared("tokenizers", name), local_files_only=True
    )
    return tokenizer
