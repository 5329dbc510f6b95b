"""`omnidraft inspect`: compatibility of a drafter and a target, and when drafting pays."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from omnidraft.cli import flags
from omnidraft.defaults import AUTO, drafter_for
from omnidraft.errors import ConfigError

EXAMPLES = (
    "omnidraft inspect meta-llama/Llama-3.1-8B-Instruct --drafter ./my-drafter",
    f"omnidraft inspect {flags.TARGET} --time --json",
    "omnidraft inspect qwen2.5-7b-Q4_K_M.gguf --drafter auto --drafter qwen2.5-0.5b-Q4_K_M.gguf",
    "omnidraft inspect gemma-3-1b-it-Q4_K_M.gguf --header",
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft inspect`; 1 if the pair does not work.  Raises InputError and its kinds."""
    options = _parser().read(arguments)
    if options.header:
        return _header(options.target, as_json=options.json)
    named = options.drafter or [AUTO]
    if any(flags.unless_none(name) is None for name in named):
        raise ConfigError("drafter is none, and inspect needs two models: name one, or leave --drafter out")
    flags.prepare_libraries()
    drafters = [drafter_for(options.target, flags.say) if name == AUTO else name for name in named]
    if len(drafters) > 1:
        return _compare(options.target, drafters, as_json=options.json)
    from omnidraft.inspection.report import inspect_pair

    inspection = inspect_pair(options.target, drafters[0], time=options.time, say=_progress, warn=flags.say)
    if options.json:
        print(json.dumps(asdict(inspection)))
    else:
        from omnidraft.cli.inspect_tables import show

        show(inspection)
    return 0 if inspection.works else 1


def _compare(target: str, drafters: Sequence[str], *, as_json: bool) -> int:
    """Measure several drafters; 1 if one of them changed an answer."""
    from omnidraft.inspection.drafters import compare_drafters

    comparison = compare_drafters(target, drafters, say=_progress, warn=flags.say)
    if as_json:
        print(json.dumps(asdict(comparison)))
    else:
        from omnidraft.cli.inspect_tables import show_comparison

        show_comparison(comparison)
    return 0 if comparison.identical else 1


def _header(name: str, *, as_json: bool) -> int:
    """Print the header of a GGUF file, without importing PyTorch, which takes seconds."""
    from omnidraft.cli.inspect_tables import show_header
    from omnidraft.inspection.implementation import REFUSED, inspect_header

    path = Path(os.path.expanduser(name))  # noqa: PTH111  that of Path raises where there is no such user
    figures = inspect_header(path)
    if as_json:
        print(json.dumps(asdict(figures)))
    else:
        show_header(figures)
    return 1 if figures.step.how == REFUSED else 0


def _progress(message: str) -> None:
    if sys.stderr.isatty():
        flags.say(message)


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft inspect",
        description="Check that a drafter and a target are compatible, without loading weights. A folder with only a\n"
        "tokenizer is enough for either of them.",
        examples=EXAMPLES,
    )
    parser.add_argument("target", metavar="TARGET", help="a folder, a GGUF file, a hub id or zoo:NAME")
    about = f"draft model, given like the target; several are measured against each other (default: {flags.DRAFTER})"
    flags.add(parser, "--drafter", type=str, action="append", default=None, help=about)
    parser.add_argument(
        "--header",
        action="store_true",
        help="say how a GGUF file would run, from its header alone",
    )
    parser.add_argument(
        "--time", action="store_true", help="load both models and measure the acceptance rate above which drafting pays"
    )
    flags.add(parser, "--json")
    return parser
