"""`python -m experiments.adaptation`: what learning from answers is worth."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.adaptation.study import PARTS, measure
from experiments.command import positive, run, study_parser
from omnidraft.cli import flags
from omnidraft.config import Learning

SIZES = {
    "stream": "prompts to learn from",
    "tests": "prompts to be examined on",
    "seeds": "orders of the stream",
    "ablation": "prompts to learn from where methods are compared",
    "sampled": "test prompts at temperature 1",
    "beside": "prompts beside the background trainer",
    "new_tokens": "tokens of an answer",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts asked for, and return the exit code."""
    options = study_parser("adaptation", "Benefit of online distillation, in parts that can each be run alone.")
    parts = ",".join(PARTS)
    options.add_argument("--parts", default=parts, metavar="A,B", help="some of %(default)s (default: all)")
    for name, text in SIZES.items():
        options.add_argument(
            flags.flag(name), type=positive, metavar="N", help=f"{text} (default: that of the study, less with --quick)"
        )
    options.add_argument("--draft-length", type=positive, default=4, metavar="N", help="of each round (default: 4)")
    flags.add(options, "learning", flags.settings(Learning))
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json, STEM.md and figures")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
