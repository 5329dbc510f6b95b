"""Ways to end drafts, each answering against the clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omnidraft.config import Drafting, Sampling
from omnidraft.engine import Engine
from omnidraft.metrics import Stats
from omnidraft.sampling import GeneratorDraw


@dataclass
class Way:
    """One way to end drafts, and what it did."""

    policy: str  # "plain" for none
    drafting: Drafting
    engine: Engine
    seconds: float = 0.0  # of the present repeat
    cpu: float = 0.0  # seconds of the processor for all repeats: what others do on the machine does not count
    tokens: int = 0
    rates: list[float] = field(default_factory=list)  # of the repeats, in tokens a second
    stats: list[Stats] = field(default_factory=list)

    def answer(self, ids: Sequence[int], new_tokens: int, sampling: Sampling, seed: int) -> list[int]:
        """Answer a prompt against the clock."""
        draw = GeneratorDraw(torch.Generator().manual_seed(seed))
        began, busy = time.perf_counter(), time.process_time()
        rounds = list(self.engine.rounds(ids, new_tokens, sampling, draw))
        self.seconds += time.perf_counter() - began
        self.cpu += time.process_time() - busy
        said = [token for record in rounds for token in record.emitted]
        self.tokens += len(said)
        self.stats.append(Stats.of(rounds))
        return said

    def end_repeat(self) -> None:
        """Keep the rate of the answers since the last repeat."""
        self.rates.append(self.tokens / self.seconds)
        self.seconds, self.tokens = 0.0, 0

    @property
    def rate(self) -> float:
        """Tokens a second, the median of the repeats."""
        return statistics.median(self.rates)

    def summary(self) -> dict[str, Any]:
        """What its drafts came to."""
        stats = Stats.sum(self.stats)
        return {
            "draft_len": self.drafting.longest,
            "tokens_per_s": round(self.rate, 3),
            "tokens_per_cpu_s": round(stats.tokens / self.cpu, 3),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "block_efficiency": round(stats.block_efficiency, 4),
            "drafted": round(stats.drafted / stats.rounds, 3),
            "undrafted": round(stats.undrafted / stats.rounds, 4),
            "idle": stats.idle,
        }
