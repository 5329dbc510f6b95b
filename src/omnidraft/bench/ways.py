"""Ways to end drafts, each answering against the clock."""

from __future__ import annotations

import random
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
    repeats: list[dict[str, Any]] = field(default_factory=list)  # what each came to
    _seconds: float = 0.0  # of the present one
    _cpu: float = 0.0  # seconds of the processor: what others do on the machine does not count
    _stats: list[Stats] = field(default_factory=list)

    def answer(self, ids: Sequence[int], new_tokens: int, sampling: Sampling, seed: int) -> list[int]:
        """Answer a prompt against the clock."""
        draw = GeneratorDraw(torch.Generator().manual_seed(seed))
        began, busy = time.perf_counter(), time.process_time()
        rounds = list(self.engine.rounds(ids, new_tokens, sampling, draw))
        self._seconds += time.perf_counter() - began
        self._cpu += time.process_time() - busy
        self._stats.append(Stats.of(rounds))
        return [token for record in rounds for token in record.emitted]

    def warm(self, ids: Sequence[int], new_tokens: int, sampling: Sampling) -> None:
        """Answer a prompt, which does not count."""
        list(self.engine.rounds(ids, new_tokens, sampling, GeneratorDraw(torch.Generator().manual_seed(0))))

    def end_repeat(self) -> None:
        """Keep what the answers since the last repeat came to."""
        stats = Stats.sum(self._stats)
        self.repeats.append(
            {
                "tokens_per_s": round(stats.tokens / self._seconds, 3),
                "tokens_per_cpu_s": round(stats.tokens / self._cpu, 3),
                "acceptance_rate": round(stats.acceptance_rate, 4),
                "block_efficiency": round(stats.block_efficiency, 4),
                "ngram_hits": round(stats.ngrams_accepted / stats.rounds, 4),
                "drafted": round(stats.drafted / stats.rounds, 3),
                "undrafted": round(stats.undrafted / stats.rounds, 4),
                "idle": stats.idle,
            }
        )
        self._seconds, self._cpu, self._stats = 0.0, 0.0, []

    @property
    def rate(self) -> float:
        """Tokens a second, the median of the repeats."""
        return float(over(self.repeats)["tokens_per_s"])

    def summary(self) -> dict[str, Any]:
        """What its drafts came to."""
        return {"draft_len": self.drafting.longest, **over(self.repeats)}


def repeat(
    ways: Sequence[Way],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampling: Sampling,
    order: random.Random,
    seed: int,
) -> bool:
    """Answer every prompt by every way, in turns; whether all said the same, where that is greedy.

    The seed of a prompt's answers is `seed` and its place.
    """
    identical = True
    for number, prompt in enumerate(prompts):
        said = [way.answer(prompt, new_tokens, sampling, seed=seed + number) for way in order.sample(ways, len(ways))]
        identical &= not sampling.greedy or all(tokens == said[0] for tokens in said)
    for way in ways:
        way.end_repeat()
    return identical


def over(repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What repeats came to: the median of each figure, and the last phrase."""
    last = repeats[-1]
    return {
        name: round(statistics.median(each[name] for each in repeats), 4) if isinstance(value, float) else value
        for name, value in last.items()
    }
