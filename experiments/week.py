"""`python -m experiments.week`: a week of use, simulated: does learning ever harm, and what grows.

Every day the target is loaded anew with the same profile, answers its share of many short prompts, and the drafter
learns from each.  A drafter that learns nothing drafts for the same answers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console

from experiments import tasks
from experiments.command import parser, run
from experiments.judging import resident_mb
from experiments.real import shown
from experiments.results import Results, Row, page_of
from experiments.student import Recorded, Student
from omnidraft.api import OmniDraft, load
from omnidraft.bench.environment import command
from omnidraft.bench.output import writing
from omnidraft.cli import flags
from omnidraft.config import Drafting
from omnidraft.decoding.stats import Stats
from omnidraft.errors import ConfigError

DAYS = 7
SITTING = 10  # prompts of a task in a row
TASKS = ("gsm8k", "code")
OPTIONS: dict[str, Any] = {"draft_length": 4, "sources": "model"}  # in which acceptance rates can be compared
COLUMNS = (
    *("day", "prompts", "acceptance_rate", "acceptance_frozen", "tokens_per_pass", "per_pass_frozen"),
    *("updates", "rolled_back", "resident_mb", "profile_mb"),
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Prompts of the week, and tokens of an answer."""

    prompts: int
    new_tokens: int


FULL, QUICK = Sizes(prompts=5000, new_tokens=24), Sizes(prompts=14, new_tokens=8)


def prompts_of(data: Path | None, count: int) -> list[str]:
    """So many prompts of all tasks, some of one in a row; raises ConfigError where there are too few."""
    found = {task: tasks.parts(task, data)[0] for task in TASKS}
    whole = sum(map(len, found.values()))
    if whole < count:
        raise ConfigError(f"there are {whole} prompts, {count} are asked for: use fewer")
    sittings = []
    for texts in found.values():  # each task's spread evenly over the week
        parts = [texts[first : first + SITTING] for first in range(0, len(texts) * count // whole + 1, SITTING)]
        sittings += list(zip(np.linspace(0, 1, len(parts), endpoint=False), parts, strict=True))
    sittings.sort(key=lambda one: one[0])
    return [text for _, part in sittings for text in part][:count]


def day(model: OmniDraft, frozen: Student, texts: Sequence[str], new_tokens: int) -> Row:
    """Answer prompts and learn from them; the counts of drafting beside those of the frozen drafter."""
    learned, other = [], []
    for text in texts:
        ids = model.encode_message(text)
        answer = model.generate(ids, max_new_tokens=new_tokens, temperature=0.0)
        learned.append(answer.stats)
        other.append(frozen.follow(Recorded(tuple(ids), tuple(answer.token_ids), ())))
    own, its = map(Stats.sum, (learned, other))
    return {
        "prompts": len(texts),
        "acceptance_rate": own.acceptance_rate,
        "acceptance_frozen": its.acceptance_rate,
        "tokens_per_pass": own.block_efficiency,
        "per_pass_frozen": its.block_efficiency,
        "resident_mb": resident_mb(),
    }


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure the days that are missing, and print a table of all."""
    sizes = QUICK if options.quick else FULL
    texts = prompts_of(options.data, sizes.prompts)
    out = options.out
    results = Results(out and out.with_name(out.name + ".jsonl"), "week")
    setting = asdict(sizes) | {"target": shown(options.target), "dtype": options.dtype}
    if results.settings and (before := results.settings[0]["recipe"]) != setting:
        raise ConfigError(f"--out has results of other settings ({before}): give another place")
    results.begin(command(options.words), setting)
    places: dict[str, Any] = {"dtype": options.dtype, "device": options.device, "warn": console.print}
    base = load(options.target, options.drafter, profile=None, **places)
    frozen = Student(base, Drafting(**OPTIONS))
    with TemporaryDirectory() as folder:
        profile = Path(folder) / "profile" if out is None else out.with_name(out.name + "-profile")
        for number in range(DAYS):
            key = f"day {number + 1}"
            if key in results.of("rows"):
                continue
            if not number:
                profile.unlink(missing_ok=True)  # of a day that was cut off
            with load(options.target, base, profile=profile, adapt="inline", **places, **OPTIONS) as model:
                before = model.learned
                row: Row = {"day": number + 1} | day(model, frozen, _share(texts, number), sizes.new_tokens)
            learned = model.learned  # from the last answers, too
            row |= {name: learned.get(name, 0) - before.get(name, 0) for name in ("updates", "rolled_back")}
            results.add("rows", key, row | {"profile_mb": profile.stat().st_size / 1e6})
            console.print(f"{key}: {row}")
    page = page_of("A week of use", results, COLUMNS, "prompts", 3)
    if out is not None:
        with writing(out):
            out.with_name(out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    return 0


def _share(texts: Sequence[str], number: int) -> Sequence[str]:
    return texts[len(texts) * number // DAYS : len(texts) * (number + 1) // DAYS]


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate a week of use, and return the exit code."""
    made = parser(
        "week",
        "A week of use, simulated: acceptance beside a frozen drafter, memory, size of the profile.",
        "--target MODEL.gguf --data DIR --quick",
        "--target MODEL.gguf --dtype int8 --data DIR --out results/week",
    )
    flags.add(made, "--target", "--drafter", "--dtype", "--device")
    made.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
    made.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
    return run(made, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
