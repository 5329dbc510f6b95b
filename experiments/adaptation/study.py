"""Benefit of online distillation, in parts that can each be run alone.

live        a stream of prompts against the clock, learning included
streams     acceptance before and after it, for several orders
losses      the losses beside each other, with and without the n-gram cache, at temperatures 0 and 1
targets     the drafter goes to another target and comes back
switch      the stream changes its task half-way
ranks       LoRA of several ranks beside training all weights
background  the same replies with and without a trainer beside them

A part that is run again replaces what the file held of it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from experiments import tasks
from experiments.adaptation import ablations, background_cost, report, streams
from experiments.adaptation.setup import Study
from experiments.command import parts_of
from experiments.results import Results, Row
from omnidraft.api import OmniDraft, load
from omnidraft.bench import prompts
from omnidraft.bench.environment import command
from omnidraft.config import Learning, names
from omnidraft.errors import InputError

FULL = {"stream": 600, "tests": 100, "seeds": 3, "ablation": 160, "sampled": 20, "beside": 100, "new_tokens": 96}
QUICK = {"stream": 16, "tests": 8, "seeds": 1, "ablation": 8, "sampled": 2, "beside": 3, "new_tokens": 48}
KEYS = ("target", "targets", "method", "seed", "temperature")
Sizes = dict[str, int]
Found = Iterable[tuple[str, Row]]  # kind of a row, and the row


def _live(studies: Sequence[Study], _: Sizes) -> Found:
    for study in studies:
        row, curve = streams.live_row(study)
        yield "rows", row
        yield "curves", {"target": study.name, "method": row["method"], "seed": 0, **curve}


PARTS: dict[str, Callable[[Sequence[Study], Sizes], Found]] = {
    "live": _live,
    "streams": lambda studies, sizes: (("rows", row) for s in studies for row in streams.streams(s, sizes["seeds"])),
    "losses": lambda studies, _: (("losses", row) for row in ablations.losses(studies[0], (0.0, 1.0))),
    "targets": lambda studies, _: (("targets", ablations.targets(*two)) for two in [studies[:2]] if len(two) == 2),
    "switch": lambda studies, _: (("switch", ablations.switch(study)) for study in studies),
    "ranks": lambda studies, _: (("ranks", row) for row in ablations.ranks(studies[0])),
    "background": lambda studies, sizes: (
        ("background", background_cost.background(study, sizes["beside"])) for study in studies
    ),
}


def measure(options: argparse.Namespace, console: Console) -> int:
    """Run the parts that are asked for; 1 where an answer was not the target's own."""
    learning = Learning(**{name: value for name, value in vars(options).items() if name in names(Learning)})
    parts = parts_of(options.parts, list(PARTS))
    sizes = {name: getattr(options, name) or size for name, size in (QUICK if options.quick else FULL).items()}
    # what is wrong with the files is said before the models are loaded
    texts = _texts(options.data, sizes)
    results = Results(options.out and options.out.with_suffix(".jsonl"), "adaptation", KEYS)
    studies = _studies(options, console, texts, sizes, learning)
    settings = {"learning": asdict(learning), "trainer": asdict(studies[0].trainer)}
    results.begin(command(options.words), parts=parts, sizes=sizes, **settings)
    for part in parts:
        began = time.perf_counter()
        for kind, row in PARTS[part](studies, sizes):
            results.add(kind, row)
        console.print(f"{part}: {time.perf_counter() - began:.0f} s")
    if options.out is not None:
        report.write(results, options.out)
    print(json.dumps(results.as_dict()))
    return 0 if all(row.get("identical", True) for row in results.of("rows")) else 1


def _studies(
    options: argparse.Namespace, console: Console, texts: dict[str, list[str]], sizes: Sizes, learning: Learning
) -> list[Study]:
    studies: list[Study] = []
    first: OmniDraft | None = None
    for name in options.target:
        drafter = first or options.drafter
        model = load(name, drafter, dtype=options.dtype, profile=None, draft_length=options.draft_length)
        first = first or model
        console.print(f"{model.target.name}: drafter steps {model.drafter_step}")
        encoded = {key: [model.encode_message(text) for text in some] for key, some in texts.items()}
        studies.append(
            Study(
                model=model,
                name=model.target.name,
                stream=encoded["stream"],
                tests=encoded["tests"],
                other=encoded["other"],
                new_tokens=sizes["new_tokens"],
                draft_length=options.draft_length,
                learning=learning,
                console=console,
                ablation=sizes["ablation"],
                sampled=sizes["sampled"],
            )
        )
    return studies


def _texts(data: Path, sizes: Sizes) -> dict[str, list[str]]:
    """The prompts: a stream that the models never saw, tests, and another task."""
    unseen = tasks.training(data)[-tasks.KEPT_OUT :]
    if len(unseen) < sizes["stream"]:
        raise InputError(
            f"the stream has {len(unseen)} prompts, {sizes['stream']} are asked for: use a smaller --stream"
        )
    return {
        "stream": unseen[: sizes["stream"]],
        "tests": prompts.read("gsm8k", data, sizes["tests"]),
        "other": prompts.read("mbpp", data, sizes["ablation"]),
    }
