"""Work on tensors that stay where they are, recorded once and replayed: as a CUDA graph, or on a CPU by a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 2  # calls before a capture, in which libraries choose kernels and allocate what they keep
Outputs = tuple[torch.Tensor, ...]


class Graph:
    """`work` recorded: each replay reads its inputs from the same tensors, and overwrites the same outputs.

    A capture does not compute: outputs are those of the last replay.  On a CPU a replay calls `work`, and copies what
    it returns into the outputs of the first call, so that whoever keeps an output without a copy sees it change there,
    too.  Graphs with a `pool` in common take their memory from it, and must not run at the same time.
    """

    def __init__(self, work: Callable[[], Outputs], device: torch.device, pool: Any = None) -> None:
        self._work = work
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            with torch.cuda.device(device):
                self._graph, self._outputs = _captured(work, pool)
        else:
            self._outputs = work()

    def replay(self) -> Outputs:
        """Run the work, and return its outputs, which the next replay overwrites."""
        if self._graph is not None:
            self._graph.replay()
        else:
            for output, new in zip(self._outputs, self._work(), strict=True):
                output.copy_(new)
        return self._outputs


def _captured(work: Callable[[], Outputs], pool: Any) -> tuple[torch.cuda.CUDAGraph, Outputs]:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(main)
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            work()
    main.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # other threads, such as one that trains, may use the device meanwhile
    with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
        outputs = work()
    return graph, outputs
