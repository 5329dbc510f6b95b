"""Weights as step.c takes them, made of a model's named weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from omnidraft.errors import ModelError
from omnidraft.models.native.packed_matrices import (
    FLOAT_TYPES,
    GGML_TYPES,
    InFile,
    Packed,
    Stored,
    StoredWeights,
    quantized_q5_1,
)
from omnidraft.models.native.step import Rounded

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of weights that are what they say
Weights = Mapping[str, torch.Tensor]
Order = np.ndarray[Any, Any]  # (rows) which row of those that are stored is where
Orders = Mapping[str, Order]


class RoundedWeights(NamedTuple):
    """All weights of a model as step.c takes them, which can go to another process."""

    matrices: dict[str, Rounded | Packed]  # by first layer
    vectors: dict[str, torch.Tensor]


class Parts:
    """Matrices and vectors by name, which keep the memory that step.c points to.

    They are those of `own` where it has the name, else of `base`; rounded ones are used where they are.  Others are
    rounded to 5 bits for a model that `drafts`, and to 8 for others.  Raises ModelError for weights that are missing or
    not of their shape.
    """

    def __init__(
        self, base: Weights, own: Weights | RoundedWeights, shapes: Mapping[str, torch.Size], *, drafts: bool
    ) -> None:
        self.matrices: dict[str, Rounded | Packed] = {}
        self.in_file: dict[str, InFile] = {}  # those whose rows alone are asked for
        self._vectors: dict[str, torch.Tensor] = {}
        self._changed: list[torch.Tensor] = []
        self._own, self._ready = (own.vectors, own.matrices) if isinstance(own, RoundedWeights) else (own, {})
        self._base, self._shapes, self._drafts = base, shapes, drafts

    def rounded_weights(self) -> RoundedWeights:
        """The weights made so far."""
        return RoundedWeights(self.matrices, self._vectors)

    @property
    def nbytes(self) -> int:
        """Memory of the matrices, which the source does not share."""
        return sum(matrix.nbytes for matrix in self.matrices.values())

    def vector(self, name: str, plus: float = 0.0, times: float = 1.0) -> torch.Tensor:
        """A vector in float32, changed where it is asked for."""
        if name not in self._vectors:  # two parts of a layer may have one
            self._vectors[name] = self._get(name).float().contiguous()
        found = self._vectors[name]
        if (plus, times) != (0.0, 1.0):
            found = (found + plus) * times
            self._changed.append(found)
        return found

    def matrix(self, *names: str, orders: Orders | None = None) -> Rounded | Packed:
        """The matrices of these layers, one below the other, as the source's file holds them where they can be.

        `orders` says of some which of its rows is where.
        """
        if names[0] in self._ready:
            self.matrices[names[0]] = self._ready[names[0]]
            return self.matrices[names[0]]
        placed = [None if orders is None else orders.get(name) for name in names]
        biases = [
            _in_order(self._get(f"{name}.bias"), order)
            for name, order in zip(names, placed, strict=True)
            if f"{name}.bias" in self._shapes
        ]
        stored = [part for name in names if (part := self._stored(name)) is not None]
        # numbers of 16 or 32 bits would take two to four times as long as when they are rounded to 8
        if len(stored) == len(names) and not all(part.kind in FLOAT_TYPES for part in stored):
            each: Sequence[torch.Tensor | None] = biases or [None] * len(names)
            self.matrices[names[0]] = Packed(*(Stored.placed(*one) for one in zip(stored, placed, each, strict=True)))
            return self.matrices[names[0]]
        weights = [_in_order(self._get(f"{name}.weight"), order) for name, order in zip(names, placed, strict=True)]
        whole = names[0], torch.cat(weights) if len(names) > 1 else weights[0], torch.cat(biases) if biases else None
        made = quantized_q5_1(*whole) if self._drafts else None
        self.matrices[names[0]] = made or Rounded(*whole)
        return self.matrices[names[0]]

    def looked_up(self, name: str) -> Rounded | Packed | InFile:
        """The matrix of a layer whose rows alone are asked for: it stays in the source's file where it can."""
        stored = None if name in self._ready else self._stored(name)
        if stored is None or stored.order is not None:
            return self.matrix(name)
        self.in_file[name] = InFile(stored)
        return self.in_file[name]

    def _stored(self, name: str) -> Stored | None:
        """The matrix as the source's file holds it, where it is to be used, and of a kind that step.c takes."""
        if not isinstance(self._base, StoredWeights) or f"{name}.weight" in self._own:
            return None
        found = self._base.stored(f"{name}.weight")
        return found if found is not None and found.kind in GGML_TYPES else None

    def _get(self, name: str) -> torch.Tensor:
        found = self._own.get(name)
        if found is None:
            found = self._base.get(name)
        if found is None or found.shape != self._shapes[name] or found.dtype not in DTYPES:
            fault = "missing" if found is None else f"of another shape or type, {tuple(found.shape)} of {found.dtype}"
            raise ModelError(f"weights {name} are {fault}: get the complete files of the model")
        return found.detach()


def _in_order(rows: torch.Tensor, order: Order | None) -> torch.Tensor:
    return rows if order is None else rows[torch.from_numpy(order)]
