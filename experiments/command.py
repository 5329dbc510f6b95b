"""The command line of an experiment: options checked before models are loaded, errors in one line, exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
from rich.console import Console

from omnidraft import defaults, zoo
from omnidraft.cli import flags
from omnidraft.errors import InputError, NumericsError, OmniDraftError

MANY = 2**16  # threads
INTERRUPTED = 130  # 128 + SIGINT
TARGET, DRAFTER = zoo.TARGET, defaults.DRAFTER
Measure = Callable[[argparse.Namespace, Console], int]


def parser(name: str, about: str, *examples: str) -> flags.CommandParser:
    """The parser of `python -m experiments.NAME`, with the options that all experiments share."""
    made = flags.CommandParser(
        prog=f"python -m experiments.{name}",
        description=about,
        examples=[f"python -m experiments.{name} {example}" for example in examples],
    )
    made.add_argument("--threads", type=_threads, metavar="N", help="threads of PyTorch (default: its own choice)")
    made.add_argument("--quick", action="store_true", help="next to no prompts and repeats of everything")
    return made


def run(options_of: argparse.ArgumentParser, measure: Measure, arguments: Sequence[str] | None) -> int:
    """Parse `arguments` (default: those of this process), measure, and return an exit code as of `omnidraft`."""
    threads = torch.get_num_threads()
    try:
        options = options_of.parse_args(arguments)
        options.words = [*options_of.prog.split(), *(sys.argv[1:] if arguments is None else arguments)]
        flags.prepare_libraries(options.threads)
        return measure(options, Console(stderr=True, highlight=False, markup=False, soft_wrap=True))
    except SystemExit:  # after --help
        return 0
    except OmniDraftError as error:
        flags.say(f"error: {error}")
        return 2 if isinstance(error, InputError | NumericsError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        torch.set_num_threads(threads)


def _threads(text: str) -> int:
    """A number of threads."""
    value = int(text)
    if not 1 <= value < MANY:
        raise argparse.ArgumentTypeError(f"{value} is not from 1 to {MANY - 1}")
    return value
