"""Ways to end drafts, which answer side by side against the clock.

Machines are now slower, now faster, for seconds at a time, and by more than ways differ.  So all ways answer a prompt
at once: a few tokens of one, a few of the next.  Each needs KV caches of its own for that.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.stats import Stats
from omnidraft.models.language_model import TransformersModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler

TURN = 4  # tokens: the first of them finds little in the caches of the processor that its way left there
UNITS = ("tokens_per_s", "tokens_per_cpu_s")


@dataclass
class Way:
    """One way to end drafts, and what it did; no two may share what the models of their engines hold of a text."""

    policy: str  # "plain" for none
    drafting: Drafting
    engine: Engine
    repeats: list[dict[str, Any]] = field(default_factory=list)  # what each came to
    _seconds: float = 0.0  # of the present one
    _cpu: float = 0.0  # seconds of the processor: what others do on the machine does not count
    _stats: list[Stats] = field(default_factory=list)
    _rounds: Iterator[Round] = field(default_factory=lambda: iter(()))  # of the present answer
    _done: list[Round] = field(default_factory=list)  # those that were made
    _length: int = 0  # tokens of it

    def begin(self, ids: Sequence[int], new_tokens: int, sampling: Sampling, seed: int) -> None:
        """Begin to answer a prompt."""
        draw = GeneratorSampler(torch.Generator().manual_seed(seed))
        self._rounds, self._done, self._length = self.engine.rounds(ids, new_tokens, sampling, draw), [], 0

    def go_on(self, length: int) -> bool:
        """Decode against the clock until the answer has so many tokens; False where it ends before that."""
        began, busy = time.perf_counter(), time.process_time()
        while self._length < length and (record := next(self._rounds, None)) is not None:
            self._done.append(record)
            self._length += len(record.emitted)
        self._seconds += time.perf_counter() - began
        self._cpu += time.process_time() - busy
        return self._length >= length

    def end(self) -> list[int]:
        """The answer, which counts from now on."""
        self._stats.append(Stats.of(self._done))
        return [token for record in self._done for token in record.emitted]

    def warm(self, ids: Sequence[int], new_tokens: int, sampling: Sampling) -> None:
        """Answer a prompt, which does not count."""
        list(self.engine.rounds(ids, new_tokens, sampling, GeneratorSampler(torch.Generator().manual_seed(0))))

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
                "undrafted": round(stats.rounds_without_draft / stats.rounds, 4),
                "idle": stats.no_draft_reason,
            }
        )
        self._seconds, self._cpu, self._stats = 0.0, 0.0, []

    @property
    def rate(self) -> float:
        """Tokens a second, the median of the repeats."""
        return float(over(self.repeats)["tokens_per_s"])

    def summary(self) -> dict[str, Any]:
        """What its drafts came to."""
        return {"draft_length": self.drafting.longest, **over(self.repeats)}


def repeat(
    ways: Sequence[Way],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    sampling: Sampling,
    order: random.Random,
    seed: int,
) -> bool:
    """Answer every prompt by every way, a few tokens in turns; whether all said the same, where that is greedy.

    The seed of a prompt's answers is `seed` and its place.
    """
    identical = True
    for number, prompt in enumerate(prompts):
        for way in ways:
            way.begin(prompt, new_tokens, sampling, seed=seed + number)
        going, length = list(ways), 0
        while going:
            length += TURN
            going = [way for way in order.sample(going, len(going)) if way.go_on(length)]
        said = [way.end() for way in ways]
        identical &= not sampling.greedy or all(tokens == said[0] for tokens in said)
    for way in ways:
        way.end_repeat()
    return identical


def apart(model: TransformersModel) -> TransformersModel:
    """The same weights with a KV cache of its own."""
    return TransformersModel(model.model)


def over(repeats: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What repeats came to: the median of each figure, and the last phrase."""
    last = repeats[-1]
    return {
        name: round(statistics.median(each[name] for each in repeats), 4) if isinstance(value, float) else value
        for name, value in last.items()
    }
