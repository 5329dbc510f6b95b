"""What a language model's form costs and loses: time of a pass, perplexity, and whether it says the same."""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from experiments.results import Row
from omnidraft.api import OmniDraft
from omnidraft.cli import prompts
from omnidraft.models.language_model import KVSequence

CONTEXT, SEVERAL = 100, 5  # tokens before a timed pass, and in the longer one


@dataclass(frozen=True)
class Text:
    """Token ids, the last `count` of which are judged."""

    ids: list[int]
    count: int


def resident_mb() -> float:
    """Memory of this process in MB, without what was freed and is kept for later, where the C library can tell."""
    gc.collect()
    with suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    rss: int = psutil.Process().memory_info().rss
    return rss / 1e6


def judged_texts(model: OmniDraft, data: Path | None, count: int) -> list[Text]:
    """Answers of GSM8K's tests, each after its question."""
    texts = []
    for _, row in itertools.islice(prompts.rows_of(prompts.TASKS["gsm8k"], "gsm8k", data, "test"), count):
        answer = model.target.tokenizer(row["answer"], add_special_tokens=False)["input_ids"]
        texts.append(Text([*model.encode_message(prompts.gsm8k_prompt(row)), *answer], len(answer)))
    return texts


def passes(models: Mapping[str, KVSequence], ids: Sequence[int], rows: Sequence[int], repeats: int) -> dict[str, Row]:
    """Tokens a second of reading ids but for the last ones, and milliseconds of passes over `rows` of them.

    Those are medians; models take turns, and keep what they read.
    """
    depth = len(ids) - max(rows)
    found: dict[str, Row] = {}
    for name, lm in models.items():
        lm.crop(0)
        found[name] = {"read_per_s": depth / _seconds(lm, ids[:depth], 1)}
    taken: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _, (name, lm) in itertools.product(range(repeats), models.items()):
        _seconds(lm, ids[depth : depth + 1], 1)  # meanwhile another model leaves the processor's caches and cores
        for count in rows:
            lm.crop(depth)
            taken[name, count].append(_seconds(lm, ids[depth : depth + count], count))
        lm.crop(depth)
    return {name: found[name] | {f"ms_{n}": 1000 * statistics.median(taken[name, n]) for n in rows} for name in found}


def step_costs(models: Mapping[str, KVSequence], ids: Sequence[int], repeats: int) -> dict[str, Row]:
    """Milliseconds of a pass of one token after a short text, and how many times as long one of several takes."""
    text = list(itertools.islice(itertools.cycle(ids), CONTEXT + SEVERAL))
    timed = passes(models, text, (1, SEVERAL), repeats)
    return {name: {"step_ms": row["ms_1"], "verify5": row["ms_5"] / row["ms_1"]} for name, row in timed.items()}


def _seconds(lm: KVSequence, ids: Sequence[int], keep: int) -> float:
    """Seconds of a pass over these ids, with logits of the last `keep`."""
    began = time.perf_counter()
    lm.forward(ids, keep)
    return time.perf_counter() - began


def quality(models: Mapping[str, KVSequence], texts: Sequence[Text]) -> dict[str, Row]:
    """Perplexity of each model on the texts, and how often its best next token is that of the first model."""
    found = {name: _judged(lm, texts) for name, lm in models.items()}
    _, expected = next(iter(found.values()))
    rows = {}
    for name, (loss, best) in found.items():
        same = sum(one == other for one, other in zip(best, expected, strict=True))
        rows[name] = {"perplexity": math.exp(loss), "agreement": same / len(best)}
    return rows


def _judged(lm: KVSequence, texts: Sequence[Text]) -> tuple[float, list[int]]:
    """The mean loss of the tokens that are judged, in nats, and the best token at each of their places."""
    loss = 0.0
    best: list[int] = []
    for text in texts:
        lm.crop(0)
        logits = lm.forward(text.ids[:-1], text.count)
        said = torch.tensor(text.ids[-text.count :])
        loss += float(torch.nn.functional.cross_entropy(logits, said, reduction="sum"))
        best += logits.argmax(-1).tolist()
    lm.crop(0)
    return loss / len(best), best
