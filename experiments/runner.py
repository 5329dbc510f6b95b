"""The runner of experiments: options, results that a later run goes on with, a page of tables, exit codes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console

from experiments.results import Results, Row, page_of, table
from omnidraft.bench.environment import command
from omnidraft.bench.output import writing
from omnidraft.cli import flags
from omnidraft.errors import ConfigError, InputError, NumericsError, OmniDraftError

EXACT = ("float32", "int8")  # in which drafts may change no greedy token


@dataclass(frozen=True)
class Size:
    """A number of a run, or several, and of one with `--quick`, which an option of its name changes."""

    full: int | tuple[int, ...]
    quick: int | tuple[int, ...]
    what: str
    least: int = 1


class Experiment:
    """`python -m experiments.NAME`: what is measured row by row, and the page that is made of all rows."""

    name: str
    about: str
    examples: Sequence[str]
    sizes: ClassVar[Mapping[str, Size]] = {}
    title: str  # of a page that is a table, whose numbers begin at the column `first`
    columns: Sequence[str]
    first: str
    places = 2

    def add_options(self, to: flags.CommandParser) -> None:
        """Add the options of this experiment alone."""

    def setting(self, options: argparse.Namespace) -> Row:
        """What has to be the same in all runs of a file beside the sizes; raises ConfigError for mistakes."""
        return {"drafter": shown(str(options.drafter)), "dtype": options.dtype}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        """Measure what the results lack, each row added at once."""
        raise NotImplementedError

    def page(self, results: Results) -> str:
        """The page of all rows: unless it has more, a table."""
        rows = results.of("rows").values()
        return page_of(self.title, results, table(rows, self.columns, self.first, self.places))

    def wrong(self, results: Results) -> bool:
        """Whether anything was found that must not be, such as a greedy answer that is not the target's own."""
        raise NotImplementedError

    def write(self, results: Results, stem: Path) -> None:
        """Write what goes with the page."""

    def stem(self, options: argparse.Namespace) -> Path | None:
        """The place of the results, but for the endings of their files; None where they are not to be kept."""
        out: Path | None = options.out
        return out

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run with `arguments` (default: those of this process); an exit code as of `omnidraft`."""
        threads = torch.get_num_threads()
        parser = self._parser()
        try:
            options = parser.parse_args(arguments)
            options.words = [*parser.prog.split(), *(sys.argv[1:] if arguments is None else arguments)]
            flags.prepare_libraries(options.threads)
            options.threads = torch.get_num_threads()
            for name, size in self.sizes.items():
                if getattr(options, name) is None:
                    setattr(options, name, size.quick if options.quick else size.full)
            return self.run(options, Console(stderr=True, highlight=False, markup=False, soft_wrap=True))
        except SystemExit:  # after --help
            return 0
        except OmniDraftError as error:
            flags.say(f"error: {error}")
            return 2 if isinstance(error, InputError | NumericsError) else 1
        except KeyboardInterrupt:
            return flags.INTERRUPTED
        finally:
            torch.set_num_threads(threads)

    def run(self, options: argparse.Namespace, console: Console) -> int:
        """Measure what is missing, write and print the page; 1 where something is wrong."""
        stem = self.stem(options)
        setting = {name: getattr(options, name) for name in self.sizes} | self.setting(options)
        results = Results(stem and stem.with_name(f"{stem.name}.jsonl"), self.name)
        setting = json.loads(json.dumps(setting))  # as a file has it
        for before in results.settings[:1]:
            if other := [name for name, value in setting.items() if before["recipe"].get(name) != value]:
                raise ConfigError(f"--out has results of other settings ({', '.join(other)}): give another place")
        results.begin(command(options.words), setting)
        self.measure(options, results, console)
        page = self.page(results)
        if stem is not None:
            with writing(stem):
                stem.with_name(f"{stem.name}.md").write_text(page, encoding="utf-8")
                self.write(results, stem)
        print(page, end="")
        return int(self.wrong(results))

    def _parser(self) -> flags.CommandParser:
        prog = f"python -m experiments.{self.name}"
        examples = [f"{prog} {example}" for example in self.examples]
        made = flags.CommandParser(prog=prog, description=self.about, examples=examples)
        flags.add(made, "--threads")
        made.add_argument("--quick", action="store_true", help="next to no prompts and repeats of everything")
        made.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
        for name, size in self.sizes.items():
            several: dict[str, Any] = {"action": "append"} if isinstance(size.full, tuple) else {}
            text = f"{size.what} (default: {size.full}, {size.quick} with --quick)"
            made.add_argument(flags.flag(name), type=flags.at_least(size.least), metavar="N", help=text, **several)
        self.add_options(made)
        return made


def shown(model: str) -> str:
    """A model's name without the folders that it lies in."""
    return Path(model).name if Path(model).exists() else model


def chosen(what: str, given: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names given; raises ConfigError for one that does not exist."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{what} {name!r} is not known; use some of {', '.join(known)}")
    return list(given)
