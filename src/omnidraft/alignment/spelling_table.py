"""The spelling-sorted vocabulary: the target in drafter tokens, laid out as a trie of int32 arrays."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from omnidraft import storage
from omnidraft.alignment.vocab import Speller, Vocab
from omnidraft.storage import data_folder

ROOT = 0
TABLE_FORMAT = "2"  # raised whenever the arrays or their construction change

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Probs = NDArray[np.floating[Any]]
"""Probabilities or weights in their given precision; sums over them are taken in float64."""


@dataclass(frozen=True, eq=False)
class SpellingTable:
    """Spellings of a target's vocabulary in a drafter's tokens, and their trie.

    All arrays are int32 and read-only; T is the target's size, D the drafter's, M the number of spellings, N the number
    of trie nodes.  Nodes are numbered breadth-first from ROOT; the children of a node are contiguous and sorted by
    symbol.  Of several target tokens with one spelling, one *owns* it: the one that the target's own rules produce.
    """

    fingerprint: str
    target_size: int
    drafter_size: int
    offsets: Ints  # (T + 1,) the spelling of t is flat[offsets[t]:offsets[t + 1]]; empty: none
    flat: Ints
    order: Ints  # (M,) owners, sorted by spelling, a prefix before its extensions
    lo: Ints  # (N,) the owners at or under a node are order[lo:hi]
    hi: Ints  # (N,)
    symbol: Ints  # (N,) drafter token on the edge into the node, -1 for ROOT
    first: Ints  # (N + 1,) the children of v are first[v]:first[v + 1]
    ends: Ints  # (N,) owner whose spelling ends at the node, -1: none
    node: Ints  # (T,) node where the spelling of t ends, -1: t owns none
    root: Ints  # (D,) child of ROOT reached by a drafter token, -1: none
    long_offsets: Ints  # (D + 1,) the target tokens of a drafter token that starts no spelling; empty: none
    long_flat: Ints

    def spelling(self, t: int) -> Ints:
        """Return the spelling of target token `t`; empty where it has none."""
        return self.flat[self.offsets[t] : self.offsets[t + 1]]

    def child(self, node: int, symbol: int) -> int:
        """Return the child of a node that a drafter token leads to, or -1."""
        if node == ROOT:
            return int(self.root[symbol])
        low, high = int(self.first[node]), int(self.first[node + 1])
        child = low + int(np.searchsorted(self.symbol[low:high], symbol))
        return child if child < high and self.symbol[child] == symbol else -1

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(getattr(self, name).nbytes for name in _ARRAYS)


def build_table(drafter: Vocab, target: Vocab, speller: Speller, target_speller: Speller) -> SpellingTable:
    """Spell the target's vocabulary with the drafter's `speller` and lay the spellings out as a trie.

    `target_speller` spells, in target tokens, the drafter tokens that start no spelling.  Where neither has bytes, the
    drafter's first end-of-sequence token is the spelling of the target's first.
    """
    spellings = _spell_all(target.tokens, speller)
    if drafter.eos and target.eos and drafter.tokens[drafter.eos[0]] is None and target.tokens[target.eos[0]] is None:
        spellings[target.eos[0]] = (drafter.eos[0],)
    offsets, flat = _ragged(spellings)
    owners = _owners(spellings, target.tokens, target_speller)
    trie, node = _grow(owners, offsets, flat, drafter.size)
    symbol, lo, first = trie["symbol"], trie["lo"], trie["first"]
    ends = np.full(len(symbol), -1, np.int64)
    ends[node[owners]] = owners
    order = np.empty(len(owners), np.int64)
    order[lo[node[owners]]] = owners
    root = np.full(drafter.size, -1, np.int64)
    root[symbol[first[ROOT] : first[ROOT + 1]]] = np.arange(first[ROOT], first[ROOT + 1])
    unreached = [data if child < 0 else None for data, child in zip(drafter.tokens, root.tolist(), strict=True)]
    owned = node.tolist()
    rest = _spell_all(unreached, target_speller)
    long_offsets, long_flat = _ragged([ids if all(owned[t] >= 0 for t in ids) else () for ids in rest])
    arrays = trie | {
        "offsets": offsets, "flat": flat, "order": order, "ends": ends, "node": node, "root": root,
        "long_offsets": long_offsets, "long_flat": long_flat,
    }  # fmt: skip
    return _table(_fingerprint(drafter, target), {name: array.astype(np.int32) for name, array in arrays.items()})


def load_table(
    drafter: Vocab,
    target: Vocab,
    speller: Speller,
    target_speller: Speller,
    cache_dir: Path | None,
    warn: Callable[[str], None],
) -> SpellingTable:
    """Return the table of a pair from `cache_dir`, or build it and store it there (None: only build).

    A damaged file, or one of another version, is rebuilt, and nothing is stored in a folder that cannot be written;
    either is reported to `warn` in one line.
    """
    fingerprint = _fingerprint(drafter, target)
    path = None if cache_dir is None else cache_dir / f"{fingerprint}.safetensors"
    if path is not None:
        try:
            return _read(path, fingerprint)
        except FileNotFoundError:
            pass
        except (OSError, SafetensorError, ValueError) as error:
            warn(f"spelling table {path} cannot be used ({error}); building it anew")
    table = build_table(drafter, target, speller, target_speller)
    if path is not None:
        try:
            _write(path, table)
        except OSError as error:
            warn(f"spelling table cannot be stored as {path} ({error}); going on without")
    return table


def default_cache_dir() -> Path:
    """Return the folder of the stored tables; raises ConfigError where no home folder is known."""
    return data_folder() / "tables"


def byte_matches(drafter: Vocab, target: Vocab) -> int:
    """Count the drafter tokens whose bytes are also the bytes of a single target token."""
    single = {data for data in target.tokens if data is not None}
    return sum(data in single for data in drafter.tokens)


def _spell_all(tokens: Iterable[bytes | None], speller: Speller) -> list[tuple[int, ...]]:
    tokens = list(tokens)
    distinct = [data for data in dict.fromkeys(tokens) if data is not None]
    known = dict(zip(distinct, speller.spell_many(distinct), strict=True))
    return [() if data is None else known[data] or () for data in tokens]


def _owners(spellings: list[tuple[int, ...]], tokens: Sequence[bytes | None], target_speller: Speller) -> Longs:
    """Return the owner of each spelling: the target token that the target's own rules produce, else the lowest id.

    SentencePiece has every ASCII letter twice, as a byte token with a low id and as the token that encoding produces.
    """
    owner: dict[tuple[int, ...], int] = {}
    again = [t for t, spelling in enumerate(spellings) if spelling and owner.setdefault(spelling, t) != t]
    written = target_speller.spell_many([tokens[t] or b"" for t in again])
    for t, ids in zip(again, written, strict=True):
        if ids and len(ids) == 1 and spellings[ids[0]] == spellings[t]:
            owner[spellings[t]] = ids[0]
    return np.array(sorted(owner.values()), np.int64)


def _ragged(rows: list[tuple[int, ...]]) -> tuple[Longs, Longs]:
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets, np.fromiter(itertools.chain.from_iterable(rows), np.int64, count=int(offsets[-1]))


def _grow(owners: Longs, offsets: Longs, flat: Longs, drafter_size: int) -> tuple[dict[str, Longs], Longs]:
    """Grow the trie one depth at a time; return its symbol, lo, hi and first, and the node of every target token."""
    lengths = np.diff(offsets)
    node = np.full(len(lengths), -1, np.int64)
    node[owners] = ROOT
    alive, depth, start, count = owners, 0, ROOT, 1
    levels = [{"parent": np.array([-1]), "symbol": np.array([-1]), "lo": np.array([0]), "hi": np.array([len(owners)])}]
    while len(alive):
        key = node[alive] * drafter_size + flat[offsets[alive] + depth]
        edges, inverse, sizes = np.unique(key, return_inverse=True, return_counts=True)
        parent, symbol = np.divmod(edges, drafter_size)
        # the token that ends at a node comes first, so the children fill their parent's interval from its end
        total = np.cumsum(sizes)
        behind = total[np.searchsorted(parent, parent, side="right") - 1] - total
        hi = levels[-1]["hi"][parent - start] - behind
        levels.append({"parent": parent, "symbol": symbol, "lo": hi - sizes, "hi": hi})
        node[alive] = count + inverse
        depth += 1
        start, count = count, count + len(edges)
        alive = alive[lengths[alive] > depth]
    trie = {name: np.concatenate([level[name] for level in levels]) for name in levels[0]}
    parent = trie.pop("parent")
    return trie | {"first": np.searchsorted(parent, np.arange(count + 1))}, node


def _table(fingerprint: str, arrays: dict[str, Ints]) -> SpellingTable:
    for array in arrays.values():
        array.flags.writeable = False
    return SpellingTable(
        fingerprint=fingerprint,
        target_size=len(arrays["node"]),
        drafter_size=len(arrays["root"]),
        **arrays,
    )


def _fingerprint(drafter: Vocab, target: Vocab) -> str:
    return hashlib.sha256(f"{TABLE_FORMAT} {drafter.fingerprint} {target.fingerprint}".encode()).hexdigest()


def _digest(arrays: Mapping[str, Ints]) -> str:
    digest = hashlib.sha256()
    for name in _ARRAYS:
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()


def _read(path: Path, fingerprint: str) -> SpellingTable:
    """Read a stored table; raises OSError, SafetensorError or ValueError unless it was written for this pair."""
    with safe_open(path, "numpy") as file:
        metadata = file.metadata() or {}
        arrays: dict[str, Ints] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") != TABLE_FORMAT:
        raise ValueError(f"its format is {metadata.get('format')}, not {TABLE_FORMAT}")
    if metadata.get("fingerprint") != fingerprint:
        raise ValueError("it belongs to another pair of tokenizers")
    if arrays.keys() != set(_ARRAYS) or metadata.get("sha256") != _digest(arrays):
        raise ValueError("its checksum does not match")
    return _table(fingerprint, arrays)


def _write(path: Path, table: SpellingTable) -> None:
    """Store a table in one step: a reader finds the old file, the whole new one or none; raises OSError."""
    arrays = {name: getattr(table, name) for name in _ARRAYS}
    metadata = {"format": TABLE_FORMAT, "fingerprint": table.fingerprint, "sha256": _digest(arrays)}
    storage.make_folder(path.parent)
    storage.replace_file(path, save(arrays, metadata))


_ARRAYS = tuple(
    field.name for field in fields(SpellingTable) if field.name not in ("fingerprint", "target_size", "drafter_size")
)
