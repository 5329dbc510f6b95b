"""What was learned for one drafter and one target, and the files that hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as arrays_of

from omnidraft.errors import ProfileError
from omnidraft.profiles.manifest import FILES, Setting, check_fields, check_tensor_name

if TYPE_CHECKING:
    import torch

ADAPTER, NGRAMS = FILES
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """What was learned: weights, n-gram records, how they were learned, and counts.

    Holds names, words and numbers only; text that somebody typed is refused with ProfileError.
    """

    tensors: Mapping[str, torch.Tensor]  # the adapter; may be empty
    arrays: Mapping[str, Array]  # the n-gram cache; numbers or booleans
    learning: Mapping[str, Setting]
    counters: Mapping[str, int | float]

    def __post_init__(self) -> None:
        check_fields(self.learning, self.counters)
        for name in (*self.tensors, *self.arrays):
            check_tensor_name(name)
        values: Mapping[str, object] = self.arrays
        for name, array in values.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
                raise ProfileError(f"array {name} is no array of numbers or booleans: leave out what is text")

    def encode(self) -> dict[str, bytes]:
        """The content of the profile's files, by name."""
        # a C order that keeps the shape of scalars
        arrays = {name: array.copy(order="C") for name, array in self.arrays.items()}
        return {ADAPTER: _encode_tensors(self.tensors), NGRAMS: arrays_of.save(arrays)}

    @classmethod
    def decode(
        cls, files: Mapping[str, bytes], learning: Mapping[str, Setting], counters: Mapping[str, int | float]
    ) -> Profile:
        """The profile in such files; raises ProfileError where there is none."""
        try:
            tensors, arrays = _decode_tensors(files[ADAPTER]), arrays_of.load(files[NGRAMS])
        except (SafetensorError, ValueError, LookupError, TypeError) as error:
            raise ProfileError(f"its tensors cannot be read ({error})") from error
        return cls(tensors=tensors, arrays=arrays, learning=learning, counters=counters)


def check_files(files: Mapping[str, bytes]) -> None:
    """Raise ProfileError unless a profile's files can be read; loads no PyTorch."""
    for name, data in files.items():
        try:
            found = safetensors.deserialize(data)
        except SafetensorError as error:
            raise ProfileError(f"{name} cannot be read ({error})") from error
        for tensor, _ in found:
            check_tensor_name(tensor)


def _encode_tensors(tensors: Mapping[str, torch.Tensor]) -> bytes:
    if not tensors:  # PyTorch takes seconds to load
        return arrays_of.save({})
    import torch
    from safetensors import torch as tensors_of

    # safetensors refuses two names of one memory, and what is not contiguous
    own = {n: t.detach().cpu().clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
    return tensors_of.save(own)


def _decode_tensors(data: bytes) -> dict[str, torch.Tensor]:
    if not safetensors.deserialize(data):
        return {}
    from safetensors import torch as tensors_of

    return tensors_of.load(data)
