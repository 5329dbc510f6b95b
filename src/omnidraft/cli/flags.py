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
from omnidraft.config import (
    ADAPT,
    ADAPTERS,
    DRAFT_LENGTHS,
    EVICTIONS,
    LONGEST_DRAFT,
    LOSSES,
    MODES,
    NGRAM_SEEDS,
    TRAINS,
    VERIFICATIONS,
    Drafting,
    Learning,
    Sampling,
)
from omnidraft.errors import ConfigError

Parser = Callable[..., argparse.ArgumentParser]

HELP = {
    "temperature": "0 is greedy decoding",
    "top_k": "keep only so many of the likeliest tokens; 0: all",
    "top_p": "keep the likeliest tokens of this total probability; above 0, at most 1",
    "min_p": "keep tokens at least so likely, relative to the likeliest",
    "repetition_penalty": "above 1 makes tokens that have occurred less likely",
    "draft_length": f"{', '.join(DRAFT_LENGTHS)}, or a fixed number of tokens up to {LONGEST_DRAFT}; "
    "0 is plain decoding",
    "max_draft_length": "draft tokens a round at most, where their number is not fixed",
    "threshold": "probability, bound or chance below which confidence, entropy or head ends a draft (default: 0.4)",
    "mode": f"how proposals are made and verified: {', '.join(MODES)}",
    "verification": f"of a sampled draft: {', '.join(VERIFICATIONS)}",
    "drafter_temperature": "the drafter's own temperature (default: the target's)",
    "ngram_seed": f"n-grams that are active at first: {', '.join(NGRAM_SEEDS)}",
    "ngram_bound": "n-grams that are active at a time at most (default: no bound)",
    "ngram_eviction": f"which n-grams go when there are too many: {', '.join(EVICTIONS)}",
    "drafter_step": "auto (a lean step in 8 bits where there is one), or that of transformers",
    "trains": f"what learns, the acceptance head in two ways with the drafter: {', '.join(TRAINS)}",
    "loss": f"the paper's (hybrid), or a divergence of the exact loss: {', '.join(LOSSES)}",
    "teacher_temperature": "temperature of the target's distributions that are learned from",
    "adapter": f"what is trained: {', '.join(ADAPTERS)}",
    "rank": "of LoRA",
    "learning_rate": "of AdamW",
    "interval": "answers between updates of the weights",
    "replays": "optimizer steps on earlier answers after each on new ones",
}
# the parameters of the Python interface that are no settings: default and help
LOAD = {
    "dtype": ("auto", "auto, float32, bfloat16 or float16, for both models"),
    "device": ("auto", "auto, cpu, cuda, cuda:N or mps, for both models"),
}
LEARN = {
    "adapt": ("off", f"learn from the answers: {', '.join(ADAPT)}"),
    "profile": ("auto", "where what is learned is kept: a file, or none"),
}
GENERATE = {
    "max_new_tokens": (256, "tokens of the answer at most"),
    "seed": (0, "decides every draw"),
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


def settings(cls: type[Sampling | Drafting | Learning]) -> dict[str, tuple[Any, str]]:
    """Default and help of some settings, by name."""
    return {f.name: (f.default, HELP[f.name]) for f in fields(cls)}


def add(parser: argparse.ArgumentParser, title: str, options: dict[str, tuple[Any, str]]) -> None:
    """Flags that are absent from the result where they are not given, so that defaults have one home."""
    group = parser.add_argument_group(title)
    for name, (default, text) in options.items():
        numeric, either = not isinstance(default, str), name == "draft_length"
        group.add_argument(
            flag(name),
            type=number if numeric or either else str,
            metavar="N|NAME" if either else "N" if numeric else "NAME",
            default=argparse.SUPPRESS,
            help=text if default is None else f"{text} (default: {default})",
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
