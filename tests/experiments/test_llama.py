"""llama.cpp behind our interface, and its prompt lookup."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import llama
from omnidraft.errors import ModelError
from omnidraft.models.loading import load_model
from support.gguf_models import small_file
from support.table_models import TableModel

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return small_file(tmp_path / "small.gguf")


@pytest.mark.parametrize(("wrong", "end"), [(0, 30), (1, 30), (0, 20), (1, 20)])
def test_copied_drafts_change_no_answer(wrong: int, end: int) -> None:
    model, plain = TableModel(99, "device", sharp=0.1), [0, 1]
    for _ in range(30):
        model.crop(0)
        plain.append(int(model.forward(plain, 1)[0].argmax()))
    full = np.array([*plain, 0, 0], np.intc)
    way = llama.LlamaMethod(
        "lookup", model, [plain[end + 1]], lambda text: full[len(text) :][:2] + np.array([0, wrong])
    )
    way.begin([0, 1], 30, 0)
    assert way.advance(30) == (end == 30)
    assert way.end().tokens == plain[2 : end + 2]
    assert len(way.end().passes) == -(-end // (3 - wrong)), "drafts are accepted up to the wrong token"


def test_a_cache_that_cannot_be_cropped_is_an_error() -> None:
    model = object.__new__(llama.LlamaModel)
    model._lib, model._memory, model.length = SimpleNamespace(llama_memory_seq_rm=lambda *_: False), None, 9
    with pytest.raises(ModelError, match="cannot keep 5 of 9 tokens"):
        model.crop(5)


def test_llama_cpp_computes_what_transformers_compute(file: Path) -> None:
    pytest.importorskip("llama_cpp", reason=llama.EXTRA)
    expected = load_model(file, "float32", "cpu").lm.new_sequence().forward([5, 6, 7, 8], 3)
    model, smaller = (llama.LlamaModel(each, 64, 1) for each in (file, llama.requantized(file, 1)))
    assert (model.precision, smaller.precision) == ("all F32", "Q8_0")
    assert (model.forward([5, 6, 7, 8], 3) - expected).abs().max() < 0.01  # its keys and values have 16 bits
    model.crop(1)
    assert (model.forward([6, 7, 8], 1) - expected[-1:]).abs().max() < 0.01
    assert 0.001 < (smaller.forward([5, 6, 7, 8], 3) - expected).abs().max() < 0.2
