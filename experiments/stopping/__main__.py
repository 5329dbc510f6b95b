"""`python -m experiments.stopping`: draft-length policies against fixed lengths and plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.command import positive, run, study_parser
from experiments.stopping.study import IN_TURNS, PARTS, TASKS, TEMPERATURES, measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts asked for, and return the exit code."""
    options = study_parser("stopping", "Draft-length policies against fixed lengths and plain decoding.")
    parts = ",".join(PARTS)
    options.add_argument("--parts", default=parts, metavar="A,B", help="some of %(default)s (default: all)")
    options.add_argument(
        "--task", action="append", choices=(*TASKS, IN_TURNS), help="one task only; repeatable (default: all)"
    )
    options.add_argument(
        "--temperature",
        type=float,
        action="append",
        choices=TEMPERATURES,
        help="of the cells, one only; repeatable (default: both)",
    )
    options.add_argument(
        "--draft-length",
        type=positive,
        action="append",
        metavar="N",
        help="a fixed draft length to measure; repeatable (default: 1 to 8; 1, 2 and 4 with --quick)",
    )
    options.add_argument(
        "--goodput-only", action="store_true", help="of the policies goodput alone, with and without the head"
    )
    for name, text in {
        "count": "prompts of a task (default: 50, less with --quick)",
        "learn": "prompts a task to learn from (default: 100, or 8)",
        "repeats": "turns of every way (default: 3, 1 with --quick)",
        "max-new-tokens": "of an answer (default: 96, or 48)",
        "hopeless": "prompts where drafts cannot pay (default: 200)",
    }.items():
        options.add_argument(f"--{name}", type=positive, metavar="N", help=text)
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md, or add to them")
    options.add_argument(
        "--more", action="store_true", help="add repeats to the cells in STEM.json (default: new ones)"
    )
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
