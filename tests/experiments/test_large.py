"""The model of random blocks: a file that loads, and the figures of each program."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from experiments import large
from omnidraft.models.gguf.split_files import read_header
from support.compilers import needs_the_8_bit_step
from support.gguf_models import MIXED, file_of

KEYS = {
    "context_length": 512, "embedding_length": 256, "feed_forward_length": 512, "block_count": 2,
    "attention.head_count": 2, "attention.head_count_kv": 1,
}  # fmt: skip


@pytest.mark.medium
@pytest.mark.usefixtures("home")
def test_the_file_loads_and_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_the_8_bit_step()
    for name, value in {"HIDDEN": 256, "INNER": 512, "LAYERS": 2, "HEADS": 2, "KEY_HEADS": 1, "POOL": 4096}.items():
        monkeypatch.setattr(large, name, value)
    monkeypatch.setattr(large, "KEYS", KEYS)
    monkeypatch.setattr(large, "TEXT", range(3, 50))
    path = tmp_path / "random.gguf"
    large.write(path, file_of(tmp_path / "m.gguf", MIXED, "qwen2"))
    tensors = read_header(path).tensors
    raw = np.fromfile(path, np.uint8)[tensors["blk.1.ffn_down.weight"].start :][:144]
    assert raw[:4].view(np.float16).tolist() == [large.SMALL, large.SMALL]
    found = large.measured("omnidraft", path, 1, 1)
    assert found.pop("program") == "omnidraft"
    assert list(found) == list(large.COLUMNS[1:])
    assert all(math.isfinite(value) and value > 0 for value in found.values())
