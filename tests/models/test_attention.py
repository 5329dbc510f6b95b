"""Attention of the 8-bit step: near a reference in double precision, and the same bits however rows are divided."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from omnidraft.errors import ModelError
from omnidraft.models.language_model import Read
from omnidraft.models.native import kv_cache
from omnidraft.models.native import step as native
from omnidraft.models.native.kv_cache import KVBlocks
from omnidraft.models.native.model import NativeModel, NativeSequence
from omnidraft.models.native.step import BLOCK, LANES, Int8Group, Shape
from omnidraft.models.transformers_model import TransformersSequence
from support.compilers import compiled_with, looked_for_anew, needs_the_8_bit_step
from support.exact_models import HalfModel, native_step
from support.models import build, refused
from support.project_files import environment

LENGTH = 6000
WINDOW = 300  # more than a block
NEAR = sorted(
    {edge + step for edge in (LANES, 64, BLOCK, 2 * BLOCK, WINDOW, WINDOW + BLOCK) for step in (-1, 0, 1)}
    | {LENGTH - 5, LENGTH // BLOCK * BLOCK - 1}
)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "all": ("llama", {}),
    "seven heads": ("llama", {"hidden_size": 56, "num_attention_heads": 7, "num_key_value_heads": 1}),
    "windows": ("mistral", {"sliding_window": WINDOW}),
}
EVERY = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _compiled() -> None:
    needs_the_8_bit_step()


def ids(count: int, seed: int = 0) -> list[int]:
    found: list[int] = torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def both(kind: str) -> tuple[TransformersSequence, NativeSequence]:
    """A text of a model whose matrices lose nothing in 8 bits, in double precision, and one of its native step."""
    name, own = KINDS[kind]
    torch.manual_seed(0)
    model = build(name, **{"max_position_embeddings": 8192, "head_dim": 16} | own)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
                parameter.copy_(Int8Group("it", parameter).rows(range(len(parameter))))
    source = HalfModel(model)
    fast = native_step(source).new_sequence()
    source.model.double()
    return source.new_sequence(), fast


@pytest.mark.slow
@EVERY
def test_it_is_near_a_reference_in_double_precision(kind: str) -> None:
    slow, fast = both(kind)
    text = ids(LENGTH)
    for start in range(0, LENGTH, 500):
        part = text[start : start + 500]
        given, wanted = fast.forward(part, 500), slow.forward(part, 500).double()
        assert float((given - wanted).abs().max()) < 1e-2, start
        assert float((given - wanted).square().mean().sqrt()) < 1e-3, start


@pytest.mark.medium
@EVERY
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_have_the_same_bits_in_calls_of_any_size(kind: str, threads: int) -> None:
    """Calls begin and end at the edges of blocks and windows, and beside them; some rows are cropped and read again."""
    _, fast = both(kind)
    text = ids(LENGTH)
    torch.set_num_threads(threads)
    try:
        whole = fast.forward(text, LENGTH)
        other = fast.model.new_sequence()
        edges = [0, *NEAR, LENGTH]
        for start, end in pairwise(edges):
            assert torch.equal(other.forward(text[start:end], end - start), whole[start:end]), (start, end)
        for edge in reversed(NEAR):
            other.crop(edge)
            other.forward(ids(9, edge), 1)
            other.crop(edge)  # what was read since then is forgotten
            for rows in (1, 5):
                end = min(edge + rows, LENGTH)
                assert torch.equal(other.forward(text[edge:end], end - edge), whole[edge:end]), (edge, rows)
                other.crop(edge)
    finally:
        torch.set_num_threads(1)


@pytest.mark.medium
@EVERY
def test_texts_of_many_lengths_in_one_pass(kind: str) -> None:
    _, fast = both(kind)
    texts = [ids(length + 3, length) for length in NEAR]
    sequences = [fast.model.new_sequence() for _ in texts]
    wanted = []
    for sequence, text in zip(sequences, texts, strict=True):
        wanted.append(sequence.forward(text, 3))
        sequence.crop(len(text) - 3)
    given = fast.model.read([Read(each, text[-3:], 3) for each, text in zip(sequences, texts, strict=True)])
    assert torch.equal(torch.cat(given), torch.cat(wanted))


def test_a_key_that_is_too_large_for_16_bits_is_noticed() -> None:
    """It is no number that is merely wrong."""
    model = build("llama", head_dim=16)
    name = "model.layers.1.self_attn.v_proj.weight"
    weights = dict(model.state_dict())
    large = NativeModel(model, weights, {name: weights[name] * 1e8}).new_sequence()
    assert not large.model.read([Read(large, ids(3), 3)])[0].isfinite().any()


def test_blocks_are_taken_as_a_text_grows_and_given_back() -> None:
    blocks = KVBlocks(Shape(2, 12, 3, 20))
    each = 2 * 3 * BLOCK * (20 + 32) * 2
    for length, count in ((0, 0), (1, 1), (BLOCK, 1), (BLOCK + 1, 2), (40 * BLOCK, 40)):
        blocks.reserve(0, length)
        assert blocks.nbytes == count * each
    first = blocks.at(0, torch.empty(0)).blocks
    for length, count in ((40 * BLOCK - 1, 40), (39 * BLOCK, 40), (5, 2), (0, 0)):
        blocks.crop(length)
        assert blocks.nbytes == count * each
    assert blocks.at(0, torch.empty(0)).blocks == first


def test_blocks_are_taken_all_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one text, and of those in one pass with it."""
    left = 3

    def scarce(count: int) -> torch.Tensor:
        nonlocal left
        if not left:
            raise RuntimeError("planted")
        left -= 1
        return native.memory(count)

    monkeypatch.setattr(kv_cache, "memory", scarce)
    blocks = KVBlocks(Shape(2, 12, 3, 20))
    blocks.reserve(0, 1)
    held = blocks.nbytes
    with pytest.raises(ModelError):
        blocks.reserve(0, 5 * BLOCK)
    assert blocks.nbytes == held
    _, one = both("all")
    texts, left = [one, one.model.new_sequence()], 3
    text = ids(BLOCK)
    for each in texts:
        each.forward(text, 1)
    held, left = one.nbytes, 3
    with pytest.raises(ModelError):
        one.model.read([Read(each, [*text, *text], 1) for each in texts])
    assert [each.length for each in texts] == [BLOCK, BLOCK]
    assert [each.nbytes for each in texts] == [2 * held, 2 * held], "a spare block each"
    left = 9
    assert texts[1].forward(text[:5], 1).isfinite().all()


GIVEN_BACK = """
import psutil, torch
from omnidraft.models.native.kv_cache import KVBlocks
from omnidraft.models.native.step import BLOCK, Shape

resident = lambda: psutil.Process().memory_info().rss
begin, texts, others = resident(), [], []
for number in range(400):
    texts.append(KVBlocks(Shape(4, 48, 3, 48)))
    texts[-1].reserve(0, BLOCK)
    texts[-1].share(0).fill_(1)
    others.append(torch.ones(10_000))
taken = resident() - begin
del texts[::2]
print((resident() - begin) / taken)
"""


@pytest.mark.medium
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is the system's heap that gives memory back")
def test_the_memory_of_texts_that_end_is_the_systems_again(tmp_path: Path) -> None:
    """Also of those between others: limits on memory are for what a process takes, not for what it uses of it."""
    command = [sys.executable, "-c", GIVEN_BACK]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=True)
    assert 0.4 < float(done.stdout) < 0.6


@pytest.mark.slow
def test_want_of_memory_is_named_and_changes_nothing(tmp_path: Path) -> None:
    _, fast = both("all")
    text = ids(20)
    expected = fast.forward(text, 1)
    fast.crop(19)
    matrix, header = Int8Group("it", torch.ones(3, 3)), tmp_path / "refuses.h"
    header.write_text("#include <stdlib.h>\n#define aligned_alloc(alignment, size) ((void)(size), (void *)0)\n")
    with compiled_with("-include", str(header)):
        for model in (fast.forward, lambda *_: matrix(torch.ones(1, 3))):
            with refused(ModelError, "of memory, and there are", "1 tokens"):
                model(text[19:], 1)
    assert fast.length == 19
    assert torch.equal(fast.forward(text[19:], 1), expected)
    with refused(ModelError, "of memory, and there are", "1 tokens"):
        KVBlocks(Shape(1000, 1000, 1000, 100_000)).reserve(0, 1)


@pytest.mark.parametrize("number", range(len(native.LAYOUT)))
def test_a_library_of_another_layout_is_not_used(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    other = (*native.LAYOUT[:number], native.LAYOUT[number] + 8, *native.LAYOUT[number + 1 :])
    monkeypatch.setattr(native, "LAYOUT", other)
    looked_for_anew(monkeypatch)
    assert "layout" in str(native.unsupported_reason())
