"""Blocks of transformers' KV caches: copies that others can take over, and what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.transformers_cache import GrowingLayer
from omnidraft.models.transformers_model import BLOCK_IDS, AttentionSequence, TransformersModel
from support.models import random_model

IDS = [(7 * at) % 60 for at in range(3 * BLOCK_IDS)]


def model() -> TransformersModel:
    return random_model("llama", 64, seed=1, context=2048)


def read(lm: TransformersModel, ids: list[int]) -> AttentionSequence:
    sequence = lm.new_sequence()
    assert isinstance(sequence, AttentionSequence)
    sequence.forward(ids, 0)
    return sequence


def test_a_block_is_a_copy_of_its_positions_alone() -> None:
    lm = model()
    source, other = read(lm, IDS[:600]), read(lm, [9])
    blocks = [source.share(at) for at in range(3)]
    assert [block.layers[0][0].shape[-2] for block in blocks] == [BLOCK_IDS, BLOCK_IDS, 600 - 2 * BLOCK_IDS]
    for block in blocks:
        assert block.nbytes == sum(each.untyped_storage().nbytes() for pair in block.layers.values() for each in pair)
    source.crop(10)
    source.forward([3] * 100, 0)  # over what was copied
    other.adopt(blocks, 550)
    expected = read(lm, IDS[:550]).forward([5, 6], 2)
    assert torch.allclose(other.forward([5, 6], 2), expected, atol=1e-5)


@pytest.mark.medium
def test_what_a_sequence_holds_already_is_not_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model()
    source, other = read(lm, IDS), lm.new_sequence()
    assert isinstance(other, AttentionSequence)
    blocks = [source.share(at) for at in range(3)]
    other.adopt(blocks[:2], 2 * BLOCK_IDS)
    written: list[int] = []
    true = GrowingLayer.update

    def update(self: GrowingLayer, keys: torch.Tensor, values: torch.Tensor, *rest: Any, **more: Any) -> Any:
        written.append(keys.shape[-2])
        return true(self, keys, values, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(GrowingLayer, "update", update)
        other.adopt(blocks, 3 * BLOCK_IDS, 2 * BLOCK_IDS)
    assert written == [BLOCK_IDS] * 2, "one block of two layers"
    assert torch.allclose(other.forward([5, 6], 2), read(lm, IDS).forward([5, 6], 2), atol=1e-5)


@pytest.mark.parametrize("error", [MemoryError(), KeyboardInterrupt()])
def test_an_adoption_that_fails_leaves_an_empty_sequence(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = model()
    source, other = read(lm, IDS), read(lm, IDS[:300])
    true, count = GrowingLayer.update, 0

    def update(self: GrowingLayer, *states: Any, **more: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:  # the second layer
            raise error
        return true(self, *states, **more)

    with monkeypatch.context() as patch:
        patch.setattr(GrowingLayer, "update", update)
        with pytest.raises(ModelError if isinstance(error, MemoryError) else KeyboardInterrupt):
            other.adopt([source.share(at) for at in range(3)], 700, 300)
    assert (other.length, other.nbytes) == (0, 0)
    assert torch.allclose(other.forward(IDS[:50], 1), read(lm, IDS[:49]).forward(IDS[49:50], 1), atol=1e-5)
