"""A profile in memory, and as the bytes of one safetensors file.

The file's header holds the manifest and a SHA-256 of the whole file, in which the checksum itself counts as zeros.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as arrays_of

from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import Key, Manifest, Setting, check_fields, parse

if TYPE_CHECKING:
    import torch

MANIFEST, CHECKSUM = "omnidraft_profile", "sha256"  # names in the header
BLANK = "0" * 64  # the checksum while it is computed
SIZE = 8  # bytes at the beginning of a safetensors file that give the length of its header
Array = NDArray[Any]
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """Learned weights, n-gram records and measurements of the draft-length policy, with learning settings and counters.

    Names, single words and numbers only: text that somebody typed is refused with ProfileError.
    """

    weights: Mapping[str, torch.Tensor]  # the adapter and the acceptance head; may be empty
    ngrams: Mapping[str, Array]  # the n-gram cache; numbers or booleans
    measurements: Mapping[str, Array] = field(default_factory=dict)  # of the draft-length policy, by its name
    learning: Mapping[str, Setting]
    counters: Mapping[str, int | float]

    def __post_init__(self) -> None:
        check_fields(self.learning, self.counters)
        arrays: dict[str, object] = {**self.ngrams, **self.measurements}
        for name in (*self.weights, *arrays):
            if not _NAME.fullmatch(name):
                raise ProfileError(f"a tensor is called {name!r}; use up to 200 letters, digits, dots, dashes and _")
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                raise ProfileError(f"array {name} is no array of numbers or booleans: leave out what is text")

    def encode(self, key: Key) -> bytes:
        """Serialize to the bytes of a profile file, saved now."""
        saved = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest = Manifest(key=key, learning=dict(self.learning), counters=dict(self.counters), saved=saved)
        arrays = {f"ngrams.{name}": array for name, array in self.ngrams.items()}
        arrays |= {f"measurements.{name}": array for name, array in self.measurements.items()}
        data = _serialize(self.weights, arrays, {MANIFEST: manifest.encode(), CHECKSUM: BLANK})
        return data.replace(_entry(BLANK), _entry(hashlib.sha256(data).hexdigest()), 1)

    @classmethod
    def decode(cls, data: bytes) -> Profile:
        """Read the bytes of a profile file, checked by `read_whole`; raises ProfileError for bad tensors."""
        from safetensors import torch as tensors_of

        manifest = read_manifest(data)
        groups: dict[str, dict[str, torch.Tensor]] = {"weights": {}, "ngrams": {}, "measurements": {}}
        try:
            for name, tensor in tensors_of.load(data).items():
                group, _, own = name.partition(".")
                groups[group][own] = tensor
        except (SafetensorError, ValueError, LookupError, TypeError) as error:
            raise ProfileError(f"its tensors cannot be read ({error})") from error
        ngrams, measurements = (
            {name: tensor.numpy() for name, tensor in groups[group].items()} for group in ("ngrams", "measurements")
        )
        return cls(
            weights=groups["weights"],
            ngrams=ngrams,
            measurements=measurements,
            learning=manifest.learning,
            counters=manifest.counters,
        )


def read_manifest(data: bytes) -> Manifest:
    """The manifest in the header that a file begins with; raises ProfileError."""
    return parse(_metadata(data).get(MANIFEST))


def read_whole(data: bytes) -> Manifest:
    """The manifest of a whole file once its checksum was compared; raises ProfileError."""
    checksum = _metadata(data).get(CHECKSUM)
    entry = _entry(str(checksum))
    before, found, after = memoryview(data), data.find(entry), len(entry)
    computed = hashlib.sha256(before[: max(found, 0)])
    computed.update(_entry(BLANK))
    computed.update(before[found + after :])
    if computed.hexdigest() != checksum:
        raise ProfileError("its checksum does not match")
    return read_manifest(data)


def _metadata(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data[SIZE : SIZE + int.from_bytes(data[:SIZE], "little")])["__metadata__"]
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        found = None
    if not isinstance(found, dict) or MANIFEST not in found:
        raise ProfileError("it has no header of a profile")
    return found


def _entry(checksum: str) -> bytes:
    """The checksum as the header has it; quotes inside other strings of the header are escaped."""
    return f'"{CHECKSUM}":"{checksum}"'.encode()


def _serialize(weights: Mapping[str, torch.Tensor], arrays: Mapping[str, Array], metadata: dict[str, str]) -> bytes:
    own = {name: array.copy(order="C") for name, array in arrays.items()}  # keeps the shape of scalars
    if not weights:  # PyTorch takes seconds to load
        return arrays_of.save(own, metadata)
    import torch
    from safetensors import torch as tensors_of

    tensors = {name: torch.from_numpy(array) for name, array in own.items()}
    for name, weight in weights.items():  # safetensors refuses shared memory, and what is not contiguous
        tensors[f"weights.{name}"] = weight.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensors_of.save(tensors, metadata)
