"""What the commands share: arguments, parsers with one-line errors, loading of models, messages, Ctrl-C."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from omnidraft import defaults, zoo
from omnidraft.config import GRAPHS, Settings, names, suggestion
from omnidraft.cores import default_threads
from omnidraft.errors import ConfigError
from omnidraft.models.interpreter import check_docstrings
from omnidraft.models.memory import check_libraries, size
from omnidraft.models.quiet import silence

if TYPE_CHECKING:
    from omnidraft.api import OmniDraft

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
MAX_THREADS = 1024  # far more, and the libraries that start them end the process
MAX_INTEGER = 2**31  # above any integer argument
DRAFTER = defaults.DRAFTER  # the default
TARGET = zoo.TARGET  # of examples, as is the next
THREADS = "threads to compute with (default: one for each fast core that this process may use)"
PAIR = f"--target {TARGET} --drafter {DRAFTER}"


def say(message: str) -> None:
    """Print one line on stderr."""
    print(f"omnidraft: {message}".replace("\n", " "), file=sys.stderr, flush=True)


# ---------------------------------------------------------------- arguments


def number(text: str) -> int | float | str:
    """The number that `text` writes, else the text; the settings check the type."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def at_least(low: int, most: int = MAX_INTEGER - 1) -> Callable[[str], int]:
    """A parser of integers from `low` to `most`."""

    def parse(text: str) -> int:
        value = number(text)
        if not isinstance(value, int) or not low <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no integer from {low} to {most}")
        return value

    return parse


def unless_none(text: str) -> str | None:
    """None for "none", else the text."""
    return None if text == "none" else text


ARGUMENTS: dict[str, dict[str, Any]] = {  # those of several commands, as `add_argument` takes them
    "--target": {"required": True, "metavar": "MODEL", "help": "a folder, a GGUF file, a hub id or zoo:NAME"},
    "--drafter": {
        "default": defaults.AUTO,
        "type": unless_none,
        "metavar": "MODEL",
        "help": f"draft model, given like the target (default: {DRAFTER})",
    },
    "--profile": {
        "default": "auto",
        "type": unless_none,
        "metavar": "FILE",
        "help": "file of the learned weights (default: that of the pair)",
    },
    "--dtype": {
        "default": "auto",
        "metavar": "NAME",
        "help": "auto, float32, bfloat16 or float16 of both models, or int8 of the target (default: %(default)s)",
    },
    "--device": {
        "default": "auto",
        "metavar": "NAME",
        "help": "of both models: auto, cpu, cuda, cuda:N or mps (default: %(default)s)",
    },
    "--graphs": {
        "default": "off",
        "metavar": "NAME",
        "help": f"CUDA graphs of both models: {', '.join(GRAPHS)} (default: %(default)s)",
    },
    "--count": {"type": at_least(1), "metavar": "N", "help": "the first N prompts (default: all)"},
    "--max-new-tokens": {
        "type": at_least(1),
        "metavar": "N",
        "help": "maximum tokens of an answer (default: %(default)s)",
    },
    "--threads": {"type": at_least(1, MAX_THREADS), "metavar": "N", "help": THREADS},
    "--seed": {
        "type": at_least(0),
        "default": 0,
        "metavar": "N",
        "help": "seed of every random draw (default: %(default)s)",
    },
    "--out": {"type": Path, "metavar": "STEM"},
    "--json": {"action": "store_true", "help": "print one line of JSON"},
}


def add(to: argparse._ActionsContainer, *shared: str, **changes: Any) -> None:
    """Add arguments that several commands share to a parser or a group, with `changes` to their declarations."""
    for name in shared:
        to.add_argument(name, **ARGUMENTS[name] | changes)


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ConfigError for mistakes, and ends its help with examples."""

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {example}" for example in examples)])
        super().__init__(**options, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.set_defaults(parser=self)  # of a sub-command: that one
        self.keys: list[str] = []  # of --set
        self._commands: Any = None

    def command(self, name: str, about: str, run: Callable[..., Any], *examples: str) -> CommandParser:
        """Add a sub-command, which sets `run`; `examples` are what follows its name."""
        if self._commands is None:
            self._commands = self.add_subparsers(metavar="COMMAND", required=True)
        shown = [f"{self.prog} {name} {example}".rstrip() for example in examples]
        parser: CommandParser = self._commands.add_parser(
            name, help=about, description=about.capitalize() + ".", examples=shown
        )
        parser.set_defaults(run=run)
        return parser

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}: see {self.prog} --help")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options; raises ConfigError for mistakes, with the nearest known flag."""
        options, unknown = self.parse_known_args(arguments)
        if unknown:
            options.parser.refuse(unknown[0])
        return options

    def refuse(self, argument: str) -> NoReturn:
        """Raise ConfigError for an argument that no flag takes."""
        if not argument.startswith("-"):
            raise ConfigError(f"unknown argument {argument!r}: put quotation marks around text with spaces")
        key = argument.lstrip("-").partition("=")[0].replace("-", "_")
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        fix = f"use --set {key}=VALUE" if key in self.keys else suggestion(argument, known)
        raise ConfigError(f"unknown argument {argument!r}: {fix}")


# ---------------------------------------------------------------- settings


def add_settings(to: argparse._ActionsContainer, cls: type[Settings], *chosen: str, **instead: object) -> None:
    """Add a flag for each field of `cls`, or for the chosen ones.

    One that is not given is absent from the result, so that defaults have one home; `instead` has those of a command
    that has others.
    """
    metavars = {"int": "N", "float": "X", "str": "NAME"}
    for f in fields(cls):
        if not chosen or f.name in chosen:
            metavar = "|".join(metavars[kind] for kind in str(f.type).split(" | ") if kind in metavars)
            to.add_argument(
                flag(f.name), type=number, metavar=metavar, default=argparse.SUPPRESS, help=_help(f, instead)
            )


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def _help(f: Field[Any], instead: Mapping[str, object]) -> str:
    default = instead.get(f.name, f.default)
    return f"{f.metadata['help']} (default: {f.metadata['none'] if default is None else default})"


def add_set(parser: CommandParser, to: argparse._ActionsContainer, *classes: type[Settings]) -> None:
    """Add `--set KEY=VALUE` for every field of `classes`, and `--help-all`, which lists them."""
    text = "any other setting; --help-all lists them"
    to.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--help-all", action=_HelpAll, classes=classes, help="show every setting and exit")
    parser.keys = [name for cls in classes for name in names(cls)]


class _HelpAll(argparse.Action):
    def __init__(self, *, classes: Sequence[type[Settings]], **options: Any) -> None:
        super().__init__(**options, nargs=0, default=argparse.SUPPRESS)
        self.classes = classes

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        listed = argparse.ArgumentParser(add_help=False, usage=argparse.SUPPRESS)
        for cls in self.classes:
            group = listed.add_argument_group(re.sub("(?<!^)(?=[A-Z])", " ", cls.__name__).lower())
            for f in fields(cls):
                group.add_argument(f.name, help=_help(f, {}))
        print(f"{parser.format_help()}\nsettings, by --set KEY=VALUE:\n\n{listed.format_help().lstrip()}", end="")
        parser.exit()


def collect(options: argparse.Namespace, *classes: type[Settings]) -> list[dict[str, Any]]:
    """The fields given by flags and by `--set`, for each of `classes`.

    Raises ConfigError for an unknown key, one that is given twice, and a value that the settings refuse.
    """
    values = dict(vars(options))
    known = [name for cls in classes for name in names(cls)]
    for pair in options.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set is {pair!r}; it must be KEY=VALUE, such as --set {known[0]}={value or 1}")
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}: {suggestion(name, known)}")
        if name in values:
            raise ConfigError(f"{name} is given twice: leave one out")
        values[name] = None if value == "none" else _value(value)
    groups = [{name: values[name] for name in names(cls) if name in values} for cls in classes]
    for cls, group in zip(classes, groups, strict=True):
        cls(**group)
    return groups


def _value(text: str) -> Any:
    """The value of a setting: an object or a list of JSON, a number, or the text, which the settings check."""
    if text.startswith(("{", "[")):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return number(text)


# ---------------------------------------------------------------- models


def load_models(options: argparse.Namespace, **settings: Any) -> OmniDraft:
    """The target and the drafter that the options name, on their device; warnings go to stderr."""
    announce(options.target)
    prepare_libraries(getattr(options, "threads", None))
    from omnidraft.api import load

    places = {"dtype": options.dtype, "device": options.device, "graphs": options.graphs, "warn": say}
    return load(options.target, options.drafter, **places, **settings)


def announce(*models: str) -> None:
    """Say on a terminal what is going to be loaded: libraries and weights take seconds, in which nothing is heard."""
    if not sys.stderr.isatty():
        return
    for model in models:
        path = Path(os.path.expanduser(model))  # noqa: PTH111  that of Path raises where there is no such user
        shown = path.name
        with suppress(OSError, ValueError):  # whoever loads it says what is wrong
            if path.is_file() and path.suffix == ".gguf":
                shown += f" ({size(path.stat().st_size)})"
        say(f"loading {shown}")


def prepare_libraries(threads: int | None = None) -> None:
    """Silence advice, reports of retries, and progress bars unless stderr is a terminal; set PyTorch's threads.

    Without a number, they are as many as pay, unless the environment gives PyTorch one.
    """
    check_docstrings()
    check_libraries()
    import torch

    if (count := threads or default_threads()) is not None:
        torch.set_num_threads(count)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    silence(bars=sys.stderr.isatty())


# ---------------------------------------------------------------- signals


@contextmanager
def _handling(note: Callable[..., None]) -> Iterator[None]:
    """Call `note` on Ctrl-C; only the main thread receives signals, so elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Default handling of Ctrl-C, and a check for one that was lost: Python drops exceptions raised in finalizers."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    with _handling(note):
        yield check


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """Return a function that is True once Ctrl-C was pressed; pressed again, it raises KeyboardInterrupt."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    with _handling(note):
        yield lambda: came
