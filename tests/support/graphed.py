"""Models whose passes are graphs, on the CPU or where OMNIDRAFT_TEST_DEVICE says, in small buckets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from omnidraft.models.graphs import graphed_model
from omnidraft.models.graphs.graphed_model import GraphedModel, GraphedSequence

DEVICE = torch.device(os.environ.get("OMNIDRAFT_TEST_DEVICE", "cpu"))
BUCKET = 16  # tokens of the smallest bucket here
CLOSE = 1e-5 if DEVICE.type == "cpu" else 1e-4


def graphed(model: PreTrainedModel, *, to_host: bool = False) -> GraphedModel:
    """The model on the device of the tests, with graphs."""
    placed: Any = model.to(DEVICE)  # type: ignore[arg-type]
    return GraphedModel(placed, to_host=to_host)


@contextmanager
def small_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphed_model, "SMALLEST", BUCKET)
        yield


def replays_of(patch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """Count, from now on, the passes by graphs: by the capacity of the bucket and the ids that are read."""
    seen: Counter[tuple[int, int]] = Counter()
    true = GraphedSequence.replay

    def replay(self: GraphedSequence, ids: Sequence[int], keep: int) -> torch.Tensor | None:
        logits = true(self, ids, keep)
        if logits is not None:
            seen[self.cache.capacity, len(ids)] += 1
        return logits

    patch.setattr(GraphedSequence, "replay", replay)
    return seen
