"""Rows of a study by kind and key, kept as JSON lines: several runs may add to one file, side by side, too."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from omnidraft.bench.environment import machine
from omnidraft.bench.output import down, markdown_table, writing
from omnidraft.errors import InputError

AGAIN = "run the study again"

Row = dict[str, Any]


class Results:
    """The rows of one study; a row replaces an earlier one of the same kind and key.

    Each is appended to `path` at once, where there is one.  Raises InputError for a file of another study.
    """

    def __init__(self, path: Path | None, study: str) -> None:
        self._path, self._format, self._commit = path, f"omnidraft {study} 1", None
        self.settings: list[Row] = []
        self._rows: dict[str, dict[str, Row]] = defaultdict(dict)
        if path is not None:
            with writing(path):
                pass
            if path.exists():
                for record in _lines_of(path, self._format):
                    self._take(record)
                data = path.read_bytes()
                if not data.endswith(b"\n"):  # a line that was cut off
                    path.write_bytes(data[: data.rfind(b"\n") + 1])

    def begin(self, command: str, recipe: Row) -> None:
        """Note the setting of what follows: machine, versions, command and recipe."""
        where = machine(torch.device("cpu")) | {"command": command}
        self._commit = where["commit"]
        self._append({"kind": "setting", "format": self._format, **where, "recipe": recipe})

    def add(self, kind: str, key: str, row: Row) -> None:
        """Keep a row."""
        self._append({"kind": kind, "key": key, **row, "commit": self._commit})

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
    """A table of rows; numbers begin at column `first`, with `places` decimals, or the `digits` of their own.

    They are rounded down, since more is better, but those of `nearest`, which are rounded to the nearest.
    """

    def cell(name: str, value: Any) -> object:
        if not isinstance(value, float):
            return "–" if value is None else value
        own = digits.get(name, places)
        return f"{value:.{own}f}" if name in nearest else down(value, own)

    lines = [[cell(name, row.get(name)) for name in columns] for row in rows]
    return markdown_table(columns, lines, columns.index(first))


def _lines_of(path: Path, kind: str) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, the first of which names the format `kind`.

    A broken last line, of a run that was cut off, is left out.  Raises InputError for any other damage.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read result file {path} ({error}): check the path") from error
    if not lines or kind not in lines[0]:
        raise InputError(f"{path} is no result file of format {kind!r}: give one that is")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            if not 1 < number == len(lines):
                raise InputError(f"result file {path} is truncated, it has a broken line: {AGAIN}") from error
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"result file {path} is damaged, a line holds no record: {AGAIN}")
    if (found := records[0].get("format")) != kind:
        raise InputError(f"{path} is of format {found!r}, not {kind!r}: {AGAIN}")
    return records
