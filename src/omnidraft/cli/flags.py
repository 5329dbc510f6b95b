"""Shared parts of the commands: flags made of settings, parsers with one-line errors, messages on stderr."""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

from omnidraft import defaults
from omnidraft.config import ADAPT, Settings, suggestion
from omnidraft.errors import ConfigError

DRAFTER = f"{defaults.DRAFTER}, or {defaults.EMBEDDED} without the hub"  # the default drafter
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class Option(NamedTuple):
    """Default, help and metavar of a flag."""

    default: Any
    help: str
    metavar: str = "NAME"
    parse: Callable[[str], Any] = str


# parameters of `omnidraft.load` that are no settings
LOAD = {
    "dtype": Option("auto", "auto, float32, bfloat16 or float16, for both models"),
    "device": Option("auto", "auto, cpu, cuda, cuda:N or mps, for both models"),
}
LEARN = {
    "adapt": Option("off", f"learn from the answers: {', '.join(ADAPT)}"),
    "profile": Option("auto", "where learned weights are kept: a file, or none", "FILE"),
}


def say(message: str) -> None:
    """Print one line on stderr."""
    print(f"omnidraft: {message}".replace("\n", " "), file=sys.stderr, flush=True)


def quiet_libraries() -> None:
    """Silence reports of retries, and progress bars unless stderr is a terminal."""
    from transformers.utils import logging as reports

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        reports.disable_progress_bar()


# ---------------------------------------------------------------- parsers


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ConfigError for mistakes, and ends its help with examples."""

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {example}" for example in examples)])
        super().__init__(**options, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.set_defaults(parser=self)  # of a sub-command: that one
        self.keys: list[str] = []  # of --set

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}: see {self.prog} --help")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace | None:
        """The options, or None after --help; raises ConfigError for mistakes, with the nearest known flag."""
        try:
            options, unknown = self.parse_known_args(arguments)
        except SystemExit:
            return None
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


def settings(cls: type[Settings], *names: str) -> dict[str, Option]:
    """Flags of all fields of `cls`, or of those in `names`."""
    metavars = {"int": "N", "float": "X", "str": "NAME"}
    return {
        f.name: Option(
            f.metadata["none"] if f.default is None else f.default,
            f.metadata["help"],
            "|".join(metavars[kind] for kind in str(f.type).split(" | ") if kind in metavars),
            number,
        )
        for f in fields(cls)
        if not names or f.name in names
    }


def add(parser: argparse.ArgumentParser, title: str, options: Mapping[str, Option]) -> argparse._ArgumentGroup:
    """Add a group of flags that are absent from the result unless given, so that defaults have one home."""
    group = parser.add_argument_group(title)
    for name, option in options.items():
        group.add_argument(
            flag(name),
            type=option.parse,
            metavar=option.metavar,
            default=argparse.SUPPRESS,
            help=f"{option.help} (default: {option.default})",
        )
    return group


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def number(text: str) -> int | float | str:
    """The number that `text` writes, else the text; the settings check the type."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def unless_none(given: str) -> str | None:
    """None for "none", else the text."""
    return None if given == "none" else given


# ---------------------------------------------------------------- --set


def add_set(parser: CommandParser, group: argparse._ArgumentGroup, *classes: type[Settings]) -> None:
    """Add `--set KEY=VALUE` for every field of `classes`, and `--help-all`, which lists them."""
    group.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any other setting; --help-all lists them"
    )
    parser.keys = [f.name for cls in classes for f in fields(cls)]
    parser.add_argument("--help-all", action=_HelpAll, classes=classes, nargs=0, help="show every setting and exit")


def collect(options: argparse.Namespace, *classes: type[Settings]) -> list[dict[str, Any]]:
    """The fields given by flags and by `--set`, for each of `classes`; raises ConfigError for an unknown key."""
    given = dict(vars(options))
    known = [f.name for cls in classes for f in fields(cls)]
    for pair in options.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set is {pair!r}; it must be KEY=VALUE, such as --set {known[0]}={value or 1}")
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}: {suggestion(name, known)}")
        if name in given:
            raise ConfigError(f"{name} is given twice: leave one out")
        given[name] = None if value == "none" else number(value)
    return [{f.name: given[f.name] for f in fields(cls) if f.name in given} for cls in classes]


class _HelpAll(argparse.Action):
    def __init__(self, *, classes: Sequence[type[Settings]], **options: Any) -> None:
        super().__init__(**options, default=argparse.SUPPRESS)
        self.classes = classes

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        lines = [parser.format_help(), "settings, by --set KEY=VALUE:"]
        width = shutil.get_terminal_size().columns - 2
        for cls in self.classes:
            lines.append("\n  " + re.sub("(?<!^)(?=[A-Z])", " ", cls.__name__).lower() + ":")
            for name, option in settings(cls).items():
                text = textwrap.wrap(f"{option.help} (default: {option.default})", max(20, width - 26))
                lines += [f"    {name:<21} {text[0]}", *(f"{'':26}{line}" for line in text[1:])]
        print("\n".join(lines))
        parser.exit()


# ---------------------------------------------------------------- signals


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

    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
