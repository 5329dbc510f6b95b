"""`python -m experiments.fleet_size`: a fleet on paper: how much it spools, how stale its weights are.

Replicas answer, write segments, and look for versions; the trainer reads, learns and publishes.  The rates are given,
`--train-s` and `--read-ms` among them, which are to be measured; segments and versions are as large as the code's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from experiments.command import parser, run
from experiments.results import Results, Row
from omnidraft.bench.environment import command
from omnidraft.bench.output import down, markdown_table, writing
from omnidraft.cli import flags
from omnidraft.fleet.releases import POLL_S
from omnidraft.fleet.spool import SEGMENT_ANSWERS, SEGMENT_S, Answer

REPLICAS = (2, 10, 100, 1000, 10_000)
VERSION_MB = 5.3  # LoRA of rank 32 of zoo:general
COLUMNS = (
    *("replicas", "kept", "answers_per_s", "segments_per_s", "spool_mb_per_s", "trainer_load"),
    *("version_every_s", "stale_p50_s", "stale_p95_s", "download_mb_per_s"),
)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What is given: of a replica answers a second and tokens of an answer with its prompt, of the trainer times."""

    answers_per_s: float
    tokens: int
    read_ms: float  # to make an example of an answer
    train_s: float  # to learn a version and judge it
    version_answers: int
    trial_s: float
    seconds: float = 3600.0


def segment_bytes(tokens: int) -> float:
    """Bytes of an answer in a segment."""
    answer = Answer(
        prompt=[12_345] * (tokens // 2), tokens=[12_345] * (tokens - tokens // 2), drafted=99, accepted=50, version=9
    )
    return len(json.dumps(asdict(answer), separators=(",", ":"))) + 1


def simulate(replicas: int, rates: Rates, seed: int = 0) -> Row:
    """An hour of a fleet in which a share of the answers is kept that the trainer can read."""
    random = np.random.default_rng(seed)
    offered = replicas * rates.answers_per_s
    room = 0.4 / (rates.read_ms / 1000)  # of the trainer's time, the rest is for learning
    kept = min(1.0, room / offered)
    per_replica = rates.answers_per_s * kept
    fill_s = min(SEGMENT_ANSWERS / per_replica, SEGMENT_S + 1 / per_replica)
    segments = replicas / fill_s
    gathered = rates.version_answers / (offered * kept * 0.9)  # a tenth is held out
    busy = rates.train_s + rates.version_answers / 0.9 * rates.read_ms / 1000
    now, published, stale = 0.0, 0, list[float]()
    while now < rates.seconds:
        # answers gather while a version is learned and tried
        now += max(gathered + random.uniform(0, fill_s), busy + rates.trial_s)
        published += 1
        # an answer waits in its segment, for the others, and for a replica to look for the version
        waited = random.uniform(0, gathered, 200) + random.uniform(0, fill_s, 200) + random.uniform(0, POLL_S, 200)
        stale += (waited + busy + rates.trial_s).tolist()
    every = now / published
    return {
        "replicas": replicas,
        "kept": kept,
        "answers_per_s": offered * kept,
        "segments_per_s": segments,
        "spool_mb_per_s": offered * kept * segment_bytes(rates.tokens) / 1e6,
        "trainer_load": offered * kept * rates.read_ms / 1000 + rates.train_s / every,
        "version_every_s": every,
        "stale_p50_s": statistics.median(stale),
        "stale_p95_s": statistics.quantiles(stale, n=20)[-1],
        "download_mb_per_s": replicas * VERSION_MB / every,
    }


def measure(options: argparse.Namespace, console: Console) -> int:  # noqa: ARG001  that of all experiments
    """Print the table, and write it."""
    rates = Rates(
        answers_per_s=options.answers_per_s,
        tokens=options.tokens,
        read_ms=options.read_ms,
        train_s=options.train_s,
        version_answers=options.answers,
        trial_s=options.trial_s,
    )
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), "fleet size")
    results.begin(command(options.words), asdict(rates))
    for replicas in REPLICAS:
        results.add("rows", str(replicas), simulate(replicas, rates))
    rows = list(results.of("rows").values())
    lines = [[down(row[c], 3) if isinstance(row[c], float) else row[c] for c in COLUMNS] for row in rows]
    page = f"# A fleet on paper\n\n    {command(options.words)}\n\n{markdown_table(COLUMNS, lines, 0)}"
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute the sizes of a fleet, and return the exit code."""
    made = parser("fleet_size", "A fleet on paper: spool, trainer and staleness.", "--out results/fleet-size")
    for name, default, about in (
        ("answers_per_s", 0.5, "answers of a replica a second"),
        ("tokens", 500, "tokens of an answer with its prompt"),
        ("read_ms", 3.0, "ms to make an example of an answer"),
        ("train_s", 30.0, "seconds to learn a version and judge it"),
        ("answers", 256, "answers that a version is learned from"),
        ("trial_s", 60.0, "seconds of a version's trial"),
    ):
        made.add_argument(
            flags.flag(name), type=type(default), default=default, metavar="N", help=f"{about} (default: {default})"
        )
    made.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl and STEM.md")
    return run(made, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
