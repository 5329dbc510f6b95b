"""Outside the tests: scripts of tools/, real tokenizers and data sets, and processes that run the command line."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


def shared(*parts: str) -> Path:
    """A path in the shared folder; absent, it skips the test, or fails it in CI, where it must be at hand."""
    folder = os.environ.get("OMNIDRAFT_SHARED")
    root = Path(folder) if folder else ROOT.parent / "shared"
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


def environment(home: Path) -> dict[str, str]:
    """The environment of a process that runs `python -m omnidraft`."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "OMNIDRAFT_HOME": str(home), "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def lines(text: str) -> list[str]:
    """Lines on stderr without the progress bars of transformers."""
    return [line for line in text.splitlines() if "Loading weights" not in line]
