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
    Q8_0,
    BlockGroup,
    StoredEmbedding,
    StoredMatrix,
    StoredWeights,
    quantized_q5_1,
)
from omnidraft.models.native.step import Int8Group

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # of weights that are what they say
Weights = Mapping[str, torch.Tensor]
Order = np.ndarray[Any, Any]  # (rows) which row of those that are stored is where
Orders = Mapping[str, Order]


class PackedWeights(NamedTuple):
    """All weights of a model as step.c takes them, which can go to another process."""

    groups: dict[str, Int8Group | BlockGroup]  # by the name of the first matrix
    vectors: dict[str, torch.Tensor]


class LayerWeights:
    """Groups of matrices and vectors by name, which keep the memory that step.c points to.

    They are those of `overrides` where it has the name, else of `base`; packed ones are used where they are.  Others
    are rounded to 5 bits for a model that `drafts`, and to 8 for others.  Raises ModelError for weights that are
    missing or not of their shape.
    """

    def __init__(
        self, base: Weights, overrides: Weights | PackedWeights, shapes: Mapping[str, tuple[int, ...]], *, drafts: bool
    ) -> None:
        self.groups: dict[str, Int8Group | BlockGroup] = {}
        self.in_file: dict[str, StoredEmbedding] = {}  # those whose rows alone are asked for
        self._vectors: dict[str, torch.Tensor] = {}
        self._changed: list[torch.Tensor] = []
        self._overrides, self._packed = (
            (overrides.vectors, overrides.groups) if isinstance(overrides, PackedWeights) else (overrides, {})
        )
        self._base, self._shapes, self._drafts = base, shapes, drafts

    def packed_weights(self) -> PackedWeights:
        """The weights packed so far."""
        return PackedWeights(self.groups, self._vectors)

    @property
    def nbytes(self) -> int:
        """Memory of the groups, which the source does not share."""
        return sum(group.nbytes for group in self.groups.values())

    def vector(self, name: str, plus: float = 0.0, times: float = 1.0) -> torch.Tensor:
        """A vector in float32, changed where it is asked for."""
        if name not in self._vectors:  # two norms of a layer may have one
            self._vectors[name] = self._get(name).float().contiguous()
        vector = self._vectors[name]
        if (plus, times) != (0.0, 1.0):
            vector = (vector + plus) * times
            self._changed.append(vector)
        return vector

    def group(self, *names: str, orders: Orders | None = None) -> Int8Group | BlockGroup:
        """The group of these matrices, one below the other, as the source's file holds them where they can be.

        `orders` says of some which of its rows is where.
        """
        if names[0] in self._packed:
            self.groups[names[0]] = self._packed[names[0]]
            return self.groups[names[0]]
        placed = [None if orders is None else orders.get(name) for name in names]
        biases = [
            _in_order(self._get(f"{name}.bias"), order)
            for name, order in zip(names, placed, strict=True)
            if f"{name}.bias" in self._shapes
        ]
        stored = [matrix for name in names if (matrix := self._stored(name)) is not None]
        # numbers of 16 or 32 bits would take two to four times as long as when they are rounded to 8, and a drafter's
        # of 8 bits half as long again as of 5
        long = (*FLOAT_TYPES, Q8_0) if self._drafts else FLOAT_TYPES
        if len(stored) == len(names) and not all(matrix.kind in long for matrix in stored):
            each: Sequence[torch.Tensor | None] = biases or [None] * len(names)
            self.groups[names[0]] = BlockGroup(
                *(StoredMatrix.placed(*one) for one in zip(stored, placed, each, strict=True))
            )
            return self.groups[names[0]]
        weights = [_in_order(self._get(f"{name}.weight"), order) for name, order in zip(names, placed, strict=True)]
        whole = names[0], torch.cat(weights) if len(names) > 1 else weights[0], torch.cat(biases) if biases else None
        blocks = quantized_q5_1(*whole) if self._drafts else None
        self.groups[names[0]] = blocks or Int8Group(*whole)
        return self.groups[names[0]]

    def embedding(self, name: str) -> Int8Group | BlockGroup | StoredEmbedding:
        """A matrix whose rows alone are asked for: it stays in the source's file where it can.

        A drafter's does not, as a file that is changed would end its target's answers.
        """
        stored = None if self._drafts or name in self._packed else self._stored(name)
        if stored is None or stored.order is not None:
            return self.group(name)
        self.in_file[name] = StoredEmbedding(stored)
        return self.in_file[name]

    def _stored(self, name: str) -> StoredMatrix | None:
        """The matrix as the source's file holds it, where it is to be used, and of a kind that step.c takes."""
        if not isinstance(self._base, StoredWeights) or f"{name}.weight" in self._overrides:
            return None
        matrix = self._base.stored(f"{name}.weight")
        return matrix if matrix is not None and matrix.kind in GGML_TYPES else None

    def _get(self, name: str) -> torch.Tensor:
        weight = self._overrides.get(name)
        if weight is None:
            weight = self._base.get(name)
        if weight is None or weight.shape != self._shapes[name] or weight.dtype not in DTYPES:
            fault = (
                "missing" if weight is None else f"of another shape or type, {tuple(weight.shape)} of {weight.dtype}"
            )
            raise ModelError(f"weights {name} are {fault}: get the complete files of the model")
        return weight.detach()


def _in_order(rows: torch.Tensor, order: Order | None) -> torch.Tensor:
    return rows if order is None else rows[torch.from_numpy(order)]
