"""Models of `transformers` whose short passes are graphs, over KV caches in buckets of fixed lengths."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.errors import ModelError
from omnidraft.models.graphs.bucket_cache import BucketCache
from omnidraft.models.graphs.graph import Graph, Outputs
from omnidraft.models.hybrid_checks import LOGITS, ROUNDED_LOGITS, distance
from omnidraft.models.language_model import Read, check_crop
from omnidraft.models.memory import is_shortage
from omnidraft.models.transformers_model import (
    HiddenStateHook,
    TransformersModel,
    TransformersSequence,
    has_states,
    tap,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS = (1, 2, 3, 5, 9, 17)  # tokens of a pass that has a graph; a pass is padded to the next
SMALLEST = 512  # tokens of the smallest bucket; each other one is twice as long as the one before
PROBED = (4, 1, 4)  # ids of the passes of a probe: one without a graph, one of a row, one that is padded
WITHOUT = "leave graphs out"


class GraphedModel(TransformersModel):
    """A `transformers` causal language model whose passes of a few tokens are graphs.

    A graph has one launch where the model itself has hundreds.  It is recorded when a sequence first needs it, and
    reads the number of tokens before it from the device.  With `to_host` logits are returned on the CPU, for a drafter:
    whatever draws and decides there would else read them back one by one.  Raises ModelError for a model that cannot be
    recorded: a probe compares its passes with and without.
    """

    def __init__(self, model: PreTrainedModel, *, to_host: bool = False) -> None:
        if has_states(model):
            raise ModelError(
                f"model {model.name_or_path!r} has states besides keys and values, which no graph restores: {WITHOUT}"
            )
        super().__init__(model)
        self.to_host = to_host
        # graphs of all sequences take their memory from one pool, as they never run at the same time
        self.pool: Any = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        # inputs of all graphs: the number of tokens before the pass, and the ids
        self.inputs = torch.zeros(1 + ROWS[-1], dtype=torch.int64, device=self.device)
        self._probe()

    def new_sequence(self, *, hidden: bool = False) -> GraphedSequence:
        return GraphedSequence(self, tap(self.model) if hidden else None)

    def _read(self, read: Read) -> torch.Tensor:
        sequence: Any = read.sequence
        logits: torch.Tensor | None = sequence.replay(read.ids, read.keep)
        if logits is None:
            sequence.reserve(sequence.length + len(read.ids))
            logits = super()._read(read)
        return logits.cpu() if self.to_host else logits

    def logits(self, cache: BucketCache, inputs: torch.Tensor) -> torch.Tensor:
        """Append ids (1, T) to a cache; the logits of all of them, (T, V)."""
        logits: torch.Tensor = self.model(inputs, use_cache=True, **{self._cache_argument: cache}).logits[0]
        return logits

    @torch.inference_mode()
    def _probe(self) -> None:
        """Raise ModelError unless passes over the buckets say what others do."""
        ids = [(7919 * place + 1) % self.vocab_size for place in range(sum(PROBED))]
        limit = LOGITS if self.dtype in (torch.float32, torch.float64) else ROUNDED_LOGITS
        expected = self.run(self.new_cache(), ids, 0, len(ids)).float().cpu()
        sequence, start = self.new_sequence(), 0
        for count in PROBED:
            end = start + count
            try:
                rows = self._read(Read(sequence, ids[start:end], count)).cpu()
            except (RuntimeError, ValueError) as error:  # a capture refuses what reads from the device
                if is_shortage(error):
                    raise
                reason = textwrap.shorten(str(error), 200, placeholder=" ...")
                raise ModelError(f"model {self.name!r} cannot be recorded as a graph ({reason}): {WITHOUT}") from error
            if distance(expected[start:end], rows) > limit:
                kind = type(self.model).__name__
                raise ModelError(f"model {self.name!r} ({kind}) computes otherwise over a cache in buckets: {WITHOUT}")
            start = end


class GraphedSequence(TransformersSequence):
    """A text in a cache of one bucket or another, batch 1; buffers and graphs stay for the next text."""

    model: GraphedModel
    cache: BucketCache

    def __init__(self, model: GraphedModel, tap: HiddenStateHook | None) -> None:
        super().__init__(model, tap)
        self.caches: dict[int, BucketCache] = {}  # by capacity
        self.graphs: dict[tuple[int, int], Graph] = {}  # by capacity and rows
        self.cache = self._bucket(0)

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(cache.nbytes for cache in self.caches.values())

    def _bucket(self, length: int) -> BucketCache:
        """The cache of the smallest bucket for this many tokens."""
        capacity = SMALLEST
        while capacity < length:
            capacity *= 2
        return self.caches.setdefault(capacity, BucketCache(capacity))

    def reserve(self, length: int) -> None:
        """Move to a larger bucket where this many tokens need one."""
        if length > self.cache.capacity:
            larger = self._bucket(length)
            self.cache.copy_into(larger)
            self.cache = larger

    def replay(self, ids: Sequence[int], keep: int) -> torch.Tensor | None:
        """Append a few ids by a graph, and return the logits of the last `keep` of them; None where there is none.

        Buffers are allocated by the first pass of a text, which has none, and padding has no room at the context's end.
        """
        count, model = len(ids), self.model
        rows = next((rows for rows in ROWS if rows >= count), None)
        if rows is None or not keep or not self.length or self.length + rows > model.context:
            return None
        self.reserve(self.length + rows)
        # what padding writes is after the text: it is masked, and overwritten by the next pass
        model.inputs[: 1 + rows] = torch.tensor([self.length, *ids, *[0] * (rows - count)])
        graph = self.graphs.get((self.cache.capacity, rows))
        if graph is None:
            graph = Graph(partial(self.work, self.cache, rows), model.device, model.pool)
            self.graphs[self.cache.capacity, rows] = graph
        logits, *hidden = graph.replay()
        self.length += count
        self.cache.hold(self.length)
        # copies: the next replay overwrites these
        self.hidden = hidden[0][count - 1].clone() if hidden else None
        place = "cpu" if model.to_host else logits.device
        return logits[count - keep : count].to(place, torch.float32, copy=True)

    def work(self, cache: BucketCache, rows: int) -> Outputs:
        """What a graph records: logits (rows, V), and the input of the LM head (rows, H) where that is kept."""
        with cache.by_index(self.model.inputs[0]):
            logits = self.model.logits(cache, self.model.inputs[None, 1 : 1 + rows])
        return (logits,) if self._tap is None or self._tap.last is None else (logits, self._tap.last[0])

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens of the cache; an empty text begins in the smallest bucket."""
        check_crop(length, self.length)
        self.length = length
        if length == 0:
            self.cache = self._bucket(0)
        self.cache.hold(length)
