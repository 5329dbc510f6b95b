"""`omnidraft profiles`: list, show and remove profiles."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any

from omnidraft.cli import flags
from omnidraft.profiles.store import Entry, ProfileStore

EXAMPLE = "my-drafter/my-target-0123456789ab"
EXAMPLES = ("omnidraft profiles list", f"omnidraft profiles show {EXAMPLE}")
Run = Callable[[argparse.Namespace, ProfileStore], None]


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft profiles`; raises InputError and its kinds."""
    profiles = flags.CommandParser(
        prog="omnidraft profiles",
        description="Learned weights and records, a file for each drafter and target.",
        examples=EXAMPLES,
    )
    commands = profiles.add_subparsers(metavar="COMMAND", required=True)
    _add(commands, "list", "all profiles", _list, json=True)
    _add(commands, "show", "one profile, its checksum compared", _show, name=True, json=True)
    _add(commands, "remove", "delete a profile", _remove, name=True)
    options = profiles.read(arguments)
    if options is not None:
        options.run(options, ProfileStore())
    return 0


def _add(commands: Any, command: str, text: str, run: Run, **takes: bool) -> None:
    example = f"omnidraft profiles {command}" + (f" {EXAMPLE}" if "name" in takes else "")
    parser = commands.add_parser(command, help=text, description=text.capitalize() + ".", examples=(example,))
    parser.set_defaults(run=run)
    if "name" in takes:
        parser.add_argument("name", metavar="NAME", help="as `omnidraft profiles list` prints it")
    if "json" in takes:
        parser.add_argument("--json", action="store_true", help="print one JSON object")


def _list(options: argparse.Namespace, store: ProfileStore) -> None:
    entries = store.list()
    if options.json:
        print(json.dumps({"profiles": [entry.as_dict() for entry in entries]}))
        return
    if not entries:
        flags.say(f"there are no profiles in {store.root}")
        return
    rows = [("NAME", "SAVED", "SIZE", "PROBLEM"), *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(entry: Entry) -> tuple[str, str, str, str]:
    saved = entry.manifest.saved if entry.manifest else "unknown"
    return entry.name, saved, _size(entry.size), entry.problem or ""


def _show(options: argparse.Namespace, store: ProfileStore) -> None:
    entry = store.show(options.name)
    found = entry.as_dict()
    if options.json:
        print(json.dumps(found))
        return
    for name, value in {**found, "size": _size(entry.size)}.items():
        inner = {f"{name}.{field}": v for field, v in value.items()} if isinstance(value, dict) else {name: value}
        for field, v in inner.items():
            print(f"{field}: {'none' if v is None else v}")


def _remove(options: argparse.Namespace, store: ProfileStore) -> None:
    store.remove(options.name)
    flags.say(f"removed {options.name}")


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1e6:.2f} MB"
