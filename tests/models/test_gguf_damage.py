"""GGUF files that are damaged anywhere, or change while they are read or used: one line each, and no crash."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from omnidraft.errors import ModelError, NumericsError, PromptError
from omnidraft.models.gguf import header
from omnidraft.models.gguf import native_weights as gguf_weights
from omnidraft.models.gguf.split_files import forget_headers, read_header
from omnidraft.models.gguf.tensors import rows_in
from omnidraft.models.loading import load_model
from omnidraft.models.native import packed_matrices
from support.compilers import needs_the_8_bit_step
from support.gguf_models import MIXED, file_of
from support.models import refused

pytestmark = pytest.mark.medium

TRIES, SEED = 2000, 0
WIDE = (0, 1, 2, 3, 255, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)  # counts and sizes
REALS = (float("nan"), float("inf"), -1.0, 0.0, 1e30)


@pytest.fixture(autouse=True)
def _home(home: Path) -> None:  # noqa: ARG001
    needs_the_8_bit_step()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return file_of(tmp_path / "m.gguf", MIXED)


class Damage:
    """Ways to spoil a file's bytes, most of them in its header."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.whole, self.chance = path.read_bytes(), chance
        found = read_header(path)
        self.start = min(tensor.start for tensor in found.tensors.values())
        self.names = [name.encode() for name in (*found.tensors, *found.metadata)]

    def spoiled(self) -> bytes:
        data = bytearray(self.whole)
        ways = (self.bit, self.number, self.behind_a_name, self.block, self.cut, self.moved)
        for _ in range(self.chance.choice((1, 1, 1, 2, 4))):
            self.chance.choice(ways)(data)
        return bytes(data)

    def bit(self, data: bytearray) -> None:
        data[self.within(4, self.start, data)] ^= 1 << self.chance.randrange(8)

    def number(self, data: bytearray) -> None:
        self.put(data, self.within(4, self.start, data))

    def behind_a_name(self, data: bytearray) -> None:
        name = self.chance.choice(self.names)
        self.put(data, max(0, data.find(name)) + len(name) + self.chance.choice((0, 4, 8, 12, 16, 20, 24)))

    def block(self, data: bytearray) -> None:
        at = self.within(self.start, len(self.whole), data)
        data[at : at + 64] = self.chance.choice((b"\xff" * 64, b"\x7c" * 2, self.chance.randbytes(8)))

    def cut(self, data: bytearray) -> None:
        if self.chance.random() < 0.2:
            del data[self.within(5, len(self.whole), data) :]

    def moved(self, data: bytearray) -> None:
        at, count = self.within(4, self.start, data), self.chance.choice((1, 4, 8, 32))
        data[at : at + self.chance.choice((0, count))] = self.chance.randbytes(self.chance.choice((0, count)))

    def put(self, data: bytearray, at: int) -> None:
        if self.chance.random() < 0.2:
            data[at : at + 4] = struct.pack("<f", self.chance.choice(REALS))
        else:
            size = self.chance.choice((4, 8))
            data[at : at + size] = self.chance.choice(WIDE).to_bytes(8, "little")[:size]

    def within(self, start: int, end: int, data: bytearray) -> int:
        return min(self.chance.randrange(start, end), len(data) - 1)


@pytest.mark.slow
def test_damage_of_any_kind_gives_a_model_or_one_line(tmp_path: Path) -> None:
    """Headers and blocks; what still loads gives numbers, or says that it does not, as of a context of one token."""
    path = file_of(tmp_path / "m.gguf", MIXED, num_hidden_layers=1)
    damage, found = Damage(path, random.Random(SEED)), Counter[str]()
    for number in range(TRIES):
        path.write_bytes(damage.spoiled())
        try:
            model = load_model(path, "int8", verifies=True).lm
            model.new_sequence().forward([3, 5, 7], 2)
            found["model"] += 1
        except (ModelError, NumericsError, PromptError) as error:
            assert len(str(error).splitlines()) == 1, number  # noqa: PT017
            assert len(str(error)) < 600, number  # noqa: PT017
            found[type(error).__name__] += 1
    assert found["model"] > 50
    assert found["ModelError"] > 1000


def test_a_header_of_any_length_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_header(path)
    for size in (5000, 1000, 512):
        monkeypatch.setattr(header, "BEGINNING", size)
        forget_headers()
        assert read_header(path) == whole
    monkeypatch.setattr(header, "MAX_HEADER", 6000)
    forget_headers()
    with refused(ModelError, "m.gguf is damaged", "more than 6000 bytes"):
        read_header(path)


# ---------------------------------------------------------------- files that change


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def written_to(path: Path) -> None:
    size, before = path.stat().st_size, path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\1" * (size // 2))
    os.utime(path, ns=(before + 10**9, before + 10**9))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize(
    ("place", "name", "at", "dtype", "change"),
    [
        *((gguf_weights, "GgufWeights", 1, "int8", change) for change in (cut, written_to, replaced)),
        *((gguf_weights, "GgufWeights", 1, "float32", change) for change in (cut, written_to, replaced)),
        *((packed_matrices, "_packed", 5, "int8", change) for change in (cut, written_to)),
    ],
)
def test_a_file_that_changes_while_it_is_loaded_is_named(
    place: ModuleType,
    name: str,
    at: int,
    dtype: str,
    change: Callable[[Path], None],
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After its header was read: before its first tensor is, and between two parts of a tensor."""
    true, calls = getattr(place, name), 0

    def late(*given: object) -> object:
        nonlocal calls
        calls += 1
        if calls == at:
            change(path)
        return true(*given)

    monkeypatch.setattr(place, name, late)
    with refused(ModelError, "m.gguf was changed while it was read"):
        load_model(path, dtype, verifies=True)
    assert calls == at


def test_a_file_that_ends_in_the_middle_of_a_tensor_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(*given: Any) -> object:
        cut(path)
        return rows_in(*given)

    monkeypatch.setattr(gguf_weights, "rows_in", late)
    with refused(ModelError, "m.gguf was changed while it was read"):
        load_model(path, "int8", verifies=True)


def test_embeddings_stay_in_their_file(path: Path) -> None:
    """Where they are no head: another file may take its name, or its time change, but it must not be written to."""
    model = load_model(path, "int8", verifies=True).lm
    before = model.new_sequence().forward([3, 5, 7], 3)
    kept = path.with_name("kept.gguf")
    os.link(path, kept)
    replaced(path)
    os.utime(kept, ns=(0, path.stat().st_mtime_ns + 10**9))
    assert torch.equal(model.new_sequence().forward([3, 5, 7], 3), before)
    for change in (written_to, cut):
        change(kept)
        sequence = model.new_sequence()
        with refused(ModelError, "m.gguf was changed while it was read"):
            sequence.forward([3, 5, 7], 3)
        assert sequence.length == 0


def test_an_embedding_that_is_no_number_is_named(tmp_path: Path) -> None:
    model = load_model(file_of(tmp_path / "m.gguf", MIXED, broken="token_embd.weight"), "int8", verifies=True).lm
    assert model.new_sequence().forward([4, 6], 1).isfinite().all()
    with refused(ModelError, "model.embed_tokens.weight", "NaN or infinite"):
        model.new_sequence().forward([4, 5], 1)


# ---------------------------------------------------------------- memory, and what is left on the disk


def test_a_file_that_memory_does_not_hold_is_refused_before_it_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_weights, "held_bytes", lambda _: 2**60)
    with refused(ModelError, "m.gguf", "take 1073741824.0 GiB of memory"):
        load_model(path, "int8", verifies=True)


def test_memory_that_is_refused_is_an_error(path: Path) -> None:
    stored = gguf_weights.weights_of(path, load_model(path, "int8", verifies=True).lm.model).stored("lm_head.weight")
    assert stored is not None
    with refused(ModelError, "weights lm_head.weight take", "of memory, and there are"):
        packed_matrices.BlockGroup(replace(stored, out=2**48))
