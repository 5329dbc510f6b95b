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
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from experiments.adaptation.setup import Row, Study
from omnidraft.bench import environment as setting
from omnidraft.bench import prompts
from omnidraft.bench.environment import writing
from omnidraft.config import Learning
from omnidraft.errors import ConfigError, InputError

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

PARTS = ("live", "streams", "losses", "targets", "switch", "ranks", "background")
FULL = {"stream": 600, "tests": 100, "seeds": 3, "ablation": 160, "sampled": 20, "beside": 100, "new_tokens": 96}
QUICK = {"stream": 16, "tests": 8, "seeds": 1, "ablation": 8, "sampled": 2, "beside": 3, "new_tokens": 48}


Sizes = dict[str, int]


def measure(options: argparse.Namespace, console: Console) -> int:
    """Run the parts that are asked for; 1 where an answer was not the target's own."""
    learning = Learning(**{f.name: getattr(options, f.name) for f in fields(Learning) if f.name in vars(options)})
    parts = _parts(options.parts)
    sizes = {name: getattr(options, name) or size for name, size in (QUICK if options.quick else FULL).items()}
    # what is wrong with the files is said before the models are loaded
    texts = _texts(options.data, sizes)
    if options.out is not None:
        with writing(options.out):
            pass
    studies = _studies(options, console, texts, sizes, learning)
    result = _kept(options.out)
    where = {
        **setting.machine(studies[0].model.target.lm.device),
        "sizes": sizes,
        "learning": asdict(learning),
        "trainer": asdict(studies[0].trainer),
    }
    for part in parts:
        began = time.perf_counter()
        for found in RUN[part](studies, sizes):
            _put(result, part, found)
            result.setdefault("settings", {})[part] = where
            result.setdefault("commands", {})[part] = setting.command(options.words)
            _write(result, options.out)
        console.print(f"{part}: {time.perf_counter() - began:.0f} s")
    if options.out is not None:
        from experiments.adaptation.report import write

        write(result, options.out)
    sys.stdout.write(json.dumps(result) + "\n")
    return 0 if all(row.get("identical", True) for row in result.get("rows", [])) else 1


# ---------------------------------------------------------------- the parts


def _streams(studies: Sequence[Study], sizes: Sizes) -> Any:
    from experiments.adaptation.streams import streams

    for study in studies:
        for row in streams(study, sizes["seeds"]):
            yield "rows", row


def _live(studies: Sequence[Study], _: Sizes) -> Any:
    from experiments.adaptation.streams import live_row

    for study in studies:
        row, curve = live_row(study)
        yield "rows", row
        yield "curves", {"target": study.name, "method": row["method"], "seed": 0, **curve}


def _losses(studies: Sequence[Study], _: Sizes) -> Any:
    from experiments.adaptation.ablations import losses

    for row in losses(studies[0], (0.0, 1.0)):
        yield "losses", row


def _ranks(studies: Sequence[Study], _: Sizes) -> Any:
    from experiments.adaptation.ablations import ranks

    for row in ranks(studies[0]):
        yield "ranks", row


def _switch(studies: Sequence[Study], _: Sizes) -> Any:
    from experiments.adaptation.ablations import switch

    for study in studies:
        yield "switch", switch(study)


def _targets(studies: Sequence[Study], _: Sizes) -> Any:
    from experiments.adaptation.ablations import targets

    if len(studies) > 1:
        yield "targets", targets(studies[0], studies[1])


def _background(studies: Sequence[Study], sizes: Sizes) -> Any:
    from experiments.adaptation.background_cost import background

    for study in studies:
        yield "background", background(study, sizes["beside"])


RUN: dict[str, Callable[[Sequence[Study], Sizes], Any]] = {
    "live": _live,
    "streams": _streams,
    "losses": _losses,
    "targets": _targets,
    "switch": _switch,
    "ranks": _ranks,
    "background": _background,
}


# ---------------------------------------------------------------- what is needed


def _studies(
    options: argparse.Namespace, console: Console, texts: dict[str, list[str]], sizes: Sizes, learning: Learning
) -> list[Study]:
    from omnidraft.api import load

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
    unseen = prompts.training(data)[-prompts.KEPT_OUT :]
    if len(unseen) < sizes["stream"]:
        raise InputError(
            f"the stream has {len(unseen)} prompts, {sizes['stream']} are asked for: use a smaller --stream"
        )
    return {
        "stream": [prompt.text for prompt in unseen[: sizes["stream"]]],
        "tests": [prompt.text for prompt in prompts.read("gsm8k", data, sizes["tests"])],
        "other": [prompt.text for prompt in prompts.read("mbpp", data, sizes["ablation"])],
    }


def _parts(given: str) -> list[str]:
    parts = given.split(",")
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"part {part!r} is not known; use some of {', '.join(PARTS)}, with commas between")
    return parts


# ---------------------------------------------------------------- the file


def _kept(stem: Path | None) -> Row:
    """What the file holds already."""
    if stem is None:
        return {}
    path = stem.with_suffix(".json")
    try:
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path} ({error}): remove it, or give --out another name") from error
    return found if isinstance(found, dict) else {}


def _put(result: Row, part: str, found: tuple[str, Row]) -> None:
    """Add a row in place of the one of the same target, method, seed and temperature."""
    section, row = found
    own = ("target", "targets", "method", "seed", "temperature")
    rows = result.setdefault(section, [])
    rows[:] = [old for old in rows if any(old.get(name) != row.get(name) for name in own)]
    rows.append(row)
    if part == "streams":
        rows.sort(key=lambda each: (each["target"], each["method"], each["seed"]))


def _write(result: Row, stem: Path | None) -> None:
    if stem is not None:
        with writing(stem):
            stem.with_suffix(".json").write_text(json.dumps(result) + "\n", encoding="utf-8")
