"""PrefixCache of texts that were read: what is found again, by whom, and what goes first."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from omnidraft.models.language_model import SingleSequence
from omnidraft.models.prefix_cache import WORTH, PrefixCache, circle_of, common

SIZE = 32  # ids of a block
ONE, OTHER = circle_of(b"model", b"one"), circle_of(b"model", b"other")


@dataclass(eq=False)
class Piece:
    """A block that tells what it holds: the whole text up to its end."""

    text: tuple[int, ...]
    nbytes: int = 100


@dataclass
class Text(SingleSequence):
    """A sequence of so many ids."""

    ids: list[int] = field(default_factory=list)
    block: int = SIZE
    lasting: bool = False
    shared: int = 0  # blocks asked for

    @property
    def length(self) -> int:
        return len(self.ids)

    def share(self, at: int) -> Piece:
        self.shared += 1
        return Piece(tuple(self.ids[: (at + 1) * SIZE]))

    def crop(self, length: int) -> None:
        del self.ids[length:]

    def adopt(self, blocks: list[Piece], length: int, held: int = 0) -> None:  # noqa: ARG002
        self.ids = list(blocks[-1].text[:length])

    def data_of(self, block: Piece) -> memoryview:
        return memoryview(json.dumps(block.text).encode())

    def block_of(self, data: bytes) -> Piece:
        return Piece(tuple(json.loads(data)))


def text(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(50) + at for at in range(length)]


def read(kept: PrefixCache, ids: list[int], circle: bytes = ONE, *, end: bool = True) -> None:
    sequence: Any = Text(list(ids))
    kept.add(circle, ids, sequence, end=end)


def found(kept: PrefixCache, ids: list[int], circle: bytes = ONE) -> int:
    """Length of what is found, whose blocks hold these very ids."""
    sequence: Any = Text()
    blocks, length = kept.find(circle, ids, sequence)
    assert len(blocks) == -(-length // SIZE)
    for at, block in enumerate(blocks):
        end = min((at + 1) * SIZE, length)
        assert block.text[:end] == tuple(ids[:end])  # type: ignore[attr-defined]
    return length


def test_the_longest_beginning_is_found_whoever_read_it() -> None:
    kept = PrefixCache(10**6)
    ids = text(1, 5 * SIZE + 20)
    assert found(kept, ids) == 0
    read(kept, ids)
    assert found(kept, ids) == len(ids)
    assert found(kept, [*ids, 1, 2]) == len(ids)
    assert found(kept, ids[: 2 * SIZE]) == 2 * SIZE
    assert found(kept, [*ids[: 3 * SIZE + WORTH], 1]) == 3 * SIZE + WORTH, "of a block that goes on otherwise, a part"
    assert found(kept, [*ids[: 3 * SIZE + WORTH - 1], 1]) == 3 * SIZE, "too little to be worth a copy"
    assert found(kept, [ids[0] + 1, *ids[1:]]) == 0


def test_without_an_end_whole_blocks_alone_are_kept() -> None:
    kept = PrefixCache(10**6)
    ids = text(1, 3 * SIZE + WORTH)
    read(kept, ids, end=False)
    assert found(kept, ids) == 3 * SIZE
    read(kept, ids)
    assert found(kept, ids) == len(ids)


def test_an_end_goes_where_the_text_went_on() -> None:
    kept = PrefixCache(10**6)
    ids = text(1, 4 * SIZE)
    for length in (SIZE + WORTH, SIZE + WORTH + 4, 2 * SIZE - 1, 2 * SIZE + 3):
        read(kept, ids[:length])
        assert kept.nbytes == 200
    read(kept, [*ids[: SIZE + WORTH], *text(2, WORTH)])
    assert kept.nbytes == 300, "another text"
    read(kept, ids[: SIZE + 20])
    assert kept.nbytes == 300 or found(kept, ids) == 2 * SIZE


def test_another_circle_finds_nothing() -> None:
    kept = PrefixCache(10**6)
    ids = text(1, 3 * SIZE)
    read(kept, ids)
    assert found(kept, ids, OTHER) == 0
    read(kept, ids, OTHER)
    assert (found(kept, ids), found(kept, ids, OTHER), kept.nbytes) == (len(ids), len(ids), 600)
    assert circle_of(b"a", b"bc") != circle_of(b"ab", b"c")


def test_what_was_used_last_stays_and_ends_go_before_beginnings() -> None:
    kept = PrefixCache(1000)
    first, second = text(1, 5 * SIZE), text(2, 5 * SIZE)
    read(kept, first)
    read(kept, second)
    assert found(kept, first) == 5 * SIZE, "used again"
    read(kept, text(3, 2 * SIZE))
    assert kept.nbytes == 1000
    assert (found(kept, first), found(kept, second)) == (5 * SIZE, 3 * SIZE)
    kept.trim(0)
    assert (kept.nbytes, found(kept, first)) == (0, 0)
    read(kept, first)
    assert kept.nbytes == 0, "there is no room"


@pytest.mark.parametrize("limit", [0, 300])
def test_blocks_for_which_there_is_no_room_are_not_asked_for(limit: int) -> None:
    kept, ids = PrefixCache(limit), text(1, 20 * SIZE)
    sequence: Any = Text([])
    most = 0
    for at in range(SIZE, len(ids) + 1, SIZE):  # as a prompt is read
        sequence.ids = ids[:at]
        kept.add(ONE, ids, sequence)
        most = max(most, kept.nbytes)
    assert sequence.shared <= 20 + limit // 100
    assert most <= limit
    assert found(kept, ids) == limit // 100 * SIZE


def test_what_is_kept_needs_no_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, ids = PrefixCache(10**6), text(1, 5 * SIZE)
    true = Text.share

    def share(self: Text, at: int) -> Piece:
        if at == 2:
            raise error
        return true(self, at)

    monkeypatch.setattr(Text, "share", share)
    error: Exception = MemoryError()
    read(kept, ids)
    assert found(kept, ids) == 2 * SIZE
    error = ValueError("of another kind")
    with pytest.raises(ValueError, match="of another kind"):
        read(kept, ids)


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(20))
def test_any_history_finds_what_was_read_and_never_anything_else(seed: int) -> None:
    rng, kept = random.Random(seed), PrefixCache(2500)
    texts: dict[bytes, list[list[int]]] = {ONE: [], OTHER: []}
    hits = 0
    for _ in range(300):
        circle = rng.choice((ONE, OTHER))
        before = rng.choice(texts[circle])[: rng.randrange(10 * SIZE)] if texts[circle] and rng.random() < 0.8 else []
        ids = before + [rng.randrange(3) for _ in range(rng.randrange(1, 4 * SIZE))]
        length = found(kept, ids, circle)
        most = max((common(ids, other) for other in texts[circle]), default=0)
        assert length <= most
        hits += length > 0
        read(kept, ids, circle, end=rng.random() < 0.7)
        texts[circle].append(ids)
        assert kept.nbytes <= 2500
        if rng.random() < 0.02:
            kept.trim(rng.randrange(2500))
            kept.limit = 2500
    assert hits > 50
    kept.trim(0)
    assert not kept._first, "no names are left of blocks that are gone"  # noqa: SLF001
