"""Rows of a study by kind, kept as JSON lines: several runs, at once or one after the other, may add to one file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from omnidraft.bench.environment import commit, machine, writing
from omnidraft.bench.records import lines_of

Row = dict[str, Any]


class Results:
    """The rows of one study; a row replaces an earlier one of its kind with the same values of `keys`.

    Each is appended to `path` at once, where there is one.  Raises InputError for a file of another study.
    """

    def __init__(self, path: Path | None, study: str, keys: Sequence[str]) -> None:
        self._path, self._keys, self._format = path, keys, f"omnidraft {study} 1"
        self.settings: list[Row] = []
        self._rows: dict[str, dict[tuple[Any, ...], Row]] = defaultdict(dict)
        if path is not None:
            with writing(path):
                pass
            if path.exists():
                for record in lines_of(path, self._format, torn=True):
                    self._take(record)
                data = path.read_bytes()
                if not data.endswith(b"\n"):  # a line that was cut off
                    path.write_bytes(data[: data.rfind(b"\n") + 1])

    def begin(self, command: str, **more: Any) -> None:
        """Note the setting of what follows: machine, versions, command and sizes."""
        where = machine(torch.device("cpu")) | {"command": command}
        self._append({"kind": "setting", "format": self._format, **where, **more})

    def add(self, kind: str, row: Row) -> None:
        """Keep a row."""
        self._append({"kind": kind, **row, "commit": commit()})

    def forget(self, kind: str, where: Row) -> None:
        """Drop the rows of a kind that have these values."""
        self._append({"kind": "forget", "of": kind, "where": where})

    def of(self, kind: str) -> list[Row]:
        """The rows of a kind, in the order in which their keys first came."""
        return list(self._rows[kind].values())

    def as_dict(self) -> Row:
        """All rows by kind, and the settings."""
        return {"settings": self.settings} | {kind: self.of(kind) for kind in self._rows if self._rows[kind]}

    def _append(self, record: Row) -> None:
        record = json.loads(json.dumps(record))  # what a file would hold
        self._take(record)
        if self._path is not None:
            with writing(self._path), self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def _take(self, record: Row) -> None:
        kind = record["kind"]
        if kind == "setting":
            self.settings.append(record)
        elif kind == "forget":
            rows = self._rows[record["of"]]
            for key in [key for key, row in rows.items() if record["where"].items() <= row.items()]:
                del rows[key]
        else:
            row = {name: value for name, value in record.items() if name != "kind"}
            self._rows[kind][tuple(json.dumps(row.get(name)) for name in self._keys)] = row
