"""`python -m experiments.overhead`: what a decoding round costs beside its forward passes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.command import DRAFTER, TARGET, parser, positive, run
from experiments.overhead.study import measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the ratios, and return the exit code."""
    options = parser(
        "overhead",
        "Cost of a decoding round beside its forward passes, as ratios with bounds.",
        f"--quick --target-tokenizer {TARGET} --drafter-tokenizer {DRAFTER}",
    )
    tokenizer = "its vocabulary: a folder, a hub id or zoo:NAME (default: %(default)s)"
    options.add_argument("--target-tokenizer", default="Qwen/Qwen2-7B", metavar="MODEL", help=tokenizer)
    options.add_argument("--drafter-tokenizer", default="JackFram/llama-68m", metavar="MODEL", help=tokenizer)
    options.add_argument("--draft-length", type=positive, default=4, metavar="N", help="of each round (default: 4)")
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.json and STEM.md")
    options.add_argument("--json", action="store_true", help="print one JSON line instead of Markdown")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
