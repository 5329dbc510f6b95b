"""What the commands share: flags made of settings, parsers that report mistakes in one line, words on stderr."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NoReturn

from omnidraft import defaults
from omnidraft.config import ADAPT, GenerationLimits, Settings
from omnidraft.errors import ConfigError

Parser = Callable[..., argparse.ArgumentParser]

# the parameters of the Python interface that are no settings: default and help
LOAD = {
    "dtype": ("auto", "auto, float32, bfloat16 or float16, for both models"),
    "device": ("auto", "auto, cpu, cuda, cuda:N or mps, for both models"),
}
LEARN = {
    "adapt": ("off", f"learn from the answers: {', '.join(ADAPT)}"),
    "profile": ("auto", "where what is learned is kept: a file, or none"),
}
DRAFTER = f"{defaults.DRAFTER}, or {defaults.EMBEDDED} where the hub is out of reach"  # where none is named


def say(message: str) -> None:
    """Say something to the person at the terminal."""
    print(f"omnidraft: {message}".replace("\n", " "), file=sys.stderr, flush=True)


def quiet_libraries() -> None:
    """Leave stderr to our own lines: no reports of retries, and progress bars only for someone who watches."""
    from transformers.utils import logging as reports

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    if not sys.stderr.isatty():
        reports.disable_progress_bar()


class CommandParser(argparse.ArgumentParser):
    """A parser whose mistakes are a ConfigError, and whose help ends with examples."""

    def __init__(self, *, examples: Sequence[str] = (), **options: Any) -> None:
        if examples:
            options["epilog"] = "\n".join(["examples:", *(f"  {example}" for example in examples)])
        super().__init__(**options, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}: see {self.prog} --help")


def settings(cls: type[Settings]) -> dict[str, tuple[Any, str]]:
    """Default and help of each field, by name."""
    return {f.name: (f.metadata["none"] if f.default is None else f.default, f.metadata["help"]) for f in fields(cls)}


def add(parser: argparse.ArgumentParser, title: str, options: dict[str, tuple[Any, str]]) -> None:
    """Add flags that are absent from the result unless given, so that defaults have one home."""
    group = parser.add_argument_group(title)
    for name, (default, text) in options.items():
        group.add_argument(
            flag(name),
            type=number,
            metavar="VALUE",
            default=argparse.SUPPRESS,
            help=f"{text} (default: {default})",
        )


def number(text: str) -> int | float | str:
    """A number where it is one; the settings themselves refuse anything else, and say what is allowed."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def flag(name: str) -> str:
    """A setting's flag."""
    return "--" + name.replace("_", "-")


GENERATE = settings(GenerationLimits)


def unless_none(given: str) -> str | None:
    """The profile or drafter that a flag asks for."""
    return None if given == "none" else given


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Ctrl-C as ever, and a check for one that was lost: Python drops what is raised while it clears an object away."""
    came = False

    def note(*_: object) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # signals go to the main thread
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
