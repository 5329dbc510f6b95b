"""Result files: JSON lines, a setting first, then what was measured, then an end that says how much there must be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from omnidraft.errors import InputError

FORMAT = "omnidraft compare 1"
AGAIN = "run the comparison again"
BASELINE = "generate"
METHODS = (BASELINE, "plain", "uad", "lookup", "intersection", "paper", "exact", "goodput")  # in every table's order


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What the rounds of an answer did; times, in seconds, are known of our own loop."""

    rounds: int
    drafted: int
    proposed: int
    accepted: int
    symbols: int
    symbols_accepted: int
    draft_s: float | None = None
    verify_s: float | None = None
    overhead_s: float | None = None  # acceptance, commit and the draft-length policy


@dataclass(frozen=True, kw_only=True)
class Run:
    """One timed answer."""

    repeat: int
    task: str
    prompt: int  # index within the task
    method: str
    tokens: int
    seconds: float
    identical: bool | None  # to the tokens of `generate`; None: sampled
    counts: Counts | None  # None: in older files, where `transformers` decoded


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that one run of the comparison found out."""

    setting: dict[str, Any]
    runs: list[Run] = field(default_factory=list)
    unavailable: dict[str, str] = field(default_factory=dict)  # method -> reason


class Writer:
    """Collects results, and writes each at once where a file is given."""

    def __init__(self, setting: dict[str, Any], file: TextIO | None = None) -> None:
        self.results = Results(setting=setting)
        self._file = file
        self._line({"kind": "setting", "format": FORMAT, **setting})

    def add(self, run: Run) -> None:
        self.results.runs.append(run)
        self._line({"kind": "run", **asdict(run)})

    def drop(self, method: str, reason: str) -> None:
        """Leave a method out from now on."""
        self.results.unavailable[method] = reason
        self._line({"kind": "unavailable", "method": method, "reason": reason})

    def end(self) -> None:
        self._line({"kind": "end", "runs": len(self.results.runs)})

    def _line(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()


def read(path: Path) -> Results:
    """Read a result file; raises InputError, naming it, for one that is truncated, damaged, or none."""
    results, end = _parsed(path)
    if end is None:
        raise InputError(f"result file {path} is truncated, it has no end line: {AGAIN}, with --resume {path.name}")
    if end.get("runs") != (found := len(results.runs)):
        raise InputError(f"result file {path} is truncated, it has {found} of {end.get('runs')} runs: {AGAIN}")
    grid = Counter((run.method, run.task, run.repeat, run.prompt) for run in results.runs)
    repeats = {run.repeat for run in results.runs}
    whole = {
        (method, task, repeat, prompt)
        for method in {run.method for run in results.runs} - results.unavailable.keys()
        for task, its in results.setting["tasks"].items()
        for repeat in repeats
        for prompt in range(its["prompts"])
    }
    kept = {key for key in grid if key[0] not in results.unavailable}
    if kept != whole or any(count > 1 for count in grid.values()):
        raise InputError(f"result file {path} is damaged, not every method has every prompt once a repeat: {AGAIN}")
    return results


def unfinished(path: Path) -> Results:
    """What is whole in a file that may have been cut off at any time: its setting, and all runs of finished repeats.

    Raises InputError for what is no result file.
    """
    results, _ = _parsed(path, torn=True)
    prompts = sum(its["prompts"] for its in results.setting["tasks"].values())
    counts = Counter((run.method, run.repeat) for run in results.runs)
    methods = {run.method for run in results.runs} - results.unavailable.keys()
    repeat = 0
    while methods and all(counts[method, repeat] == prompts for method in methods):
        repeat += 1
    runs = [run for run in results.runs if run.repeat < repeat]
    return Results(setting=results.setting, runs=runs, unavailable=results.unavailable)


def _parsed(path: Path, *, torn: bool = False) -> tuple[Results, dict[str, Any] | None]:
    """The records of a file, and what its end line says; with `torn`, a broken last line is passed over."""
    records = lines_of(path, FORMAT, torn=torn)
    end = records.pop() if records[-1].get("kind") == "end" else None
    try:
        return _results(records), end
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"result file {path} is damaged ({error!r}): {AGAIN}") from error


def lines_of(path: Path, kind: str, *, torn: bool = False) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, the first of which names the format `kind`.

    With `torn`, a broken last line is passed over.  Raises InputError, naming the file, for any other.
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
        except (json.JSONDecodeError, RecursionError) as error:
            if not (torn and number == len(lines)):
                raise InputError(f"result file {path} is truncated, it has a broken line: {AGAIN}") from error
    if not all(isinstance(record, dict) for record in records):
        raise InputError(f"result file {path} is damaged, a line holds no record: {AGAIN}")
    if (found := records[0].get("format")) != kind:
        raise InputError(f"{path} is of format {found!r}, not {kind!r}: {AGAIN}")
    return records


def _results(records: Sequence[dict[str, Any]]) -> Results:
    setting = {name: value for name, value in records[0].items() if name not in ("kind", "format")}
    if not {"target", "tasks"} <= setting.keys():
        raise KeyError("target")
    for its in setting["tasks"].values():
        if not (isinstance(its["prompts"], int) and isinstance(its["left_out"], int) and isinstance(its["hash"], str)):
            raise TypeError(f"tasks: {its}")
    results = Results(setting=setting)
    for record in records[1:]:
        kind = record.pop("kind")
        if kind == "run":
            counts = record.pop("counts")
            if counts and "translate_s" in counts:  # as older files call it
                counts["overhead_s"] = counts.pop("translate_s")
            results.runs.append(Run(**record, counts=counts and Counts(**counts)))
            if not results.runs[-1].seconds > 0:
                raise ValueError("a run of no seconds")
        elif kind == "unavailable":
            results.unavailable[record["method"]] = record["reason"]
        elif kind != "passes":  # as older files have them
            raise KeyError(kind)
    return results
