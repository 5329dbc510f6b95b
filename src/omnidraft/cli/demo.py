"""`omnidraft demo`: the embedded models at work, decoded by plain `generate` and with drafts."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from omnidraft import zoo
from omnidraft.cli import flags

if TYPE_CHECKING:
    from omnidraft.demo import Result


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft demo`; 1 where a token differs from plain `generate`."""
    parser = flags.CommandParser(
        prog="omnidraft demo",
        description="Answer prompts with the embedded models, by plain `generate` and with drafts, and compare.",
        examples=("omnidraft demo", "omnidraft demo --json"),
    )
    flags.add(parser, "--json")
    options = parser.read(arguments)
    import torch

    from omnidraft.demo import run

    flags.quiet_libraries()
    drafter = zoo.path(zoo.names("drafter")[0])
    say = flags.say if options.json else print
    results = [run(name, zoo.path(name), drafter, say) for name in zoo.names("target")]
    if options.json:
        print(json.dumps({"targets": [asdict(result) for result in results]}))
    else:
        _show(results, torch.get_num_threads())
    for result in results:
        if not result.identical:
            flags.say(f"{result.name}: THE TOKENS DIFFER from those of plain generate. This is a bug.")
    return 0 if all(result.identical for result in results) else 1


def _show(results: Sequence[Result], threads: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *(result.name for result in results), title="greedy decoding in fp32")
    rows: dict[str, Callable[[Result], str]] = {
        "tokens/s, plain generate": lambda r: down(r.plain_tokens_per_s, 1),
        "tokens/s, with drafts": lambda r: down(r.tokens_per_s, 1),
        "speedup": lambda r: down(r.speedup, 2) + "x",
        "acceptance rate": lambda r: down(r.acceptance_rate, 2),
        "block efficiency": lambda r: down(r.block_efficiency, 2),
        "mean draft length": lambda r: f"{r.draft_length:.2f}",
        "identical to plain generate": lambda r: "yes" if r.identical else "NO",
    }
    for row, figure in rows.items():
        table.add_row(row, *map(figure, results))
    console = Console(highlight=False)
    console.print(table)
    repeats = min(result.repeats for result in results)
    console.print(f"median of {repeats} repeats, in turns, prefill included; threads: {threads}")


def down(value: float, digits: int) -> str:
    """A figure of which more is better, never rounded up."""
    scale = 10**digits
    return f"{math.floor(value * scale) / scale:.{digits}f}"
