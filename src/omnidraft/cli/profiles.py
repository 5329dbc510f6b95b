"""`omnidraft profiles`: list, show and remove profiles."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from omnidraft.cli import flags
from omnidraft.profiles.store import ProfileStore

NAME = "my-drafter/my-target-0123456789ab"  # of examples


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft profiles`; raises InputError and its kinds."""
    parser = flags.CommandParser(
        prog="omnidraft profiles",
        description="Learned weights and records, a file for each drafter and target. NAME is as `list` prints it.\n"
        "`list` and `show` take --json.",
        examples=("omnidraft profiles list", f"omnidraft profiles show {NAME}"),
    )
    flags.add(parser.command("list", "all profiles", _list, ""), "--json")
    show = parser.command("show", "one profile: settings, counters, and whether it can be read", _show, NAME)
    flags.add(show, "--json")
    forget = parser.command("forget", "remove the earlier answers from a profile, and keep the rest", _forget, NAME)
    for command in (show, forget, parser.command("remove", "delete a profile", _remove, NAME)):
        command.add_argument("name", metavar="NAME", help="as `omnidraft profiles list` prints it")
    options = parser.read(arguments)
    options.run(options, ProfileStore())
    return 0


def _list(options: argparse.Namespace, store: ProfileStore) -> None:
    entries = store.list()
    if options.json:
        print(json.dumps({"profiles": [entry.as_dict() for entry in entries]}))
        return
    if not entries:
        flags.say(f"there are no profiles in {store.root}")
        return
    rows = [("NAME", "SAVED", "SIZE", "PROBLEM")]
    for entry in entries:
        saved = entry.manifest.saved if entry.manifest else "unknown"
        rows.append((entry.name, saved, _size(entry.size), entry.problem or ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _show(options: argparse.Namespace, store: ProfileStore) -> None:
    entry = store.show(options.name)
    fields = entry.as_dict()
    if options.json:
        print(json.dumps(fields))
        return
    for name, value in {**fields, "size": _size(entry.size)}.items():
        inner = {f"{name}.{field}": v for field, v in value.items()} if isinstance(value, dict) else {name: value}
        for field, v in inner.items():
            print(f"{field}: {'none' if v is None else v}")


def _forget(options: argparse.Namespace, store: ProfileStore) -> None:
    store.forget(options.name)
    flags.say(f"{options.name} holds no earlier answers")


def _remove(options: argparse.Namespace, store: ProfileStore) -> None:
    store.remove(options.name)
    flags.say(f"removed {options.name}")


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1e6:.2f} MB"
