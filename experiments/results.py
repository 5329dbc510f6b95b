"""Rows of a study by kind and key, kept as JSON lines: several runs may add to one file, side by side, too."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from omnidraft.bench.environment import commit, machine
from omnidraft.bench.output import down, markdown_table, writing
from omnidraft.bench.records import lines_of

Row = dict[str, Any]


class Results:
    """The rows of one study; a row replaces an earlier one of the same kind and key.

    Each is appended to `path` at once, where there is one.  Raises InputError for a file of another study.
    """

    def __init__(self, path: Path | None, study: str) -> None:
        self._path, self._format = path, f"omnidraft {study} 1"
        self.settings: list[Row] = []
        self._rows: dict[str, dict[str, Row]] = defaultdict(dict)
        if path is not None:
            with writing(path):
                pass
            if path.exists():
                for record in lines_of(path, self._format, torn=True):
                    self._take(record)
                data = path.read_bytes()
                if not data.endswith(b"\n"):  # a line that was cut off
                    path.write_bytes(data[: data.rfind(b"\n") + 1])

    def begin(self, command: str, recipe: Row) -> None:
        """Note the setting of what follows: machine, versions, command and recipe."""
        where = machine(torch.device("cpu")) | {"command": command}
        self._append({"kind": "setting", "format": self._format, **where, "recipe": recipe})

    def add(self, kind: str, key: str, row: Row) -> None:
        """Keep a row."""
        self._append({"kind": kind, "key": key, **row, "commit": commit()})

    def of(self, kind: str) -> dict[str, Row]:
        """The rows of a kind by their keys, in the order in which these first came."""
        return self._rows[kind]

    def as_dict(self) -> Row:
        """All rows by kind, and the settings."""
        return {"settings": self.settings} | {kind: list(rows.values()) for kind, rows in self._rows.items() if rows}

    def _append(self, record: Row) -> None:
        record = json.loads(json.dumps(record))  # what a file would hold
        self._take(record)
        if self._path is not None:
            with writing(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _take(self, record: Row) -> None:
        if record["kind"] == "setting":
            self.settings.append(record)
        else:
            row = {name: value for name, value in record.items() if name != "kind"}
            self._rows[record["kind"]][row["key"]] = row


def page_of(title: str, results: Results, *sections: str) -> str:
    """A page with the commands of all runs, and then its sections."""
    commands = "".join(f"    {each}\n" for each in dict.fromkeys(setting["command"] for setting in results.settings))
    return "\n".join([f"# {title}\n\n{commands}", *filter(None, sections)])


def table(
    rows: Iterable[Row],
    columns: Sequence[str],
    first: str,
    places: int = 2,
    digits: Mapping[str, int] = MappingProxyType({}),
    nearest: Sequence[str] = (),
) -> str:
    """A table of rows; numbers begin at column `first`, with so many `places`, or the `digits` of their own.

    They are rounded down, since more is better, but those of `nearest`, which are rounded to the nearest.
    """

    def cell(name: str, value: Any) -> object:
        if not isinstance(value, float):
            return "–" if value is None else value
        own = digits.get(name, places)
        return f"{value:.{own}f}" if name in nearest else down(value, own)

    lines = [[cell(name, row.get(name)) for name in columns] for row in rows]
    return markdown_table(columns, lines, columns.index(first))
