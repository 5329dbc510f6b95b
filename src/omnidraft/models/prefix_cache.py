"""The prefix cache: blocks of KV caches, found again by the ids that they hold, whoever has read them.

A block holds `block` ids.  Its name is the hash of its ids and of the name of the block before it, so that equal names
stand for equal texts from the first id on; the first name is that of the model and of a circle of users.  The last
block of a text may hold fewer ids.  Blocks are shared by reference: whoever writes into one takes a copy first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol, TypeGuard, runtime_checkable

import numpy as np

from omnidraft.models.block_files import BlockFiles, Header
from omnidraft.models.language_model import KVSequence
from omnidraft.models.memory import is_shortage

WORTH = 16  # ids of a block that have to be equal for it to be taken
Digest = bytes


class Block(Protocol):
    """Keys and values of some positions."""

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""


@runtime_checkable
class SharingSequence(KVSequence, Protocol):
    """A sequence whose cache lies in blocks that others can read."""

    @property
    def block(self) -> int:
        """Ids that a block holds."""

    def share(self, at: int) -> Block:
        """The block at a place; whoever writes into it, or one before, from now on takes a copy."""

    def adopt(self, blocks: Sequence[Block], length: int, held: int = 0) -> None:
        """Hold the first `length` ids that these blocks hold, and no others; it holds the first `held` already."""


@runtime_checkable
class FilingSequence(SharingSequence, Protocol):
    """A sequence whose blocks can be kept in files."""

    def data_of(self, block: Block) -> memoryview:
        """The bytes of a block."""

    def block_of(self, data: bytes) -> Block:
        """The block of these bytes; raises ValueError for bytes of none."""


def shares(sequence: KVSequence) -> TypeGuard[SharingSequence]:
    """True if the cache of a sequence can be shared."""
    return isinstance(sequence, SharingSequence)


@dataclass(eq=False)
class _Kept:
    """A block that is kept, in memory or in a file alone."""

    block: Block | None
    ids: tuple[int, ...]
    before: Digest
    after: set[Digest] = field(default_factory=set)  # names of the blocks that follow


class PrefixCache:
    """Blocks of KV caches of some models, in `limit` bytes of memory, and in `files`; the least recently used go first.

    For one thread.  `circle` is the name of a model and of those who may share what it has read.
    """

    def __init__(self, limit: int, files: BlockFiles | None = None) -> None:
        self.limit, self.nbytes = limit, 0
        self._files = files
        self._kept: dict[Digest, _Kept] = {}
        self._held: OrderedDict[Digest, Block] = OrderedDict()  # of them in memory, the least recently used first
        self._first: dict[Digest, set[Digest]] = {}  # names of the first blocks, by circle
        for each in files.headers() if files else ():
            self._put(each.name, _Kept(None, each.ids, each.before))

    def find(self, circle: Digest, ids: Sequence[int], sequence: SharingSequence) -> tuple[list[Block], int]:
        """The blocks of the longest beginning of `ids` that was read, and the number of ids that it has."""
        size = sequence.block
        known = list(takewhile(self._kept.__contains__, _names(circle, ids, size)))
        length = len(known) * size
        last, most = None, WORTH - 1
        for name in self._following(known[-1] if known else circle):
            if (equal := common(self._kept[name].ids, ids[length : length + size])) > most:
                last, most = name, equal
        if last is not None:
            known.append(last)
            length += most
        there = list(takewhile(lambda name: self._load(name, sequence), known))
        blocks = [self._held[name] for name in there]
        self._touch(there)
        self.trim(self.limit)
        return blocks, length if len(there) == len(known) else len(there) * size

    def add(self, circle: Digest, ids: Sequence[int], sequence: SharingSequence, *, end: bool = False) -> None:
        """Keep the whole blocks of a text that a sequence has read; at its `end` the last one, too, and in files.

        Of a text larger than the limit, or for which memory is short, the beginning is kept.
        """
        size, length = sequence.block, min(sequence.length, len(ids))
        names = list(_names(circle, ids[:length], size))
        if end and length % size >= WORTH:
            names.append(_name(names[-1] if names else circle, ids[len(names) * size : length]))
        files = self._files if end and sequence.model.lasting and isinstance(sequence, FilingSequence) else None
        taken = 0  # bytes of this text
        for at, name in enumerate(names):
            if name not in self._held:
                before = names[at - 1] if at else circle
                try:
                    block = sequence.share(at)
                except Exception as error:
                    if not is_shortage(error):
                        raise
                    del names[at:]
                    break
                self._keep(name, block, tuple(ids[at * size : min((at + 1) * size, length)]), before)
            taken += self._held[name].nbytes
            if taken > self.limit and files is None:  # what follows would not stay
                del names[at + 1 :]
                break
        self._touch(names)
        if files is not None and isinstance(sequence, FilingSequence):
            for name in names:
                kept = self._kept[name]
                files.put(Header(name, kept.before, kept.ids), sequence.data_of(self._held[name]))
        self.trim(self.limit)

    def trim(self, limit: int) -> None:
        """Keep to a limit: drop the blocks that were not used for longest; those in use stay with who uses them."""
        self.limit = limit
        while self.nbytes > limit:
            name = next(iter(self._held))
            if self._files is not None and name in self._files:
                self.nbytes -= self._held.pop(name).nbytes
                self._kept[name].block = None
            else:
                self._drop(name)

    def close(self) -> None:
        """Have what is to be written written."""
        if self._files is not None:
            self._files.close()

    def _touch(self, names: Sequence[Digest]) -> None:
        for name in reversed(names):  # a block goes before those that it follows, without which it cannot be found
            self._held.move_to_end(name)

    def _load(self, name: Digest, sequence: SharingSequence) -> bool:
        """True if the block is in memory, where it is read from its file if need be; else it is dropped."""
        kept = self._kept[name]
        if kept.block is None and self._files is not None and isinstance(sequence, FilingSequence):
            data = self._files.get(Header(name, kept.before, kept.ids))
            with suppress(ValueError):
                if data is not None:
                    self._hold(name, sequence.block_of(data))
        if kept.block is None:
            self._drop(name)
        return kept.block is not None

    def _hold(self, name: Digest, block: Block) -> None:
        self._kept[name].block = self._held[name] = block
        self.nbytes += block.nbytes

    def _keep(self, name: Digest, block: Block, ids: tuple[int, ...], before: Digest) -> None:
        if name not in self._kept:
            self._put(name, _Kept(None, ids, before))
        self._hold(name, block)

    def _following(self, name: Digest) -> set[Digest]:
        """Names of the blocks that follow one, or that are first in a circle."""
        return self._kept[name].after if name in self._kept else self._first.get(name, set())

    def _put(self, name: Digest, kept: _Kept) -> None:
        for other in [each for each in self._following(kept.before) if _goes_on(kept.ids, self._kept[each].ids)]:
            self._drop(other)
        if kept.before in self._kept:
            self._kept[kept.before].after.add(name)
        else:
            self._first.setdefault(kept.before, set()).add(name)
        kept.after |= self._first.pop(name, set())  # of files that were found before
        self._kept[name] = kept

    def _drop(self, name: Digest) -> None:
        """Drop a block and all that follow it."""
        dropped = [name]
        while dropped:
            name = dropped.pop()
            kept = self._kept.pop(name)
            dropped += kept.after
            if name in self._held:
                self.nbytes -= self._held.pop(name).nbytes
            self._following(kept.before).discard(name)
            if not self._first.get(kept.before, {name}):
                del self._first[kept.before]


def circle_of(*names: bytes) -> Digest:
    """The name of a circle: of a model, and of those who may share what it has read."""
    return hashlib.sha256(b"".join(len(name).to_bytes(8, "little") + name for name in names)).digest()


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of leading ids that two texts have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _names(circle: Digest, ids: Sequence[int], size: int) -> Iterator[Digest]:
    """The names of the whole blocks of a text."""
    name = circle
    for at in range(size, len(ids) + 1, size):
        name = _name(name, ids[at - size : at])
        yield name


def _name(before: Digest, ids: Sequence[int]) -> Digest:
    return hashlib.sha256(before + np.asarray(ids, dtype="<i4").tobytes()).digest()


def _goes_on(ids: tuple[int, ...], end: tuple[int, ...]) -> bool:
    """True if a block has what another one, at the end of a text, has, and more."""
    return len(end) < len(ids) and ids[: len(end)] == end
