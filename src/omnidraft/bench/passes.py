"""Forward passes: how many a way of decoding makes, and what each costs on quiet models.

Their product is the ceiling of a way of decoding: what it would reach if everything but its passes were free.
"""

from __future__ import annotations

import bisect
import inspect
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.models.kv_cache import new_cache

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

    from omnidraft.models.language_model import LanguageModel

    Runner = PreTrainedModel | LanguageModel  # what does the work of a pass

LAPS = 2  # turns of all probes at a time
TIMED = 3  # passes of a turn; the median over all turns is the cost
WARMING = 5  # passes before them: so many after another text was read, passes still get cheaper
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Pass:
    """One forward pass: tokens fed, tokens in the cache before, and whether only the last logits were kept."""

    tokens: int
    context: int
    last: bool = True

    @property
    def kind(self) -> tuple[bool, bool]:
        """What its cost depends on beside its tokens: whether it begins a text, and what it keeps of it."""
        return self.context == 0, self.last or self.tokens == 1


@contextmanager
def counting(runner: Runner | None) -> Iterator[list[Pass]]:
    """Every forward pass that `runner` makes inside; none where there is no runner."""
    passes: list[Pass] = []
    if runner is None:
        yield passes
    elif isinstance(runner, torch.nn.Module):
        hook = runner.register_forward_pre_hook(
            lambda _, ids, named: passes.append(_seen(ids, named)), with_kwargs=True
        )
        try:
            yield passes
        finally:
            hook.remove()
    else:
        forward = runner.forward

        def counted(ids: Sequence[int], keep: int) -> torch.Tensor:
            passes.append(Pass(len(ids), runner.length, keep <= 1))
            return forward(ids, keep)

        setattr(runner, "forward", counted)  # noqa: B010  shadows the class's own until it is deleted
        try:
            yield passes
        finally:
            delattr(runner, "forward")


def _seen(ids: tuple[torch.Tensor, ...], named: Mapping[str, Any]) -> Pass:
    cache = named.get("past_key_values")
    fed = ids[0] if ids else named["input_ids"]  # (1, T)
    # what `transformers` keeps where it is not told: all
    return Pass(fed.shape[1], cache.get_seq_length() if cache is not None else 0, named.get("logits_to_keep", 0) == 1)


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass by its kind and the tokens it is fed: (tokens, seconds) in ascending order, linear between."""

    points: Mapping[tuple[bool, bool], Sequence[tuple[int, float]]]

    def total(self, passes: Sequence[Pass]) -> float:
        """Seconds that all these passes take."""
        counts = Counter((made.kind, made.tokens) for made in passes)
        return sum(count * between(self.points[kind], tokens) for (kind, tokens), count in counts.items())


def between(points: Sequence[tuple[int, float]], size: int) -> float:
    """The value at `size`, linear between the points; beyond them, on the line through the two nearest."""
    if len(points) == 1:
        return points[0][1]
    right = min(max(bisect.bisect_left([x for x, _ in points], size), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1 : right + 1]
    return y0 + (y1 - y0) * (size - x0) / (x1 - x0)


def covering(sizes: Sequence[int]) -> list[int]:
    """The sizes to probe: those of SIZES that these lie between."""
    if not sizes:
        return []
    first = bisect.bisect_right(SIZES, min(sizes)) - 1
    return list(SIZES[first : bisect.bisect_left(SIZES, max(sizes)) + 1])


class Bare:
    """A `transformers` model with a cache and nothing around it; by default the cache that costs least."""

    def __init__(self, model: PreTrainedModel, make_cache: Callable[[], DynamicCache] = new_cache) -> None:
        self._model, self._make_cache = model, make_cache
        self.length = 0
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.crop(0)

    @torch.inference_mode()
    def forward(self, ids: Sequence[int], keep: int) -> None:
        select = {"logits_to_keep": keep} if self._selects else {}
        inputs = torch.tensor([ids], device=self._model.device)
        logits = self._model(inputs, past_key_values=self._cache, use_cache=True, **select).logits
        logits.flatten()[0].item()  # waits for a GPU
        self.length += len(ids)

    def crop(self, length: int) -> None:
        if length == 0:
            self._cache = self._make_cache()
        elif length < self.length:
            self._cache.crop(length - self.length)  # negative: so many tokens less
        self.length = length


@dataclass(frozen=True)
class _Probe:
    """A pass whose cost is measured."""

    model: int
    kind: tuple[bool, bool]
    size: int
    context: int


class Prober:
    """Measures what passes of some runners cost, at a context in the middle of theirs.

    With each runner come its passes, and the most tokens that its cache holds.
    """

    def __init__(self, made: Sequence[tuple[Runner, Sequence[Pass], int]]) -> None:
        self._models = [Bare(runner) if isinstance(runner, torch.nn.Module) else runner for runner, _, _ in made]
        self._taken: dict[_Probe, list[float]] = {}
        for number, (_, passes, limit) in enumerate(made):
            for kind in dict.fromkeys(one.kind for one in passes):
                its = [one for one in passes if one.kind == kind]
                largest = max(one.tokens for one in its)
                context = min(int(statistics.median(one.context for one in its)), limit - largest)
                for size in covering([one.tokens for one in its]):
                    self._taken[_Probe(number, kind, min(size, limit - context), context)] = []

    def lap(self) -> None:
        """Take every probe once more, one after the other."""
        for _ in range(LAPS):
            for probe, times in self._taken.items():
                times.extend(_timed(self._models[probe.model], probe))

    def costs(self) -> list[Costs]:
        """For each runner the medians over all laps."""
        points: list[dict[tuple[bool, bool], list[tuple[int, float]]]] = [{} for _ in self._models]
        for probe, times in sorted(self._taken.items(), key=lambda item: item[0].size):
            points[probe.model].setdefault(probe.kind, []).append((probe.size, statistics.median(times)))
        return [Costs(its) for its in points]


def _timed(model: Bare | LanguageModel, probe: _Probe) -> list[float]:
    """Seconds of such passes in a row, as the steps of a text are."""
    begins, last = probe.kind
    if model.length != probe.context:
        model.crop(0)
        if probe.context:
            model.forward([0] * probe.context, 1)
    warming = 1 if begins else WARMING  # a prompt comes after another text
    seconds = []
    for _ in range(warming + TIMED):
        began = time.perf_counter()
        model.forward([0] * probe.size, 1 if last else probe.size)
        seconds.append(time.perf_counter() - began)
        model.crop(probe.context)
    return seconds[warming:]
