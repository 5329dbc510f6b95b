"""`omnidraft profiles`: list, show, remove, export and import what was learned."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omnidraft import flags
from omnidraft.profiles.store import Entry, ProfileStore

EXAMPLE = {"name": "my-drafter/my-target-0123456789ab", "file": "mine.omnidraft"}
EXAMPLES = ("omnidraft profiles list", f"omnidraft profiles export {EXAMPLE['name']} {EXAMPLE['file']}")
Run = Callable[[argparse.Namespace, ProfileStore], None]


def main(arguments: Sequence[str], parser: flags.Parser) -> int:
    """Run `omnidraft profiles` with these arguments.

    `parser` makes the parsers, so that mistakes are reported as everywhere else.  Raises InputError and its kinds.
    """
    profiles = parser(
        prog="omnidraft profiles", description="What was learned, for each drafter and target.", examples=EXAMPLES
    )
    commands = profiles.add_subparsers(metavar="COMMAND", required=True)
    _add(commands, "list", "all profiles", _list, json=True)
    _add(commands, "show", "one profile, its checksums compared", _show, name=True, json=True)
    _add(commands, "remove", "delete a profile", _remove, name=True)
    _add(commands, "export", "write a profile to one file", _export, name=True, file=True)
    _add(commands, "import", "take a profile from such a file", _import, file=True)
    try:
        options, unknown = profiles.parse_known_args(arguments)
    except SystemExit:  # after --help
        return 0
    if unknown:
        options.parser.error(f"unknown argument {unknown[0]!r}")
    options.run(options, ProfileStore())
    return 0


def _add(commands: Any, command: str, text: str, run: Run, **takes: bool) -> None:
    example = " ".join(["omnidraft profiles", command, *(EXAMPLE[name] for name in takes if name in EXAMPLE)])
    parser = commands.add_parser(
        command, help=text, description=text.capitalize() + ".", allow_abbrev=False, examples=(example,)
    )
    parser.set_defaults(run=run, parser=parser)
    if "name" in takes:
        parser.add_argument("name", metavar="NAME", help="as `omnidraft profiles list` prints it")
    if "file" in takes:
        parser.add_argument("file", type=Path, metavar="FILE")
        parser.add_argument("--force", action="store_true", help="replace what is there")
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


def _export(options: argparse.Namespace, store: ProfileStore) -> None:
    store.export(options.name, options.file, force=options.force)
    flags.say(f"exported {options.name} to {options.file}")


def _import(options: argparse.Namespace, store: ProfileStore) -> None:
    flags.say(f"imported {store.import_(options.file, force=options.force)}")


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1e6:.2f} MB"
