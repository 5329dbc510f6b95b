"""`omnidraft bench stopping`: what each stop policy is worth, beside draft lengths that are fixed and no drafts at all.

All ways answer a prompt in turns.  Each has n-grams and, where it learns, measurements of its own: n-grams begin anew
with each repeat, measurements with each cell.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from omnidraft import flags
from omnidraft.api import OmniDraft, load
from omnidraft.bench import hopeless, prompts, setting
from omnidraft.bench.options import writing
from omnidraft.config import Drafting, Sampling
from omnidraft.engine import Engine
from omnidraft.metrics import Stats
from omnidraft.pairing import make_cache
from omnidraft.rate import make_stopping
from omnidraft.sampling import GeneratorDraw

Row = dict[str, Any]
TASKS = ("gsm8k", "mbpp")
IN_TURNS = "gsm8k and mbpp in turns"
TEMPERATURES = (0.0, 1.0)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8)
FULL = {"count": 50, "repeats": 3, "max_new_tokens": 96, "hopeless": 200}
QUICK = {"count": 2, "repeats": 1, "max_new_tokens": 48, "hopeless": 8}
QUICK_LENGTHS = (1, 2, 4)


@dataclass
class Way:
    """One way to end drafts, and what it did."""

    policy: str  # "plain" for none
    drafting: Drafting
    engine: Engine
    seconds: float = 0.0  # of the present repeat
    tokens: int = 0
    rates: list[float] = field(default_factory=list)  # of the repeats
    stats: list[Stats] = field(default_factory=list)

    def answer(self, ids: Sequence[int], new_tokens: int, sampling: Sampling, seed: int) -> list[int]:
        """Answer a prompt against the clock."""
        draw = GeneratorDraw(torch.Generator().manual_seed(seed))
        began = time.perf_counter()
        rounds = list(self.engine.rounds(ids, new_tokens, sampling, draw))
        self.seconds += time.perf_counter() - began
        said = [token for record in rounds for token in record.emitted]
        self.tokens += len(said)
        self.stats.append(Stats.of(rounds))
        return said

    def end_repeat(self) -> None:
        self.rates.append(self.tokens / self.seconds)
        self.seconds, self.tokens = 0.0, 0


def ways(model: OmniDraft, lengths: Sequence[int]) -> list[Way]:
    """Plain decoding, fixed lengths, and the policies."""
    made = [("plain", Drafting(draft_len=0))]
    made += [("fixed", Drafting(draft_len=length, stopping="fixed")) for length in lengths]
    made += [(name, Drafting(stopping=name)) for name in ("confidence", "entropy", "rate")]
    return [Way(name, drafting, fresh(model, drafting)) for name, drafting in made]


def fresh(model: OmniDraft, drafting: Drafting, before: Engine | None = None) -> Engine:
    """An engine with n-grams of its own, and the measurements of the one before it."""
    pair = model.engine.pair
    if pair is None:
        raise ValueError("a comparison of stop policies needs a drafter")
    if drafting.draft_len == 0:
        return Engine(model.engine.target, sorted(model.engine.eos))
    own = replace(pair, cache=make_cache(pair.cache.table, drafting))
    stopping = before.stopping if before else make_stopping(drafting)
    return Engine(model.engine.target, sorted(model.engine.eos), own, drafting, stopping)


def cell(
    model: OmniDraft, ids: Sequence[list[int]], sampling: Sampling, sizes: dict[str, int], lengths: Sequence[int]
) -> Iterator[Row]:
    """Rows of one target, task and temperature; greedy answers must all be the same."""
    compared = ways(model, lengths)
    order = random.Random(0)  # noqa: S311  an order, not a secret
    identical = True
    for repeat in range(sizes["repeats"]):
        for way in compared:
            way.engine = fresh(model, way.drafting, way.engine)
        for number, prompt in enumerate(ids):
            said = [
                way.answer(prompt, sizes["max_new_tokens"], sampling, seed=1000 * repeat + number)
                for way in order.sample(compared, len(compared))
            ]
            identical &= not sampling.greedy or all(tokens == said[0] for tokens in said)
        for way in compared:
            way.end_repeat()
    plain = statistics.median(compared[0].rates)
    for way in compared:
        stats = Stats.sum(way.stats)
        yield {
            "policy": way.policy,
            "draft_len": way.drafting.longest,
            "tokens_per_s": round(statistics.median(way.rates), 3),
            "plain_tokens_per_s": round(plain, 3),
            "acceptance_rate": round(stats.acceptance_rate, 4),
            "block_efficiency": round(stats.block_efficiency, 4),
            "drafted": round(stats.drafted / stats.rounds, 3),
            "undrafted": round(stats.undrafted / stats.rounds, 4),
            "idle": stats.idle,
            "identical": identical if sampling.greedy else None,
        }


def main(options: argparse.Namespace, console: Console) -> int:
    """Measure; 1 where a greedy answer was not the target's own."""
    if options.threads:
        torch.set_num_threads(options.threads)
    flags.quiet_libraries()
    sizes = {name: getattr(options, name) or size for name, size in (QUICK if options.quick else FULL).items()}
    lengths = QUICK_LENGTHS if options.quick else LENGTHS
    texts = {task: [each.text for each in prompts.read(task, options.data, sizes["count"])] for task in TASKS}
    texts[IN_TURNS] = list(chain.from_iterable(zip(*texts.values(), strict=False)))
    if options.out is not None:
        with writing(options.out):
            pass
    models = [load(name, options.drafter, dtype=options.dtype, profile=None) for name in options.target]
    result: Row = {
        "settings": {**setting.machine(models[0].target.lm.device), "sizes": sizes},
        "command": setting.command(options.arguments),
        "cells": [],
        "never_slower": [],
    }
    for model in models:
        for task, its in texts.items():
            ids = [model.encode_message(text) for text in its]
            for temperature in TEMPERATURES:
                about = {"target": model.target.name, "task": task, "temperature": temperature}
                for row in cell(model, ids, Sampling(temperature=temperature), sizes, lengths):
                    result["cells"].append(about | row)
                _say(console, result["cells"])
                _write(result, options.out)
        for row in hopeless.cases(model, [model.encode_message(text) for text in texts[TASKS[0]]], sizes["hopeless"]):
            result["never_slower"].append({"target": model.target.name, **row})
            console.print(f"{model.target.name}: {row['case']}: {row['ratio']:.3f} of the target alone")
            _write(result, options.out)
    if options.out is not None:
        with writing(options.out):
            options.out.with_suffix(".md").write_text(markdown(result), encoding="utf-8")
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if all(row["identical"] is not False for row in result["cells"]) else 1


def _say(console: Console, cells: Sequence[Row]) -> None:
    last = cells[-1]
    same = [row for row in cells if all(row[key] == last[key] for key in ("target", "task", "temperature"))]
    best = max((row for row in same if row["policy"] == "fixed"), key=lambda row: float(row["tokens_per_s"]))
    console.print(
        f"{last['target']}, {last['task']}, temperature {last['temperature']:g}: "
        f"plain {last['plain_tokens_per_s']:.1f}, best fixed ({best['draft_len']}) {best['tokens_per_s']:.1f}, "
        f"rate {last['tokens_per_s']:.1f} tokens/s"
    )


def _write(result: Row, stem: Path | None) -> None:
    if stem is not None:
        with writing(stem):
            stem.with_suffix(".json").write_text(json.dumps(result) + "\n", encoding="utf-8")


# ---------------------------------------------------------------- tables


def markdown(result: Row) -> str:
    """Speedups over the target alone, a row for each cell."""
    cells: dict[tuple[str, str, float], list[Row]] = {}
    for row in result["cells"]:
        cells.setdefault((row["target"], row["task"], row["temperature"]), []).append(row)
    names = list(dict.fromkeys(_name(row) for row in result["cells"] if row["policy"] != "plain"))
    lines = [["target", "task", "temperature", "plain, tokens/s", *names, "rate, of the best fixed"]]
    lines.append(["---"] * len(lines[0]))
    for (target, task, temperature), rows in cells.items():
        by_name = {_name(row): row for row in rows}
        best = max(float(row["tokens_per_s"]) for row in rows if row["policy"] == "fixed")
        speedups = [f"{by_name[name]['tokens_per_s'] / rows[0]['plain_tokens_per_s']:.3f}" for name in names]
        share = f"{by_name['rate']['tokens_per_s'] / best:.3f}"
        lines.append([target, task, f"{temperature:g}", f"{rows[0]['plain_tokens_per_s']:.1f}", *speedups, share])
    text = "## Speedup over the target alone\n\n" + _table(lines)
    cases = [["target", "case", "rate, of the target alone", "rounds without a draft", "mostly as"], ["---"] * 5]
    cases += [
        [row["target"], row["case"], f"{row['ratio']:.3f}", f"{row['undrafted']:.2f}", row["idle"] or "–"]
        for row in result["never_slower"]
    ]
    return text + "\n## Where drafts cannot pay\n\n" + _table(cases)


def _name(row: Row) -> str:
    return f"fixed {row['draft_len']}" if row["policy"] == "fixed" else str(row["policy"])


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
