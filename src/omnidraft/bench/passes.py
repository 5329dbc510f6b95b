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

from omnidraft.kv import new_cache

if TYPE_CHECKING:
    from transformers import DynamicCache, PreTrainedModel

    from omnidraft.models import LanguageModel

    Runner = PreTrainedModel | LanguageModel  # what does the work of a pass

LAPS = 5  # turns of a probe
TIMED = 3  # passes of a turn; the median over all turns is the cost
WARMING = 5  # passes before them: so many after another text was read, passes still get cheaper
SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Pass:
    """One forward pass: tokens fed, and tokens that were in the cache before."""

    tokens: int
    context: int


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
            passes.append(Pass(len(ids), runner.length))
            return forward(ids, keep)

        setattr(runner, "forward", counted)  # noqa: B010  shadows the class's own until it is deleted
        try:
            yield passes
        finally:
            delattr(runner, "forward")


def _seen(ids: tuple[torch.Tensor, ...], named: Mapping[str, Any]) -> Pass:
    cache = named.get("past_key_values")
    fed = ids[0] if ids else named["input_ids"]  # (1, T)
    return Pass(fed.shape[1], cache.get_seq_length() if cache is not None else 0)


@dataclass(frozen=True)
class Costs:
    """Seconds of a pass by the tokens it is fed: (tokens, seconds) in ascending order, linear in between.

    `step` are passes in the middle of a text, all logits kept; `prompt` those that begin one, only the last kept.
    """

    step: Sequence[tuple[int, float]] = ()
    prompt: Sequence[tuple[int, float]] = ()

    def total(self, passes: Sequence[Pass]) -> float:
        """Seconds that all these passes take."""
        counts = Counter((made.tokens, made.context > 0) for made in passes)
        return sum(
            count * between(self.step if inside else self.prompt, tokens) for (tokens, inside), count in counts.items()
        )


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


def measure(made: Sequence[tuple[Runner, Sequence[Pass]]], limit: int) -> list[Costs]:
    """What the passes of each runner cost: medians of probes that take turns, at a context in the middle of theirs.

    `limit` is the most tokens that every cache holds; longer passes are priced from shorter ones.
    """
    models = [Bare(runner) if isinstance(runner, torch.nn.Module) else runner for runner, _ in made]
    taken: dict[tuple[int, bool, int], list[float]] = {}
    contexts = []
    for number, (_, passes) in enumerate(made):
        inside = [one.context for one in passes if one.context]
        contexts.append(int(statistics.median(inside)) if inside else 0)
        for step in (True, False):
            room = limit - (contexts[-1] if step else 0)
            sizes = covering([one.tokens for one in passes if (one.context > 0) == step])
            taken |= {(number, step, min(size, room)): [] for size in sizes}
    for _ in range(LAPS):
        for (number, step, size), times in taken.items():
            times.extend(_probe(models[number], size, contexts[number] if step else 0, step=step))
    points = {key: statistics.median(times) for key, times in taken.items()}

    def of(number: int, *, step: bool) -> list[tuple[int, float]]:
        return sorted((size, s) for (n, kind, size), s in points.items() if (n, kind) == (number, step))

    return [Costs(of(number, step=True), of(number, step=False)) for number in range(len(made))]


def _probe(model: Bare | LanguageModel, size: int, context: int, *, step: bool) -> list[float]:
    """Seconds of passes of `size` tokens after `context` others: in a row, as the steps of a text are."""
    if model.length != context:
        model.crop(0)
        if context:
            model.forward([0] * context, 1)
    warming = WARMING if step else 1  # a prompt comes after another text
    seconds = []
    for _ in range(warming + TIMED):
        began = time.perf_counter()
        model.forward([0] * size, size if step else 1)
        seconds.append(time.perf_counter() - began)
        model.crop(context)
    return seconds[warming:]
