"""The command line `omnidraft`: dispatch to its commands.

Answers go to stdout, everything else to stderr.  Exit codes: 0, 1 (a failure), 2 (bad input), 130 (Ctrl-C), 141
(stdout was closed, or its reader is gone).
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress

import omnidraft
from omnidraft.cli import flags, streams
from omnidraft.config import suggestion
from omnidraft.errors import ConfigError, InputError, NumericsError, OmniDraftError

COMMANDS = {  # each a module with a `main`
    "generate": "answer a prompt",
    "chat": "talk with a model in the terminal",
    "serve": "serve targets with OpenAI's endpoints, and a page to chat",
    "inspect": "check that a drafter and a target are compatible, and what drafting can gain",
    "adapt": "train a drafter on the target's answers to a file of prompts",
    "make-drafter": "make a drafter from a language model, for one or more targets",
    "profiles": "list, show or remove learned weights",
    "cache": "show or clear the cache folder",
    "demo": "answer chat questions without and with drafts, and compare them",
    "bench": "compare decoding methods, test exactness",
}
EXAMPLES = (
    "omnidraft demo",
    f'omnidraft generate "def mean(values):" --target {flags.TARGET}',
    f"omnidraft inspect {flags.TARGET}",
    "omnidraft COMMAND --help",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with streams.usable() as output:
        code = _code(sys.argv[1:] if arguments is None else arguments, output)
        with suppress(OSError):
            sys.stdout.flush()
        return output.ended(code)


def _code(arguments: Sequence[str], output: streams.Output) -> int:
    """Run a command; its exit code, with a line on stderr where it cannot do what it should."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, meant for programmers
            return _run(arguments)
    except SystemExit as end:  # argparse, after --help
        return int(end.code or 0)
    except OmniDraftError as error:
        flags.say(f"error: {error}")
        # a model that returns NaN is bad input, like one that cannot be read
        return 2 if isinstance(error, InputError | NumericsError) else 1
    except KeyboardInterrupt:
        flags.say("interrupted")
        return flags.INTERRUPTED
    except Exception as error:  # noqa: BLE001  all but those of its surroundings are raised again
        return streams.failed(error, output)


def _run(arguments: Sequence[str]) -> int:
    command, *rest = arguments or [""]
    if command in COMMANDS:
        return int(importlib.import_module(f"omnidraft.cli.{command.replace('-', '_')}").main(rest))
    if command and not command.startswith("-"):
        raise ConfigError(f"unknown command {command!r}: {suggestion(command, COMMANDS)}")
    parser = flags.CommandParser(
        prog="omnidraft", description="Exact speculative decoding for any causal language model.", examples=EXAMPLES
    )
    parser.add_argument("--version", action="version", version=f"omnidraft {omnidraft.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)  # for the help; they are dispatched above
    for name, about in COMMANDS.items():
        commands.add_parser(name, help=about, add_help=False)
    parser.read(arguments)
    return 0
