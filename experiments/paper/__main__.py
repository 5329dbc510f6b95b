"""`python -m experiments.paper`: the tables and figures of the paper, by a recipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.command import parser, run
from experiments.paper.study import measure


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan, measure what is missing, and return the exit code."""
    options = parser(
        "paper",
        "The tables and figures of the paper, by a recipe.",
        "recipes/zoo.toml --data DIR --quick",
        "recipes/zoo.toml --data DIR --parts table-1,table-14 --out results/paper-zoo",
        "recipes/paper.toml --plan --use lmsys/vicuna-7b-v1.3=FOLDER",
    )
    options.add_argument("recipe", type=Path, metavar="FILE", help="models, tasks, sizes and settings, as in recipes/")
    options.add_argument(
        "--parts",
        default="all",
        metavar="A,B",
        help="some of table-1, -2, -3, -5, -6, -11, -12, -14, figure-5, -6, -7, -8, -9, each in full (default: all)",
    )
    options.add_argument("--plan", action="store_true", help="print what there is to do, and how long it will take")
    options.add_argument(
        "--use",
        action="append",
        default=[],
        metavar="NAME=MODEL",
        help="take a model in place of one that the recipe names; repeatable",
    )
    options.add_argument("--data", type=Path, metavar="DIR", help="the folder of the tasks (default: the hub)")
    options.add_argument("--device", default="auto", metavar="NAME", help="for all models (default: auto)")
    options.add_argument("--out", type=Path, metavar="DIR", help="write results there, and go on with what is there")
    options.add_argument("--json", action="store_true", help="print no Markdown, only the JSON line")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
